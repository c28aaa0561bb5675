"""Tests several towers in one worker, with a parameter server and without."""
import re
import signal
import unittest

import cluster
import digits

RATE_LINE = (r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: step \d+, loss = \d+\.\d\d "
             r"\(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\)$")


class Towers(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.data = digits.write(self.folder)

    def run_cnn(self, *flags):
        task = self.train("--model", "cnn", "--data_dir", self.data, "--batch_size", 20, "--log_every", 10, *flags)
        self.assert_ends(task, cluster.GOOD, 4 * cluster.FINISH)
        return task

    def accuracy(self, task):
        return float(task.wait_for(r"^Test-Accuracy: (\d\.\d{4})$").group(1))

    @cluster.long("TowersTest and LocalVariables in one process; the lines of two towers are seen here alone")
    def test_without_a_server_they_learn(self):
        task = self.run_cnn("--ps", 0, "--towers", 2, "--epochs", 6, "--learning_rate", 0.05)
        self.assertGreater(self.accuracy(task), 0.9, task.transcript())
        lines = [line.text for line in task.lines()]
        reports = [line for line in lines if re.match(RATE_LINE, line)]
        # 1,100 images in batches of 2 x 20 give 27 steps in an epoch. Steps 10, 20 and 27 are reported.
        self.assertEqual([int(re.search(r"step (\d+)", line).group(1)) for line in reports[:4]], [10, 20, 27, 37])
        self.assertEqual(len(reports), 18)
        for words in (r"^Total Time: ", r"^Final Cost: ", r"^Global-Step: 162$", r"^Applied: 162 updates",
                      r"^Placed: worker/0 tower 0 .*; worker/0 tower 1 "):
            self.assertTrue(task.has(words), f"{words}\n{task.transcript()}")
        self.assertFalse(task.has(r"pid|Path:|Exchange:"), task.transcript())

    def test_a_server_changes_no_bit(self):
        for model in ("cnn", "mlp"):
            with self.subTest(model=model):
                flags = ["--model", model, "--towers", 2, "--epochs", 1, "--optimizer", "momentum"]
                alone = cluster.hash_of(self.run_cnn(*flags, "--ps", 0))
                served = self.run_cnn(*flags, "--ps", 1, "--workers", 1, "--mode", "sync", "--bucket_kib", 64)
                self.assertEqual(alone, cluster.hash_of(served))
                if model == "cnn":
                    self.assertEqual(alone, cluster.hash_of(self.run_cnn(*flags, "--ps", 0)), "two runs differ")
                    self.assertNotEqual(alone, cluster.hash_of(self.run_cnn(*flags, "--ps", 0, "--towers", 3)))

    @cluster.long("no other test has workers with unequal towers, or reads for whom a worker waits")
    def test_sync_workers_must_have_as_many(self):
        flags = ["--mode", "sync", "--epochs", 100000, *self.addresses(2), "--model", "linear"]
        self.train(*flags, "--job_name", "ps", "--task_index", 0, name="ps/0")
        first = self.train(*flags, "--job_name", "worker", "--task_index", 0, "--towers", 2, name="worker/0")
        first.wait_for("waiting for worker 1", 12 + cluster.START)
        second = self.train(*flags, "--job_name", "worker", "--task_index", 1, name="worker/1")
        self.assert_ends(second, cluster.CONFIGURATION, says=["--towers 2"])

    def test_sigterm_without_a_server(self):
        task = self.train("--model", "linear", "--ps", 0, "--towers", 2, "--epochs", 1000000)
        task.wait_for(r"Step: \d+")
        self.assertEqual(cluster.children(task.pid), [], "a run with --ps 0 must not start other processes")
        task.signal(signal.SIGTERM)
        self.assert_ends(task, cluster.GOOD, 10 * cluster.PATIENCE, says=[r"Stopped after \d+ steps", r"Total Time: "])

    def test_refusals(self):
        for flags, words in (
                (["--ps", 0, "--workers", 3], "--workers 3: with --ps 0 this process is the only worker"),
                (["--ps", 0, "--checkpoint_dir", "/tmp"], "gradrail: --checkpoint_dir: parameter servers keep"),
                (["--ps", 0, "--save_steps", 5], "gradrail: --save_steps: parameter servers keep"),
                (["--ps", 0, "--push", "bf16"], "--push bf16: with --ps 0 no gradient leaves this process"),
                (["--ps", 0, "--shards", 2], "--shards 2: .*--ps 0"),
                (["--ps", 0, *self.addresses(1), "--job_name", "ps", "--task_index", 0], "--ps 0 trains in this process"),
                (["--no-soft-placement"], "--no-soft-placement: .*GPU"),
                (["--ps", 0, "--no_soft_placement"], "--no-soft-placement: .*GPU"),
                (["--cnn_logits_relu", "false"], "--cnn_logits_relu is of --model cnn"),
                (["--model", "mlp", "--data_dir", self.data, "--ps", 0, "--towers", 2, "--batch_size", 600],
                 "batch of 600 for each of 2 towers, but .* holds only 1100")):
            with self.subTest(flags=flags):
                self.refused(cluster.CONFIGURATION, [words], "--model", "linear", *flags)


if __name__ == "__main__":
    unittest.main()
