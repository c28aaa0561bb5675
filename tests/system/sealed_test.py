"""--encrypt-data: data between tasks is confidential, and altered data ends the run.

The attacker is between the worker and the ps. It forwards the control plane and replaces there the port of the data
plane, which the secret alone does not prevent. Then it forwards the data plane, records it and alters it."""
import re
import socket
import threading
import unittest

import cluster
import digits
from certificates import make_authority, make_certificate

KEY = re.compile(rb"127\.0\.0\.1:(\d{5})#[0-9a-f]{64}")
PLAIN = re.compile(rb"127\.0\.0\.1:(\d{5})")
ENDED = "encrypted data was altered on its way"
RECORD_OVERHEAD, FULL_RECORD, SEAL_FRAME = 24, 24 + (32 << 10), 80


class Forwarder:
    """Forwards connections to `port`. change(direction, bytes, position) returns the bytes to send."""

    def __init__(self, port, change):
        self.port, self.change = port, change
        self.server = socket.create_server(("127.0.0.1", 0))
        self.listens = self.server.getsockname()[1]
        self.ends = [self.server]
        self.recorded = {"to ps": bytearray(), "to worker": bytearray()}
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.server.accept()[0]
            except OSError:
                return
            target = socket.create_connection(("127.0.0.1", self.port))
            self.ends += [client, target]
            for end in (client, target):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            state = {}  # of this connection
            for source, sink, direction in ((client, target, "to ps"), (target, client, "to worker")):
                threading.Thread(target=self.copy, args=(source, sink, direction, state), daemon=True).start()

    def copy(self, source, sink, direction, state):
        position = 0
        try:
            while part := source.recv(1 << 16):
                self.recorded[direction] += part
                sink.sendall(self.change(direction, part, position, state))
                position += len(part)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        for end in self.ends:
            end.close()


def as_it_is(_direction, part, _position, _state):
    return part


class Attack:
    """Cuts the stream of one direction into records, and passes three of them behind byte `begin` to `alter`, once."""

    def __init__(self, direction, begin, alter):
        self.direction, self.begin, self.alter, self.done = direction, begin, alter, False

    def __call__(self, direction, part, position, state):
        if direction != self.direction:
            return part
        held = state.setdefault("held", bytearray())
        held += part
        passed = b""
        if not state.get("is framed"):
            if len(held) < SEAL_FRAME:
                return b""
            passed, state["is framed"] = bytes(held[:SEAL_FRAME]), True
            del held[:SEAL_FRAME]
        while len(held) >= 4 and len(held) >= (size := int.from_bytes(held[:4], "little") + RECORD_OVERHEAD):
            record, is_full = bytes(held[:size]), size == FULL_RECORD
            del held[:size]
            kept = state.setdefault("kept", [])
            # The first full record of an exchange, which is one bucket: nine more follow without an answer of the peer.
            if kept or (position >= self.begin and is_full and not state.get("was full", True) and not self.done):
                kept.append(record)
            else:
                passed += record
            state["was full"] = is_full
            if len(kept) == 3:
                passed += self.alter(kept)
                kept.clear()
                self.done = True
        return passed


