"""Tests the output and the exit codes of `gradrail predict`."""
import json
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
        flags = ("--workers", 8, "--ps", 2, "--model", "4M")
        row = json.loads(self.predict(*flags, "--json"))
        self.assertEqual((row["cluster"]["workers"], row["load"]["buckets"]), (8, 16))
        self.assertLessEqual(row["step_time_s"]["median"], row["step_time_s"]["p99"])
        self.assertAlmostEqual(row["steps_per_s"], 1 / row["step_time_s"]["mean"])
        self.assertEqual(row["share_of_line_rate"], row["utilization"]["shard_nic"])
        self.assertAlmostEqual(sum(row["critical_path"].values()), 1)
        self.assertEqual(row["bottleneck"], max(row["critical_path"], key=row["critical_path"].get))
        said = self.predict(*flags)
        self.assertIn(f"\nstep           {row['step_time_s']['median'] * 1e3:.3f} ms", said)
        self.assertIn(f"\nbottleneck     {row['bottleneck']}\n", said)

    @cluster.long("PredictSimulation.WorkOfALargeClusterIsBounded counts the events of this run; its JSON is seen here alone")
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
        self.assertLessEqual(without["goodput_share_min"], without["goodput_share_p5"])
        said = self.predict(*flags)
        self.assertRegex(said, r"with a backup ps: goodput 0\.\d+ of the steps .* 5th percentile 0\.\d+, worst run 0")
        self.assertRegex(said, r"best time between two saves: [\d.]*[1-9][\d.]* s")

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
        said = json.loads(self.predict("--check", file, "--nic", 0.001, "--json", code=cluster.FAILED))
        (row,) = said["rows"]
        self.assertFalse(said["holds"])
        self.assertEqual(row["size"], 65536)
        self.assertAlmostEqual(row["measured_s"]["median"], measured)
        self.assertAlmostEqual(row["error"]["median"], row["predicted_s"]["median"] / measured - 1)
        # Two workers and 64 KiB each way take at least a second at 1 Mbit/s.
        self.assertGreater(row["predicted_s"]["median"], 1)

    def test_mistakes_have_their_exit_codes(self):
        file = self.folder / "text"
        file.write_text("hello")
        self.assertIn("was not written by", self.predict("--check", file, code=cluster.CONFIGURATION))
        self.assertIn("was not written by", self.predict("--costs", file, code=cluster.CONFIGURATION))
        self.assertIn("--model 10: must be", self.predict("--model", 10, code=cluster.USAGE))


if __name__ == "__main__":
    unittest.main()
