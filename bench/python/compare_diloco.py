#!/usr/bin/env python3
"""Trains one transformer with and without local steps, on equal text: loss, bytes of a worker, time.

    alone        one process with the batches of all workers, an optimizer step for each batch
    ddp          DistributedDataParallel over Gloo
    reference    DiLoCo of plain torch: all workers in one process, no transport
    FORMAT       gradrail.torch.DiLoCo in sync, with this push format; topk without outer momentum
    back_bf16, back_delta    the same in int4, with parameters that return in bf16 or delta
    fragments    int4 that returns in bf16, with the model in five fragments that are exchanged in turns
    quorum, async, delay     the same in int8, with another mode or with merges that are half a round late; a quorum waits
                             for all workers but one, and for the last one as grace=auto decides
    delayed_nesterov         async in int8, with this outer optimizer

The text is that of the documents of this project; its last tenth is the test. README.md derives the columns.
"""
import argparse
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRADRAIL = {
    **{push: {"push": push} for push in ("fp32", "bf16", "int8", "int4")},
    **{push: {"push": push, "outer": "SGD"} for push in ("topk:5", "topk:1")},
    **{f"back_{format}": {"push": "int4", "return_format": format} for format in ("bf16", "delta")},
    "fragments": {"push": "int4", "return_format": "bf16", "fragments": 5},
    "quorum": {"push": "int8", "mode": "quorum"},
    "async": {"push": "int8", "mode": "async"},
    "delayed_nesterov": {"push": "int8", "mode": "async", "outer": "DelayedNesterov"},
    "delay": {"push": "int8", "delay": True},
}
CONTENDERS = ("alone", "ddp", "reference", *GRADRAIL)
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9


