"""Tests `gradrail bench`: each suite at toy size, the output formats and the exit codes."""
import json
import pathlib
import re
import subprocess
import sys
import unittest

import cluster

QUICK = ["--rounds", "2", "--seconds", "0.005"]
BUILT_IN = ["--transport", "shm,tcp"]
SUITES = {
    "paths": ["-b", "4K", "-e", "4K"],
    "exchange": ["-b", "4K", "-e", "64K", "-f", "16", "--workers", "2", "--shards", "2", "--optimizer", "adam", *BUILT_IN],
    "incast": ["-b", "4K", "-e", "4K", "--workers", "3", *BUILT_IN],
    "put": ["-b", "8", "-e", "4K", "-f", "512", *BUILT_IN],
    "apply": ["-b", "64K", "-e", "64K"],
    "replay": ["mnist-mlp", *BUILT_IN],
    "publish": ["-b", "1M", "-e", "1M", "--readers", "3"],
    "straggler": ["-b", "4K", "-e", "4K", "--step-ms", "1"],
}


class Bench(cluster.ClusterTest):
    def bench(self, *arguments, code=cluster.GOOD, environment=None):
        ran = subprocess.run([cluster.binary(), "bench", *map(str, arguments)], capture_output=True, text=True,
                             timeout=4 * cluster.FINISH, env=environment)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        self.assertIsNone(cluster.CRASHES.search(ran.stdout + ran.stderr), ran.stdout + ran.stderr)
        return ran.stdout if code == cluster.GOOD else ran.stdout + ran.stderr

    def report(self, *arguments, code=cluster.GOOD):
        program = pathlib.Path(cluster.binary()).with_name("gradrail-report")
        ran = subprocess.run([sys.executable, program, *map(str, arguments)], capture_output=True, text=True, timeout=cluster.FINISH)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran.stdout + ran.stderr

    def recorded(self, suite, *arguments, asked=None):
        file = self.folder / "run.json"
        self.bench(suite, *(asked or SUITES[suite]), *QUICK, "-J", file, *arguments)
        return file, cluster.recorded_run(file)

    def assert_rows(self, run, paths):
        cluster.assert_measured(self, run["results"], paths, rounds=2)

    def assert_answered(self, run, suite, paths):
        self.assertLessEqual({"version", "arguments", "machine", "libraries", "config", "devices", "results"}, set(run))
        self.assertEqual(run["config"]["question"], suite)
        self.assert_rows(run, paths)

    def test_every_question_is_answered(self):
        """Other tests verify the answers of three suites: iterations_are_those_asked_for those of `exchange`,
        a_transport_that_is_named_twice_is_measured_once those of `put`, and Peers those of `peers`."""
        wanted = {"paths": ["shm", "tcp"],
                  "incast": ["shm mapped worker/2", "tcp worker/0"], "apply": ["sgd, 1 gradient", "momentum, 1 gradient", "adam, 4 gradients"],
                  "replay": ["shm", "tcp"],
                  "publish": ["bf16 publish()", "bf16 publish(), 1 suspended", "bf16 lag, full", "bf16 lag, delta"],
                  "straggler": ["sync, one slow", "quorum:3,late=drop, one slow", "ssp:4, in turn", "async, in turn"]}
        for suite, paths in wanted.items():
            with self.subTest(suite=suite):
                _, run = self.recorded(suite)
                self.assert_answered(run, suite, paths)

    def test_packing_shows_what_one_push_leaves_out(self):
        _, run = self.recorded("apply")
        errors = {row["path"]: row["more"]["relative_error"] for row in run["results"] if row["path"].startswith("pack ")
                  and not row["path"].startswith("pack return")}
        # The values are normally distributed. Rounding leaves out up to half of the last digit, and topk most elements.
        for path, least, most in (("pack bf16", 1e-3, 3e-3), ("pack int8", 4e-3, 9e-3),
                                  ("pack int4", 0.07, 0.16), ("pack topk:10", 0.5, 0.9)):
            self.assertTrue(least < errors[path] < most, errors)

    def test_arguments_with_invalid_utf8_do_not_lose_the_run(self):
        file = self.folder / "x\udcff.json"  # the byte 0xff
        subprocess.run([cluster.binary(), "bench", "apply", *SUITES["apply"], *QUICK, "--plugin-dir", self.folder, "-J", file],
                       check=True, stdout=subprocess.DEVNULL, timeout=4 * cluster.FINISH)
        run = cluster.recorded_run(file)
        self.assertEqual(run["arguments"][-1], str(self.folder / "x\ufffd.json"))
        self.assertTrue(run["results"])
        self.assertEqual(run["config"]["plugin_dir"], str(self.folder))

    @cluster.long("it compares times; Over/ClientModes has the rules of the modes")
    def test_a_straggler_costs_what_its_mode_says(self):
        file = self.folder / "run.json"
        step_ms = 10 * cluster.PATIENCE  # on a slow machine, the exchange must not take longer than the steps either
        self.bench("straggler", "--step-ms", step_ms, "--slowdown", 10, "--seconds", 0.02 * step_ms, "--rounds", 1,
                   "-J", file)
        rows = {row["path"]: row["more"] for row in cluster.recorded_run(file)["results"]}
        pace = {path: more["of_undisturbed"] for path, more in rows.items()}
        # Modes are compared with each other: other load on the machine slows them all.
        for waits in ("sync, one slow", "ssp:4, one slow"):  # ssp: at most a few steps ahead of the slow worker
            for continues in ("quorum:3,late=drop, one slow", "quorum:3, one slow", "async, one slow"):
                self.assertLess(2 * pace[waits], pace[continues], rows)
        for has_late in ("quorum:3,late=drop, one slow", "quorum:3, one slow"):
            self.assertGreater(rows[has_late]["dropped_share"], 0, rows)
        self.assertGreater(rows["sync, one slow"]["waited_share"], 0.5, rows)
        self.assertEqual(rows["async, one slow"]["waited_share"], 0, rows)

    def test_paths_that_cannot_run_keep_their_row(self):
        wrong = ["-b", "4K", "-e", "4K", *QUICK, "--transport", "ofi,tcp", "--ofi-provider", "pigeon"]
        text = self.bench("paths", *wrong)
        self.assertRegex(text, r"ofi by an RDMA device +4096 not measured: .+")
        self.assertRegex(text, r"ofi without one +4096 not measured: .+")
        self.assertRegex(text, r"tcp +4096 +1024 ")
        asked = self.bench("exchange", *wrong, code=cluster.FAILED)
        self.assertRegex(asked, r"ofi +4096 not measured: ")
        self.assertRegex(asked, r"tcp +4096 +1024 ")

    def test_ranks_and_columns(self):
        text = self.bench("exchange", *SUITES["exchange"], *QUICK)
        self.assertEqual(len(re.findall(r"^#  rank \d worker/[01] host \S+ pid \d+ device cpu nic - numa \S+ cores [\d,-]+$",
                                        text, re.M)), 2, text)
        self.assertRegex(text, r"#  rank 2 ps/0 ")
        self.assertRegex(text, r"# path +size +count +type +time +99% +algbw +busbw +#wrong")
        self.assertRegex(text, r"shm mapped +65536 +16384 +float +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +0\n")
        latency = self.bench("put", "-b", "8", "-e", "8", *QUICK, "--transport", "shm")
        self.assertRegex(latency, r"#bytes +#iterations +t_min +t_max +t_typical +t_avg +t_stdev +99% +99.9%")

    def test_formats(self):
        file = self.folder / "run.json"
        said = self.bench("put", "-b", "8", "-e", "64", "-f", "8", *QUICK, "--transport", "shm", "--format", "json", "-J", file)
        self.assertEqual([(row["what"], row["size"]) for row in cluster.run_from(said)["results"]],
                         [("latency", 8), ("latency", 64), ("bandwidth", 8), ("bandwidth", 64)])
        self.assertEqual(said, file.read_text())

    @cluster.long("conformance.tcp_encrypted; no test of `make test` measures an encrypted path")
    def test_encryption_adds_a_row(self):
        for suite in ("paths", "exchange", "incast", "replay"):
            with self.subTest(suite=suite):
                _, run = self.recorded(suite, "--transport", "shm,tcp", "--encrypt-data")
                paths = {row["path"] for row in run["results"] if not row["failed"]}
                worker = " worker/0" if suite == "incast" else ""
                self.assertLessEqual({f"tcp{worker}", f"tcp encrypted{worker}"}, paths)

    def test_iterations_are_those_asked_for(self):
        _, run = self.recorded("exchange", "-n", 7, "-w", 2)
        self.assert_answered(run, "exchange", ["shm", "tcp"])
        for row in run["results"]:
            self.assertEqual(row["percentiles"]["iterations"], 2 * 2 * 7)  # rounds, workers

    @cluster.long("it measures time; every_question_is_answered has three workers")
    def test_many_workers_take_the_time_that_is_asked_for(self):
        # Their first exchanges are short: the others have not started, or wait for a core.
        for _ in range(3):
            run = cluster.run_from(self.bench("incast", "-b", "4K", "-e", "4K", "--workers", "48", "--block", "--rounds", "1",
                                        "--seconds", "0.2", "--transport", "tcp", "--format", "json"))
            times = run["results"][0]["percentiles"]
            self.assertGreater(run["results"][0]["more"]["cold_us"], 1.0)
            self.assertLess(times["iterations"] / 48 * times["mean_us"] * 1e-6, 3.0)

    def test_a_matrix_may_be_one_way(self):
        file = self.matrix("64K, 0\n64K, 256\n")
        for flags, ways in (([], 2), (["--no-return"], 1)):
            run = cluster.run_from(self.bench("replay", "--matrix", file, "-n", 3, "-w", 1, "--rounds", 1, "--transport", "shm",
                                        "--format", "json", *flags))
            for row in run["results"]:
                self.assertEqual(row["bus_bytes"], ways * row["alg_bytes"])

    def matrix(self, text):
        file = self.folder / "matrix.csv"
        file.write_text(text)
        return file

    def test_a_traffic_matrix_is_replayed(self):
        record = self.folder / "run.json"
        file = self.matrix("# shard 0,shard 1,shard 2\n256K,0,4K\n0,0,0\n100,64K,64K\n")
        said = self.bench("replay", "--matrix", file, "--rounds", 1, "--seconds", 0.05, *BUILT_IN, "-J", record, "--line_gbit", 100)
        rows = {row["path"]: row for row in cluster.recorded_run(record)["results"]}
        sizes = {"": 256 * 1024 + 4096 + 256 + 128 * 1024, " worker/0": 260 * 1024, " worker/1": 0, " worker/2": 128 * 1024 + 256}
        for path in ("shm mapped", "tcp"):
            for row, size in sizes.items():
                self.assertEqual((rows[path + row]["size"], rows[path + row]["nwrong"], rows[path + row]["failed"]), (size, 0, ""))
            more, step = rows[path]["more"], rows[path]["percentiles"]["p50_us"]
            self.assertAlmostEqual(more["of_line"], more["busiest_GB/s"] * 8 / 100)
            self.assertAlmostEqual(more["busiest_GB/s"], sizes[""] / step * 1e-3)
            self.assertLess(rows[f"{path} worker/1"]["percentiles"]["p50_us"], rows[f"{path} worker/0"]["percentiles"]["p50_us"])
        self.assertIn(f"{sizes['']} bytes of fp32 in a step and direction; busiest: ps/0 with {sizes['']}", said)

    def test_the_bytes_are_printed_before_the_measurement(self):
        file = self.matrix("64K\n64K\n")
        task = self.launch("replay", [cluster.binary(), "bench", "replay", "--matrix", file, "--transport", "tcp", "--seconds",
                                      str(10 * cluster.START)])
        task.wait_for(r"^# 131072 bytes of fp32 in a step and direction; busiest: ")

    def test_matrices_that_cannot_be_replayed(self):
        good = self.matrix("4K,8K\n4K,0\n")
        for words, flags in ((r"--stages has no effect", ["--stages"]), ("--mode sync: .* only async", ["--mode", "sync"]),
                             ("2 rows, and --workers 3", ["--workers", 3]), ("2 columns, and --shards 3", ["--shards", 3]),
                             ("--push topk:1: ", ["--push", "topk:1"]),
                             ("--line_gbit needs --push fp32", ["--line_gbit", 10, "--push", "bf16"]), ("give one of them", ["resnet50"])):
            with self.subTest(flags=flags):
                self.assertRegex(self.bench("replay", "--matrix", good, *flags, code=cluster.USAGE), words)
        self.assertIn("or --matrix FILE", self.bench("replay", code=cluster.USAGE))
        self.assertIn("--line_gbit requires --matrix", self.bench("replay", "resnet50", "--line_gbit", 5, code=cluster.USAGE))
        bad = self.matrix("4K,8K\n4K,eight\n")
        self.assertRegex(self.bench("replay", "--matrix", bad, code=cluster.CONFIGURATION),
                         r"--matrix .*matrix.csv: row 2 \(line 2\), column 2: 'eight' is no number of bytes")
        self.assertRegex(self.bench("replay", "--matrix", "/none/x", code=cluster.CONFIGURATION), "--matrix .*/none/x.*No such file")
        self.assertRegex(self.bench("replay", "--matrix", self.folder, code=cluster.USAGE), "--matrix .*: is a folder, not a regular file")

    def test_a_transport_that_is_named_twice_is_measured_once(self):
        _, run = self.recorded("put", "--transport", "shm,tcp,shm")
        self.assert_answered(run, "put", ["shm", "tcp"])
        rows = [(row["path"], row["what"], row["size"]) for row in run["results"]]
        self.assertEqual(len(rows), len(set(rows)))

    def test_a_run_that_is_refused_leaves_no_file(self):
        file = self.folder / "none.json"
        self.bench("exchange", "--transport", "shm", "--encrypt-data", "-J", file, code=cluster.USAGE)
        self.assertFalse(file.exists())

    def test_what_cannot_be_asked(self):
        for words, arguments in (("--begin: 'x' is no positive number of bytes", ["exchange", "-b", "x"]),
                                 ("-b 6: a positive multiple of 4", ["exchange", "-b", "6"]),
                                 ("--begin: '99999999999G' is no", ["put", "-b", "99999999999G"]),
                                 ("less than -b", ["put", "-b", "64", "-e", "8"]),
                                 ("--on: gpu:x: must be host or gpu:N", ["apply", "--on", "gpu:x"]),
                                 *(("--on: host: must be the name of a GPU, gpu:N", [suite, "--on", "host"])
                                   for suite in ("staged", "paths")),
                                 ("-J /none/x: cannot be written: No such file", ["put", "-J", "/none/x"]),
                                 ("-J /proc/x: cannot be written: ", ["put", "-J", "/proc/x"]),
                                 ("-J /sys: cannot be written: it is a folder", ["exchange", "-J", "/sys"]),
                                 ("--rails 10.0.0.1,10.1.0.1 --streams 64: 2 rails of 64 streams are 128 lanes, and 64 is",
                                  ["exchange", "--rails", "10.0.0.1,10.1.0.1", "--streams", "64"]),
                                 ("SGD with one worker", ["peers", "--workers", "2"]),
                                 ("--workers: '1000' is not a whole number from 1 to 256", ["incast", "--workers", "1000"]),
                                 ("-c 0: only the results of a GPU are verified", ["apply", "-c", "0"]),
                                 *((f"only tcp encrypts data, and --transport {name} leaves it out; give --transport tcp",
                                    [suite, *more, "--transport", name, "--encrypt-data"])
                                   for suite, more in (("paths", []), ("exchange", []), ("incast", []), ("peers", []),
                                                       ("replay", ["mnist-mlp"])) for name in ("shm", "ucx", "ofi")),
                                 ("puts are measured in plain", ["peers", "--part", "put", "--encrypt-data"]),
                                 ("mode", ["exchange", "--mode", "later"])):
            with self.subTest(arguments=arguments):
                self.assertRegex(self.bench(*arguments, code=cluster.USAGE), words)
        self.assertRegex(self.bench("apply", "--on", "gpu:77", code=cluster.CONFIGURATION),
                         "no NVIDIA driver|no GPU 77|supports CUDA")
        unreachable = ["exchange", "-b", "4K", "-e", "4K", *QUICK, "--bind-host", "203.0.113.9"]
        self.assertRegex(self.bench(*unreachable, code=cluster.CONFIGURATION), "203.0.113.9: not an address of this host")
        self.assertRegex(self.bench("replay", "nothing", code=cluster.CONFIGURATION),
                         "no file nothing; lists that come along: .*resnet50")
        self.assertRegex(self.bench("put", "--transport", "pigeon", code=cluster.CONFIGURATION), "pigeon")

    def test_more_than_the_available_memory_is_refused(self):
        """A limit of the shell ends a build that does not refuse it. A sanitizer needs more address space."""
        limit = "" if cluster.instrumented() else "ulimit -v 8000000; "
        layers, matrix = self.folder / "layers.txt", self.folder / "matrix.csv"
        layers.write_text("".join(f"layer{i} 1e12 0\n" for i in range(20)))
        matrix.write_text(f"{' '.join(['1000G'] * 20)}\n")
        least = "1 worker and the server need at least 60000000000000 bytes of memory"
        for words, *asked in ((f"gradients of 20000000000000 bytes: {least} .*; give fewer or smaller layers", "replay", layers),
                              ("; give smaller entries", "replay", "--matrix", matrix),
                              ("2 workers and the server .*; give a smaller size .*fewer workers", "exchange", "-e", "20000G",
                               "--workers", 2),
                              ("; give a smaller size", "incast", "-b", "20000G"), ("; give a smaller size", "paths", "-b", "20000G")):
            with self.subTest(suite=asked):
                command = " ".join(map(str, [cluster.binary(), "bench", *asked, *BUILT_IN]))
                ran = subprocess.run(["sh", "-c", f"{limit}exec {command}"], capture_output=True, text=True, timeout=cluster.FINISH)
                self.assertEqual((ran.returncode, ran.stdout), (cluster.CONFIGURATION, ""), ran.stderr)
                self.assertRegex(ran.stderr, r"on this host, and [0-9]+ are available \((MemAvailable|the address space of a process .*)\); ")
                self.assertRegex(ran.stderr, words)

    def test_a_trace_is_converted_and_replayed(self):
        step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "ts": 1000.5, "dur": 2000.0}
        reductions = [{"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "ts": ts, "dur": 3.0,
                       "args": {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "Float"}}
                      for ts, elements in ((1500.5, 4096), (2000.5, 1024))]
        trace, layers = self.folder / "trace.json", self.folder / "layers.txt"
        trace.write_text(json.dumps({"traceEvents": [step, *reductions]}))
        self.assertIn("Kineto trace: ProfilerStep#4", self.report("convert", trace, "-o", layers))
        text = self.bench("replay", layers, *QUICK, "--transport", "shm")
        self.assertIn("# 2 layers, 20480 bytes, backward pass 1000 us\n", text)
        self.assertRegex(text, r"shm mapped +20480 .* exposed_us=")
        self.assertIn(f"{trace}: no layer list; `gradrail-report convert", self.bench("replay", trace, code=cluster.CONFIGURATION))

    def test_a_recorded_run_is_compared_and_checked(self):
        file, _ = self.recorded("put", "--transport", "shm")
        self.assertRegex(self.report("compare", file, file), r"# 0 of \d rows differ; [1-9]")
        self.assertRegex(self.report("limits", file, file, "--tolerance", 0), r"[1-9]\d* limits, 0 violations")
        limits = self.folder / "limits.json"
        limits.write_text(json.dumps([{"path": "shm*", "max_us": 1e-6}]))
        self.assertIn("us, more than 1e-06 (limits.json, limit 1)", self.report("limits", file, limits, code=cluster.FAILED))

    def test_stages_add_up_to_the_exchange(self):
        names = ["post", "wire", "arrival seen", "wait for peers", "sum + optimizer", "return", "visible"]
        exchange = ["-b", "4K", "-e", "4K", "--workers", "2", "--shards", "2", "--transport", "shm"]
        for suite, first, asked in (("exchange", [], exchange), ("replay", ["backward"], ["mnist-mlp", "--transport", "shm"])):
            with self.subTest(suite=suite):
                _, run = self.recorded(suite, "--stages", asked=asked)
                rows = [row for row in run["results"] if not row["failed"]]
                self.assertTrue(rows)
                for row in rows:
                    self.assertEqual([name for name, _ in row["stages"]], first + names)
                    total = sum(micros for _, micros in row["stages"])
                    # The stages are from another run, and the load of the machine changes between runs. A wrong unit
                    # differs by a factor of 1000.
                    self.assertGreater(total, row["percentiles"]["min_us"] / 50)
                    self.assertLess(total, 50 * row["percentiles"]["max_us"] + 100_000)  # a busy machine adds delay
        _, run = self.recorded("exchange", "--no-stages", asked=exchange)
        self.assertTrue(all(not row["stages"] for row in run["results"]))

    def test_what_is_left_out_is_said_and_not_checked(self):
        text = self.bench("exchange", *SUITES["exchange"], *QUICK, "--no-sum", "--no-optimizer", "--no-return")
        self.assertRegex(text, "NOT CHECKED, without sum, optimizer, return of parameters")


if __name__ == "__main__":
    unittest.main()
