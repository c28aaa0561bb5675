"""Tests the flight recorder: dumps on failure, signal and request, and the timeline of all tasks."""
import json
import re
import signal
import subprocess
import time
import unittest

import cluster

ENDLESS = ["--epochs", 100000]


class FlightRecorder(cluster.ClusterTest):
    SAYS = r"flight recorder: the last (\d+) operations are in (\S+)"

    def dump(self, task, after=0, within=cluster.START):
        """Returns the steps of the marks in the dump of a task, by the kind of the mark."""
        said = task.wait_for(self.SAYS, within, after)
        marks = {}
        with open(said[2]) as file:
            rows = [line for line in file if not line.startswith("#")]
        self.assertEqual(len(rows), int(said[1]))
        for row in rows:
            what = re.fullmatch(r" +-\d+\.\d{6} +\d+ +(\d+) +(?:\d+|-) +(?:\d+|-)  (\w+).*\n", row)
            self.assertIsNotNone(what, row)
            marks.setdefault(what[2], []).append(int(what[1]))
        return marks

    def test_a_signal_has_it_written_and_the_run_goes_on(self):
        (server,), (worker,) = self.start_cluster(1, "--logs_path", self.folder / "logs", "--log_every", 1000, *ENDLESS)
        worker.wait_for(r"Step: [1-9]\d{3,}")
        for task in (server, worker):
            task.signal(signal.SIGUSR1)
        marks = self.dump(worker)
        self.assertEqual(sum(map(len, marks.values())), 4096)
        self.assertEqual(marks.keys(), {"begun", "pushed", "posted", "answered", "done"})
        self.assertEqual(marks["done"], sorted(marks["done"]))
        self.assertEqual(self.dump(server).keys(), {"noticed", "taken", "applying", "applied"})
        self.assertEqual(len(list((self.folder / "logs").glob("gradrail-flight-*.txt"))), 2)
        self.assert_goes_on(worker)

    def test_a_worker_that_waits_answers(self):
        _, (first, second) = self.start_cluster(2, "--mode", "sync", "--heartbeat-timeout", 600, *ENDLESS)
        first.wait_for(r"Step: \d+")
        second.signal(signal.SIGSTOP)
        self.wait_until_awaited("worker/1", self.ps_addresses)
        for _ in range(2):
            before = len(first.lines())
            first.signal(signal.SIGUSR1)
            marks = self.dump(first, before)
            self.assertGreater(marks["begun"][-1], marks["done"][-1])  # the step in which the worker waits

    def test_top_asks_all_tasks(self):
        (first, second), workers = self.start_cluster(2, *ENDLESS, ps=2)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        self.assertEqual(subprocess.run([cluster.binary(), "top", "--ps_hosts", ",".join(self.ps_addresses), "--once",
                                         "--dump"], timeout=cluster.START, capture_output=True).returncode, 0)
        for task in (first, *workers):
            self.assertTrue(self.dump(task))
        # The model has two elements, in one cache line: the second ps has no element and writes no file.
        time.sleep(1)  # no event exists: a second file would be a defect
        for task in (first, second, *workers):
            self.assertLessEqual(len(re.findall(self.SAYS, task.text())), 1)

    def test_a_run_that_fails_leaves_it_in_the_temporary_folder(self):
        (server,), (worker,) = self.start_cluster(1, "--rejoin-timeout", 0, *ENDLESS)
        worker.wait_for(r"Step: \d+")
        server.signal(signal.SIGKILL)
        self.assertTrue(self.dump(worker, within=cluster.FINISH)["begun"])
        self.assertEqual(len(list(self.folder.glob("gradrail-flight-worker-0-*.txt"))), 1)

    def test_no_records_are_kept_with_a_size_of_zero(self):
        (_, ), (worker,) = self.start_cluster(1, "--flight_records", 0, *ENDLESS)
        worker.wait_for(r"Step: \d+")
        worker.signal(signal.SIGUSR1)
        self.assert_goes_on(worker, 4)
        self.assertFalse(worker.has(self.SAYS))

    def test_a_local_cluster_passes_the_signal_on(self):
        run = self.train("--model", "linear", "--workers", 1, *ENDLESS)
        run.wait_for(r"Step: \d+")
        run.signal(signal.SIGUSR1)
        for task in ("ps-0", "worker-0"):
            run.wait_for(rf"flight recorder: .*gradrail-flight-{task}")


