"""Authentication: TLS, client certificates, the secret of a job; the effect and the cost of unauthenticated connections."""
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import select
import socket
import struct
import subprocess
import time
import unittest

import cluster
import digits
import event_records
from certificates import make_authority, make_certificate

MAX_UNAUTHENTICATED_SECONDS = 12.0
MAX_UNAUTHENTICATED_BYTES = 64 << 10  # each connection
MAX_FLOODED_BYTES = 64 << 20  # all connections together

# The first message of a peer: that of transport/tcp/frame.h, and the preface of HTTP/2 with empty settings.
_HELLO = struct.pack("<HBB", 0x5267, 1, 0), struct.pack("<IIQQQQ", 0, 0, 0x6C69617264617267, 0, 0, 1)
HELLO_OF_TCP = _HELLO[0] + struct.pack("<I", event_records.crc32c(_HELLO[0] + _HELLO[1])) + _HELLO[1]
HELLO_OF_HTTP_2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def make_secret(path, text="0123456789abcdef" * 4):
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


class Secured(cluster.ClusterTest):
    def own(self, name):
        return ["--cert-file", self.folder / f"{name}.pem", "--key-file", self.folder / f"{name}.key"]

    def trust(self, name):
        return ["--trusted-ca-file", self.folder / f"{name}.pem"]

    def start_ps(self, *flags):
        self.common_flags = [*self.addresses(1), "--model", "linear", "--epochs", 1]
        return self.train(*self.common_flags, "--job_name", "ps", "--task_index", 0, *flags, name="ps")

    def listening(self):
        host, port = self.ps_addresses[0].split(":")

        def is_up():
            with socket.socket() as probe:
                return probe.connect_ex((host, int(port))) == 0

        cluster.wait_until(is_up, cluster.START, lambda: f"no listener on port {port}")
        return host, int(port)

    def assert_trains(self, ps, *flags):
        worker = self.start_worker(0, *flags)
        for task in (worker, ps):
            self.assert_ends(task, cluster.GOOD)
        cluster.hash_of(worker)

    def assert_refused(self, says, *flags, code=cluster.CONFIGURATION):
        worker = self.start_worker(0, *flags)
        self.assert_ends(worker, code, says=[says])


class Tls(Secured):
    def setUp(self):
        super().setUp()
        for authority in ("ca", "other"):
            make_authority(self.folder, authority)
        for name, authority in (("ps", "ca"), ("worker", "ca"), ("foreign", "other")):
            make_certificate(self.folder, name, authority)

    def handshake(self, version):
        host, port = self.listening()
        # The gate in front of TLS takes the request that a proxy takes.
        command = ["openssl", "s_client", "-proxy", f"{host}:{port}", "-connect", f"{host}:{port}", f"-{version}", "-alpn", "h2",
                   "-brief"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=cluster.START, check=False)

    def test_only_version_1_3_and_the_right_authority(self):
        ps = self.start_ps(*self.own("ps"))
        self.assertNotIn(b"CONNECTION ESTABLISHED", self.handshake("tls1_2").stderr)
        modern = self.handshake("tls1_3")
        self.assertIn(b"CONNECTION ESTABLISHED", modern.stderr)
        self.assertIn(b"TLSv1.3", modern.stderr)
        self.assert_refused(r"TLS failed: .*certificate verify failed.*does --trusted-ca-file match its certificate",
                            *self.trust("other"))
        self.assert_refused(r"does it require TLS or a certificate\?", "--join-timeout", 3, code=cluster.retry_worthy)
        self.assert_trains(ps, *self.trust("ca"))

    def test_a_certificate_for_another_host_is_none(self):
        make_certificate(self.folder, "ps", "ca", names="DNS:elsewhere.example")
        self.start_ps(*self.own("ps"))
        self.assert_refused("TLS failed", *self.trust("ca"))

    def test_workers_with_a_certificate_only(self):
        ps = self.start_ps(*self.own("ps"), *self.trust("ca"), "--client-cert-auth")
        for foreign in ([], self.own("foreign")):
            self.assert_refused(r"does it require TLS or a certificate\?", *self.trust("ca"), *foreign,
                                "--join-timeout", 3, code=cluster.retry_worthy)
        self.assert_trains(ps, *self.trust("ca"), *self.own("worker"))

    def test_a_ps_without_tls_is_not_talked_to(self):
        self.start_ps()
        self.assert_refused(r"TLS failed: .*does the server use TLS\?", *self.trust("ca"))

    def test_top_needs_the_same(self):
        ps = self.start_ps(*self.own("ps"), "--secret-file", make_secret(self.folder / "secret"))
        self.listening()
        asked = [cluster.binary(), "top", "--once", "--ps_hosts", self.ps_addresses[0]]
        for flags, code in ((["--secret-file", self.folder / "secret"], cluster.RETRY),  # the ps may start later
                            (self.trust("ca"), cluster.CONFIGURATION),
                            ([*self.trust("ca"), "--secret-file", self.folder / "secret"], cluster.GOOD)):
            top = self.launch("top", [*asked, *map(str, flags)])
            self.assertEqual(top.code(cluster.START), code, top.transcript())
        self.assertIsNone(ps.process.poll(), ps.transcript())

    def test_flags_and_files_that_cannot_be(self):
        for says, flags in (("--cert-file and --key-file belong together", ["--cert-file", self.folder / "ps.pem"]),
                            ("--client-cert-auth: needs --trusted-ca-file", [*self.own("ps"), "--client-cert-auth"]),
                            ("needs --cert-file and --key-file, too", self.trust("ca")),
                            (r"--trusted-ca-file .*ps.key: holds no certificate",
                             [*self.own("ps"), "--trusted-ca-file", self.folder / "ps.key", "--client-cert-auth"]),
                            ("cannot be read", ["--cert-file", "/no/such.pem", "--key-file", "/no/such.key"]),
                            (r"--key-file .*worker.key: is not the key of --cert-file .*ps.pem",
                             ["--cert-file", self.folder / "ps.pem", "--key-file", self.folder / "worker.key"]),
                            ("--cert-file .*ps.key: holds no certificate",
                             ["--cert-file", self.folder / "ps.key", "--key-file", self.folder / "ps.pem"])):
            ps = self.start_ps(*flags)
            self.assert_ends(ps, cluster.CONFIGURATION, says=[says])


