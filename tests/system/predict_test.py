"""Tests the output of `gradrail predict`, and its comparison with a recorded run."""
import copy
import json
import re
import subprocess
import unittest

import cluster


class Predict(cluster.ClusterTest):
    def predict(self, *flags, code=cluster.GOOD):
        ran = subprocess.run([cluster.binary(), "predict", *map(str, flags)], capture_output=True, text=True,
                             stdin=subprocess.DEVNULL, timeout=cluster.FINISH)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran.stdout + ran.stderr

    def test_json_has_the_documented_fields(self):
        row = json.loads(self.predict("--workers", 8, "--ps", 2, "--model", "4M", "--json"))
        self.assertEqual((row["cluster"]["workers"], row["load"]["buckets"]), (8, 16))
        self.assertLessEqual(row["step_time_s"]["median"], row["step_time_s"]["p99"])
        self.assertAlmostEqual(row["steps_per_s"], 1 / row["step_time_s"]["mean"])
        self.assertEqual(row["share_of_line_rate"], row["utilization"]["shard_nic"])
        self.assertAlmostEqual(sum(row["critical_path"].values()), 1)
        self.assertEqual(row["bottleneck"], max(row["critical_path"], key=row["critical_path"].get))

    @cluster.long("PredictSimulation.WorkOfALargeClusterIsBounded counts the events of this run")
    def test_the_largest_cluster_is_answered(self):
        row = json.loads(self.predict("--workers", 4096, "--ps", 256, "--json"))
        self.assertEqual((row["cluster"]["workers"], row["simulated_workers"]), (4096, 256))

    def test_goodput_with_and_without_backups(self):
        flags = ("--workers", 8, "--ps", 2, "--model", "4M", "--compute_ms", 100, "--mtbf", 50)
        said = json.loads(self.predict(*flags, "--json"))
        without, backed = (said["failures"][key] for key in ("without_backup", "with_backup"))
        self.assertGreater(without["lost_steps"], 100 * backed["lost_steps"])
        self.assertLess(without["goodput_share"], backed["goodput_share"])
        self.assertAlmostEqual(backed["goodput"], backed["goodput_share"] / said["step_time_s"]["mean"])
        self.assertRegex(self.predict(*flags), r"with a backup ps: goodput 0\.\d+ of the steps .* 5th percentile 0\.\d+, worst run 0")
        self.assertLessEqual(without["goodput_share_min"], without["goodput_share_p5"])

    def test_flags_of_failures_need_mtbf(self):
        for flag in ("--runs", "--restart_s", "--detect_s", "--takeover_s", "--save_secs", "--save_cost_s", "--run_hours"):
            with self.subTest(flag=flag):
                said = self.predict("--model", "1M", flag, 3, code=cluster.USAGE)
                self.assertIn(f"{flag}: has no effect without failures; give --mtbf HOURS", said)
        self.assertIn("--mtbf: has no effect with --check", self.predict("--check", "run.json", "--mtbf", 5, code=cluster.USAGE))
        for flag in ("--workers=4", "--mode=async", "--compute_ms=5", "--slow_workers=2", "--sweep=nic=10,25"):
            self.assertIn(f"{flag.split('=')[0]} excludes --check", self.predict("--check", "run.json", flag, code=cluster.USAGE))
        said = self.predict("--model", "1M", "--runs", 3, "--save_cost_s", 1, "--sweep", "mtbf=0,50,200")
        best = [int(n) for n in re.findall(r"best time between two saves without a backup ps: (\d+) s", said)]
        self.assertEqual(best, [600, 1200])
        said = self.predict("--model", "1M", "--mtbf", 0.1, "--save_secs", 0, "--runs", 2, "--run_hours", 1)
        self.assertIn("; no saves; 2 runs", said)
        self.assertRegex(said, r"best time between two saves without a backup ps: 0\.[0-9]*[1-9][0-9]* s")
        self.predict("--model", "1M", "--mtbf", 500, "--sweep", "restart_s=0:60:+30")

    def test_a_tolerance_without_a_unit_is_a_ratio(self):
        for value in ("10", "1.01", "-1", "-1%", "%", "10001%", "10 %", "10%%", "nan%"):
            said = self.predict("--check", "run.json", f"--tolerance={value}", code=cluster.USAGE)
            self.assertIn(f"--tolerance: '{value}' is neither a ratio from 0 to 1, such as 0.1, nor percent up to 10000%, such as 10%",
                          said)

    def test_a_sweep_has_a_row_for_each_point(self):
        flags = ("--model", "4M", "--sweep", "workers=1:4:*2", "--sweep", "push=fp32,int8")
        points = json.loads(self.predict(*flags, "--json"))["points"]
        self.assertEqual([(p["point"]["workers"], p["point"]["push"]) for p in points],
                         [(w, p) for w in ("1", "2", "4") for p in ("fp32", "int8")])
        self.assertRegex(self.predict(*flags), r"\n  workers=4 push=int8 +\d")
        for name in ("wokers", "json", "check", "costs", "tolerance", "help", "sweep"):
            self.assertIn(f"--sweep {name}=1: '{name}' has no value to sweep",
                          self.predict("--sweep", f"{name}=1,2", code=cluster.USAGE))
        twice = self.predict("--sweep", "ps-nic=1,2", "--sweep", "ps_nic=5,10", code=cluster.USAGE)
        self.assertIn("--sweep ps_nic=5,10: a second sweep of ps_nic; give all its values in one sweep", twice)

    def test_the_header_states_what_all_rows_have(self):
        usual = self.predict("--model", "1M", "--steps", 1)
        for flag, words in (("--queue_kib", "queues of 3 KiB"), ("--unfairness", "unfairness 3"), ("--seed", "seed 3"),
                            ("--oversubscription", "32 hosts 3:1 oversubscribed")):
            with self.subTest(flag=flag):
                self.assertNotIn(words, usual)
                self.assertIn(words, self.predict("--model", "1M", "--steps", 1, flag, 3))
        self.assertIn(", loss 0.1\n", self.predict("--model", "1M", "--steps", 1, "--loss", 0.1))
        swept = self.predict("--steps", 1, "--sweep", "workers=2,4", "--sweep", "model=1M,64M", "--sweep", "seed=1,2")
        self.assertIn("# … workers (1 a host), 1 ps (1 a host)", swept)
        failing = ("--steps", 1, "--model", "1M", "--runs", 1)
        self.assertIn("# a host fails each … h; noticed", self.predict(*failing, "--sweep", "mtbf=50,200"))
        self.assertIn("# a host fails each 50 h; noticed", self.predict(*failing, "--mtbf", 50))
        self.assertRegex(swept, r"# model … bytes, buckets … KiB, sync, .* slow workers, seed …\n")
        self.assertEqual(json.loads(self.predict("--model", "1M", "--queue_kib", 7, "--json"))["cluster"]["queue_kib"], 7)

    def test_a_model_by_its_layers(self):
        row = json.loads(self.predict("--model", "resnet50", "--json"))
        self.assertEqual(row["load"]["model_bytes"], 4 * 25_557_032)
        self.assertGreater(row["load"]["compute_ms"], 1)

    def test_check_compares_with_a_run(self):
        file = self.folder / "run.json"
        subprocess.run([cluster.binary(), "bench", "exchange", "--workers", "2", "--shards", "2", "--transport", "tcp",
                        "-b", "64K", "-e", "64K", "--rounds", "1", "--seconds", "0.05", "--no-stages", "-J", file],
                       check=True, stdout=subprocess.DEVNULL, timeout=cluster.FINISH)
        measured = cluster.recorded_run(file)["results"][0]["percentiles"]["p50_us"] * 1e-6
        # A slow link: the prediction is far away.
        flags = ("--check", file, "--nic", 0.001)
        self.assertIn("NOT WITHIN --tolerance", self.predict(*flags, code=cluster.FAILED))
        for value, ratio in ((0.25, 0.25), ("25%", 0.25), ("0%", 0), (1, 1), ("150%", 1.5)):
            said = self.predict(*flags, "--tolerance", value, "--json", code=cluster.FAILED)
            self.assertEqual(json.loads(said)["tolerance"], ratio)
        said = json.loads(self.predict(*flags, "--json", code=cluster.FAILED))
        (row,) = said["rows"]
        self.assertFalse(said["holds"])
        self.assertEqual(row["size"], 65536)
        self.assertAlmostEqual(row["measured_s"]["median"], measured)
        self.assertAlmostEqual(row["error"]["median"], row["predicted_s"]["median"] / measured - 1)
        # Two workers and 64 KiB each way take at least a second at 1 Mbit/s.
        self.assertGreater(row["predicted_s"]["median"], 1)
        through = self.folder / "changed.json"
        for change, says in (({"no_return": True}, "a run with --no-return; --check predicts whole exchanges"),
                             ({"return": "delta"}, "a run with --return delta: its bytes depend on the values")):
            changed = cluster.recorded_run(file)
            changed["config"].update(change)
            through.write_text(json.dumps(changed))
            self.assertIn(f"changed.json: {says}", self.predict("--check", through, code=cluster.CONFIGURATION))
        changed = cluster.recorded_run(file)
        changed["results"][0]["path"] = "tcp 2 streams"
        through.write_text(json.dumps(changed))
        self.assertIn("its path is 'tcp 2 streams', and --check compares one plain connection: measure with --rails off",
                      self.predict("--check", through, code=cluster.CONFIGURATION))
        # The same load over a fast one, with a wide tolerance.
        self.predict("--check", file, "--nic", 100, "--tolerance", "10000%")

    def test_check_refuses_runs_of_other_suites(self):
        file = self.folder / "replay.json"
        subprocess.run([cluster.binary(), "bench", "replay", "mnist-mlp", "--transport", "tcp", "-n", "3", "-w", "0", "--rounds", "1", "-J", file],
                       check=True, stdout=subprocess.DEVNULL, timeout=cluster.FINISH)
        self.assertIn("replay.json: a run of `bench replay`; --check needs one of `bench exchange` or `bench incast`",
                      self.predict("--check", file, code=cluster.CONFIGURATION))

    def test_no_resource_works_longer_than_the_run(self):
        said = json.loads(self.predict("--mode", "quorum:1", "--steps", 2, "--json"))
        self.assertTrue(all(0 <= share <= 1 for share in said["utilization"].values()), said["utilization"])

    def test_check_refuses_a_row_without_a_measurement(self):
        file = self.folder / "run.json"
        subprocess.run([cluster.binary(), "bench", "exchange", "--transport", "tcp", "-b", "64K", "-e", "64K", "--rounds", "1",
                        "--seconds", "0.05", "--no-stages", "-J", file], check=True, stdout=subprocess.DEVNULL, timeout=cluster.FINISH)
        run = cluster.recorded_run(file)
        smaller = copy.deepcopy(run["results"][0])
        smaller["size"] = 64
        smaller["percentiles"]["p50_us"] /= 2
        file.write_text(json.dumps({**run, "results": [smaller, *run["results"]]}))
        self.assertIn("--transport rdma needs no times of tcp", self.predict("--transport", "rdma", "--costs", file, code=cluster.USAGE))
        for field, value, why in (("failed", "worker/0: lost", "worker/0: lost"), ("nwrong", 5, "it has wrong results")):
            changed = copy.deepcopy(run)
            changed["results"][0][field] = value
            file.write_text(json.dumps(changed))
            self.assertIn(f"run.json: the row of 65536 bytes has no measurement to compare: {why}",
                          self.predict("--check", file, code=cluster.CONFIGURATION))

    def test_files_that_are_no_runs(self):
        file = self.folder / "text"
        file.write_text("hello")
        self.assertIn("was not written by", self.predict("--check", file, code=cluster.CONFIGURATION))
        self.assertIn("was not written by", self.predict("--costs", file, code=cluster.CONFIGURATION))


if __name__ == "__main__":
    unittest.main()
