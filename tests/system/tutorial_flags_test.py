"""Tests that the flag of a tutorial is refused, and that the message names the flag of gradrail."""
import pathlib
import re
import subprocess
import unittest

import cluster


class TutorialFlags(cluster.ClusterTest):
    def test_flags_of_tutorials_are_refused_with_ours(self):
        for flags, words in (
                (["--num_gpus", 2], "^gradrail: --num_gpus is not a flag of gradrail: use --towers$"),
                (["--num-gpus=2"], "use --towers$"),
                (["--num_epochs", 2], "use --epochs$"),
                (["--tb_logging", "True"], "use --logs_path DIR$"),
                (["--train_dir=/tmp/x", "--max_steps=5"], "--train_dir is not .*: use --checkpoint_dir(.|\n)*"
                                                          "--max_steps is not .*: use --epochs"),
                (["--lr", 0.1], "use --learning_rate$"),
                (["--sync_replicas"], "use --mode sync$"),
                (["--task_id", 1], "use --task_index$")):
            with self.subTest(flags=flags):
                self.refused(cluster.USAGE, ["(?m)" + words], *flags)

    def test_the_flags_of_tutorials_are_hints_for_train_only(self):
        task = self.launch("topo", [cluster.binary(), "topo", "--num_gpus", "2"])
        self.assert_ends(task, cluster.USAGE)
        self.assertNotIn("not a flag of gradrail", task.text())

    def test_each_replacement_is_a_flag(self):
        """Compares the table of the program with its help text."""
        help_text = subprocess.run([cluster.binary(), "train", "--help"], capture_output=True, text=True,
                                   check=True).stdout
        source = (pathlib.Path(__file__).parents[2] / "tools/train/tutorial_flags.cc").read_text()
        pairs = re.findall(r'^    \{"(--\w+)", "(--[\w-]+)', source, re.M)
        self.assertGreater(len(pairs), 40)
        for old, new in pairs:
            self.assertRegex(help_text, rf"{new}\b")
            self.assertNotRegex(help_text, rf"{old}[ ,]")

    def test_new_names_accept_underscores(self):
        self.refused(cluster.USAGE, ["--heartbeat-timeout: '0' is not"], "--heartbeat_timeout", 0)


if __name__ == "__main__":
    unittest.main()
