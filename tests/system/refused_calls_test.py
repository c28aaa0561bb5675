"""Tests local clusters where the kernel refuses a resource: each call that starts a run can fail.

A preloaded library (failing_calls.c) refuses the N-th call of a kind. For each N the run ends well, or with the exit code
of a configuration, and leaves nothing behind. $GRADRAIL_ALL_REFUSED_CALLS=1 tries all N, else a sample of them, which is
larger in `make test-all`.
"""
import collections
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

import cluster

LIMIT = 15 * cluster.PATIENCE
RUN = ("train", "--local", "--workers", "2", "--model", "linear", "--epochs", "1", "--mode", "sync")
SAMPLE = 6 if os.environ.get("GRADRAIL_LEVEL") == "all" else 3  # of a kind

Ran = collections.namedtuple("Ran", "code calls caller output")


def processes_of(session):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


class EachCall(unittest.TestCase):
    def setUp(self):
        if cluster.instrumented():
            cluster.skip("the runtimes of sanitizers make such calls themselves")

    def run_with(self, kind, number, stays=False, command=RUN):
        with tempfile.TemporaryDirectory(prefix="refused") as folder:
            counter = pathlib.Path(folder, "counter")
            counter.write_bytes(bytes(4096))
            environment = dict(os.environ, LD_PRELOAD=os.environ["GRADRAIL_FAILING_CALLS"], TMPDIR=folder, FAILING_CALL=kind,
                               FAILING_CALL_AT=str(number), FAILING_CALL_COUNTER=str(counter))
            if stays:
                environment["FAILING_CALL_STAYS"] = "1"
            before = set(os.listdir("/dev/shm"))
            with subprocess.Popen([cluster.binary(), *command], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as run:
                try:
                    output = run.communicate(timeout=LIMIT)[0]
                except subprocess.TimeoutExpired:
                    os.killpg(run.pid, signal.SIGKILL)
                    output = run.communicate()[0]
                    self.fail(f"{kind} {number}: no end within {LIMIT} s\n{output}")
                self.assertEqual(processes_of(run.pid), [], output)
            # Other tests have folders there meanwhile.
            others = ("gradrail-test-", "gradrail-simulation-")
            new = [name for name in set(os.listdir("/dev/shm")) - before if not name.startswith(others)]
            self.assertEqual([name for name in new if "gradrail" in name], [], output)
            left = [name for name in os.listdir(folder) if name != "counter" and "flight" not in name]
            self.assertEqual(left, [], output)
            data = counter.read_bytes()
            return Ran(run.returncode, struct.unpack("Q", data[:8])[0], data[64:].split(b"\0")[0].decode(), output)

    def try_kind(self, kind):
        calls = self.run_with(kind, 0).calls
        numbers = range(1, calls + 1)
        if not os.environ.get("GRADRAIL_ALL_REFUSED_CALLS"):
            numbers = sorted({1 + i * max(calls - 1, 0) // (SAMPLE - 1) for i in range(SAMPLE)} & set(numbers))
        codes = collections.Counter()
        for number in numbers:
            with self.subTest(kind=kind, number=number):
                ran = self.run_with(kind, number)
                codes[ran.code] += 1
                if ran.code == cluster.RETRY and "Step: " in ran.output:
                    # After the start, a library that aborts is a worker that is lost. The others complete the run.
                    self.assertRegex(ran.output, r"(?m)^(\[worker/1\] )?done$")
                    continue
                self.assertIn(ran.code, (cluster.GOOD, cluster.CONFIGURATION), f"{ran.caller}\n{ran.output}")
                self.assertNotRegex(ran.output, "terminate called|broken invariant|Aborted|signal [0-9]+ ")
        print(f"{kind}: {calls} calls, {len(numbers)} refused: {dict(codes)}")
        return codes

    def test_processes_and_threads(self):
        for kind in ("fork", "thread"):
            self.assertGreater(self.try_kind(kind)[cluster.CONFIGURATION], 0)

    def test_pipes_and_sockets(self):
        for kind in ("pipe", "socket", "bind", "listen", "accept", "dup"):
            self.try_kind(kind)

    def test_memory(self):
        for kind in ("memfd", "ftruncate", "mmap"):
            self.try_kind(kind)

    def test_descriptors_of_events(self):
        for kind in ("eventfd", "epoll", "timerfd", "signalfd"):
            self.try_kind(kind)

    def test_files(self):
        self.try_kind("open")

    def test_the_limit_is_named(self):
        for kind, words in (("fork", "fork: Resource temporarily unavailable"), ("pipe", "this process may open [0-9]+ files"),
                            ("memfd", "shared memory .*this process may open [0-9]+ files")):
            ran = self.run_with(kind, 1, stays=True)
            self.assertEqual(ran.code, cluster.CONFIGURATION, ran.output)
            self.assertRegex(ran.output, words)

    def test_info_without_threads_ends_with_a_reason(self):
        ran = self.run_with("thread", 1, stays=True, command=["info"])
        self.assertIn(ran.code, (cluster.GOOD, cluster.CONFIGURATION), ran.output)
        self.assertNotRegex(ran.output, "Aborted|terminate called")
        if ran.code:  # a build without UCX is complete
            self.assertIn("gradrail: info: a library has aborted", ran.output)


class Limits(unittest.TestCase):
    def run_limited(self, *command, before=None, prefix=()):
        return subprocess.run([*prefix, cluster.binary(), *map(str, command)], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=cluster.FINISH, preexec_fn=before)

    def test_the_soft_limit_of_descriptors_is_raised(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        ran = self.run_limited("train", "--local", "--workers", 8, "--model", "linear", "--epochs", 1, "--mode", "sync",
                                  before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, hard)))
        self.assertEqual(ran.returncode, cluster.GOOD, ran.stderr)

    def test_the_hard_limit_of_descriptors_is_named(self):
        ran = self.run_limited(*RUN, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)))
        self.assertEqual(ran.returncode, cluster.CONFIGURATION, ran.stderr)
        self.assertRegex(ran.stderr, "open files are needed, and the hard limit is 24")

    def test_a_loopback_interface_that_is_down(self):
        if os.geteuid() != 0 or not shutil.which("unshare"):
            cluster.skip("a network namespace needs root and unshare")
        ran = self.run_limited(*RUN, prefix=("unshare", "-n"))
        self.assertEqual(ran.returncode, cluster.CONFIGURATION, ran.stderr)
        self.assertRegex(ran.stderr, "the loopback interface is down: `ip link set lo up`")

    def cgroup(self, controller, **values):
        """A cgroup of the first or the second hierarchy, for one process."""
        for folder in (pathlib.Path("/sys/fs/cgroup", controller), pathlib.Path("/sys/fs/cgroup")):
            try:
                group = folder / f"gradrail-test-{os.getpid()}"
                group.mkdir()
                self.addCleanup(group.rmdir)
                for name, value in values.items():
                    file = group / f"{controller}.{name}"
                    if file.exists():
                        file.write_text(str(value))
                        return lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                continue
        return cluster.skip(f"no cgroup with the controller {controller} can be made here")

    def test_a_limit_of_processes(self):
        for limit in (40, 30, 24, 12):
            with self.subTest(limit=limit):
                enter = self.cgroup("pids", max=limit)
                ran = self.run_limited(*RUN, before=enter)
                self.assertEqual(ran.returncode, cluster.CONFIGURATION, ran.stderr)
                self.assertRegex(ran.stderr, f"pids.max of .* is {limit} processes and threads")
                self.doCleanups()

    def test_a_limit_of_memory(self):
        enter = self.cgroup("memory", limit_in_bytes=400 << 20, max=400 << 20)
        for command in (("exchange", "-b", "256M", "-e", "256M", "--transport", "shm"), ("put", "-b", "256M", "-e", "256M"),
                        ("apply", "-b", "512M", "-e", "512M"),
                        ("straggler", "-b", "256M", "-e", "256M"), ("publish", "-b", "512M", "-e", "512M")):
            with self.subTest(command=command):
                ran = self.run_limited("bench", *command, before=enter)
                self.assertEqual(ran.returncode, cluster.CONFIGURATION, ran.stderr)
                self.assertRegex(ran.stderr, r"memory\.(limit_in_bytes|max) of .* is 419430400 bytes")


if __name__ == "__main__":
    unittest.main()