class Secret(Secured):
    def test_a_task_with_the_secret_joins(self):
        secret = make_secret(self.folder / "secret")
        other = make_secret(self.folder / "other", "fedcba9876543210" * 4)
        ps = self.start_ps("--secret-file", secret)
        self.assert_refused("this job has a secret: give --secret-file")
        ps.wait_for(r"a task at 127\.0\.0\.1 was refused: this job has a secret: give --secret-file", cluster.START)
        self.assert_refused("does not have this job's secret: is its --secret-file another one", "--secret-file", other)
        self.assertEqual(ps.text().count("was refused"), 1, ps.transcript())  # one line in 10 s
        self.assert_trains(ps, "--secret-file", secret)

    def test_a_ps_without_it_is_not_believed(self):
        ps = self.start_ps()
        self.assert_refused("has no secret, and this task has one", "--secret-file", make_secret(self.folder / "secret"))
        ps.wait_for(r"a task at 127\.0\.0\.1 was refused: it has a secret, and this process has none: give --secret-file", cluster.START)

    def test_a_ps_names_a_task_with_another_secret(self):
        ps = self.start_ps("--secret-file", make_secret(self.folder / "secret"))
        self.assert_refused("does not have this job's secret", "--secret-file",
                            make_secret(self.folder / "other", "fedcba9876543210" * 4))
        ps.wait_for(r"a task at 127\.0\.0\.1 was refused: this job's secret is another one: give all tasks the same --secret-file",
                    cluster.START)

    def test_beyond_this_host_something_has_to_be_said(self):
        secret = make_secret(self.folder / "secret")
        flags = ["--worker_hosts", "w:1", "--model", "linear"]
        for task, addresses in (("ps", ["--ps_hosts", f"127.0.0.1:{cluster.free_ports(1)[0]}", "--bind", "0.0.0.0"]),
                                ("worker", ["--ps_hosts", "192.0.2.1:2222", "--join-timeout", 1])):
            with self.subTest(task=task):
                said = self.train(*flags, *addresses, "--job_name", task, "--task_index", 0)
                self.assert_ends(said, cluster.CONFIGURATION, says=["reachable from other hosts without authentication", "--secret-file",
                                                                     "--insecure"])
                for allowed in (["--insecure"], ["--secret-file", secret]):
                    said = self.train(*flags, *addresses, *allowed, "--job_name", task, "--task_index", 0)
                    if task == "worker":
                        self.assert_ends(said, cluster.retry_worthy, says=["did not come up in time"])
                    else:
                        said.wait_for("# ps/0 listens")
                        self.assertIsNone(said.process.poll(), said.transcript())
                        said.end()

    def test_a_rail_beyond_this_host_is_as_open(self):
        flags = ["--ps_hosts", f"127.0.0.1:{cluster.free_ports(1)[0]}", "--worker_hosts", "w:1", "--model", "linear",
                 "--job_name", "ps", "--task_index", 0, "--transport", "tcp", "--rails"]
        said = self.train(*flags, "127.0.0.1,192.0.2.2")
        self.assert_ends(said, cluster.CONFIGURATION, says=[r"the rail 192\.0\.2\.2 is reachable from other hosts without authentication"])
        said = self.train(*flags, "0.0.0.0", "--insecure")
        self.assert_ends(said, cluster.USAGE, says=[r"--rails: '0\.0\.0\.0' stands for all interfaces"])
        self.train(*flags, "127.0.0.1,127.0.0.2").wait_for("# ps/0 listens")

    def test_where_tasks_of_a_launcher_meet_is_as_open(self):
        port = cluster.free_ports(1)[0]
        variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": str(port)}
        flags = ["--model", "linear", "--join-timeout", 1]
        said = self.train(*flags, environment=variables)
        self.assert_ends(said, cluster.CONFIGURATION, says=[rf"192\.0\.2\.1:{port} .*reachable from other hosts without authentication"])
        said = self.train(*flags, "--insecure", environment=variables)
        self.assert_ends(said, cluster.retry_worthy)  # the task has waited for the others


