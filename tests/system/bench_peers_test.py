"""Tests the comparison of `gradrail bench` with other programs, the end of the processes that it starts, and its output
on a terminal."""
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import unittest

import cluster

QUICK = ["--rounds", "1", "--seconds", "0.02"]
SMALL = ["-b", "4K", "-e", "4K", *QUICK]


def processes_of_session(session):
    """Returns the names of the running processes that a task has started, with the task itself."""
    names = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, rest = re.fullmatch(r"\d+ \((.*)\) (.*)", (entry / "stat").read_text().strip(), re.S).groups()
        except OSError:
            continue
        fields = rest.split()
        if int(fields[3]) == session and fields[0] != "Z":
            names[int(entry.name)] = name
    return names


class BenchTest(cluster.ClusterTest):
    def bench(self, *arguments, code=cluster.GOOD, environment=None):
        ran = subprocess.run([cluster.binary(), "bench", *map(str, arguments)], capture_output=True, text=True,
                             timeout=4 * cluster.FINISH, env={**os.environ, **(environment or {})})
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        self.assertIsNone(cluster.CRASHES.search(ran.stdout + ran.stderr), ran.stdout + ran.stderr)
        return ran.stdout + ran.stderr

    def rows(self, *arguments, **named):
        file = self.folder / "run.json"
        self.bench(*arguments, "-J", file, **named)
        return {(row["path"], row["what"]): row for row in cluster.recorded_run(file)["results"]}

    def start(self, *arguments, environment=None, output=None):
        return self.launch("bench", [cluster.binary(), "bench", *map(str, arguments)], environment, output)

    def build_folder(self):
        return pathlib.Path(cluster.binary()).resolve().parents[1] / "bench"


