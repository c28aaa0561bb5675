"""Tests `gradrail bench` over several processes. Each process is started separately, as on several hosts."""
import os
import shutil
import signal
import subprocess
import sys
import unittest

import cluster
import process_use

QUICK = ["--rounds", "1", "--seconds", "0.05", "--transport", "tcp"]
SIZE = ["-b", "4K", "-e", "4K"]


class BenchCluster(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        ports = cluster.free_ports(3)
        self.meet = f"127.0.0.1:{ports[0]}"
        self.hosts = ["--ps_hosts", self.meet, "--worker_hosts", f"127.0.0.1:{ports[1]},127.0.0.1:{ports[2]}"]
        self.started = []

    def tearDown(self):
        for process in self.started:
            process.kill()
            process.communicate()
        super().tearDown()

    def start(self, job, index, *flags, suite="exchange"):
        process = subprocess.Popen([cluster.binary(), "bench", suite, *QUICK,
                                    *([] if suite == "replay" else SIZE), *self.hosts, "--job_name", job,
                                    "--task_index", str(index), *map(str, flags)], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        return process

    def text(self, process, code=cluster.GOOD, within=2 * cluster.FINISH):
        said, _ = process.communicate(timeout=within)
        self.assertEqual(process.returncode, code, said)
        self.assertIsNone(cluster.CRASHES.search(said), said)
        return said

    def test_rank_0_prints_what_all_did(self):
        file = self.folder / "run.json"
        workers = [self.start("worker", i) for i in range(2)]
        self.text(self.start("ps", 0, "-J", file))
        for worker in workers:
            self.assertEqual(self.text(worker), "")
        run = cluster.recorded_run(file)
        self.assertEqual(sorted(device["task"] for device in run["devices"]), ["ps/0", "worker/0", "worker/1"])
        self.assertEqual(len({device["pid"] for device in run["devices"]}), 3)
        (row,) = run["results"]
        self.assertEqual((row["failed"], row["nwrong"], row["path"]), ("", 0, "tcp"))
        self.assertEqual(row["stages"][0][0], "post")

    def test_a_traffic_matrix_over_several_processes(self):
        matrix, file = self.folder / "matrix.csv", self.folder / "run.json"
        matrix.write_text("64K,0\n4K,256K\n")
        flags = ["--matrix", matrix, "--shards", 2]
        workers = [self.start("worker", i, *flags, suite="replay") for i in range(2)]
        said = self.text(self.start("ps", 0, *flags, "-J", file, suite="replay"))
        for worker in workers:
            self.assertEqual(self.text(worker), "")
        rows = cluster.recorded_run(file)["results"]
        self.assertEqual([(row["path"], row["size"], row["nwrong"], row["failed"]) for row in rows],
                         [("tcp", 331776, 0, ""), ("tcp worker/0", 65536, 0, ""), ("tcp worker/1", 266240, 0, "")])
        self.assertIn("busiest: ps/0 with 331776", said)

    def test_all_ranks_end_with_the_refusal_of_rank_0(self):
        matrix = self.folder / "matrix.csv"
        matrix.write_text("64K\n64K\n64K\n")
        workers = [self.start("worker", i, "--matrix", matrix, suite="replay") for i in range(2)]
        refusal = f"--matrix {matrix}: 3 rows, and there are 2 ranks for workers"
        self.assertIn(refusal, self.text(self.start("ps", 0, "--matrix", matrix, suite="replay"), cluster.USAGE))
        for worker in workers:
            self.assertIn(f"gradrail bench: rank 0 at {self.meet} has ended: {refusal}", self.text(worker, cluster.USAGE))

    def test_memory_for_all_ranks_of_this_host_is_required(self):
        layers = self.folder / "layers.txt"
        layers.write_text("".join(f"layer{i} 1e12 0\n" for i in range(20)))
        workers = [self.start("worker", i, layers, suite="replay") for i in range(2)]
        words = "2 workers and the server need at least 100000000000000 bytes of memory on this host"
        for process in (self.start("ps", 0, layers, suite="replay"), *workers):
            self.assertIn(words, self.text(process, cluster.CONFIGURATION))

    def test_matrix_has_each_pair(self):
        file = self.folder / "run.json"
        for flags, pairs in (([], ["0 and 1", "0 and 2", "1 and 2"]),
                             (["--no-return"], ["0 to 1", "0 to 2", "1 to 0", "1 to 2", "2 to 0", "2 to 1"])):
            file.unlink(missing_ok=True)
            workers = [self.start("worker", i, *flags, suite="matrix") for i in range(2)]
            said = self.text(self.start("ps", 0, *flags, "--slow", 1000, "-J", file, suite="matrix"))
            for worker in workers:
                self.assertEqual(self.text(worker), "")
            rows = cluster.recorded_run(file)["results"]
            self.assertEqual([row["path"] for row in rows], [f"tcp rank {pair}" for pair in pairs])
            self.assertEqual([(row["failed"], row["nwrong"]) for row in rows], [("", 0)] * len(pairs))
            self.assertIn("#  rank         0         1         2\n", said)

    def test_matrix_names_a_slow_pair_and_fails(self):
        workers = [self.start("worker", i, suite="matrix") for i in range(2)]
        # All pairs but the fastest one of a rank take longer than it.
        said = self.text(self.start("ps", 0, "--slow", 1, suite="matrix"), cluster.FAILED)
        for worker in workers:
            self.assertEqual(self.text(worker), "")
        self.assertRegex(said, r"gradrail bench: slow: tcp at 4096 B: (link|NIC) ")

    def test_a_worker_that_fails_is_named(self):
        server = self.start("ps", 0, "-n", 50_000_000)
        workers = [self.start("worker", i) for i in range(2)]
        # The first result is printed after its measurement. The child that measures spins, and one that waits does not.
        cluster.wait_until(lambda: any(process_use.cpu_seconds(int(child)) > 0.5 for child in cluster.children(workers[1].pid)),
                           cluster.START, lambda: "no measurement")
        workers[1].send_signal(signal.SIGKILL)
        said = self.text(server, cluster.FAILED, 20 * cluster.PATIENCE)  # well before the timeout of the other tasks
        self.assertRegex(said, r"not measured: worker/[01]")

    def test_under_mpirun(self):
        if shutil.which("mpirun") is None:
            print("skipped: no mpirun (openmpi-bin)")
            sys.exit(77)
        environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        ran = subprocess.run(["mpirun", "-n", "3", "--oversubscribe", cluster.binary(), "bench", "incast", *QUICK, *SIZE,
                              "--rendezvous", f"tcp://{self.meet}"], capture_output=True, text=True, env=environment,
                             timeout=2 * cluster.FINISH)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"tcp worker/1 +4096 ")

    def test_matrix_needs_ranks(self):
        process = subprocess.run([cluster.binary(), "bench", "matrix"], capture_output=True, text=True,
                                 timeout=cluster.FINISH)
        self.assertEqual(process.returncode, cluster.USAGE)
        self.assertIn("start one per host with --cluster", process.stderr)


if __name__ == "__main__":
    unittest.main()
