"""Tests that `gradrail convert mnist` writes the TFRecord files of the tutorials, and that train reads them."""
import os
import struct
import unittest

import cluster


class Records(cluster.ClusterTest):
    def convert(self, *flags, code=cluster.GOOD, says=()):
        task = self.launch("convert", [cluster.binary(), "convert", *flags])
        self.assert_ends(task, code, says=says)

    def test_mnist_is_converted_and_learnt_from(self):
        folder = str(self.folder / "records")
        self.convert("mnist", "--out", folder, says=[r"55000 \+ 5000 \+ 10000 examples"])
        self.assertEqual(sorted(os.listdir(folder)), ["test.tfrecords", "train.tfrecords", "validation.tfrecords"])
        with open(os.path.join(folder, "test.tfrecords"), "rb") as file:
            data = file.read()
        count, at = 0, 0
        while at < len(data):
            at += 16 + struct.unpack_from("<Q", data, at)[0]
            count += 1
        self.assertEqual((count, at), (10000, len(data)))
        self.assertEqual((data.count(b"image_raw"), data.count(b"label")), (10000, 10000))
        task = self.train("--data_dir", folder, "--ps", 1, "--workers", 1, "--epochs", 1, "--optimizer", "adam")
        self.assert_ends(task, cluster.GOOD, 60 * cluster.PATIENCE)
        self.assertGreater(float(task.wait_for(r"^Test-Accuracy: (0\.\d\d)$")[1]), 0.7)

    def test_refusals(self):
        self.convert("cifar", "--out", str(self.folder), code=cluster.USAGE, says=[r"DATASET: cifar not in {mnist}"])
        self.convert("mnist", "--out", "/proc/nowhere", code=cluster.CONFIGURATION, says=[r"/proc/nowhere"])
        for name in ("train", "test"):
            (self.folder / (name + ".tfrecords")).write_bytes(b"no records at all")
        task = self.train("--data_dir", self.folder, "--ps", 1, "--workers", 1)
        self.assert_ends(task, cluster.CONFIGURATION, says=[r"train\.tfrecords: record 0: the checksum of its length"])


if __name__ == "__main__":
    unittest.main()