class Task:
    """The model, the text and the inner steps of one worker."""

    def __init__(self, flags):
        import torch
        sys.path.insert(0, str(ROOT / "worker/python/examples"))
        import text_torch
        torch.set_num_threads(1)
        self.torch, self.flags = torch, flags
        text = "".join(file.read_text() for file in sorted((ROOT / "docs").rglob("*.md")))
        characters = sorted(set(text))
        data = torch.tensor([characters.index(character) for character in text])
        self.train, self.test = data.split([len(data) * 9 // 10, len(data) - len(data) * 9 // 10])
        torch.manual_seed(1)
        self.model = text_torch.Transformer(len(characters), flags.context, flags.width, flags.layers, 4)
        self.elements = sum(parameter.numel() for parameter in self.model.parameters())
        self.curve = []
        self.begun = time.monotonic()

    def optimizer(self, model):
        return self.torch.optim.AdamW(model.parameters(), lr=self.flags.lr, weight_decay=0.1)

    def _loss(self, model, data, seed, count):
        starts = self.torch.randint(len(data) - self.flags.context - 1, (count,),
                                    generator=self.torch.Generator().manual_seed(seed))
        batch = self.torch.stack([data[start:start + self.flags.context + 1] for start in starts])
        return self.torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def loss(self, model, step, worker):
        return self._loss(model, self.train, 1000 * step + worker, self.flags.batch)

    def record(self, model, step):
        with self.torch.no_grad():
            losses = [self._loss(model, self.test, -1 - i, 16).item() for i in range(self.flags.test_batches)]
        self.curve.append((step, sum(losses) / len(losses)))

    def result(self, **more):
        print(json.dumps({"elements": self.elements, "curve": self.curve, "seconds": time.monotonic() - self.begun, **more}),
              flush=True)


def train_alone(task):
    flags, optimizer = task.flags, task.optimizer(task.model)
    for step in range(1, flags.steps + 1):
        optimizer.zero_grad()
        for worker in range(flags.workers):
            (task.loss(task.model, step, worker) / flags.workers).backward()
        optimizer.step()
        if step % flags.every == 0:
            task.record(task.model, step)
    task.result()


def train_ddp(task):
    import torch.distributed as dist
    flags, rank = task.flags, int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=rank, world_size=flags.workers)
    model = task.torch.nn.parallel.DistributedDataParallel(task.model)
    optimizer = task.optimizer(task.model)
    for step in range(1, flags.steps + 1):
        optimizer.zero_grad()
        task.loss(model, step, rank).backward()
        optimizer.step()
        if rank == 0 and step % flags.every == 0:
            task.record(task.model, step)
    dist.barrier()
    if rank == 0:
        # A ring all-reduce sends and receives 2 (N - 1) / N of the gradient.
        task.result(bytes_both_ways=flags.steps * task.elements * 4 * 4 * (flags.workers - 1) / flags.workers)


def train_reference(task):
    torch, flags = task.torch, task.flags
    common = task.model
    outer = torch.optim.SGD(common.parameters(), lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True)
    models = [copy.deepcopy(common) for _ in range(flags.workers)]
    optimizers = [task.optimizer(model) for model in models]
    for step in range(1, flags.steps + 1):
        for worker, (model, optimizer) in enumerate(zip(models, optimizers)):
            optimizer.zero_grad()
            task.loss(model, step, worker).backward()
            optimizer.step()
        if step % flags.every:
            continue
        with torch.no_grad():
            for shared, *local in zip(common.parameters(), *(model.parameters() for model in models)):
                shared.grad = sum(shared - one for one in local) / flags.workers
            outer.step()
            for model in models:
                model.load_state_dict(common.state_dict())
        task.record(common, step)
    task.result()


def train_gradrail(task, push, mode="sync", delay=False, return_format="fp32", fragments=1, outer="Nesterov"):
    import gradrail.torch
    rates = (OUTER_LR,) if outer == "SGD" else (OUTER_LR, OUTER_MOMENTUM)
    flags, rank = task.flags, int(os.environ["GRADRAIL_TASK_INDEX"])
    optimizer = task.optimizer(task.model)
    common = copy.deepcopy(task.model)

    def record(diloco, step):
        for name, parameter in common.named_parameters():
            parameter.data.copy_(task.torch.from_numpy(diloco.client.parameters[name]).view(parameter.shape))
        task.record(common, step)

    with gradrail.torch.DiLoCo(task.model, optimizer, sync_every=flags.every, delay=flags.every // 2 if delay else 0,
                               push=push, return_format=return_format, fragments=fragments,
                               mode=f"quorum:{max(1, flags.workers - 1)},grace=auto" if mode == "quorum" else mode,
                               outer=getattr(gradrail.torch, outer)(*rates), transports="tcp") as diloco:
        merged = 0
        for step in range(1, flags.steps + 1):
            optimizer.zero_grad()
            task.loss(task.model, step, rank).backward()
            optimizer.step()
            if rank == 0 and diloco.global_step > merged and (not delay or step % flags.every):
                merged = diloco.global_step
                record(diloco, step)
        stats = diloco.stats()
        if rank == 0 and delay:
            record(diloco, flags.steps)
    if rank == 0:
        task.result(bytes_pushed=stats["bytes_pushed"], bytes_both_ways=stats["bytes_pushed"] + stats["bytes_returned"])


def train(flags):
    task = Task(flags)
    kinds = {"alone": train_alone, "ddp": train_ddp, "reference": train_reference}
    if flags.contender in kinds:
        kinds[flags.contender](task)
    else:
        train_gradrail(task, **GRADRAIL[flags.contender])


def run(flags, contender):
    """Returns the result that one of the processes prints."""
    own = [flags.python, __file__, *sys.argv[1:], "--contender", contender]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "worker/python"),
                   "GRADRAIL_LIBRARY": str(pathlib.Path(flags.binary).resolve().parents[1] / "lib/libgradrail.so.1")}
    with tempfile.TemporaryDirectory() as folder:
        if contender in GRADRAIL:
            command = [flags.binary, "run", "--workers", str(flags.workers), "--", *own]
            processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)]
        else:
            environment["STORE"] = folder + "/store"
            ranks = range(flags.workers if contender == "ddp" else 1)
            processes = [subprocess.Popen(own, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
                         for rank in ranks]
        outputs = [process.communicate(timeout=3600)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"compare_diloco: {contender} has failed")
    lines = [line[line.index("{"):] for output in outputs for line in output.splitlines() if '"curve"' in line]
    if len(lines) != 1:
        sys.exit(f"compare_diloco: {contender} has printed {len(lines)} results, not one")
    return json.loads(lines[0])


def compare(flags):
    results = {}
    if flags.json and pathlib.Path(flags.json).exists():
        earlier = [json.loads(line) for line in pathlib.Path(flags.json).read_text().splitlines()]
        results = {result["contender"]: result for result in earlier}
    for contender in flags.contenders.split(","):
        if contender not in CONTENDERS:
            sys.exit(f"compare_diloco: --contenders {contender}: there are {', '.join(CONTENDERS)}")
        if contender not in results:
            results[contender] = {"contender": contender, **run(flags, contender)}
            if flags.json:
                with open(flags.json, "a", encoding="utf-8") as file:
                    file.write(json.dumps(results[contender]) + "\n")
        if contender == flags.contenders.split(",")[0]:
            print(f"{results[contender]['elements']} parameters, {flags.workers} workers, {flags.steps} steps of "
                  f"{flags.batch} x {flags.context} characters each, an outer step after {flags.every}")
            print(f"{'':16} {'loss':>7} {'of reference':>12} {'MB both ways':>12} {'below ddp':>9} {'push below':>10} "
                  f"{'seconds':>8}  loss at 1/4, 1/2, 3/4")
        print(row(results, contender), flush=True)
    if flags.plot:
        plot(results, flags.plot)


def plot(results, file):
    """Draws the loss of each contender over the inner steps, and over the bytes that its worker has sent."""
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "diloco", "font.size": 9})
    from matplotlib import pyplot
    figure, (steps, sent) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for index, (name, result) in enumerate(results.items()):
        second = index // 10 % 2
        steps.plot(*zip(*result["curve"]), label=name, color=f"C{index % 10}", linestyle=("-", "--")[second])
        pushed = result.get("bytes_pushed", result.get("bytes_both_ways", 0) / 2)
        if pushed:
            sent.plot(pushed * 1e-6, result["curve"][-1][1], ("o", "s")[second], label=name, color=f"C{index % 10}")
    losses = [result["curve"][-1][1] for result in results.values()]
    most = 1.3 * min(losses)  # a contender that diverges leaves the figure
    steps.set(xlabel="inner steps", ylabel="loss of the test text", ylim=(0.98 * min(losses), most))
    sent.set(xlabel="MB pushed by a worker", ylabel="loss at the end", xscale="log", ylim=(0.98 * min(losses), most))
    for axes in (steps, sent):
        axes.legend(ncols=2, fontsize=7, loc="upper right")
    figure.savefig(file, metadata={"Date": None})


