"""Tests parameters that return in bf16 and delta: accuracy, what top shows, and the flags."""
import unittest

import cluster
import digits

DELTA = ["--push", "int4", "--return", "delta"]


class Returns(digits.SyncTest):
    def returned(self, task):
        """Returns the bytes of the summary, and those that fp32 would have."""
        return tuple(map(int, task.wait_for(r"^Formats: .*; return \w+, (\d+) bytes, (\d+) in fp32$").groups()))

    def test_a_short_format_learns_as_well(self):
        accuracy = {}
        for flags in ([], DELTA):
            task = self.finished("--epochs", 8, "--learning_rate", 0.003, *flags)
            accuracy[len(flags)] = float(task.wait_for(r"^Test-Accuracy: (\d\.\d+)$").group(1))
        self.assertGreater(accuracy[0], 0.8)
        self.assertGreaterEqual(accuracy[4], accuracy[0] - 0.03)
        delta, fp32 = self.returned(task)
        self.assertLess(delta, fp32 / 2)
        half, _ = self.returned(self.finished("--epochs", 1, "--return", "bf16"))
        self.assertAlmostEqual(half / self.returned(self.finished("--epochs", 1, "--return", "delta"))[1], 0.5, 2)

    def test_the_formats_are_in_top(self):
        self.start_cluster(1, "--epochs", 100000, *DELTA)
        self.wait_until_shown(r"^ps/0 .* 1 live, 1 shards, push int4, return delta$", self.ps_addresses)

    def test_refusals(self):
        self.refused(cluster.USAGE, ["--return: int4 not in {fp32,bf16,delta}"], "--return", "int4")
        self.refused(cluster.CONFIGURATION, ["--return bf16: with --ps 0 no gradient leaves"], "--ps", 0, "--return", "bf16")


if __name__ == "__main__":
    unittest.main()
