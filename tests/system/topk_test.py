"""Tests pushes of the largest elements alone: equal bits over all paths, accuracy, and what a run shows."""
import unittest

import cluster
import digits

TOPK = ["--push", "topk:2.5"]


class Topk(digits.SyncTest):
    def test_transports_shards_and_buckets_agree(self):
        expected = self.run_hash(*TOPK, "--transport", "shm", "--no-fallback")
        self.assertNotEqual(expected, self.run_hash())
        self.assertNotEqual(expected, self.run_hash("--push", "topk:2.6"))
        for flags in (["--transport", "tcp", "--checksums"], ["--ps", 2, "--shards", 3, "--bucket_kib", 16],
                      ["--transport", "tcp", "--secret-file", self.secret_file(), "--encrypt-data"]):
            self.assertEqual(expected, self.run_hash(*TOPK, *flags), flags)

    def test_few_elements_learn_as_well(self):
        accuracy = {}
        for push in ("fp32", "topk:10"):
            task = self.finished("--epochs", 8, "--learning_rate", 0.003, "--push", push)
            accuracy[push] = float(task.wait_for(r"^Test-Accuracy: (\d\.\d+)$").group(1))
        self.assertGreater(accuracy["fp32"], 0.8)
        self.assertGreaterEqual(accuracy["topk:10"], accuracy["fp32"] - 0.03)
        pushed, fp32 = map(int, task.wait_for(r"^Formats: push topk:10, (\d+) bytes, (\d+) in fp32; ").groups())
        self.assertLess(pushed, fp32 / 8)

    def test_the_percentage_is_in_top_and_equal_at_all_workers(self):
        flags = [*self.addresses(2), "--model", "linear", "--epochs", 100000]
        self.train(*flags, "--job_name", "ps", "--task_index", 0, name="ps/0")
        self.train(*flags, "--job_name", "worker", "--task_index", 0, *TOPK, name="worker/0")
        self.wait_until_shown(r"^ps/0 .* 1 live, 1 shards, push topk:2.5, return fp32", self.ps_addresses)
        other = self.train(*flags, "--job_name", "worker", "--task_index", 1, "--push", "topk:2", name="worker/1")
        self.assert_ends(other, cluster.CONFIGURATION, says=["push topk:2.5 in the run, topk:2 at worker 1"])


if __name__ == "__main__":
    unittest.main()
