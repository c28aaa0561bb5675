"""The exit code and the stream of refused flags and variables. The parser's own test tries the values of each flag
(tests/tools/gradrail/flag_values_test.cc)."""
import subprocess
import unittest

import cluster


class FlagValues(cluster.ClusterTest):
    def test_each_command_refuses_a_value_with_one_line(self):
        for command in (["train", "--ps=x"], ["run", "--ps=x"], ["info", "--plugin-dir="],
                        ["doctor", "--hosts=,"], ["topo", "--cores=x"], ["top", ""], ["convert", "x"],
                        ["checkpoint", "ls", ""], ["bench", "put", "--begin=x"], ["predict", "--mode=x"]):
            with self.subTest(command=command):
                ran = subprocess.run([cluster.binary(), *command], capture_output=True, text=True, cwd=self.folder,
                                     stdin=subprocess.DEVNULL, timeout=cluster.START)
                self.assertEqual((ran.returncode, ran.stdout), (cluster.USAGE, ""), ran.stderr)
                self.assertRegex(ran.stderr, r"\Agradrail: .*\(--help lists the flags\)\n\Z")


class Variables(cluster.ClusterTest):
    def refuses(self, variable, value, says, *command, code=cluster.USAGE):
        ran = subprocess.run([cluster.binary(), *map(str, command)], capture_output=True, text=True, cwd=self.folder,
                             env={"PATH": "/usr/bin", variable: str(value)}, timeout=cluster.START)
        self.assertEqual((ran.returncode, ran.stdout), (code, ""), ran.stderr)
        self.assertRegex(ran.stderr, rf"^gradrail[a-z ]*: {variable}.*{says}")
        self.assertEqual(len(ran.stderr.splitlines()), 1, ran.stderr)

    def test_an_unknown_log_level(self):
        for command in (["train", "--model", "linear", "--epochs", 1], ["info"], ["checkpoint", "ls", self.folder]):
            with self.subTest(command=command):
                self.refuses("GRADRAIL_LOG", "loud", "loud: no such log level; there are debug, info", *command)

    def test_a_plugin_folder_that_is_no_folder(self):
        file = self.folder / "file"
        file.write_text("")
        for folder, says, code in ((self.folder / "none", "no such folder", cluster.CONFIGURATION),
                                   (file, "no such folder", cluster.CONFIGURATION),
                                   ("plugins", "absolute path", cluster.USAGE)):
            for command in (["train", "--model", "linear", "--epochs", 1], ["info"], ["doctor", "--no-proof"],
                            ["bench", "put"]):
                with self.subTest(folder=folder, command=command):
                    # The codes of `bench` are its own: 2 for each error before a measurement.
                    expected = cluster.USAGE if command[0] == "bench" else code
                    self.refuses("GRADRAIL_PLUGIN_DIR", folder, says, *command, code=expected)


if __name__ == "__main__":
    unittest.main()
