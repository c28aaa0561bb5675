"""bench/python/compare_python.py at toy size."""
import json
import shutil
import sys
import types
import unittest

import cluster
import package

FOLDER = cluster.ROOT / "bench" / "python"
sys.path.insert(0, str(FOLDER))
import compare_python  # noqa: E402


class Bench(package.PackageTest):
    def compare(self, *arguments, modules):
        """Runs the comparison without an error. Returns its output and its JSON lines."""
        lines = self.folder / "rows.jsonl"
        command = [sys.executable, "-B", str(FOLDER / "compare_python.py"), "--python", cluster.python_with(*modules),
                   "--binary", cluster.binary(), "--rounds", "1", "--json", str(lines), *map(str, arguments)]
        task = self.launch("compare", command, self.environment(None))
        self.assert_ends(task, cluster.GOOD, 300 * cluster.PATIENCE)
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        for row in rows:
            self.assertTrue(row["machine"] and row["commit"], row)
            self.assertRegex(row["versions"], r"gradrail \d+\.\d+.*, Python 3\.\d+.*, numpy \d")
        return task.text(), rows

    def test_python_beside_c(self):
        if not shutil.which("cc"):
            cluster.skip("there is no C compiler cc")
        text, rows = self.compare("--part", "exchange", "--sizes", "4K", "--seconds", 0.05, modules=("numpy",))
        self.assertEqual([(row["bytes"], row["call"]) for row in rows], [(4096, "step"), (4096, "halves")])
        for row in rows:
            self.assertEqual(row["wrong"], 0)
            self.assertTrue(row["c_us"] > 0 and row["python_us"] > 0 and row["c_alone_us"] > 0, row)
        self.assertRegex(text, r"(?m)^ +4096 +step .*<= 5\.0 us, (met|missed)$")

    def check_training(self, part, *flags):
        _, rows = self.compare("--part", part, "--steps", 5, *flags, modules=("numpy", "torch"))
        self.assertEqual([row["contender"] for row in rows], [each.name for each in compare_python.CONTENDERS[part]])

    @cluster.long("it compares times; torch_test has the results")
    def test_mnist_beside_torch(self):
        self.check_training("mnist")

    @cluster.long("it compares times; torch_test has the results")
    def test_transformer_beside_torch(self):
        self.check_training("transformer", "--batch", 2, "--context", 8)

    def test_a_contender_with_wrong_steps_is_an_error(self):
        options = types.SimpleNamespace(binary=cluster.binary(), python=sys.executable, output=None, json=None)
        for distance, failures in ((1.0, 0), (1.1, 1)):
            report = compare_python.Report(options)
            found = {each.name: [[{"moved": 1.0}]] for each in compare_python.CONTENDERS["mnist"]}
            found[compare_python.DDP.name] = [[{"moved": distance}]]
            compare_python.verify(report, "mnist", found)
            self.assertEqual(report.failures, failures)


if __name__ == "__main__":
    unittest.main()