def ports_of(pid):
    """Returns the TCP ports on which a process listens."""
    said = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    return sorted({int(line.split()[3].rsplit(":", 1)[1]) for line in said.splitlines() if f"pid={pid}," in line})


def http2_frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


# Requests that a server without a limit would keep in memory. Each is sent until the server closes the connection.
HEADERS, CONTINUATION = 1, 9
ENDLESS_HEADERS = (HELLO_OF_HTTP_2 + http2_frame(HEADERS, 0, 1, b"\x82"), http2_frame(CONTINUATION, 0, 1, b"\0\x01a\x01b" * 3000))
OPEN_STREAMS = (HELLO_OF_HTTP_2, b"".join(http2_frame(HEADERS, 4, 2 * i + 1, b"\x82\x86\x84") for i in range(800)))
LONG_REQUEST = (b"GET /gradrail/challenge/", b"A" * 16384)
LONG_FRAME = (HELLO_OF_TCP[:16], b"\xff" * 16384)
SLOW_READER = (b"GET /gradrail/challenge/AAAA HTTP/1.1\r\nHost: x\r\n\r\n", b"")
METRICS_READER = (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"")
NO_PROOF = (b"CONNECT x HTTP/1.1\r\n\r\n", b"\0" * 16384)
HALF_OPEN = (b"", b"")
FLOODS = (ENDLESS_HEADERS, OPEN_STREAMS, LONG_REQUEST, LONG_FRAME, SLOW_READER, METRICS_READER, NO_PROOF, HALF_OPEN)
MAX_FLOOD_BYTES = 4 << 20  # of one connection


