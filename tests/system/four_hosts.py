"""Makes four hosts, or more: network namespaces behind one bridge, each with its own address. It needs root."""
import os
import re
import shutil
import subprocess
import sys

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
    entered = ip("-n", probe, "link", "set", "lo", "up", check=False)
    linked = ip("link", "add", f"{probe}a", "type", "veth", "peer", "name", f"{probe}b", check=False)
    ip("link", "del", f"{probe}a", check=False)
    ip("netns", "del", probe, check=False)
    if entered.returncode != 0:  # for example in a chroot: its mounts cannot be shared
        return f"network namespaces cannot be entered here: {entered.stderr.strip()}"
    return "" if linked.returncode == 0 else f"veth devices cannot be made here: {linked.stderr.strip()}"


def sweep():
    """Removes the namespaces and links of a run that was killed."""
    for line in ip("netns", "list").stdout.splitlines():
        ours = re.match(r"gr(\d+)[sp0-9]\b", line)
        if ours and not os.path.exists(f"/proc/{ours[1]}"):
            ip("netns", "del", line.split()[0], check=False)


def address_of(host):
    return f"{NETWORK}.{host + 1}"


class FourHosts(cluster.ClusterTest):
    """Provides four hosts and a switch: a bridge in its own namespace, so that the network of the host is unchanged.
    Derived classes may choose other numbers of hosts."""

    HOSTS = 4
    PS = (0,)  # hosts with a ps task, in the order of the tasks
    WORKERS = (1, 2, 3)

    def setUp(self):
        super().setUp()
        self.prefix = f"gr{os.getpid()}"
        self.hosts = []
        self.switch = self.add_namespace("s")
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for i in range(self.HOSTS):
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
        ip("-n", name, "address", "add", f"{address_of(index)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        return name

    def train_on(self, host, job, index, *flags, binary_flags=("--model", "linear"), environment=None):
        hosts = ["--ps_hosts", ",".join(f"{address_of(i)}:2222" for i in self.PS),
                 "--worker_hosts", ",".join(f"{address_of(i)}:2222" for i in self.WORKERS)]
        command = ["ip", "netns", "exec", self.hosts[host], cluster.binary(), "train", *hosts, *binary_flags,
                   "--insecure", "--job_name", job, "--task_index", index, *flags]
        return self.launch(f"{job}/{index}", [str(word) for word in command],
                           {"TMPDIR": str(self.folder), **(environment or {})})

    def start_all(self, *flags):
        ps = self.train_on(0, "ps", 0, *flags)
        return ps, [self.train_on(1 + i, "worker", i, *flags) for i in range(3)]



def run_or_skip(main):
    missing = why_not()
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    sweep()
    main()