class Peers(BenchTest):
    def test_every_way_of_open_mpi(self):
        file = self.folder / "run.json"
        self.bench("peers", "--part", "exchange", *SMALL, "-J", file)
        run = cluster.recorded_run(file)
        self.assertEqual(run["config"]["question"], "peers")
        rows = {(row["path"], row["what"]): row for row in run["results"]}
        cluster.assert_measured(self, run["results"], ("bound: memcpy", "gradrail shm", "gradrail tcp", "raw socket"), rounds=1)
        for path in ("shared memory", "tcp", "put shared memory", "put tcp", "allreduce shared memory", "allreduce tcp"):
            row = rows[f"Open MPI {path}", ""]
            if (self.build_folder() / "mpi_exchange").exists():
                self.assertEqual((row["failed"], row["nwrong"]), ("", 0), row)
                self.assertGreater(row["more"]["/shm"], 0)
            else:
                self.assertRegex(row["failed"], r"was not built \(apt install libopenmpi-dev")
        self.assertFalse([path for path, _ in rows if "fi_" in path or "ucx" in path])

    @cluster.long("two_hosts starts the same programs; no test of `make test` compares their figures")
    def test_puts_beside_the_libraries_they_go_through(self):
        rows = self.rows("peers", "--part", "put", "-b", 64, "-e", 64, *QUICK, "--transport", "ofi")
        self.assertEqual({(path, what) for path, what in rows if path.startswith("ofi-tcp")},
                         {("ofi-tcp: gradrail ofi", "latency"), ("ofi-tcp: gradrail ofi", "bandwidth"),
                          ("ofi-tcp: bare fi_writedata", "latency"), ("ofi-tcp: bare fi_writedata", "bandwidth"),
                          ("ofi-tcp: fi_pingpong", "latency")})
        built = (self.build_folder() / "fi_writedata").exists()
        for (path, what), row in rows.items():
            if row["failed"]:
                self.assertRegex(row["failed"], r"\(apt install libfabric-bin\)|was not built" if not built else "apt install")
                continue
            self.assertGreater(row["percentiles"]["iterations"], 0)
            self.assertGreater(row["percentiles"]["p50_us"], 0)
            ratios = [value for name, value in row["more"].items() if name.startswith("ours/it")]
            self.assertEqual(len(ratios), 0 if "gradrail" in path else 1, row)
            # The ratio must use the right results, and ours must be its numerator.
            ours = rows[path.split(":")[0] + ": gradrail ofi", what]["percentiles"]
            basis = "mean_us" if "ours/it(mean)" in row["more"] else "p50_us"
            for ratio in ratios:
                self.assertAlmostEqual(ratio, ours[basis] / row["percentiles"][basis], delta=1e-3 * ratio)
        if built:
            self.assertFalse(rows["ofi-tcp: bare fi_writedata", "latency"]["failed"], rows)

    @cluster.long("two_hosts has the programs; no test of `make test` lacks one")
    def test_programs_that_are_not_there_keep_their_rows(self):
        path = self.folder / "bin"
        path.mkdir()
        asked = ["peers", "--part", "put", "-b", 64, "-e", 64, *QUICK, "--transport", "ucx,ofi"]
        (nothing,) = self.no_figures(asked, path)
        self.assertRegex(nothing["failed"], r"python3 .* \(apt install python3\)")
        (path / "python3").symlink_to(sys.executable)
        rows = self.no_figures([*asked, "--transport", "ucx"], path)
        for row in rows:
            if "perftest" in row["path"] or "no errors" in row["path"]:
                self.assertRegex(row["failed"], r"^ucx_perftest is not installed \(apt install ucx-utils\)$", row)

    def no_figures(self, asked, path):
        """Returns the rows of a run in which measurements may be missing."""
        file = self.folder / "run.json"
        ran = subprocess.run([cluster.binary(), "bench", *map(str, asked), "-J", str(file)], capture_output=True, text=True,
                             timeout=4 * cluster.FINISH, env={**os.environ, "PATH": str(path)})
        self.assertIn(ran.returncode, (cluster.GOOD, cluster.CONFIGURATION), ran.stdout + ran.stderr)
        return cluster.recorded_run(file)["results"]

    def test_two_hosts(self):
        if not (self.build_folder() / "fi_writedata").exists():
            cluster.skip("built without libfabric")
        (port,) = cluster.free_ports(1)
        common = ["--build-dir", self.build_folder().parent, "--agent-port", port]
        script = [sys.executable, "-B", self.build_folder() / "compare_put.py", *common]
        serve = self.launch("serve", [*map(str, script), "--serve"])
        file = self.folder / "rows.jsonl"
        peer = self.launch("peer", [*map(str, script), "--peer", "127.0.0.1", "--groups", "ofi-tcp", "--what", "latency",
                                    "--sizes", "8", "--rounds", "1", "--seconds", "0.01", "--json", str(file)])
        peer.code()
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertIn("bare fi_writedata", [row["contender"] for row in rows], peer.transcript())
        serve.code(10 * cluster.PATIENCE)


class Ends(BenchTest):
    def assert_ended(self, task, code):
        self.assertEqual(task.code(10 * cluster.PATIENCE), code, task.transcript())
        cluster.wait_until(lambda: not processes_of_session(task.pid), 10 * cluster.PATIENCE,
                           lambda: f"left: {processes_of_session(task.pid)}")

    def ended_while(self, running, number, code, *arguments):
        seen = set()

        def is_running():
            family = processes_of_session(task.pid)
            seen.update(family)
            return len(family) > 2 and any(name in running for name in family.values())

        before = set(os.listdir("/dev/shm"))  # process ids are reused, and processes ended by SIGKILL leave files
        task = self.start(*arguments, "--rounds", 100)
        cluster.wait_until(is_running, cluster.START, lambda: f"{running} does not run\n{task.transcript()}")
        task.signal(number)
        self.assert_ended(task, code)
        left = [name for name in set(os.listdir("/dev/shm")) - before
                if re.match(r"(\d+):", name) and int(name.split(":")[0]) in seen]
        self.assertFalse(left)
        return task

    def test_with_its_tasks(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number):
                self.ended_while([pathlib.Path(cluster.binary()).name[:15]], number, 128 + number, "exchange", "--transport", "tcp", "--seconds", 20)

    def test_started_with_signals_blocked(self):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            self.ended_while([pathlib.Path(cluster.binary()).name[:15]], signal.SIGTERM, 143, "exchange", "--transport", "tcp",
                             "--seconds", 20)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def test_with_programs_of_others(self):
        for programs in (["mpi_exchange"], ["gloo_exchange", "zeromq_exchange"]):
            if any((self.build_folder() / program).exists() for program in programs):
                with self.subTest(programs=programs):
                    self.ended_while(programs, signal.SIGTERM, 143, "peers", "--part", "exchange", "-b", "4K", "-e", "4K",
                                     "--seconds", 0.3)

    def test_with_puts_of_others(self):
        if not (self.build_folder() / "fi_writedata").exists():
            cluster.skip("built without libfabric")
        self.ended_while(["fi_writedata"], signal.SIGTERM, 143, "peers", "--part", "put", "--transport", "ofi", "-b", "8",
                         "-e", "8", "--seconds", 2)

    def test_killed(self):
        self.ended_while([pathlib.Path(cluster.binary()).name[:15]], signal.SIGKILL, -signal.SIGKILL, "exchange", "--transport", "shm", "--seconds", 20)


