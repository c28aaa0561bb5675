"""Tests connections that cannot be made, and the causes that the tasks name: a firewall drops the data port, large packets
are lost, the memory of the ps or the ports of its host are used up, a name stands for a loopback address, variables exclude
a transport. Hosts are network namespaces. It needs root."""
import pathlib
import re
import resource
import signal
import time
import unittest

import cluster
import four_hosts

DATA_PORT = 40000
JOINS_AGAIN = 45 * cluster.PATIENCE  # s; attempts to connect take 20 s
RATE_SECONDS = 1  # of steps without another worker, whose rate is the measure
STEP = r"[Ss]tep:? (\d+),"  # the models linear and cnn write their steps in two forms
LARGE = ("--model", "cnn", "--batch_size", 1)  # 13 MB, and steps of some milliseconds


def steps_of(worker):
    """Returns time and number of each step that the worker has logged."""
    found = [(line.time, re.search(STEP, line.text)) for line in worker.lines()]
    return [(at, int(step[1])) for at, step in found if step]


def longest_gap(worker, begin, end):
    times = [begin, *(at for at, _ in steps_of(worker) if begin < at < end), end]
    return max(b - a for a, b in zip(times, times[1:]))


class DataPath(four_hosts.FourHosts):
    HOSTS = 3
    WORKERS = (1, 2)
    FLAGS = ["--mode", "sync", "--transport", "tcp", "--epochs", 100000, "--log_every", 10]

    def drop_data(self, host):
        """The ps answers this host from no port but that of its control plane."""
        self.on(0, "ip", "rule", "add", "to", four_hosts.address_of(host), "ipproto", "tcp", "sport", "32768-60999", "blackhole")

    def on(self, host, *command):
        four_hosts.ip("netns", "exec", self.hosts[host], *map(str, command))

    def run_of_one(self, *ps_flags, model=("--model", "linear")):
        """Returns the ps, and worker 0 that makes steps alone: worker 1 has been there."""
        ps = self.train_on(0, "ps", 0, *self.FLAGS, *ps_flags)
        first = self.train_on(1, "worker", 0, *self.FLAGS, binary_flags=model)
        gone = self.train_on(2, "worker", 1, *self.FLAGS, binary_flags=model)
        gone.wait_for(STEP)
        gone.signal(signal.SIGKILL)
        ps.wait_for(r"worker 1 \(.*\) was lost")
        self.alone = time.monotonic()
        while time.monotonic() < self.alone + RATE_SECONDS:
            self.assert_steps(first)
        return ps, first

    def assert_steps(self, worker):
        for _ in range(10):
            worker.wait_for(STEP, cluster.START, after=len(worker.lines()))

    def assert_undisturbed(self, first, begun, ended):
        """The steps go on at their rate. The rate before is the measure, since the machine may have other work."""
        rates = []
        for begin, end in ((self.alone, begun), (begun, ended)):
            steps = [step for at, step in steps_of(first) if begin < at < end]
            self.assertTrue(steps, first.transcript())
            rates.append((steps[-1] - steps[0]) / (end - begin))
        print(f"while a worker without a data path joined for {ended - begun:.1f} s, the other one made {rates[1]:.0f} steps "
              f"each second (before: {rates[0]:.0f}); longest gap {longest_gap(first, begun, ended):.3f} s")
        self.assertGreater(rates[1], 0.2 * rates[0], first.transcript())

    def check_worker_without_path(self, ps, first, says, model=("--model", "linear")):
        begun = time.monotonic()
        second = self.train_on(2, "worker", 1, *self.FLAGS, binary_flags=model)
        self.assert_ends(second, cluster.CONFIGURATION, JOINS_AGAIN, says=[says, "answers on its control connection"])
        ps.wait_for(rf"worker 1 \(.*\) was lost: shard 0 at .*{says}")
        self.assert_undisturbed(first, begun, time.monotonic())
        self.assert_steps(first)
        return second

    @cluster.long("SyncProtocol.AWorkerWithoutADataPathHoldsUpNoStep; only namespaces have a firewall")
    def test_a_firewall_on_the_data_port_holds_up_no_other_worker(self):
        ps, first = self.run_of_one("--data-port", DATA_PORT)
        self.assertIn((four_hosts.address_of(0), DATA_PORT), cluster.tcp_listeners(ps.pid))
        self.drop_data(2)
        second = self.check_worker_without_path(ps, first, rf"connect to {four_hosts.address_of(0)}:{DATA_PORT}: no answer in time")
        self.assert_says(second, "--data-port")
        self.on(0, "ip", "rule", "del", "blackhole")
        third = self.train_on(2, "worker", 1, *self.FLAGS)
        third.wait_for(STEP)
        self.assert_steps(first)

    @cluster.long("SyncProtocol.AWorkerWithoutADataPathHoldsUpNoStep; only here a ps lacks memory for a worker")
    def test_a_ps_without_memory_for_a_worker_holds_up_no_other_one(self):
        ps, first = self.run_of_one(model=LARGE)
        size = 1024 * int(re.search(r"VmSize:\s+(\d+)", pathlib.Path(f"/proc/{ps.pid}/status").read_text())[1])
        resource.prlimit(ps.pid, resource.RLIMIT_AS, (size + (4 << 20), resource.RLIM_INFINITY))
        self.check_worker_without_path(ps, first, "Cannot allocate memory|shared memory", model=LARGE)


