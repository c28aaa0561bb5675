"""Trains a small character-level transformer in synchronous steps, on sentences that the program generates.

    gradrail run --ps 1 --workers 2 -- python3 text_torch.py --steps 200

Each worker computes a part of the batch. All workers have equal parameters after each step.
"""
import argparse
import hashlib
import math
import random

import torch

import gradrail.torch

SUBJECTS = ["the worker", "the server", "a backup", "the chief", "each shard", "the client"]
VERBS = ["sends", "stores", "reads", "copies", "adds", "checks", "returns"]
OBJECTS = ["a gradient", "the parameters", "one bucket", "the checkpoint", "a message", "fresh values"]
PLACES = ["", " in this step", " over shared memory", " after a restart", " to its peer", " before the barrier"]


def generate_text(sentences=4000):
    rng = random.Random(1)
    return "".join(f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}{rng.choice(PLACES)}.\n"
                   for _ in range(sentences))


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.project = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.expand, self.reduce = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + mask).softmax(-1)
        x = x + self.project((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.reduce(torch.nn.functional.gelu(self.expand(self.norm2(x))))


class Transformer(torch.nn.Module):
    def __init__(self, characters, context, width, layers, heads):
        super().__init__()
        self.tokens = torch.nn.Embedding(characters, width)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, characters, bias=False)
        self.head.weight = self.tokens.weight  # shared: it is exchanged once
        torch.nn.init.normal_(self.tokens.weight, std=0.02)
        self.register_buffer("mask", torch.full((context, context), -math.inf).triu(1))

    def forward(self, text):
        length = text.shape[1]
        x = self.tokens(text) + self.positions[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return self.head(self.norm(x))


@torch.no_grad()
def sample(model, text, count, context):
    for _ in range(count):
        text = torch.cat([text, model(text[:, -context:])[:, -1:].argmax(-1)], 1)
    return text[0].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text for each worker and step")
    parser.add_argument("--context", type=int, default=48, help="characters of a piece")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.001)
    flags = parser.parse_args()

    text = generate_text()
    characters = sorted(set(text))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = torch.tensor([characters.index(character) for character in text])
    torch.manual_seed(1)
    model = Transformer(len(characters), flags.context, flags.width, flags.layers, flags.heads).to(device)
    with gradrail.torch.Exchange(model, optimizer="adam", lr=flags.lr, mode="sync") as exchange:
        client = exchange.client
        if client.is_chief:
            print(f"Parameters: {sum(p.numel() for p in model.parameters())}, Device: {device}", flush=True)
        while client.position < flags.steps:  # the position after a restart of a server is that of the checkpoint
            step = client.position
            pieces = torch.Generator().manual_seed(1000 * step + client.task_index)
            starts = torch.randint(len(data) - flags.context - 1, (flags.batch,), generator=pieces)
            batch = torch.stack([data[start:start + flags.context + 1] for start in starts]).to(device)
            output = model(batch[:, :-1])
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
            exchange.step()
            if step % 10 == 0 or step + 1 == flags.steps:
                print(f"Step: {step + 1}, Loss: {loss.item():.3f}", flush=True)
        values = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
        print(f"Parameter-Hash: {hashlib.sha256(values).hexdigest()}")
        if client.is_chief:
            written = sample(model, data[:8][None].to(device), 60, flags.context)
            print("Text:", repr("".join(characters[index] for index in written)), flush=True)


if __name__ == "__main__":
    main()
