"""Tests the output for users: the lines of the tutorials."""
import re
import unittest

import cluster

STEP = re.compile(r"^Step: (\d+),  Epoch: ( \d|\d\d),  Batch: +(\d+) of +(\d+),  Cost: \d+\.\d{4},  "
                  r"AvgTime: \d+\.\d{2}ms$")


class Lines(cluster.ClusterTest):
    def test_default_flags_speak_the_words_of_the_tutorials(self):
        task = self.train("--epochs", 1)
        self.assert_ends(task, cluster.GOOD, 55 * cluster.PATIENCE)
        lines = task.text().splitlines()
        self.assertEqual([re.sub(r"pid \d+", "pid N", line) for line in lines if line.startswith("# ")],
                         ["# ps/0: pid N", "# worker/0: pid N", "# worker/1: pid N", "# worker/2: pid N"])
        steps = [STEP.match(line) for line in lines if line.startswith("Step:")]
        self.assertTrue(steps and all(steps), task.transcript())
        self.assertEqual([(int(m[3]), int(m[4])) for m in steps], [(b, 550) for b in (100, 200, 300, 400, 500, 550)])
        self.assertEqual({m[2] for m in steps}, {" 1"})
        chief = [line for line in lines if not line.startswith(("#", "[")) and not re.match(r"\S+ [IWE] \d\d:", line)]
        self.assertEqual((chief[0], chief[-1]), ("Variables initialized ...", "done"))
        for pattern in (r"^Test-Accuracy: 0\.\d\d$", r"^Total Time: \d+\.\d{2}s$", r"^Final Cost: \d+\.\d{4}$",
                        r"^Parameter-Hash: [0-9a-f]{64}$", r"^Global-Step: 1650$", r"^Examples/s: \d+$",
                        r"^Path: shard 0 at 127\.0\.0\.1:\d+: shm", r"^\[worker/2\] Total Time:",
                        r"^\[ps/0\] global step 1650, "):
            self.assertRegex(task.text(), re.compile(pattern, re.M))
        # Only the chief prints plain lines. A successful run has no warnings, except that of a slow start.
        self.assertEqual(len([line for line in lines if line.startswith("Parameter-Hash")]), 1)
        warnings = [line for line in lines if re.match(r"\S+ [WE] \d\d:", line) and "waiting for worker" not in line]
        self.assertFalse(warnings, task.transcript())
        self.assertNotIn(b"\x1b", task.raw())

    def test_version_and_info(self):
        version = self.launch("version", [cluster.binary(), "--version"])
        self.assert_ends(version, cluster.GOOD, says=[r"^gradrail \d+\.\d+\.\d+ \(commit \S+, wire protocol \d+\)$"])
        info = self.launch("info", [cluster.binary(), "info"])
        self.assert_ends(info, cluster.GOOD, says=[r"shm +.*usable", r"tcp +.*usable", r"kernels: \w+"])

    def test_a_result_that_cannot_be_written_is_an_error(self):
        commands = ["info"], ["--version"], ["train", "--help"], ["topo"], ["topo", "--topology", "pack:8 numa:4 core:8 pu:2", "--json"]
        for arguments in commands:  # longer than a buffer, and shorter
            for redirection in (">/dev/full", ">&-", ">/dev/full 2>&1", ">&- 2>&-"):
                with self.subTest(arguments=arguments, redirection=redirection):
                    task = self.launch("gradrail", ["sh", "-c", f'exec "$@" {redirection}', "sh", cluster.binary(), *arguments])
                    self.assert_ends(task, cluster.CONFIGURATION,
                                     says=[] if "2>" in redirection else ["gradrail: the output is incomplete: "])

    def test_a_run_is_complete_without_its_log(self):
        task = self.launch("gradrail", ["sh", "-c", 'exec "$@" >/dev/full', "sh", cluster.binary(), "run", "--", "true"])
        self.assert_ends(task, cluster.GOOD, says=["gradrail: the output is incomplete: "])


if __name__ == "__main__":
    unittest.main()