class LinkLocal(four_hosts.FourHosts):
    HOSTS = 2

    def test_each_host_uses_its_own_scope(self):
        """The interfaces have other names on the two hosts, as the scopes then have."""
        names = ["eth0", "net7"]
        four_hosts.ip("-n", self.hosts[1], "link", "set", "eth0", "down")
        four_hosts.ip("-n", self.hosts[1], "link", "set", "eth0", "name", names[1])
        four_hosts.ip("-n", self.hosts[1], "link", "set", names[1], "up")
        for index, host in enumerate(self.hosts):
            four_hosts.ip("-n", host, "address", "add", f"fe80::a{index}/64", "dev", names[index], "nodad")

        def task(index, job):
            hosts = ["--ps_hosts", f"[fe80::a0%{names[index]}]:2222", "--worker_hosts", f"[fe80::a1%{names[index]}]:2222"]
            return self.launch(job, ["ip", "netns", "exec", self.hosts[index], cluster.binary(), "train", *hosts, "--model",
                                     "linear", "--epochs", "1", "--insecure", "--transport", "tcp", "--job_name", job,
                                     "--task_index", "0"])

        ps, worker = task(0, "ps"), task(1, "worker")
        self.assert_ends(worker, cluster.GOOD, says=[r"Path: shard 0 at \[fe80::a0%net7\]:2222: tcp"])
        self.assert_ends(ps, cluster.GOOD, says=[r"ps/0 listens on \[fe80::a0%eth0\]:2222"])