class GpuPaths(BenchTest):
    """Tests the rows of `paths` and `exchange` in the memory of a simulated GPU, with a network device that accesses this memory."""
    SIMULATED_GPU = pathlib.Path(os.environ["GRADRAIL_SIMULATED_GPU_DIR"])
    SMALL = ["-b", "64K", "-e", "64K", *QUICK]
    NIC = ["--plugin-dir", SIMULATED_GPU.parent / "simulated_nic", "--transport", "simnic,shm,tcp"]

    def paths(self, words, *flags, suite="paths", code=cluster.GOOD):
        gpu = {"LD_LIBRARY_PATH": str(self.SIMULATED_GPU), "GRADRAIL_SIMULATED_GPU": words} if words else {}
        return list(self.rows(suite, *self.SMALL, *flags, environment=gpu, code=code).values())

    def assert_why(self, rows, path, why):
        (row,) = [row for row in rows if row["path"] == path]
        self.assertRegex(row["failed"], why)

    def test_every_way_that_there_is(self):
        for flags in ([], ["--workers", 2, "--shards", 2, "--touch", "--optimizer", "adam", "--bucket_kib", 16]):
            with self.subTest(flags=flags):
                rows = self.paths("devices=2", *self.NIC, *flags)
                measured = {row["path"] for row in rows if not row["failed"]}
                self.assertEqual({path for path in measured if path.endswith(", gpu:0")},
                                 {"tcp gpu-direct(ipc), gpu:0", "shm gpu-direct(ipc), gpu:0", "tcp gpu-direct(dmabuf), gpu:0",
                                  "tcp staged, gpu:0", "shm staged, gpu:0"})
                self.assertEqual({row["nwrong"] for row in rows}, {0})
                self.assert_why(rows, "tcp, gpu:0 dmabuf", "^tcp moves host memory only$")
                self.assert_why(rows, "shm, gpu:0 peermem", "^shm moves host memory only$")
                self.assert_why(rows, "simnic by an RDMA device, gpu:0 peermem", "^peermem: no peer-memory module: modprobe")

    def test_exchange_has_the_rows_in_gpu_memory_with_their_stages(self):
        rows = self.paths("devices=2", *self.NIC, "--on", "gpu:1", "--workers", 2, suite="exchange")
        measured = {row["path"]: row for row in rows if not row["failed"]}
        self.assertEqual(set(measured), {"tcp gpu-direct(ipc), gpu:1", "shm gpu-direct(ipc), gpu:1", "tcp gpu-direct(dmabuf), gpu:1",
                                         "tcp staged, gpu:1", "shm staged, gpu:1"})
        self.assertEqual({row["nwrong"] for row in rows}, {0})
        self.assertIn("pack or copy", dict(measured["shm staged, gpu:1"]["stages"]))
        self.assertGreater(dict(measured["shm gpu-direct(ipc), gpu:1"]["stages"])["sum + optimizer"], 0)

    def test_exchange_without_that_gpu(self):
        self.assertRegex(self.bench("exchange", "--on", "gpu:7", environment={"LD_LIBRARY_PATH": str(self.SIMULATED_GPU)},
                                    code=cluster.CONFIGURATION), "no GPU 7")

    def test_another_gpu(self):
        rows = self.paths("devices=2", "--transport", "tcp", "--on", "gpu:1")
        self.assertLess({"tcp, gpu:1 dmabuf", "tcp staged, gpu:1"}, {row["path"] for row in rows})

    def test_without_a_gpu_rows_say_why(self):
        rows = self.paths("init=3", "--transport", "tcp")
        for way in ("ipc", "dmabuf", "peermem", "staged"):
            self.assert_why(rows, f"gpu:0 {way}", "driver does not start")
        self.assertEqual(len(rows), 5)

    def test_a_gpu_that_is_named_has_to_be_there(self):
        gpu = {"LD_LIBRARY_PATH": str(self.SIMULATED_GPU), "GRADRAIL_SIMULATED_GPU": "devices=1"}
        said = self.bench("paths", *self.SMALL, "--on", "gpu:7", environment=gpu, code=cluster.CONFIGURATION)
        self.assertRegex(said, "no GPU 7: there is GPU 0")
        self.assertRegex(self.bench("paths", "--on", "gpu:x", code=cluster.USAGE), "--on: gpu:x: must be the name of a GPU")

    def test_a_gpu_that_fails_lets_no_process_wait(self):
        for words, path, why in (("memory=1M", "tcp, gpu:0 staged", "2\.0 MiB of memory, of 1\.0 MiB free"),
                                 ("lose=0@2", "tcp, gpu:0 ipc", "GPU was lost")):
            with self.subTest(words=words):
                rows = self.paths(words, "--transport", "tcp", code=cluster.FAILED)
                self.assert_why(rows, path, why)
                self.assertEqual({row["path"] for row in rows if not row["failed"] and "gpu" not in row["path"]}, {"tcp"})


