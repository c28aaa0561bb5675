"""Hosts that lack what shm needs: memfd_create() is forbidden, or /proc is not mounted. The run uses another transport."""
import pathlib
import platform
import subprocess
import sys
import unittest

import cluster
import without_call

WITHOUT_CALL = str(pathlib.Path(__file__).with_name("without_call.py"))
WITHOUT_PROC = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
RUN = ("--model", "linear", "--epochs", 1)


def without_memfd(error):
    if platform.machine() not in without_call.NUMBERS:
        cluster.skip(f"no number of memfd_create for {platform.machine()}")
    return [sys.executable, WITHOUT_CALL, "memfd_create", error]


def without_proc():
    if cluster.instrumented():
        cluster.skip("the runtimes of sanitizers read /proc themselves")
    tried = subprocess.run([*WITHOUT_PROC, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        cluster.skip(f"unshare -rm: {tried.stderr.strip()}")
    return WITHOUT_PROC


class Sandbox(cluster.ClusterTest):
    def start(self, sandbox, *flags, name="train"):
        return self.launch(name, [*sandbox, cluster.binary(), "train", *map(str, flags)], {"TMPDIR": str(self.folder)})

    def assert_goes_over_tcp(self, sandbox, why):
        """The sandbox has a local cluster, the server alone, or the worker alone."""
        task = self.start(sandbox, "--ps", 1, "--workers", 1, *RUN)
        self.assert_ends(task, cluster.GOOD, says=[rf"Path: shard 0 at .*: tcp \(shm refused: not usable at the other end: {why}"])
        for sandboxes in ((sandbox, []), ([], sandbox)):
            flags = [*self.addresses(1), *RUN]
            tasks = [self.start(sandbox, *flags, "--job_name", job, "--task_index", 0, name=job)
                     for job, sandbox in zip(("ps", "worker"), sandboxes)]
            for task in tasks:
                self.assert_ends(task, cluster.GOOD)
            self.assert_says(tasks[1], r"Path: shard 0 at .*: tcp \(shm refused: ")
        # Without another transport the run does not start, and the cause is the same.
        task = self.start(sandbox, "--ps", 1, "--workers", 1, *RUN, "--transport", "shm")
        self.assert_ends(task, cluster.CONFIGURATION, says=[why])

    def test_memfd_is_forbidden(self):
        # The error named free memory and `ulimit -n`.
        for error, text in (("EPERM", "Operation not permitted"), ("ENOSYS", "Function not implemented")):
            with self.subTest(error=error):
                self.assert_goes_over_tcp(without_memfd(error), rf"shm: memfd_create: {text} \(forbidden by seccomp")

    def test_proc_is_not_mounted(self):
        # The error was that of a span of memory: it does not begin where its file does.
        self.assert_goes_over_tcp(without_proc(), r"shm: /proc/self/maps: No such file or directory \(is /proc mounted\?\)")

    def test_the_data_beside_the_program_is_not_found_without_proc(self):
        task = self.start(without_proc(), "--ps", 1, "--workers", 1, "--epochs", 1)
        self.assert_ends(task, cluster.CONFIGURATION, says=[r"no MNIST: /proc/self/exe .*is /proc mounted"])


if __name__ == "__main__":
    unittest.main()
