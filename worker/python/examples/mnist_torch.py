"""Trains the MLP of TensorFlow's distributed MNIST tutorial with PyTorch, asynchronously.

    gradrail run --ps 1 --workers 2 -- python3 mnist_torch.py --optimizer adam --epochs 3
"""
import argparse
import gzip
import math
import os
import pathlib
import time

import numpy as np
import torch

import gradrail.torch

HERE = pathlib.Path(__file__).resolve().parent
# The source tree, and beside the program of an installation.
FOLDERS = [HERE.parents[1] / "data" / "mnist", pathlib.Path("/usr/local/share/gradrail/mnist")]


def find_data(given):
    """Returns the folder with the four IDX files: --data_dir, $GRADRAIL_DATA_DIR or that of gradrail."""
    named = given or os.environ.get("GRADRAIL_DATA_DIR")
    for folder in [pathlib.Path(named)] if named else FOLDERS:
        if any(folder.glob("train-images-idx3-ubyte*")):
            return folder
    raise SystemExit(f"no train-images-idx3-ubyte[.gz] in {named or ' or '.join(map(str, FOLDERS))}; give --data_dir")


def read_idx(folder, name):
    """Reads an IDX file: two zero bytes, the type (8: bytes), the number of dimensions, each dimension, the values."""
    path = folder / name
    with path.open("rb") if path.exists() else gzip.open(f"{path}.gz") as file:
        data = file.read()
    if data[:3] != b"\0\0\x08":
        raise SystemExit(f"{path}: not an IDX file of bytes")
    shape = np.frombuffer(data, ">u4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def load(folder, split):
    images = torch.from_numpy(read_idx(folder, f"{split}-images-idx3-ubyte").reshape(-1, 784).astype(np.float32) / 255)
    return images, torch.from_numpy(read_idx(folder, f"{split}-labels-idx1-ubyte").astype(np.int64))


def make_model():
    torch.manual_seed(1)  # the chief's values are used; equal ones survive the loss of the chief before the start
    model = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.Sigmoid(), torch.nn.Linear(100, 10))
    for layer in (model[0], model[2]):
        torch.nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
        torch.nn.init.zeros_(layer.bias)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default="", help="folder with the IDX files")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=100)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "momentum", "nesterov", "adam"])
    parser.add_argument("--frequency", type=int, default=100, help="steps between two lines of output")
    flags = parser.parse_args()

    folder = find_data(flags.data_dir)
    images, labels = load(folder, "train")
    model = make_model()
    begin = time.monotonic()
    with gradrail.torch.Exchange(model, optimizer=flags.optimizer, lr=flags.learning_rate, mode="async") as exchange:
        client = exchange.client
        order = torch.Generator().manual_seed(client.task_index)  # each worker has batches of its own
        batches = len(images) // flags.batch_size
        last = time.monotonic()
        for epoch in range(flags.epochs):
            for batch, chosen in enumerate(torch.randperm(len(images), generator=order).split(flags.batch_size)[:batches]):
                cost = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
                cost.backward()
                exchange.step()
                if (batch + 1) % flags.frequency == 0 or batch + 1 == batches:
                    steps = batch % flags.frequency + 1
                    print(f"Step: {client.global_step + 1},  Epoch: {epoch + 1},  Batch: {batch + 1} of {batches},  "
                          f"Cost: {cost.item():.4f},  AvgTime: {1000 * (time.monotonic() - last) / steps:.2f}ms", flush=True)
                    last = time.monotonic()
        client.barrier("all steps are applied")
        client.pull()
        if client.is_chief:
            test_images, test_labels = load(folder, "t10k")
            with torch.no_grad():
                accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
            print(f"Test-Accuracy: {accuracy:.4f}")
        print(f"Total Time: {time.monotonic() - begin:.2f}s\nFinal Cost: {cost.item():.4f}\ndone", flush=True)


if __name__ == "__main__":
    main()
