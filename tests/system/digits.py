"""Writes a small data set in the file format of MNIST. A run with it takes about a second."""
import gzip
import random
import struct

import cluster


def idx(shape, values):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(values)


def write(folder, train=1200, test=100, packed=False):
    """Writes images that a model can distinguish: label k has a bright row 2k. The first 1/12 is the validation set."""
    random.seed(1)
    for name, count in (("train", train), ("t10k", test)):
        labels = [random.randrange(10) for _ in range(count)]
        images = bytearray()
        for label in labels:
            image = bytearray(random.randrange(40) for _ in range(28 * 28))
            image[label * 56:label * 56 + 28] = bytes(random.randrange(180, 256) for _ in range(28))
            images += image
        for suffix, content in (("images-idx3", idx((count, 28, 28), images)), ("labels-idx1", idx((count,), labels))):
            path = folder / f"{name}-{suffix}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content, 1) if packed else content)
    return str(folder)


class SyncTest(cluster.ClusterTest):
    """Runs in sync of two workers that train an MLP on such data with Adam."""

    def setUp(self):
        super().setUp()
        self.data = write(self.folder)

    def finished(self, *flags):
        task = self.train("--model", "mlp", "--mode", "sync", "--optimizer", "adam", "--data_dir", self.data, "--workers", 2,
                          *cluster.ALL_STAY, *flags)
        self.assert_ends(task, cluster.GOOD, 4 * cluster.FINISH)
        return task

    def run_hash(self, *flags):
        return cluster.hash_of(self.finished("--epochs", 2, *flags))
