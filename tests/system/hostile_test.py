"""Unauthenticated connections to a parameter server: port scanners, health checks, half-open connections. Training
continues, and the log stays short."""
import os
import random
import re
import socket
import time
import unittest

import cluster

GARBAGE = [b"", b"\0", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 300,
           b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64, b"SSH-2.0-scanner\r\n", b"\xff" * 4096]


class UnauthenticatedConnections(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.seed = random.randrange(2 ** 32)
        print(f"seed {self.seed}")
        self.chance = random.Random(self.seed)
        self.held = []
        self.addCleanup(lambda: [connection.close() for connection in self.held])

    def running(self, *flags):
        (ps,), workers = self.start_cluster(2, "--epochs", 100000, *flags)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        return ps, workers

    def visit(self, family, address):
        for payload in GARBAGE + [self.chance.randbytes(self.chance.randrange(1, 9000)) for _ in range(8)]:
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.settimeout(2)
            try:
                connection.connect(address)
                connection.sendall(payload)
                if payload and self.chance.random() < 0.3:
                    connection.recv(100)
            except OSError:  # the ps may refuse the connection
                pass
            if self.chance.random() < 0.5:
                self.held.append(connection)  # half-open: it sends nothing more
            else:
                connection.close()

    def assert_unimpressed(self, ps, workers):
        for worker in workers:
            self.assert_goes_on(worker, steps=3)
            self.assertTrue(worker.running())
        self.assertFalse(ps.has(r"worker \d.*was lost"), ps.transcript())

    def assert_terse(self, ps):
        """Checks that the ps prints each kind of line at most once a minute. Texts of two connections are one kind."""
        kinds = {}
        for line in ps.lines():
            if not re.match(r"ps/0 [WE] ", line.text):
                continue
            words = re.sub(r"^ps/0 \w \S+ |\d+|0x[0-9a-f]+|'.*'", "", line.text)
            kinds.setdefault(words[:60], []).append(line.text)
        for texts in kinds.values():
            self.assertLessEqual(len(texts), 3, f"{len(texts)} lines of one kind\n{ps.transcript()}")

    def test_tcp_ports(self):
        ps, workers = self.running("--transport", "tcp")
        listeners = cluster.tcp_listeners(ps.pid)
        self.assertEqual(len(listeners), 3, f"control, data, and data over several lanes: {listeners}")
        for host, port in listeners:
            self.visit(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))
        # TcpHostile and Gate.ClosesASilentConnection have the deadline of a handshake.
        self.assert_unimpressed(ps, workers)
        self.assert_terse(ps)

    def test_two_hundred_half_open_connections(self):
        ps, workers = self.running("--transport", "tcp")
        before = len(cluster.socket_inodes(ps.pid))
        for host, port in cluster.tcp_listeners(ps.pid):
            for _ in range(100):
                try:
                    self.held.append(socket.create_connection((host, port), 2))
                except OSError:
                    break
        self.assert_unimpressed(ps, workers)
        for connection in self.held:
            connection.close()
        deadline = time.monotonic() + 20 * cluster.PATIENCE
        while len(cluster.socket_inodes(ps.pid)) > before + 2:
            self.assertLess(time.monotonic(), deadline, "the ps keeps connections that their peers have closed")
            time.sleep(0.05)
        self.assert_terse(ps)

    def test_a_flood_of_connections_writes_few_lines(self):
        """GRADRAIL_FLOOD is the number of connections. 300,000 write at most 100 kB."""
        count = int(os.environ.get("GRADRAIL_FLOOD", "3000"))
        ps, workers = self.running("--transport", "shm,tcp")
        names = cluster.abstract_listeners(ps.pid)
        self.assertTrue(names, "no abstract Unix socket found")
        addresses = [(socket.AF_UNIX, socket.SOCK_SEQPACKET, "\0" + name) for name in names]
        addresses += [(socket.AF_INET, socket.SOCK_STREAM, address) for address in cluster.tcp_listeners(ps.pid)]
        reached = {}
        for number in range(count):
            family, kind, address = addresses[number % len(addresses)]
            # Every second one is of a user whom the ps must not let in.
            stranger = family == socket.AF_UNIX and os.geteuid() == 0 and number // len(addresses) % 2
            try:
                if stranger:
                    os.seteuid(65534)
                with socket.socket(family, kind) as connection:
                    connection.settimeout(2)
                    connection.connect(address)
                    connection.send(self.chance.choice(GARBAGE[1:]))
                    reached[address] = reached.get(address, 0) + 1
            except OSError:  # the ps may refuse the connection, or be busy with others
                pass
            finally:
                if stranger:
                    os.seteuid(0)
        self.assertEqual(len(reached), len(addresses), reached)
        self.assert_unimpressed(ps, workers)
        size = sum(len(line.text) + 1 for line in ps.lines())
        print(f"{count} connections: {size} bytes of log")
        self.assertLess(size, 20_000 if count < 10_000 else 100_000, ps.transcript())


if __name__ == "__main__":
    unittest.main()