class LargePackets(four_hosts.FourHosts):
    HOSTS = 0

    def setUp(self):
        """Two hosts beside a router. Its links have a smaller MTU than they have, and its ICMP messages are dropped."""
        super().setUp()
        for index in range(2):
            name, net = self.add_namespace(str(index)), f"10.79.{index}"
            four_hosts.ip("-n", self.switch, "link", "add", f"port{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
            four_hosts.ip("-n", self.switch, "address", "add", f"{net}.1/24", "dev", f"port{index}")
            four_hosts.ip("-n", self.switch, "link", "set", f"port{index}", "up")
            four_hosts.ip("-n", name, "address", "add", f"{net}.2/24", "dev", "eth0")
            four_hosts.ip("-n", name, "link", "set", "eth0", "up")
            four_hosts.ip("-n", name, "route", "add", "default", "via", f"{net}.1")
            self.hosts.append(name)
        four_hosts.ip("netns", "exec", self.switch, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for index in range(2):
            four_hosts.ip("-n", self.switch, "link", "set", f"port{index}", "mtu", "1400")
        four_hosts.ip("-n", self.switch, "rule", "add", "ipproto", "icmp", "blackhole")

    def on(self, index, name, *command):
        return self.launch(name, ["ip", "netns", "exec", self.hosts[index], *map(str, command)])

    def start(self, index, job, *flags):
        return self.on(index, job, cluster.binary(), "train", "--ps_hosts", "10.79.0.2:2222", "--worker_hosts",
                       "10.79.1.2:2222", "--model", "linear", "--epochs", 1, "--insecure", "--job_name", job, "--task_index", 0,
                       *flags)

    @cluster.long("a_large_join_says_it_as_well has the control connection; here the data path and doctor")
    def test_worker_and_doctor_say_that_large_packets_are_lost(self):
        ps = self.start(0, "ps")
        ps.wait_for("listens on")
        doctor = self.on(1, "doctor", cluster.binary(), "doctor", "--ps_hosts", "10.79.0.2:2222", "--no-proof", "--require",
                         "tasks")
        worker = self.start(1, "worker")
        self.assert_ends(doctor, cluster.CONFIGURATION, says=[r"connected, but small packets pass and large ones\s+do\s+not"])
        self.assert_ends(worker, cluster.CONFIGURATION, JOINS_AGAIN,
                         says=["control connection, and small packets pass and large ones do not"])

    def test_a_large_join_says_it_as_well(self):
        program = ("import gradrail\n"
                   "gradrail.join({'layer%d' % i: (4,) for i in range(400)}, ps_hosts='10.79.0.2:2222', "
                   "worker_hosts='10.79.1.2:2222', task_index=0, insecure=True)\n")
        self.start(0, "ps").wait_for("listens on")
        worker = self.launch("large", ["ip", "netns", "exec", self.hosts[1], cluster.python_with("numpy"), "-c", program],
                             cluster.python_environment())
        worker.wait_for("small packets pass and large ones do not", JOINS_AGAIN)


class Causes(four_hosts.FourHosts):
    HOSTS = 1

    def on(self, name, *command, environment=None):
        return self.launch(name, ["ip", "netns", "exec", self.hosts[0], *map(str, command)], environment)

    def test_a_host_without_free_ports(self):
        self.on("sysctl", "sh", "-c", "echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range").code()
        ps = self.on("ps", cluster.binary(), "train", "--ps_hosts", f"{four_hosts.address_of(0)}:2222", "--worker_hosts", "w:1",
                     "--insecure", "--job_name", "ps", "--task_index", 0, "--transport", "tcp", "--shards", 3)
        self.assert_ends(ps, cluster.CONFIGURATION, says=[r"no free port: all of .*ip_local_port_range \(40000-40001\) are in use"])

    def with_hosts(self, name, lines, *command):
        hosts = self.folder / f"{name}.hosts"
        hosts.write_text(lines)
        return self.on(name, "unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts, *command)

    def test_an_own_name_that_is_a_loopback_address(self):
        flags = ["--ps_hosts", "node7:2222", "--worker_hosts", "node8:2222", "--insecure", "--task_index", 0, "--model", "linear"]
        ps = self.with_hosts("ps", "127.0.0.1 localhost\n127.0.1.1 node7\n", cluster.binary(), "train", *flags, "--job_name", "ps")
        ps.wait_for(r"ps/0 listens on node7:2222 \(127\.0\.1\.1\)")
        ps.wait_for("the name 'node7' is 127.0.1.1 on this host, which no other host can reach")
        worker = self.with_hosts("worker", f"{four_hosts.address_of(0)} node7\n", cluster.binary(), "train", *flags,
                                 "--job_name", "worker", "--join-timeout", 2)
        self.assert_ends(worker, cluster.RETRY,
                         says=[rf"parameter server 0 \(node7:2222\).*Connection refused \(at {four_hosts.address_of(0)}\)"])

    @cluster.long("ClientTransports keeps each reason; the libraries read their variables here alone")
    def test_variables_that_exclude_a_transport(self):
        for transport, variable in (("ucx", "UCX_TLS=self"), ("ofi", "FI_PROVIDER=shm")):
            name, value = variable.split("=")
            flags = ["--ofi_provider", "tcp"] if transport == "ofi" else []
            task = self.on(transport, cluster.binary(), "train", "--local", "--model", "linear", "--epochs", 1, "--transport",
                           transport, *flags, environment={name: value})
            if task.code() == cluster.GOOD or task.has("not found in|not in this build"):
                continue  # a build without the plug-in, or a library for which the variable is no obstacle
            self.assertTrue(task.has(f"the environment has .*{variable}"), task.transcript())

    def test_a_small_dev_shm(self):
        task = self.on("ucx", "unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"', "-",
                       cluster.binary(), "train", "--local", "--model", "linear", "--epochs", 1, "--transport", "ucx")
        if task.code() == cluster.GOOD or task.has("not found in|not in this build"):
            cluster.skip("this build has no UCX, or UCX needs no /dev/shm")
        self.assertTrue(task.has("/dev/shm has [0-9]+ KiB free"), task.transcript())


if __name__ == "__main__":
    four_hosts.run_or_skip(unittest.main)
