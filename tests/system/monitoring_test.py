"""Tests the monitoring of a run: metrics for Prometheus, summaries for TensorBoard."""
import os
import shutil
import subprocess
import sys
import time
import unittest
import urllib.request

import cluster
import digits
import event_records
import exposition

ENDLESS = ["--epochs", 100000]


class Monitored(cluster.ClusterTest):
    def metrics_url(self, task):
        found = task.wait_for(r"Metrics: (http://\S+)|built without prometheus-cpp")
        if found[1] is None:
            cluster.skip("built without prometheus-cpp")
        return found[1]

    def scrape(self, url):
        with urllib.request.urlopen(url, timeout=cluster.START) as answer:
            return answer.read().decode()

    def scrape_until(self, url, condition):
        """Returns the checked families of the first scrape for which the condition holds."""
        deadline = time.monotonic() + cluster.START
        while True:
            families = exposition.check(self.scrape(url))
            if condition(families):
                return families
            self.assertLess(time.monotonic(), deadline, families)
            time.sleep(0.1)

    def start_watched(self, workers, *flags):
        (server, *_), tasks = self.start_cluster(workers, "--metrics_port", 0, *ENDLESS, *flags)
        return [(task, self.metrics_url(task)) for task in (server, *tasks)]


def value(families, name, **labels):
    found = [v for _, of, v in families[name][2] if labels.items() <= of.items()]
    assert len(found) == 1, (name, labels, families[name])
    return found[0]


def total(families, name, suffix):
    return sum(v for sample, _, v in families[name][2] if sample == name + suffix)


class Metrics(Monitored):
    def test_ps_and_workers_tell_of_a_run(self):
        (_, server), *workers = self.start_watched(2)
        trained = lambda f: f.get("gradrail_global_step", [0, 0, [(0, 0, 0)]])[2][0][2] > 100
        both_live = lambda f: trained(f) and value(f, "gradrail_workers_live") == 2  # one may be ahead of the other
        families = self.scrape_until(server, both_live)
        self.assertEqual(value(families, "gradrail_build_info"), 1)
        self.assertEqual(families["gradrail_build_info"][2][0][1]["task"], "ps/0")
        self.assertGreater(value(families, "gradrail_updates_total"), 100)
        for direction in ("in", "out"):
            self.assertGreater(value(families, "gradrail_bytes_total", direction=direction, path="shm mapped"), 1000)
        self.assertNotIn("gradrail_checkpoint_age_seconds", families)
        for _, url in workers:
            families = self.scrape_until(url, trained)
            exchanges = total(families, "gradrail_exchange_latency_seconds", "_count")
            self.assertGreater(exchanges, 10)
            self.assertEqual(total(families, "gradrail_staleness_steps", "_count"), exchanges)
            seconds = total(families, "gradrail_exchange_latency_seconds", "_sum") / exchanges
            self.assertTrue(1e-6 < seconds < cluster.START, seconds)  # the unit is seconds, not microseconds
            self.assertGreater(value(families, "gradrail_bytes_total", direction="out"), 100)
            for name in ("gradrail_fallbacks_total", "gradrail_wait_seconds_total", "gradrail_dropped_gradients_total"):
                self.assertEqual(value(families, name), 0)

    def test_counters_only_grow_and_the_run_does_not_mind(self):
        (_, server), (worker, url) = self.start_watched(1)
        before = {}
        for _ in range(20):
            for source in (server, url):
                for name, (kind, _, samples) in exposition.check(self.scrape(source)).items():
                    for sample, labels, now in samples:
                        key = (source, sample, *sorted(labels.items()))
                        if kind == "counter" and name.startswith("gradrail_"):
                            self.assertGreaterEqual(now, before.get(key, 0), key)
                            before[key] = now
        self.assert_goes_on(worker)

    def test_a_checkpoint_has_an_age(self):
        (_, server), _ = self.start_watched(1, "--checkpoint_dir", self.folder / "checkpoints", "--save_steps", 500)
        families = self.scrape_until(server, lambda f: "gradrail_checkpoint_age_seconds" in f)
        self.assertLess(value(families, "gradrail_checkpoint_age_seconds"), cluster.START)

    def test_nothing_listens_unless_asked_and_then_on_loopback(self):
        (server, *_), (worker,) = self.start_cluster(1, *ENDLESS)
        worker.wait_for(r"Step: \d+")
        self.assertEqual(cluster.tcp_listeners(worker.pid), [])
        (task, url), *_ = self.start_watched(1)
        self.assertIn(("127.0.0.1", int(url.split(":")[2].split("/")[0])), cluster.tcp_listeners(task.pid))

    def test_a_local_cluster_counts_ports_up(self):
        first = cluster.free_ports(4)[1]
        run = self.train("--model", "linear", "--workers", 2, "--metrics_port", first, *ENDLESS)
        self.metrics_url(run)
        for place, task in enumerate(("ps/0", "worker/0", "worker/1")):
            run.wait_for(f"Metrics: http://127.0.0.1:{first + place}/metrics")
            families = exposition.check(self.scrape(f"http://127.0.0.1:{first + place}/metrics"))
            self.assertEqual(families["gradrail_build_info"][2][0][1]["task"], task)
        self.refused(cluster.CONFIGURATION, [rf"cannot serve metrics on 127\.0\.0\.1:{first}: the port is in use"],
                     "--model", "linear", "--workers", 1, "--metrics_port", first)
        # The port of the last task alone: no task has started.
        task = self.refused(cluster.CONFIGURATION, [rf"cannot serve metrics on 127\.0\.0\.1:{first}: the port is in use"],
                            "--model", "linear", "--workers", 1, "--metrics_port", first - 1)
        self.assertFalse(task.has("pid"), task.transcript())
        self.refused(cluster.CONFIGURATION, ["--metrics_port 65534: the last of 3 tasks would be given port 65536"],
                     "--model", "linear", "--workers", 2, "--metrics_port", 65534)

    def test_metrics_refusals(self):
        self.refused(cluster.USAGE, ["--metrics_bind: 'here' must be an address"], "--metrics_bind", "here")
        self.refused(cluster.USAGE, ["--metrics_bind requires --metrics_port"], "--metrics_bind", "127.0.0.1")
        self.refused(cluster.CONFIGURATION, ["--metrics_port: with --ps 0 there is no exchange"], "--ps", 0,
                     "--metrics_port", 0)
        self.refused(cluster.USAGE, ["metrics_port"], "--metrics_port", 70000)

    def test_promtool_accepts_every_scrape(self):
        promtool = os.environ.get("GRADRAIL_PROMTOOL") or shutil.which("promtool")
        if promtool is None:
            cluster.skip("no promtool (package prometheus, or GRADRAIL_PROMTOOL=path)")
        for task, url in self.start_watched(2):
            # The first scrape may precede the first exchange. The last scrape has all families.
            for families_at_least in (1, 5):
                self.scrape_until(url, lambda f: len(f) >= families_at_least)
                checked = subprocess.run([promtool, "check", "metrics"], input=self.scrape(url), text=True,
                                         capture_output=True, timeout=cluster.START)
                self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), task.name)


