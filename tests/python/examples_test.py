"""The examples of the Python package learn."""
import re
import unittest

import cluster
import package

EXAMPLES = cluster.ROOT / "worker" / "python" / "examples"


class Examples(package.PackageTest):
    MODULES = ("numpy", "torch")

    def example(self, name, *arguments, environment=None):
        command = [cluster.binary(), "run", "--ps", "1", "--workers", "2", "--", cluster.python_with(*self.MODULES),
                   str(EXAMPLES / name), *map(str, arguments)]
        return self.launch("run", command, self.environment(environment))

    def test_mnist_learns(self):
        task = self.example("mnist_torch.py", "--optimizer", "adam", "--epochs", 1)
        self.assert_ends(task, cluster.GOOD, 120 * cluster.PATIENCE)
        accuracy = float(task.wait_for(r"Test-Accuracy: ([\d.]+)").group(1))
        self.assertGreater(accuracy, 0.9)
        self.assert_says(task, r"\[worker/1\] Step: \d+,  Epoch: 1,  Batch: 600 of 600,  Cost: ")

    def test_mnist_names_a_missing_folder(self):
        for arguments, environment in ((("--data_dir", "/nowhere"), None), ((), {"GRADRAIL_DATA_DIR": "/nowhere"})):
            with self.subTest(arguments=arguments):
                task = self.example("mnist_torch.py", *arguments, environment=environment)
                self.assert_ends(task, 1, says=[r"no train-images-idx3-ubyte\[.gz\] in /nowhere; give --data_dir"])

    def test_a_transformer_learns_with_equal_parameters(self):
        # Small batches: the BLAS of Debian's torch is slow.
        task = self.example("text_torch.py", "--steps", 31, "--batch", 4, "--context", 16)
        self.assert_ends(task, cluster.GOOD, 200 * cluster.PATIENCE)
        parameters = int(task.wait_for(r"Parameters: (\d+)").group(1))
        self.assertTrue(10 ** 6 < parameters < 5 * 10 ** 6, parameters)
        losses = [float(loss) for loss in re.findall(r"Loss: ([\d.]+)", task.text())]
        self.assertGreater(losses[0], 3.0)
        self.assertLess(sum(losses[-4:]) / 4, 2.75)  # of steps 21 and 31 at both workers
        hashes = re.findall(r"Parameter-Hash: (\w+)", task.text())
        self.assertEqual(len(hashes), 2)
        self.assertEqual(hashes[0], hashes[1])


if __name__ == "__main__":
    unittest.main()
