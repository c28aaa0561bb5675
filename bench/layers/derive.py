#!/usr/bin/env python3
"""Writes the layer lists of this folder: what becomes ready when in a model's backward pass.

Usage: derive.py [FOLDER]

A line is `name bytes microseconds`: a parameter tensor in fp32, and how far into the step its gradient is complete. Shapes
are the published ones (README.md names the papers). A step takes STEP
microseconds. The time of a tensor is the share of the multiplications that the step has done by then. The forward pass is one part of the step,
the backward pass two. The steps are round figures of a batch on one current data-centre GPU. Replace them by measured
figures where they exist.
"""
import pathlib
import sys


class Model:
    """Layers in forward order: name, parameter tensors [(suffix, elements)], multiplications per example."""

    def __init__(self, name, step_us):
        self.name, self.step_us, self.layers = name, step_us, []

    def dense(self, name, inputs, outputs, bias=True, positions=1):
        self.layers.append((name, [("weights", inputs * outputs)] + ([("biases", outputs)] if bias else []),
                            inputs * outputs * positions))

    def conv(self, name, kernel, inputs, outputs, size, bias=False, norm=False):
        tensors = [("weights", kernel * kernel * inputs * outputs)]
        tensors += [("biases", outputs)] if bias else []
        tensors += [("scale", outputs), ("shift", outputs)] if norm else []
        self.layers.append((name, tensors, kernel * kernel * inputs * outputs * size * size))

    def vector(self, name, *elements):
        self.layers.append((name, [(str(i), n) for i, n in enumerate(elements)], sum(elements)))

    def table(self, name, rows, columns):
        self.layers.append((name, [("weights", rows * columns)], columns))

    def lines(self):
        work = sum(layer[2] for layer in self.layers)
        done = work  # the forward pass
        for name, tensors, multiplications in reversed(self.layers):
            done += 2 * multiplications
            for suffix, elements in reversed(tensors):
                yield f"{name}/{suffix} {4 * elements} {self.step_us * done / (3 * work):.0f}"

    def write(self, folder):
        elements = sum(n for _, tensors, _ in self.layers for _, n in tensors)
        head = f"# {self.name}: {elements} parameters, step of {self.step_us} us; made by derive.py\n"
        (folder / f"{self.name}.txt").write_text(head + "\n".join(self.lines()) + "\n")
        print(f"{self.name:12} {elements:>11} parameters")


def mnist_mlp():
    model = Model("mnist-mlp", 200)
    model.dense("hidden", 784, 100)
    model.dense("output", 100, 10)
    return model


def mnist_cnn():
    model = Model("mnist-cnn", 2000)
    model.conv("conv1", 5, 1, 32, 28, bias=True)
    model.conv("conv2", 5, 32, 64, 14, bias=True)
    model.dense("fc1", 3136, 1024)
    model.dense("fc2", 1024, 10)
    model.dense("logits", 10, 10)
    return model


def resnet50():
    model = Model("resnet50", 60000)
    model.conv("conv1", 7, 3, 64, 112, norm=True)
    inputs, size = 64, 56
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 2):
        for block in range(blocks):
            out_size = size // 2 if block == 0 and stage > 2 else size
            name = f"conv{stage}_{block + 1}"
            if block == 0:
                model.conv(f"{name}/shortcut", 1, inputs, 4 * width, out_size, norm=True)
            model.conv(f"{name}/a", 1, inputs, width, size, norm=True)
            model.conv(f"{name}/b", 3, width, width, out_size, norm=True)
            model.conv(f"{name}/c", 1, width, 4 * width, out_size, norm=True)
            inputs, size = 4 * width, out_size
    model.dense("fc", 2048, 1000)
    return model


def vgg16():
    model = Model("vgg16", 150000)
    inputs, size = 3, 224
    for stage, (count, width) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for i in range(count):
            model.conv(f"conv{stage}_{i + 1}", 3, inputs, width, size, bias=True)
            inputs = width
        size //= 2
    model.dense("fc6", 512 * 7 * 7, 4096)
    model.dense("fc7", 4096, 4096)
    model.dense("fc8", 4096, 1000)
    return model


def bert_large():
    hidden, feed, tokens = 1024, 4096, 512
    model = Model("bert-large", 300000)
    for name, rows in (("tokens", 30522), ("positions", 512), ("segments", 2)):
        model.table(f"embeddings/{name}", rows, hidden)
    model.vector("embeddings/norm", hidden, hidden)
    for layer in range(24):
        for part in ("query", "key", "value", "output"):
            model.dense(f"layer{layer}/{part}", hidden, hidden, positions=tokens)
        model.vector(f"layer{layer}/norm1", hidden, hidden)
        model.dense(f"layer{layer}/intermediate", hidden, feed, positions=tokens)
        model.dense(f"layer{layer}/feedback", feed, hidden, positions=tokens)
        model.vector(f"layer{layer}/norm2", hidden, hidden)
    model.dense("pooler", hidden, hidden)
    return model


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for make in (mnist_mlp, mnist_cnn, resnet50, vgg16, bert_large):
        make().write(target)
