"""Tests that sync runs agree bit for bit with each transport, and with each number of shards, ps tasks and buckets."""
import unittest

import cluster
import digits


class SyncRuns(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.data = digits.write(self.folder)

    def run_hash(self, *flags):
        task = self.train("--mode", "sync", "--epochs", 3, "--data_dir", self.data, "--workers", 3, *cluster.ALL_STAY, *flags)
        self.assert_ends(task, cluster.GOOD)
        return cluster.hash_of(task)

    def test_two_runs_agree(self):
        self.assertEqual(self.run_hash(), self.run_hash())

    def test_another_seed_or_rate_is_another_run(self):
        hashes = [self.run_hash(), self.run_hash("--seed", 2), self.run_hash("--learning_rate", 0.002)]
        self.assertEqual(len(set(hashes)), 3, "the hash does not depend on the run")

    def test_shards_and_servers_and_buckets_agree(self):
        expected = self.run_hash()
        self.assertEqual(expected, self.run_hash("--shards", 2))
        self.assertEqual(expected, self.run_hash("--ps", 2))
        self.assertEqual(expected, self.run_hash("--ps", 2, "--shards", 2, "--bucket_kib", 4, "--transport", "tcp"))


if __name__ == "__main__":
    unittest.main()
