"""Writes the first images of the built-in MNIST, uncompressed. In a guest, the whole data set takes ten times as long
as the rest of a run."""
import gzip
import pathlib
import struct

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "worker/data/mnist"
TRAIN_IMAGES, TEST_IMAGES = 3600, 600


def write(folder):
    folder.mkdir()
    for name, count in (("train", TRAIN_IMAGES), ("t10k", TEST_IMAGES)):
        for suffix in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            with gzip.open(SOURCE / f"{name}-{suffix}.gz") as packed:
                dimensions = packed.read(4)[3]  # the last byte of an IDX file's magic number
                shape = list(struct.unpack(f">{dimensions}I", packed.read(4 * dimensions)))
                item_bytes = 1
                for length in shape[1:]:
                    item_bytes *= length
                head = struct.pack(f">HBB{dimensions}I", 0, 8, dimensions, count, *shape[1:])
                (folder / f"{name}-{suffix}").write_bytes(head + packed.read(count * item_bytes))
