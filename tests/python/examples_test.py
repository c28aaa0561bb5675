"""The examples of the Python package learn."""
import os
import pathlib
import re
import unittest

import cluster
import package

EXAMPLES = cluster.ROOT / "worker" / "python" / "examples"
BATCHES = 550  # of an epoch: 55,000 images, as in the tutorial


class ExampleTest(package.PackageTest):
    def example(self, name, *arguments, environment=None):
        command = [cluster.binary(), "run", "--ps", "1", "--workers", "2", "--", cluster.python_with(*self.MODULES),
                   str(EXAMPLES / name), *map(str, arguments)]
        return self.launch("run", command, self.environment(environment))

    def assert_learned(self, chief, *others):
        """The chief reports the accuracy after one epoch with Adam. Returns the last global step that a task printed."""
        for task in (chief, *others):
            self.assert_ends(task, cluster.GOOD, 120 * cluster.PATIENCE)
        self.assertGreater(float(chief.wait_for(r"Test-Accuracy: ([\d.]+)").group(1)), 0.9)
        line = rf"Step: (\d+),  Epoch: 1,  Batch: {BATCHES} of {BATCHES},  Cost: "
        steps = [int(step) for task in (chief, *others) for step in re.findall(line, task.text())]
        self.assertEqual(len(steps), 2, chief.transcript())
        return max(steps) - 1


class Examples(ExampleTest):
    MODULES = ("numpy", "torch")

    @cluster.long("mnist_has_the_splits_of_the_tutorial_and_of_the_trainer reads its data; no other test starts it")
    def test_mnist_learns(self):
        task = self.example("mnist_torch.py", "--optimizer", "adam", "--epochs", 1)
        self.assertEqual(self.assert_learned(task), 2 * BATCHES)

    @cluster.long("mnist_has_the_splits_of_the_tutorial_and_of_the_trainer reads its data; no other test starts it")
    def test_mnist_names_a_missing_folder(self):
        for arguments, environment in ((("--data_dir", "/nowhere"), None), ((), {"GRADRAIL_DATA_DIR": "/nowhere"})):
            with self.subTest(arguments=arguments):
                task = self.example("mnist_torch.py", *arguments, environment=environment)
                self.assert_ends(task, 1, says=[r"no train-images-idx3-ubyte\[.gz\] or train-images.idx3-ubyte\[.gz\] in "
                                                r"/nowhere; give --data_dir"])

    def test_mnist_has_the_splits_of_the_tutorial_and_of_the_trainer(self):
        # Also under the dotted names of other copies.
        dotted = self.folder / "dotted"
        dotted.mkdir()
        for path in (cluster.ROOT / "worker" / "data" / "mnist").glob("*-idx?-ubyte.gz"):
            (dotted / path.name.replace("-idx", ".idx")).symlink_to(path)
        task = self.launch("splits", [cluster.python_with("numpy"), "-c", """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import mnist_data, numpy as np
for folder in (mnist_data.find_folder(""), mnist_data.find_folder(sys.argv[2])):
    splits = {name: mnist_data.load(folder, name) for name in ("validation", "train", "test")}
    assert [len(images) for images, _ in splits.values()] == [5000, 55000, 10000]
    every = mnist_data.read_idx(folder, "train-labels", "idx1-ubyte")
    assert np.array_equal(np.concatenate([splits["validation"][1], splits["train"][1]]), every)
    assert all(images.shape[1:] == (784,) and images.max() == 1 for images, _ in splits.values())
"""] + [str(EXAMPLES), str(dotted)], self.environment({}))
        self.assert_ends(task, cluster.GOOD)

    @cluster.long("torch_test has the results of an Exchange; no other test starts this example")
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


class TensorFlowExamples(ExampleTest):
    MODULES = ("numpy", "tensorflow")

    def test_mnist_learns_with_tensorflow(self):
        task = self.example("mnist_tensorflow.py", "--optimizer", "adam", "--epochs", 1)
        self.assertEqual(self.assert_learned(task), 2 * BATCHES)

    def test_mnist_with_tensorflow_starts_as_in_the_tutorial(self):
        flags = [*self.addresses(2), "--sync", "--optimizer", "adam", "--epochs", 1]
        folder = pathlib.Path(cluster.binary()).parent
        environment = self.environment({"PATH": f"{folder}:{os.environ['PATH']}"})

        def start(job, index):
            command = [cluster.python_with(*self.MODULES), str(EXAMPLES / "mnist_tensorflow.py"), "--job_name", job,
                       "--task_index", str(index), *map(str, flags)]
            return self.launch(f"{job}/{index}", command, environment)

        server, *workers = start("ps", 0), start("worker", 0), start("worker", 1)
        self.assertEqual(self.assert_learned(*workers), BATCHES)  # a step has a gradient of each worker
        self.assert_ends(server, cluster.GOOD)


class JaxExamples(ExampleTest):
    MODULES = ("numpy", "jax", "optax")

    def test_mnist_learns_with_jax(self):
        task = self.example("mnist_jax.py", "--optimizer", "adam", "--epochs", 1)
        self.assertEqual(self.assert_learned(task), 2 * BATCHES)

    def test_mnist_learns_with_jax_in_sync(self):
        task = self.example("mnist_jax.py", "--sync", "--optimizer", "adam", "--epochs", 1)
        self.assertEqual(self.assert_learned(task), BATCHES)


if __name__ == "__main__":
    unittest.main()
