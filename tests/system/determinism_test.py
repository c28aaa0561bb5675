"""Tests that sync runs agree bit for bit with each transport, and with each number of shards, ps tasks and buckets."""
import unittest

import cluster
import digits


class SyncRuns(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.data = digits.write(self.folder)

    def run_hash(self, *flags, workers=3, epochs=3):
        task = self.train("--mode", "sync", "--epochs", epochs, "--data_dir", self.data, "--workers", workers,
                          *cluster.ALL_STAY, *flags)
        self.assert_ends(task, cluster.GOOD)
        return cluster.hash_of(task)

    def test_two_runs_agree(self):
        self.assertEqual(self.run_hash(), self.run_hash())

    def test_another_seed_or_rate_is_another_run(self):
        hashes = [self.run_hash(), self.run_hash("--seed", 2), self.run_hash("--learning_rate", 0.002)]
        self.assertEqual(len(set(hashes)), 3, "the hash does not depend on the run")

    def test_transports_agree(self):
        self.assertEqual(self.run_hash("--transport", "shm", "--no-fallback"),
                         self.run_hash("--transport", "tcp", "--no-fallback", "--checksums"))

    def test_shards_and_servers_and_buckets_agree(self):
        expected = self.run_hash()
        self.assertEqual(expected, self.run_hash("--shards", 2))
        self.assertEqual(expected, self.run_hash("--ps", 2))
        self.assertEqual(expected, self.run_hash("--ps", 2, "--shards", 2, "--bucket_kib", 4, "--transport", "tcp"))

    def test_pushes_in_bf16_agree(self):
        expected = self.run_hash("--push", "bf16", "--transport", "shm")
        self.assertEqual(expected, self.run_hash("--push", "bf16", "--transport", "tcp", "--checksums"))
        self.assertEqual(expected, self.run_hash("--push", "bf16", "--ps", 2, "--shards", 2, "--bucket_kib", 4))
        self.assertEqual(expected, self.run_hash("--push", "bf16", "--transport", "tcp", "--secret-file",
                                                 self.secret_file(), "--encrypt-data"))
        self.assertNotEqual(expected, self.run_hash())

    def test_optimizers_agree_over_shards(self):
        for optimizer in ("momentum", "nesterov", "adam", "delayed_nesterov"):
            with self.subTest(optimizer=optimizer):
                self.assertEqual(self.run_hash("--optimizer", optimizer),
                                 self.run_hash("--optimizer", optimizer, "--shards", 3, "--bucket_kib", 16))

    def test_twenty_workers_agree(self):
        # 20 gradients need more than one call of the sum kernel.
        for push in ("fp32", "bf16"):
            self.assertEqual(self.run_hash("--push", push, workers=20, epochs=1),
                             self.run_hash("--push", push, "--transport", "tcp", workers=20, epochs=1))


if __name__ == "__main__":
    unittest.main()