class Sealed(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.secret = self.secret_file()
        self.data = self.folder / "data"
        self.data.mkdir()
        digits.write(self.data)

    def start(self, *flags, epochs=2, change=as_it_is, workers=2, encrypted=True):
        """Starts a run through the attacker. Returns (ps, workers); self.wires are the forwarders of the data plane."""
        flags = ["--data_dir", self.data, "--model", "mlp", "--mode", "sync", "--epochs", epochs, "--transport", "tcp",
                 "--bucket_kib", 512, "--secret-file", self.secret, *flags, *(["--encrypt-data"] if encrypted else []), *self.addresses(workers)]
        ps = self.train(*flags, "--job_name", "ps", "--task_index", 0, name="ps")
        ps.wait_for("listens on")
        self.wires = {}

        def redirect(direction, part, _position, state):
            if direction == "to ps":
                return part
            part = state.pop("held", b"") + part
            # An address at the end may be incomplete: its rest arrives with the next bytes.
            last = part.rfind(b"127.0.0.1:")
            if encrypted and last >= 0 and len(part) - last < 90 and not KEY.match(part, last):
                state["held"], part = part[last:], part[:last]

            def replace(found):
                port = int(found[1])
                if port not in self.wires and port in [listens for _, listens in cluster.tcp_listeners(ps.pid)]:
                    self.wires[port] = Forwarder(port, change)
                    self.addCleanup(self.wires[port].close)
                return found[0].replace(found[1], b"%d" % self.wires[port].listens) if port in self.wires else found[0]
            return (KEY if encrypted else PLAIN).sub(replace, part)

        control = Forwarder(int(self.ps_addresses[0].split(":")[1]), redirect)
        self.addCleanup(control.close)
        flags[flags.index("--ps_hosts") + 1] = f"127.0.0.1:{control.listens}"
        return ps, [self.train(*flags, "--job_name", "worker", "--task_index", i, name=f"worker/{i}")
                    for i in range(workers)]

    def wire(self, direction):
        self.assertTrue(self.wires, "the data plane did not pass the attacker")
        return b"".join(bytes(each.recorded[direction]) for each in self.wires.values())


class Confidential(Sealed):
    def parameters_on_the_wire(self, encrypted):
        """Returns the hash of a run, and the parts of its final parameters that the attacker has recorded."""
        folder = self.folder / f"checkpoints-{encrypted}"
        folder.mkdir()
        ps, workers = self.start("--checkpoint_dir", folder, encrypted=encrypted)
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD, 3 * cluster.FINISH)
        file = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        saved, wire = file.read_bytes(), self.wire("to worker")
        self.assertGreater(len(saved), 100_000)
        parts = [saved[at:at + 16] for at in range(4096, len(saved) - 16, 1024)]
        found = sum(part in wire for part in parts if len(set(part)) > 8)
        self.assert_says(workers[0], r"^Path: .*tcp encrypted" if encrypted else r"^Path: .*: tcp$")
        return cluster.hash_of(workers[0]), found

    def test_the_wire_has_no_parameters_and_the_result_is_the_same(self):
        plain_hash, plain_parts = self.parameters_on_the_wire(False)
        sealed_hash, sealed_parts = self.parameters_on_the_wire(True)
        self.assertGreater(plain_parts, 50, "the attacker must be able to read plain data")
        self.assertEqual(sealed_parts, 0)
        self.assertEqual(sealed_hash, plain_hash)

    def test_the_link_to_a_backup_is_encrypted(self):
        run = self.train("--ps", 2, "--backup-ps", 1, "--workers", 2, "--epochs", 2, "--mode", "sync", "--model", "linear",
                         "--transport", "tcp", "--secret-file", self.secret, "--encrypt-data",
                         environment={"GRADRAIL_LOG": "info"})
        self.assert_ends(run, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_says(run, r"backup over tcp .*encrypted",
                         r"the backup at \S+ has everything \(tcp \S+ > \S+, encrypted with (AES-256-GCM|ChaCha20-Poly1305)\)")


class Altered(Sealed):
    def assert_run_ends(self, direction, alter):
        # Behind the handshake and some exchanges of 318 KB each.
        attack = Attack(direction, 2_000_000, alter)
        ps, workers = self.start(epochs=100_000, change=attack)
        for task in (*workers, ps):
            self.assert_ends(task, cluster.CONFIGURATION, 2 * cluster.FINISH, says=[ENDED])
        self.assertTrue(attack.done)

    def test_one_bit_in_a_gradient(self):
        self.assert_run_ends("to ps", lambda r: r[0][:20] + bytes([r[0][20] ^ 1]) + r[0][21:] + b"".join(r[1:]))

    def test_one_bit_in_the_parameters(self):
        self.assert_run_ends("to worker", lambda r: r[0][:-1] + bytes([r[0][-1] ^ 0x80]) + b"".join(r[1:]))

    def test_a_replayed_record(self):
        self.assert_run_ends("to worker", lambda r: r[0] + r[0] + b"".join(r[1:]))

    def test_records_in_another_order(self):
        self.assert_run_ends("to ps", lambda r: r[1] + r[0] + b"".join(r[2:]))

    def test_a_missing_record(self):
        self.assert_run_ends("to worker", lambda r: r[0] + b"".join(r[2:]))


class Refused(Sealed):
    def test_without_authentication_there_are_no_keys(self):
        self.refused(cluster.USAGE, ["--encrypt-data: needs --secret-file FILE or TLS"], "--model", "linear", "--workers", 1,
                     "--ps", 1, "--encrypt-data")

    def test_without_a_ps_no_data_leaves_the_process(self):
        self.refused(cluster.USAGE, ["--encrypt-data: .* with --ps 0 there is no other task; leave out the flag"], "--model",
                     "linear", "--ps", 0, "--secret-file", self.secret, "--encrypt-data")

    def test_rdma_carries_data_unencrypted(self):
        secret = ["--model", "linear", "--secret-file", self.secret, "--encrypt-data"]
        for transport in ("ucx", "ofi", "ucx,ofi"):
            said = self.refused(cluster.USAGE, ["--encrypt-data: .* carries data unencrypted; give --transport tcp"], *secret,
                                "--transport", transport)
            self.assertEqual(len(said.lines()), 1, said.transcript())
        self.refused(cluster.USAGE, ["--encrypt-data --require rdma"], *secret, "--require", "rdma")

    def test_the_reason_is_part_of_the_choice(self):
        run = self.train("--model", "linear", "--workers", 1, "--ps", 1, "--epochs", 1, "--transport", "ucx,ofi,tcp",
                         "--secret-file", self.secret, "--encrypt-data")
        self.assert_ends(run, cluster.GOOD)
        self.assert_says(run, r"Path: .*tcp encrypted \(ucx refused: excluded by this task's --encrypt-data: ucx carries data unencrypted")

    def test_all_tasks_have_the_flag_or_none(self):
        for with_flag, without in (("ps", "worker"), ("worker", "ps")):
            with self.subTest(with_flag=with_flag):
                common = [*self.addresses(1), "--model", "linear", "--secret-file", self.secret]
                tasks = {name: self.train(*common, *(["--encrypt-data"] if name == with_flag else []), "--job_name", name,
                                          "--task_index", 0, name=name) for name in ("ps", "worker")}
                self.assert_ends(tasks["worker"], cluster.CONFIGURATION,
                                 says=[f"was started {'with' if with_flag == 'ps' else 'without'} --encrypt-data, and worker 0 "
                                       f"{'with' if with_flag == 'worker' else 'without'}"])
                tasks["ps"].wait_for(r"worker 0 does not fit: it was started with(out)? --encrypt-data, .*: give it to all tasks, or "
                                     r"to none", cluster.START)

    def test_tls_without_a_secret_is_enough(self):
        make_authority(self.folder, "ca")
        make_certificate(self.folder, "ps", "ca")
        common = [*self.addresses(1), "--model", "linear", "--epochs", 1, "--transport", "tcp", "--encrypt-data"]
        ps = self.train(*common, "--cert-file", self.folder / "ps.pem", "--key-file", self.folder / "ps.key", "--job_name", "ps",
                        "--task_index", 0, name="ps")
        worker = self.train(*common, "--trusted-ca-file", self.folder / "ca.pem", "--job_name", "worker", "--task_index", 0,
                            name="worker")
        for task in (worker, ps):
            self.assert_ends(task, cluster.GOOD)
        self.assert_says(worker, r"^Path: .*tcp encrypted")


if __name__ == "__main__":
    unittest.main()
