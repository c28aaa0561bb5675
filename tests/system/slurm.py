"""Starts a private Slurm cluster on this machine: munged, slurmctld and one slurmd per node, all in one folder.

Each daemon runs in the foreground with its own ports, sockets and key, so that it does not affect another Slurm on the
machine. Its mount namespace maps the names of the nodes to loopback addresses.
"""
import os
import pathlib
import shutil
import socket
import subprocess
import time

import cluster

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "scontrol", "unshare")

# Tasks of a slurmd continue after its end. In its own process namespace, its end also ends its tasks.
OWN_PROCESSES = ("--pid", "--fork", "--kill-child", "--mount-proc")

# A configuration for a container without cgroups, systemd and a database.
CONFIGURATION = """\
ClusterName=gradrail
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
SlurmctldTimeout=60
SlurmdTimeout=60
{nodes}
PartitionName=all Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def why_not():
    """Returns the reason why this machine cannot run the cluster, or None."""
    missing = [name for name in PROGRAMS if find(name) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    if os.geteuid() != 0:
        return "slurmd needs root"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        return "no mount namespaces"
    return None


def find(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


class Slurm:
    """The daemons of a cluster. `launch` starts a process that ends with the test (ClusterTest.launch)."""

    def __init__(self, folder, launch, count=4):
        self.folder, self._launch = pathlib.Path(folder), launch
        self.folder.chmod(0o755)
        self.names = [f"n{i + 1}" for i in range(count)]
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._write_configuration(count)
        self._start_munged()
        self._start("slurmctld", "-D", "-i")
        for name in self.names:
            self._launch(f"slurmd-{name}", self.inside(["slurmd", "-D", "-N", name], *OWN_PROCESSES), self.environment)
        self._wait_for_nodes()

    def _write_configuration(self, count):
        ports = cluster.free_ports(count + 1)
        host = socket.gethostname().split(".")[0]
        nodes = "\n".join(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4"
                          for name, port in zip(self.names, ports[1:]))
        for name in ["state", *(f"{kind}-{node}" for kind in ("spool", "tmp") for node in self.names)]:
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, ctld_port=ports[0], folder=self.folder, nodes=nodes, count=count))
        lines = "".join(f"127.0.0.{i + 1} {name}\n" for i, name in enumerate(self.names))
        (self.folder / "hosts").write_text(pathlib.Path("/etc/hosts").read_text() + "\n" + lines)

    def inside(self, command, *namespaces):
        mount = f'mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        return ["unshare", "-m", *namespaces, "sh", "-c", mount, "sh", find(command[0]) or command[0], *map(str, command[1:])]

    def start(self, name, *command):
        return self._launch(name, self.inside(command), self.environment)

    def _start(self, program, *arguments, label=None):
        return self.start(label or program, program, *arguments)

    def _start_munged(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        place = self.folder / "munge"  # munged checks the write permissions of its log folder
        place.mkdir(0o755)
        self._start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
                    f"--pid-file={place}/munged.pid", f"--log-file={place}/munged.log", f"--seed-file={place}/seed",
                    "--num-threads=2")
        cluster.wait_until((self.folder / "munge.socket").exists, cluster.START, lambda: "no munge.socket")

    def ask(self, *command):
        return subprocess.run(self.inside(command), capture_output=True, text=True, check=False, timeout=cluster.START,
                              env={**os.environ, **self.environment})

    def _wait_for_nodes(self):
        deadline = time.monotonic() + 2 * cluster.START
        said = ""
        while said.split() != ["idle"] * len(self.names):
            if time.monotonic() > deadline:
                raise AssertionError(f"timed out waiting for idle nodes: {said}")
            time.sleep(0.2)
            said = self.ask("sinfo", "-h", "-N", "-o", "%T").stdout