class Summaries(Monitored):
    def events(self, worker):
        (path,) = (self.folder / "logs" / f"worker_{worker}").glob("events.out.tfevents.*")
        return list(event_records.events(path.read_bytes()))

    def run_with_summaries(self, *flags):
        started = time.time()
        task = self.train("--logs_path", self.folder / "logs", "--log_every", 50, *flags)
        self.assert_ends(task, cluster.GOOD, 60 * cluster.PATIENCE)
        return task, started

    def test_each_worker_leaves_what_tensorboard_reads(self):
        task, started = self.run_with_summaries("--workers", 2, "--epochs", 2)
        for worker in range(2):
            (_, _, version, _), *rest = self.events(worker)
            self.assertEqual(version, "brain.Event:2")
            *steps, last = rest
            self.assertEqual(len(steps), 22)  # 11 in each epoch of 550 batches
            for wall_time, step, _, scalars in steps:
                self.assertTrue(started - 1 <= wall_time <= time.time() + 1, wall_time)
                self.assertGreater(step, 0)
                self.assertNotIn(None, scalars.values(), "a value of zero must also be written")
                for tag in ("cost", "examples/sec", "exchange/p50_ms", "exchange/p99_ms", "bytes_out/shm_mapped"):
                    self.assertGreater(scalars[tag], 0, tag)
                self.assertGreaterEqual(scalars["exchange/p99_ms"], scalars["exchange/p50_ms"])
                self.assertTrue(0 <= scalars["batch_accuracy"] <= 1, scalars)
                self.assertTrue({"staleness/mean", "staleness/max", "bytes_in/shm_mapped"} <= scalars.keys())
            self.assertTrue(all("global_step/sec" in scalars for _, _, _, scalars in steps[1:]))
            self.assertEqual([step for _, step, *_ in steps], sorted(step for _, step, *_ in steps))
            self.assertEqual(last[3].keys(), {"accuracy"})
        accuracy = float(task.wait_for(r"^Test-Accuracy: (0\.\d\d)$")[1])
        _, step, _, scalars = self.events(0)[-1]
        self.assertAlmostEqual(scalars["accuracy"], accuracy, delta=0.00501)
        self.assertEqual(step, int(task.wait_for(r"^Global-Step: (\d+)$")[1]))

    def test_accuracy_has_the_step_and_the_precision_of_the_evaluation(self):
        count = 137  # with two decimals, the accuracy would not be a number of images
        data = digits.write(self.folder, test=count)
        task, _ = self.run_with_summaries("--data_dir", data, "--workers", 3, "--mode", "async", "--epochs", 1,
                                          "--batch_size", 7)
        final = int(task.wait_for(r"^Global-Step: (\d+)$")[1])
        *_, (_, step, _, scalars) = self.events(0)
        self.assertEqual(step, final)
        self.assertAlmostEqual(scalars["accuracy"] * count, round(scalars["accuracy"] * count), 3)

    @cluster.long("no other test reads the graph of a model")
    def test_the_graph_of_each_model(self):
        relu = "softmax_linear/Relu"
        for model, names in (("mlp", {"images", "labels", "W1", "b2", "hidden/Sigmoid", "logits/add", "cost/Mean"}),
                             ("cnn", {"conv1/weights", "pool2", "local4/Relu", "softmax_linear/add", relu, "cost/Mean"}),
                             ("cnn --cnn_logits_relu=false", {"softmax_linear/add", "cost/Mean"}),
                             ("linear", {"x", "y", "w", "b", "line/add", "cost/Mean"})):
            with self.subTest(model=model):
                logs = self.folder / model
                data = [] if model == "linear" else ["--data_dir", digits.write(self.folder)]
                task = self.train("--logs_path", logs, "--model", *model.split(), "--ps", 0, "--epochs", 1, *data)
                self.assert_ends(task, cluster.GOOD, 60 * cluster.PATIENCE)
                (path,) = (logs / "worker_0").glob("events.out.tfevents.*")
                (nodes,) = event_records.graphs(path.read_bytes())
                seen = set()
                for name, op, inputs, shape in nodes:
                    self.assertTrue(op and set(inputs) <= seen, f"{name}: {inputs}")
                    self.assertEqual(shape is not None, op in ("Placeholder", "VariableV2"))
                    self.assertNotIn(name, seen)
                    seen.add(name)
                self.assertTrue(names <= seen, seen)
                self.assertEqual(relu in seen, relu in names)

    def test_a_restarted_run_begins_again_at_its_checkpoint(self):
        """TensorBoard drops what older files have of the step of a START and of later ones: no step is shown twice."""
        data = ["--data_dir", digits.write(self.folder), "--mode", "sync", "--checkpoint_dir", self.folder / "saved"]
        logs = self.folder / "logs" / "worker_0"
        begins = []
        for _ in range(2):
            self.run_with_summaries("--workers", 1, "--epochs", 1, *data)
            (path,) = set(logs.glob("events.out.tfevents.*")) - {path for path, _ in begins}
            begins.append((path, list(event_records.starts(path.read_bytes()))))
        (_, first), (path, second) = begins
        self.assertEqual(first, [1])
        step = min(step for _, step, version, scalars in event_records.events(path.read_bytes()) if scalars)
        self.assertEqual(len(second), 1)
        self.assertTrue(1 < second[0] <= step, f"{second} and {step}")

    def test_tensorboard_itself_reads_them(self):
        try:
            from tensorboard.backend.event_processing import event_accumulator
        except ImportError as missing:
            cluster.skip(f"no tensorboard package for {sys.executable} ({missing})")
        self.run_with_summaries("--workers", 1, "--epochs", 1)
        read = event_accumulator.EventAccumulator(str(self.folder / "logs" / "worker_0"))
        read.Reload()
        ours = [(step, scalars["cost"]) for _, step, _, scalars in self.events(0) if "cost" in scalars]
        self.assertEqual([(event.step, event.value) for event in read.Scalars("cost")], ours)
        self.assertEqual(len(read.Scalars("accuracy")), 1)

    def test_a_full_disk_ends_the_summaries_and_not_the_run(self):
        # The limit is smaller than these summaries and larger than the memory of the variables, which also counts.
        task = self.launch("train", ["bash", "-c", 'ulimit -f 8; trap "" XFSZ; exec "$@"', "limited", cluster.binary(),
                                     "train", "--ps", "0", "--model", "linear", "--epochs", "20", "--log_every", "1", "--logs_path",
                                     str(self.folder / "logs")])
        self.assert_ends(task, cluster.GOOD, 60 * cluster.PATIENCE, says=["continues without summaries: .*File too large"])

    def test_a_disk_that_is_full_at_the_start_does_not_end_the_run(self):
        tried = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            cluster.skip(f"unshare -rm: {tried.stderr.strip()}")
        disk = self.folder / "disk"
        disk.mkdir()
        fill = f"head -c 16384 /dev/zero > {disk}/file"
        # The root folder is one of the inodes.
        for size, call in (("nr_inodes=1", "mkdir"), ("nr_inodes=2", "mkdir"), ("nr_inodes=3", "open"), ("size=16384", "write")):
            with self.subTest(size=size):
                within = f'mount -t tmpfs -o {size} full {disk} && {fill if call == "write" else "true"} && exec "$@"'
                task = self.launch("train", ["unshare", "-rm", "bash", "-c", within, "full", cluster.binary(), "train",
                                             "--ps", "0", "--model", "linear", "--epochs", "1", "--logs_path", str(disk / "logs")])
                self.assert_ends(task, cluster.GOOD, 60 * cluster.PATIENCE,
                                 says=[f"continues without summaries: --logs_path: {disk}/logs.*{call}: No space left on device; free"])
                self.assertEqual(task.transcript().count("continues without summaries"), 1, task.transcript())


if __name__ == "__main__":
    unittest.main()