def open_flood(port, flood):
    """Returns a connection that reads nothing, and the number of bytes that it has sent. The server may have closed it."""
    begin, more = flood
    # Under the floods the queue of the listener is full at times. TCP then connects after 1, 3, 7, 15 or 31 s.
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.settimeout(0.02)
    sent = 0
    try:
        connection.sendall(begin)
        sent = len(begin)
        for _ in range(MAX_FLOOD_BYTES // len(more) if more else 0):
            connection.sendall(more)
            sent += len(more)
    except OSError:
        pass  # the server has closed the connection, or it reads no more
    return connection, sent


def memory_of(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) << 10


class UnauthenticatedConnections(Secured):
    FLOODS = int(os.environ.get("GRADRAIL_FLOODS", "4000"))

    def setUp(self):
        super().setUp()
        self.epochs = 2500 * max(1, self.FLOODS // 4000)
        if cluster.instrumented():  # ten times slower
            self.FLOODS, self.epochs = 400, 250

    def run_digits(self, epochs, meanwhile=None, ps_flags=()):
        """Returns the hash of a sync run of two workers over tcp. `meanwhile` receives the ps, and it must end before the
        run ends."""
        data = self.folder / "data"
        if not data.exists():
            data.mkdir()
            digits.write(data)
        secret = make_secret(self.folder / "secret")
        flags = ["--data_dir", data, "--model", "mlp", "--mode", "sync", "--epochs", epochs,
                 "--transport", "tcp", "--secret-file", secret, *self.addresses(2)]
        ps = self.train(*flags, *ps_flags, "--job_name", "ps", "--task_index", 0, name="ps")
        workers = [self.train(*flags, "--job_name", "worker", "--task_index", i, name=f"worker/{i}") for i in range(2)]
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        if meanwhile is not None:
            meanwhile(ps)
            self.assertIsNone(workers[0].process.poll(), "the run ended before `meanwhile`")
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD, 5 * cluster.FINISH)
        return cluster.hash_of(workers[0]), ps

    @cluster.long("Gate and TcpHostile have the limits; the memory of a ps is measured here alone")
    def test_floods_take_no_memory(self):
        def flood(ps):
            ports = ports_of(ps.pid)
            self.assertGreaterEqual(len(ports), 3, "control, data and metrics")
            before, peak = memory_of(ps.pid), 0

            def one_of_four(which):
                dice = random.Random(which)
                # A connection stays open as long as the server keeps it, up to the limit of this process.
                held = collections.deque(maxlen=100)
                whole = 0
                for i in range(self.FLOODS // 4):
                    if len(held) == held.maxlen:
                        held[0].close()
                    connection, sent = open_flood(ports[i % len(ports)], dice.choice(FLOODS))
                    held.append(connection)
                    whole += sent
                for connection in held:
                    connection.close()
                return whole

            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                floods = [pool.submit(one_of_four, which) for which in range(4)]
                while not all(one.done() for one in floods):
                    peak = max(peak, memory_of(ps.pid) - before)
                    time.sleep(0.05)
                flooded = sum(one.result() for one in floods)
            self.assertGreater(flooded, self.FLOODS * 1024)
            deadline = time.monotonic() + MAX_UNAUTHENTICATED_SECONDS + cluster.PATIENCE
            while (after := memory_of(ps.pid)) > 1.1 * before and time.monotonic() < deadline:
                time.sleep(0.1)
            print(f"{self.FLOODS} floods of {flooded >> 20} MiB: at most {peak >> 10} KiB more than {before >> 10} KiB, {(after - before) >> 10} KiB "
                  "afterwards", flush=True)
            if not cluster.instrumented():
                self.assertLess(peak, MAX_FLOODED_BYTES)
                self.assertLess(after, 1.1 * before)

        undisturbed, _ = self.run_digits(self.epochs)
        disturbed, ps = self.run_digits(self.epochs, flood, ["--metrics_port", 0])
        self.assertEqual(disturbed, undisturbed)
        self.assertNotRegex(ps.text(), "was lost|not admitted")

    @cluster.long("Gate and TcpHostile have the limits; time and memory of a ps are measured here alone")
    def test_silent_connections_are_closed_and_cost_little(self):
        count = 200  # on each port

        def crowd(ps):
            ports, control = ports_of(ps.pid), int(self.ps_addresses[0].rsplit(":", 1)[1])
            before = memory_of(ps.pid)
            started = time.monotonic()
            silent = [socket.create_connection(("127.0.0.1", port)) for port in ports for _ in range(count)]
            self.addCleanup(lambda: [end.close() for end in silent])
            time.sleep(1.5)
            # A late, valid first message does not extend the deadline.
            for end in silent[::2]:
                try:
                    end.sendall(HELLO_OF_HTTP_2 if end.getpeername()[1] == control else HELLO_OF_TCP)
                except OSError:
                    pass  # the ps has closed the connection: there are too many
            time.sleep(0.2)
            cost = (memory_of(ps.pid) - before) / len(silent)
            waiting = set(silent)
            while waiting and time.monotonic() - started < MAX_UNAUTHENTICATED_SECONDS + cluster.PATIENCE:
                for end in select.select(list(waiting), [], [], 0.2)[0]:
                    end.settimeout(1)
                    try:
                        ended = end.recv(4096) == b""
                    except OSError:
                        ended = True
                    if ended:
                        waiting.discard(end)
            stayed = time.monotonic() - started
            print(f"{len(silent)} unauthenticated connections: {cost:.0f} bytes each, closed within {stayed:.1f} s", flush=True)
            self.assertEqual(len(waiting), 0, f"{len(waiting)} of {len(silent)} connections are still open")
            if not cluster.instrumented():
                self.assertLess(cost, MAX_UNAUTHENTICATED_BYTES)

        self.run_digits(1500, crowd)


if __name__ == "__main__":
    unittest.main()