class Timeline(cluster.ClusterTest):
    def test_all_tasks_are_in_it_on_one_clock(self):
        file = self.folder / "timeline.json"
        (server, *_), workers = self.start_cluster(2, "--epochs", 2, "--shards", 2, "--timeline_filename", file, ps=1,
                                                   model="mlp")
        self.assert_one_clock(file, (*workers, server))

    def test_a_task_with_another_clock(self):
        """The clock of one task differs by 1000 s, like those of hosts that were booted at different times."""
        elsewhere = ["unshare", "-T", "--monotonic", "1000", "--fork"]
        if subprocess.run([*elsewhere, "true"], capture_output=True, check=False).returncode != 0:
            cluster.skip("no time namespaces (they need root)")
        file = self.folder / "timeline.json"
        common = [*self.addresses(2), "--model", "mlp", "--epochs", 2, "--shards", 2, "--timeline_filename", file,
                  "--transport", "tcp"]
        tasks = [self.launch(f"{job}/{index}", [*apart, cluster.binary(), "train", *map(str, common), "--job_name", job,
                                                "--task_index", str(index)], {"TMPDIR": str(self.folder)})
                 for job, index, apart in (("ps", 0, []), ("worker", 0, []), ("worker", 1, elsewhere))]
        self.assert_one_clock(file, tasks)

    def assert_one_clock(self, file, tasks):
        """Checks that the operations of a shard are within their exchange, up to the error of the clocks."""
        for task in tasks:
            self.assert_ends(task, cluster.GOOD, 60 * cluster.PATIENCE)
        self.assertEqual(list(self.folder.glob("timeline.json*")), [file])
        trace = json.loads(file.read_text())
        names = {"process_name": {}, "thread_name": {}}
        for event in trace["traceEvents"]:
            if event["ph"] == "M":
                names[event["name"]][event["pid"], event["tid"]] = event["args"]["name"]
        task_of = {pid: name for (pid, _), name in names["process_name"].items()}
        self.assertEqual(sorted(task_of.values()), ["ps/0", "worker/0", "worker/1"])
        self.assertEqual(trace["metadata"]["clock_error_bound_us"].keys(), set(task_of.values()))
        exchanges, updates, off = {}, 0, trace["metadata"]["clock_error_bound_us"]
        self.assertLess(max(off.values()), 50_000 * cluster.PATIENCE, "the bound of the clock error is too large, in us")
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        for event in spans:
            if event["name"] == "exchange":
                key = task_of[event["pid"]], event["args"]["step"]
                exchanges.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
        self.assertGreater(len(exchanges), 2000)
        for event in spans:
            row = names["thread_name"][event["pid"], event["tid"]]
            if event["name"] != "sum + optimizer":
                continue
            of = "worker/" + row.rpartition(" ")[2], event["args"]["step"]
            may = off[of[0]]
            self.assertTrue(any(begun - may <= event["ts"] and event["ts"] + event["dur"] <= done + may
                                for begun, done in exchanges[of]), (of, event, exchanges[of], may))
            updates += 1
        self.assertGreater(updates, 4000)

    def test_timeline_refusals(self):
        plain = self.folder / "plain"
        plain.touch()
        for path, why in (("/proc/nowhere/t.json", "No such file"), ("/proc/t.json", ""), ("/sys/t.json", ""),
                          (plain / "t.json", "Not a directory"), (self.folder, "it is a folder"), ("/dev/null", "not a regular file")):
            with self.subTest(path=path):
                task = self.refused(cluster.CONFIGURATION, [f"--timeline_filename: timeline {path}: .*{why}"], "--workers", 1,
                                    "--timeline_filename", path)
                self.assertFalse(task.has("pid"), "a task has started")
                task = self.refused(cluster.CONFIGURATION, ["--timeline_filename: timeline"], *self.addresses(1), "--job_name",
                                    "worker", "--task_index", 0, "--timeline_filename", path)
        # Refused for another reason: no file remains.
        self.refused(cluster.CONFIGURATION, ["--data_dir"], "--data_dir", "/nowhere", "--timeline_filename", self.folder / "t.json")
        self.refused(cluster.CONFIGURATION, ["--logs_path: /sys/kernel"], "--logs_path", "/sys/kernel",
                     "--timeline_filename", self.folder / "t.json")
        self.assertEqual(list(self.folder.iterdir()), [plain])
        self.refused(cluster.CONFIGURATION, ["--timeline_filename: with --ps 0"], "--ps", 0, "--timeline_filename", "t")


if __name__ == "__main__":
    unittest.main()