class Words(BenchTest):
    def test_what_cannot_be_asked(self):
        everything = "paths, exchange, incast, .*put, .*peers \(gradrail bench --help\); gradrail-report compares"
        for code, words, arguments in (
                (cluster.USAGE, f"no suite is called nonsense: one of {everything}", ["nonsense"]),
                (cluster.USAGE, f"a suite is missing: one of {everything}", []),
                (cluster.USAGE, "-e 8 is less than -b 64, where this suite begins unless", ["peers", "-e", "8"]),
                (cluster.USAGE, "--workers: '0' is not a whole number from 1 to 256", ["exchange", "--workers", "0"]),
                (cluster.CONFIGURATION, r"--bind-host 203\.0\.113\.9: not an address of this host; this host has .*127\.0\.0\.1 \(lo\)",
                 ["put", "--bind-host", "203.0.113.9"])):
            with self.subTest(arguments=arguments):
                self.assertRegex(self.bench(*arguments, code=code), words)
        self.assertIn("tcp", self.bench("put", "-b", 8, "-e", 8, *QUICK, "--transport", "tcp", "--bind-host", "127.0.0.1"))

    def test_one_round(self):
        self.assertRegex(self.bench("put", "-b", "8", "-e", "8", *QUICK, "--transport", "tcp"), r"# 1 round of ")

    def test_progress_on_a_terminal_only(self):
        asked = ["put", "-b", "8", "-e", "32", "-f", "2", "--rounds", "2", "--seconds", "0.02", "--transport", "tcp"]
        master, slave = pty.openpty()
        task = self.start(*asked, output=(os.dup(master), slave))
        self.assertEqual(task.code(), cluster.GOOD, task.transcript())
        shown = task.raw().decode()
        self.assertRegex(shown, r"\r\x1b\[Ksize 2 of 3, round 1 of 2, about \d+ s left")
        self.assertRegex(shown, r"\r\x1b\[K  tcp +8 ")  # rows begin on a line that was cleared
        self.assertNotIn("\x1b", self.bench(*asked))

    def test_busy_machine(self):
        for _ in range(os.cpu_count()):
            self.launch("spin", [sys.executable, "-c", "while True: pass"])
        asked = ["put", "-b", "8", "-e", "8", *QUICK, "--transport", "tcp"]
        self.assertRegex(self.bench(*asked), r"# warning: other processes use \d+ % of \d+ cores \(load average [\d.]+\)")
        cluster.run_from(self.bench(*asked, "--format", "json"))


if __name__ == "__main__":
    unittest.main()
