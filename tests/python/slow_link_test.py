"""A worker behind a slow link (slow_link.py), in its own network namespace. It needs root and /dev/net/tun.

The hosts choose cubic, as most hosts do. The long form of the comparison is GRADRAIL_FRAGMENT_MB=64 GRADRAIL_ROUNDS=4.
"""
import os
import pathlib
import re
import statistics
import unittest

import cluster
import four_hosts
import package
import slow_link

ROUNDS = int(os.environ.get("GRADRAIL_ROUNDS", "2"))
MEGABYTES = float(os.environ.get("GRADRAIL_FRAGMENT_MB", "8"))
# Two thousand kilometers of a poor network.
POOR = slow_link.Shape(rate=50e6, delay=0.04, loss=0.01, reorder=0.01)
# A full queue of this link takes 3 s in each direction.
LONG_QUEUE = slow_link.Shape(rate=4e6, delay=0.04)
WITHIN = 300 * cluster.PATIENCE

EXCHANGE = """
elements, rounds = {elements}, {rounds}
with gradrail.join({{"w": (elements,)}}, learning_rate=1.0, mode="sync", transports="tcp") as client:
    client.start()
    for _ in range(rounds):
        client.gradients["w"][:] = 1
        began = time.monotonic()
        client.step()
        print(f"took {{time.monotonic() - began:.3f}} s", flush=True)
    assert client.parameters["w"].min() == client.parameters["w"].max() == -rounds
"""

# Each end sends the bytes and receives those of the other, in threads.
PLAIN = """
import socket, sys, threading, time
side, address, count, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if side == "listen":
    listener = socket.create_server((address, 5000))
    print("listens", flush=True)
    connection = listener.accept()[0]
else:
    connection = socket.create_connection((address, 5000))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
block = bytes(1 << 18)
def send():
    for begin in range(0, count, len(block)):
        connection.sendall(block[:count - begin])
for _ in range(rounds):
    began = time.monotonic()
    sender = threading.Thread(target=send)
    sender.start()
    left = count
    while left:
        left -= len(connection.recv(min(left, 1 << 20)))
    sender.join()
    connection.sendall(b"x")
    connection.recv(1)
    print(f"took {time.monotonic() - began:.3f} s", flush=True)
"""


class SlowLinkTest(four_hosts.FourHosts, package.PackageTest):
    HOSTS = 2
    WORKERS = (1,)

    def add_host(self, index):
        if index not in self.WORKERS:
            return super().add_host(index)
        name, port = self.add_namespace(str(index)), f"port{index}"
        link = slow_link.SlowLink([(name, "eth0"), (self.switch, port)], self.shape)
        self.addCleanup(lambda: print(f"up and down: {link.close()}", flush=True))
        four_hosts.ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
        four_hosts.ip("-n", name, "address", "add", f"{four_hosts.address_of(index)}/24", "dev", "eth0")
        four_hosts.ip("-n", name, "link", "set", "eth0", "up")
        return name

    def setUp(self):
        """The hosts need the shape of the link: lay_out() makes them."""
        cluster.ClusterTest.setUp(self)

    def lay_out(self, shape):
        available = pathlib.Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
        for needed in ("bbr", "cubic"):
            if needed not in available:
                cluster.skip(f"the kernel has no {needed} (modprobe tcp_{needed})")
        if not os.access("/dev/net/tun", os.W_OK):
            cluster.skip("no /dev/net/tun (modprobe tun)")
        self.shape = shape
        super().setUp()
        for index, name in enumerate(self.hosts):
            four_hosts.ip("-n", name, "route", "change", f"{four_hosts.NETWORK}.0/24", "dev", "eth0", "src",
                          four_hosts.address_of(index), "congctl", "cubic")

    def inside(self, host, name, command, environment=None):
        return self.launch(name, ["ip", "netns", "exec", self.hosts[host], *map(str, command)], environment)

    def exchange(self, elements, rounds):
        """Returns the times of the exchanges. The server and the worker must end without a loss."""
        server = self.train_on(0, "ps", 0)
        hosts = [f"{four_hosts.address_of(host)}:2222" for host in range(2)]
        program = EXCHANGE.format(elements=elements, rounds=rounds)
        worker = self.inside(1, "worker/0", self.command(program), self.environment(
            {"GRADRAIL_PS_HOSTS": hosts[0], "GRADRAIL_WORKER_HOSTS": hosts[1], "GRADRAIL_TASK_INDEX": "0",
             "GRADRAIL_INSECURE": "1"}))
        self.assert_ends(worker, cluster.GOOD, WITHIN)
        self.assert_ends(server, cluster.GOOD)
        for task in (server, worker):
            self.assertFalse(task.has("was lost"), task.transcript())
        return self.times(worker)

    def plain(self, count, rounds):
        address = four_hosts.address_of(0)
        commands = [[cluster.python_with("numpy"), "-c", PLAIN, side, address, count, rounds] for side in ("listen", "connect")]
        listens = self.inside(0, "plain listener", commands[0])
        listens.wait_for("listens")
        connects = self.inside(1, "plain sockets", commands[1])
        for task in (connects, listens):
            self.assert_ends(task, cluster.GOOD, WITHIN)
        return self.times(connects)

    @staticmethod
    def times(task):
        return [float(seconds) for seconds in re.findall(r"^took ([0-9.]+) s", task.text(), re.M)]

    @cluster.long("TcpDatapath has full queues; no other test has a link of limited rate")
    def test_a_worker_behind_a_full_queue_is_not_lost(self):
        self.lay_out(LONG_QUEUE)
        self.assertEqual(len(self.exchange(2_500_000, 1)), 1)

    @cluster.long("it compares times over a link of limited rate; TcpDatapath has full queues")
    def test_an_exchange_is_about_as_fast_as_plain_sockets(self):
        self.lay_out(POOR)
        count = int(MEGABYTES * 1e6)
        rates = {name: statistics.median(8 * count / took / 1e6 for took in times) for name, times in (
            ("plain", self.plain(count, ROUNDS)), ("exchange", self.exchange(count // 4, ROUNDS)))}
        print(f"{count / 1e6:.0f} MB each way at the same time, median of {ROUNDS}, Mbit/s in each direction: "
              f"plain sockets {rates['plain']:.1f}, exchange {rates['exchange']:.1f}; of the link "
              f"{rates['plain'] * 1e6 / POOR.rate:.2f} and {rates['exchange'] * 1e6 / POOR.rate:.2f}; exchange / plain "
              f"{rates['exchange'] / rates['plain']:.2f}; load {os.getloadavg()[0]:.1f}", flush=True)
        # The answer to the last bucket leaves when its push has arrived.
        self.assertGreater(rates["exchange"], 0.5 * rates["plain"])


if __name__ == "__main__":
    four_hosts.run_or_skip(unittest.main)
