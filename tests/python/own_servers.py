"""Parameter servers for a program that makes many short runs, one after the other, in one process."""
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))
import cluster  # noqa: E402


class OwnServers:
    """Some servers are started ahead: a run that begins does not wait for them."""

    ports = []  # of all, because a server that starts does not listen yet

    def __init__(self, workers, ahead=3):
        self._workers = workers
        self._ahead = ahead
        self._started = []

    def _start(self):
        if not self.ports:
            self.ports += cluster.free_ports(500)
        port = self.ports.pop()
        command = [os.environ["GRADRAIL_BINARY"], "train", "--ps_hosts", f"127.0.0.1:{port}", "--worker_hosts", self._names(),
                   "--job_name", "ps", "--task_index", "0"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._started.append((port, process))

    def _names(self):
        return ",".join(f"localhost:{3000 + index}" for index in range(self._workers))

    def next(self):
        """Returns the process of a new server, and the arguments of join() for its worker 0, 1, …"""
        self._started = [one for one in self._started if one[1].poll() is None]  # another process had its port
        while len(self._started) <= self._ahead:
            self._start()
        port, process = self._started.pop(0)
        return process, [{"ps_hosts": f"127.0.0.1:{port}", "worker_hosts": self._names(), "task_index": index,
                          "join_timeout": 60 * cluster.PATIENCE} for index in range(self._workers)]

    @staticmethod
    def end(process):
        process.kill()
        process.wait()

    def close(self):
        for _, process in self._started:
            self.end(process)
        self._started = []
