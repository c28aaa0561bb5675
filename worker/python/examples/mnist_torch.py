"""Trains the MLP of TensorFlow's distributed MNIST tutorial with PyTorch, asynchronously.

    gradrail run --ps 1 --workers 2 -- python3 mnist_torch.py --optimizer adam --epochs 3
"""
import math
import time

import torch

import gradrail.torch
import mnist_data


def load(folder, split):
    images, labels = mnist_data.load(folder, split)
    return torch.from_numpy(images), torch.from_numpy(labels)


def make_model():
    torch.manual_seed(1)  # the chief's values are used; equal ones survive the loss of the chief before the start
    model = torch.nn.Sequential(torch.nn.Linear(784, 100), torch.nn.Sigmoid(), torch.nn.Linear(100, 10))
    for layer in (model[0], model[2]):
        torch.nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.in_features))
        torch.nn.init.zeros_(layer.bias)
    return model


def main():
    flags = mnist_data.parser(__doc__.splitlines()[0]).parse_args()

    folder = mnist_data.find_folder(flags.data_dir)
    images, labels = load(folder, "train")
    model = make_model()
    begin = time.monotonic()
    with gradrail.torch.Exchange(model, optimizer=flags.optimizer, lr=flags.learning_rate, mode="async") as exchange:
        client = exchange.client
        order = torch.Generator().manual_seed(client.task_index)  # each worker has different batches
        batches = len(images) // flags.batch_size
        progress = mnist_data.Progress(batches, flags.frequency)
        for epoch in range(flags.epochs):
            for batch, chosen in enumerate(torch.randperm(len(images), generator=order).split(flags.batch_size)[:batches]):
                cost = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
                cost.backward()
                exchange.step()
                progress.step(client.global_step, epoch, batch, cost.item)
        client.barrier("all steps are applied")
        client.pull()
        if client.is_chief:
            test_images, test_labels = load(folder, "test")
            with torch.no_grad():
                accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
            print(f"Test-Accuracy: {accuracy:.4f}")
        print(f"Total Time: {time.monotonic() - begin:.2f}s\nFinal Cost: {cost.item():.4f}\ndone", flush=True)


if __name__ == "__main__":
    main()
