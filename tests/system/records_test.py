"""Tests that `gradrail convert mnist` writes the TFRecord files of the tutorials, and that train reads them."""
import os
import pathlib
import re
import signal
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


# A training file of this size is streamed. GRADRAIL_RECORD_MB=1000 repeats the test with 1 GB.
RECORD_MB = int(os.environ.get("GRADRAIL_RECORD_MB", "200"))
# The program with its libraries has 60 MB. The first pass holds at most 64 MiB of images, in vectors that grow.
MEMORY_LIMIT_MB = 300


class Streamed(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.records = self.folder / "records"
        task = self.launch("convert", [cluster.binary(), "convert", "mnist", "--out", str(self.records)])
        self.assert_ends(task, cluster.GOOD)
        self.file = self.records / "train.tfrecords"
        part = self.file.read_bytes()
        copies = RECORD_MB * 1000000 // len(part) + 1
        with open(self.file, "wb") as file:
            for _ in range(copies):
                file.write(part)
        self.epoch_steps = copies * 55000 // 100

    def start(self):
        _, workers = self.start_cluster(1, "--data_dir", self.records, "--epochs", 20, model="mlp")
        return workers[0]

    def peak_mb(self, task):
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{task.pid}/status").read_text())[1]) // 1000

    def test_memory_does_not_grow_with_the_file(self):
        worker = self.start()
        worker.wait_for(rf"Epoch:  2,  Batch: 100 of {self.epoch_steps}", 60 * cluster.PATIENCE)
        peak = self.peak_mb(worker)
        worker.signal(signal.SIGTERM)
        worker.code()
        print(f"{RECORD_MB} MB of records: peak {peak} MB of resident memory", flush=True)
        if not cluster.instrumented():  # a sanitizer keeps what was freed
            self.assertLess(peak, MEMORY_LIMIT_MB)

    @cluster.long("StreamedRecords.EachStepCanBeReturnedTo")
    def test_return_to_a_checkpoint_ends_with_the_same_bits(self):
        def start(name):
            return self.train("--data_dir", self.records, "--ps", 1, "--workers", 1, "--mode", "sync", "--epochs", 2,
                              "--save_steps", 1000, "--checkpoint_dir", self.folder / name, name=name)
        undisturbed = start("undisturbed")
        expected = undisturbed.wait_for(r"^Parameter-Hash: (\w+)$", 60 * cluster.PATIENCE)[1]
        returned = start("returned")
        ps = int(returned.wait_for(r"# ps/0: pid (\d+)")[1])
        returned.wait_for("Epoch:  1,  Batch: 1500 of", 60 * cluster.PATIENCE)
        os.kill(ps, signal.SIGKILL)
        self.assertEqual(returned.wait_for(r"^Parameter-Hash: (\w+)$", 60 * cluster.PATIENCE)[1], expected)
        back = returned.wait_for(r"global step (\d+) where it was (\d+); (\d+) steps of this worker are done once more")
        self.assertEqual(int(back[2]) - int(back[1]), int(back[3]), "one worker makes each step")

    def test_damage_during_the_run_ends_it(self):
        worker = self.start()
        worker.wait_for("Epoch:  1,  Batch: 100 of", 60 * cluster.PATIENCE)
        with open(self.file, "r+b") as file:
            file.seek(-200, os.SEEK_END)
            byte = file.read(1)
            file.seek(-200, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        last = 100 * self.epoch_steps - 1
        self.assert_ends(worker, cluster.CONFIGURATION, 60 * cluster.PATIENCE, says=[
            r"the training data failed after \d+ steps of this worker: "
            rf"{re.escape(str(self.file))}: record {last}: the checksum of its content is wrong"])


if __name__ == "__main__":
    unittest.main()