def row(results, contender):
    result = results[contender]
    curve = [loss for _, loss in result["curve"]]
    ddp = results.get("ddp", {}).get("bytes_both_ways")
    both, pushed = result.get("bytes_both_ways"), result.get("bytes_pushed")
    reference = results.get("reference")

    def shown(value, form):
        return "-" if value is None else format(value, form)

    parts = " ".join(f"{curve[len(curve) * quarter // 4 - 1]:.3f}" for quarter in (1, 2, 3) if len(curve) >= 4)
    return (f"{contender:16} {curve[-1]:7.4f} {shown(reference and curve[-1] / reference['curve'][-1][1], '.4f'):>12} "
            f"{shown(both and both * 1e-6, '.2f'):>12} {shown(ddp and both and ddp / both, '.0f'):>9} "
            f"{shown(ddp and pushed and ddp / 2 / pushed, '.0f'):>10} {result['seconds']:8.1f}  {parts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "build/release/bin/gradrail"))
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python with torch")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=50, help="inner steps of an outer step")
    parser.add_argument("--batch", type=int, default=8, help="pieces of text for each worker and step")
    parser.add_argument("--context", type=int, default=48)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--test_batches", type=int, default=8)
    parser.add_argument("--plot", default="", help="a file for the curves, in SVG; needs matplotlib")
    parser.add_argument("--json", default="", help="a file for the results with their curves; it is read first, and its "
                        "contenders are not run again")
    parser.add_argument("--contender", default="", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    train(flags) if flags.contender else compare(flags)


if __name__ == "__main__":
    main()
