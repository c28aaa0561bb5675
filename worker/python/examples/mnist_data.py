"""The MNIST files of the examples as NumPy arrays, and the flags and the output of the TensorFlow tutorial."""
import argparse
import gzip
import os
import pathlib
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
# The source tree, and beside the program of an installation.
FOLDERS = [HERE.parents[1] / "data" / "mnist", pathlib.Path("/usr/local/share/gradrail/mnist")]


def parser(description):
    """Returns a parser with the flags of all examples."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data_dir", default="", help="folder with the IDX files")
    made.add_argument("--epochs", type=int, default=20)
    made.add_argument("--batch_size", type=int, default=100)
    made.add_argument("--learning_rate", type=float, default=0.001)
    made.add_argument("--optimizer", default="sgd", choices=["sgd", "momentum", "nesterov", "adam"])
    made.add_argument("--frequency", type=int, default=100, help="steps between two lines of output")
    return made


def find_file(folder, stem, kind):
    """Returns the path of a file of MNIST, or None. Some copies have a dot before the kind."""
    names = (f"{stem}{join}{kind}{packed}" for join in "-." for packed in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).exists()), None)


def find_folder(given):
    """Returns the folder with the four IDX files: --data_dir, $GRADRAIL_DATA_DIR or that of gradrail."""
    named = given or os.environ.get("GRADRAIL_DATA_DIR")
    for folder in [pathlib.Path(named)] if named else FOLDERS:
        if find_file(folder, "train-images", "idx3-ubyte"):
            return folder
    raise SystemExit(f"no train-images-idx3-ubyte[.gz] or train-images.idx3-ubyte[.gz] in "
                     f"{named or ' or '.join(map(str, FOLDERS))}; give --data_dir")


def read_idx(folder, stem, kind):
    """Reads an IDX file: two zero bytes, the type (8: bytes), the number of dimensions, each dimension, the values."""
    path = find_file(folder, stem, kind)
    if path is None:
        raise SystemExit(f"{folder} has no {stem}-{kind}[.gz], and no {stem}.{kind}[.gz]")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        data = file.read()
    if data[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: not an IDX file of bytes")
    shape = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def load(folder, split):
    """Returns images as rows of 784 floats from 0 to 1, and their labels as int64.

    The splits are those of the tutorial: "train" has 55,000 images, "validation" the 5,000 before them in the same files,
    and "test" 10,000.
    """
    prefix = "t10k" if split == "test" else "train"
    images = read_idx(folder, f"{prefix}-images", "idx3-ubyte").reshape(-1, 784)
    labels = read_idx(folder, f"{prefix}-labels", "idx1-ubyte")
    held_out = len(images) // 12
    part = {"train": slice(held_out, None), "validation": slice(held_out), "test": slice(None)}[split]
    return images[part].astype(np.float32) / 255, labels[part].astype(np.int64)


def initial_values(hidden=100):
    """Returns the tutorial's MLP as arrays: normal weights with deviation 1/sqrt(inputs), and biases of zero.

    The chief's values are used. Equal ones at all workers survive the loss of the chief before the start.
    """
    rng = np.random.default_rng(1)
    shapes = {"W1": (784, hidden), "b1": (hidden,), "W2": (hidden, 10), "b2": (10,)}
    return {name: (rng.standard_normal(shape) / np.sqrt(shape[0]) if len(shape) == 2 else np.zeros(shape)).astype(np.float32)
            for name, shape in shapes.items()}


def random_batches(examples, flags, worker):
    """Yields epoch, batch and the rows of the batch. Each worker has an order of its own."""
    rng = np.random.default_rng(worker)
    for epoch in range(flags.epochs):
        order = rng.permutation(examples)
        for batch in range(examples // flags.batch_size):
            yield epoch, batch, order[batch * flags.batch_size:(batch + 1) * flags.batch_size]


class Progress:
    """Prints a line every `frequency` batches and at the end of an epoch, as the tutorial does."""

    def __init__(self, batches, frequency):
        self._batches, self._frequency = batches, frequency
        self._last, self._steps = time.monotonic(), 0

    def step(self, global_step, epoch, batch, cost):
        """Counts a batch. `cost` is a function, because the conversion of a loss to a number can wait for the device."""
        self._steps += 1
        if (batch + 1) % self._frequency and batch + 1 != self._batches:
            return
        average = 1000 * (time.monotonic() - self._last) / self._steps
        print(f"Step: {global_step + 1},  Epoch: {epoch + 1},  Batch: {batch + 1} of {self._batches},  Cost: {cost():.4f},  "
              f"AvgTime: {average:.2f}ms", flush=True)
        self._last, self._steps = time.monotonic(), 0
