"""Four tasks on four hosts: network namespaces behind one bridge, each with an address of its own. Needs root."""
import os
import re
import shutil
import subprocess
import sys
import unittest

import cluster

NETWORK = "10.77.0"


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


def why_not():
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    if shutil.which("ip") is None:
        return "needs ip (package iproute2)"
    probe = f"gr{os.getpid()}p"
    made = ip("netns", "add", probe, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    linked = ip("link", "add", f"{probe}a", "type", "veth", "peer", "name", f"{probe}b", check=False)
    ip("link", "del", f"{probe}a", check=False)
    ip("netns", "del", probe, check=False)
    return "" if linked.returncode == 0 else f"veth devices cannot be made here: {linked.stderr.strip()}"


def sweep():
    """Removes what a run left behind that was killed before it could clean up."""
    for line in ip("netns", "list").stdout.splitlines():
        ours = re.match(r"gr(\d+)[sp0-3]\b", line)
        if ours and not os.path.exists(f"/proc/{ours[1]}"):
            ip("netns", "del", line.split()[0], check=False)


class FourHosts(cluster.ClusterTest):
    """A switch (a bridge in a namespace of its own, so that the host's network is not touched) and four hosts."""

    def setUp(self):
        super().setUp()
        self.prefix = f"gr{os.getpid()}"
        self.hosts = []
        self.switch = self.add_namespace("s")
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for i in range(4):
            self.hosts.append(self.add_host(i))

    def add_namespace(self, suffix):
        name = self.prefix + suffix
        ip("netns", "add", name)
        self.addCleanup(ip, "netns", "del", name, check=False)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    def add_host(self, index):
        name = self.add_namespace(str(index))
        port = f"port{index}"
        ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
        ip("-n", name, "address", "add", f"{NETWORK}.{index + 1}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        return name

    def train_on(self, host, job, index, *flags, binary_flags=("--model", "linear")):
        hosts = ["--ps_hosts", f"{NETWORK}.1:2222", "--worker_hosts", ",".join(f"{NETWORK}.{i}:2222" for i in (2, 3, 4))]
        command = ["ip", "netns", "exec", self.hosts[host], cluster.binary(), "train", *hosts, *binary_flags,
                   "--job_name", job, "--task_index", index, *flags]
        return self.launch(f"{job}/{index}", [str(word) for word in command])

    def start_all(self, *flags):
        ps = self.train_on(0, "ps", 0, *flags)
        return ps, [self.train_on(1 + i, "worker", i, *flags) for i in range(3)]

    def test_four_terminals(self):
        ps, workers = self.start_all("--epochs", 2, "--mode", "sync")
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD)
        for worker in workers:
            self.assertTrue(worker.has(rf"^Path: shard 0 at {NETWORK}\.1:2222: tcp \(shm refused: not on the same host"),
                            worker.transcript())
        self.assertTrue(ps.has(r"path tcp: \d+ bytes in"), ps.transcript())

    def test_same_numbers_as_on_one_host(self):
        _, workers = self.start_all("--epochs", 1, "--mode", "sync")
        local = self.train("--model", "linear", "--epochs", 1, "--mode", "sync")
        self.assertEqual(cluster.hash_of(workers[0]), cluster.hash_of(local))

    def test_listens_on_its_own_address_alone(self):
        ps, workers = self.start_all("--epochs", 100000)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        listeners = cluster.tcp_listeners(ps.pid)
        self.assertIn((f"{NETWORK}.1", 2222), listeners)
        self.assertEqual({address for address, _ in listeners}, {f"{NETWORK}.1"}, listeners)
        for worker in workers:
            self.assertEqual(cluster.tcp_listeners(worker.pid), [], "a worker has no reason to listen")

    def test_shm_without_fallback_is_refused(self):
        self.train_on(0, "ps", 0)
        worker = self.train_on(1, "worker", 0, "--transport", "shm,tcp", "--no-fallback")
        self.assert_ends(worker, cluster.CONFIGURATION,
                         says=[r"transport shm refused: not on the same host", "fallback is forbidden"])

    def test_cut_cable(self):
        ps, workers = self.start_all("--epochs", 100000, "--silence_limit_s", 3, "--rejoin_secs", 0)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        ip("-n", self.switch, "link", "set", "port2", "down")  # worker 1's
        ps.wait_for(rf"worker 1 \({NETWORK}\.3:2222\) was lost: no sign of life for 3 s", 15 * cluster.PATIENCE)
        self.assert_goes_on(workers[0])
        self.assert_goes_on(workers[2])
        self.assert_ends(workers[1], cluster.retry_worthy, 15 * cluster.PATIENCE,
                         says=[rf"parameter server 0 \({NETWORK}\.1:2222\) was lost"])

    def test_unreachable_ps_is_named(self):
        worker = self.train_on(1, "worker", 0, "--join_timeout_s", 2, "--ps_hosts", f"{NETWORK}.99:2222")
        self.assert_ends(worker, cluster.RETRY, 15 * cluster.PATIENCE,
                         says=[rf"parameter server 0 \({NETWORK}\.99:2222\) did not come up in time"])


if __name__ == "__main__":
    missing = why_not()
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    sweep()
    unittest.main()
