"""Random programs with torch, beside plain torch: each ends equal, or is refused with a text. None ends different.

GRADRAIL_RANDOM_PROGRAMS is the number of programs, GRADRAIL_TEST_SEED the seed of the first one. Program N has the seed
of the first one plus N: a single failed program is repeated with its own seed and the number 1.
"""
import collections
import contextlib
import faulthandler
import itertools
import os
import random
import re
import sys
import threading
import traceback
import unittest
import warnings

import own_servers
import package
from own_servers import cluster

COUNT = 50 if os.environ.get("GRADRAIL_LEVEL") == "all" else 20
SIZE = 6
ABSOLUTE = 1e-5  # the largest difference; one worker has the same sums in another order

# Texts of refusals, by the short name of the report.
REASONS = {
    "gradient changed": r"the gradient of \S+ was changed between backward\(\) and step\(\).*exchange\.accumulate\(\)",
    "second gradient": r"a second gradient of \S+ before step\(\).*exchange\.accumulate\(\)",
    "zero_grad too late": r"zero_grad\(\) between backward\(\) and step\(\).*exchange\.accumulate\(\)",
    "weights changed": r"\S+ was changed by the program, and the servers have another value.*MeanExchange",
    "frozen": r"\S+ requires no gradient any more.*MeanExchange",
    "rejoined without the frozen ones": r"schema mismatch: (\d+ tensors|tensor \d+: .*) in the run",
    "tied by .data": r"\S+ and \S+: share memory.*as one Parameter",
}


def plan_of(seed):
    """Everything about a program but its numbers: the same for all workers."""
    rng = random.Random(seed)
    some = lambda share, values: rng.choice(values) if rng.random() < share else None
    plan = {
        "seed": seed, "workers": rng.choice([1, 1, 2]), "mode": rng.choice(["sync", "sync", "async"]),
        "optimizer": rng.choice(["sgd", "sgd", "decay", "momentum", "nesterov", "adam", "adamw"]),
        "model": some(0.3, ["traced", "parametrized", "double", "frozen layer", "channels"]),
        "tie": some(0.35, ["parameter", "flat", "shared", "alias", "data", "overlap"]), "steps": [],
    }
    wild = rng.random() < 0.6  # the others have nothing that may be refused
    for _ in range(rng.randint(2, 6)):
        accumulate = rng.random() < 0.35
        step = {
            "zero": some(0.5, ["exchange", "model none", "model zero", "none", "data zero"]),
            "backward": rng.choice(["full", "full", "full", "part", "micro", "graph", "assign", "nothing"]),
            "accumulate": accumulate, "probe": rng.random() < 0.3, "lr": some(0.2, [0.01, 0.03, 0.0]),
            "weights": some(0.2, ["swap back", "swap pointer", "swap load", "other memory"]),
            "gradient": some(0.7, GRADIENT_CHANGES) if accumulate else None,
            "rejoin": some(0.15, [0, 1]) if plan["workers"] == 2 else None, "late weights": None, "freeze": None,
        }
        if plan["optimizer"] == "sgd":
            step["freeze"] = some(0.2, [True, False])
        if wild and rng.random() < 0.5:
            kind = rng.choice(["weights", "late weights", "gradient", "gradient", "freeze", "backward"])
            step[kind] = rng.choice({"weights": list(WEIGHT_CHANGES), "late weights": list(WEIGHT_CHANGES),
                                     "gradient": GRADIENT_CHANGES, "freeze": [True, False],
                                     "backward": ["twice", "broken skip", "broken step"]}[kind])
        if plan["model"] == "traced" and (step["backward"] == "part" or step["backward"].startswith("broken")):
            step["backward"] = "full"  # parts of a traced module cannot be called
        if plan["model"] == "frozen layer" and plan["tie"] == "parameter":
            step["freeze"] = None  # nothing would require a gradient
        plan["steps"].append(step)
    frozen = [number for number, step in enumerate(plan["steps"]) if step["freeze"]]
    rejoins_frozen = frozen and any(step["rejoin"] is not None for step in plan["steps"][frozen[0]:])
    plan["may be refused"] = wild or plan["tie"] in ("data", "overlap") or bool(rejoins_frozen)
    return plan


def clamp_data(model):
    for p in model.parameters():
        p.data.clamp_(-0.05, 0.05)


def write_numpy(model):
    for p in model.parameters():
        p.detach().numpy()[...] *= 0.9


def in_place(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)


def load_scaled(model):
    model.load_state_dict({key: value * 0.9 for key, value in model.state_dict().items()})


def foreach_data(model):
    torch._foreach_mul_([p.data for p in model.parameters()], 0.9)


def other_data(model):
    for p in model.parameters():
        p.data = p.data * 0.9


def set_storage(model):
    with torch.no_grad():
        for p in model.parameters():
            p.set_(p.detach() * 0.9)


WEIGHT_CHANGES = {"clamp data": clamp_data, "numpy": write_numpy, "in place": in_place, "load": load_scaled,
                  "foreach": foreach_data, "other data": other_data, "set_": set_storage}


def swap(side, how):
    """Other weights for an evaluation, then the former ones."""
    model = side.model
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    if how == "other memory":
        for p in model.parameters():
            p.data = p.data.clone()
    elif how == "swap load":
        load_scaled(model)
        side.probe()
        model.load_state_dict(kept)
    elif how == "swap pointer":
        former = [p.data for p in model.parameters()]
        other_data(model)
        side.probe()
        for p, data in zip(model.parameters(), former):
            p.data = data
    else:
        clamp_data(model)
        side.probe()
        for name, p in model.named_parameters():
            p.data.copy_(kept[name])


def change_gradients(model, how, views):
    given = [p for p in model.parameters() if p.grad is not None]
    grads = [p.grad.detach() for p in given]
    if not grads:
        return
    if how == "clip norm":
        torch.nn.utils.clip_grad_norm_(given, 0.01)
    elif how == "clip value":
        torch.nn.utils.clip_grad_value_(given, 0.001)
    elif how == "foreach":
        torch._foreach_mul_([p.grad.data for p in given], 0.5)
    elif how == "view":
        for view in views:
            view.mul_(0.5)
    elif how == "there and back":
        for grad in grads:
            grad.mul_(2).mul_(0.5)
    for p, grad in zip(given, grads):
        if how == "data clamp":
            p.grad.data.clamp_(-0.001, 0.001)
        elif how == "numpy":
            grad.numpy()[...] *= 0.5
        elif how == "memoryview":
            memory = memoryview(grad.numpy().reshape(-1)).cast("B")
            memory[0:4] = bytes(4)
        elif how == "dlpack":
            torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(grad)).mul_(0.5)
        elif how == "none":
            p.grad = None
        elif how == "other":
            p.grad = grad * 0.5
        elif how == "other data":
            p.grad.data = grad * 0.5
        elif how == "one element":
            grad.data[..., -1:].add_(0.1)


GRADIENT_CHANGES = ["clip norm", "clip value", "foreach", "view", "there and back", "data clamp", "numpy", "memoryview", "dlpack",
                    "none", "other", "other data", "one element"]


def zero(side, how):
    if how == "exchange":
        side.update.zero_grad()
    elif how and how.startswith("model"):
        side.model.zero_grad(set_to_none=how == "model none")
    for p in side.model.parameters():
        if how == "none":
            p.grad = None
        elif how == "data zero" and p.grad is not None:
            p.grad.data.zero_()


class Side:
    """A worker with its model: of gradrail, or of plain torch."""

    def __init__(self, plan, index, model):
        self.plan, self.index, self.model = plan, index, model
        self.dtype = next(model.parameters()).dtype
        self.states, self.probes = [], []
        self.update = None

    def batch(self, number, micro=0):
        generator = torch.Generator().manual_seed(self.plan["seed"] * 1000 + number * 10 + micro * 5 + self.index)
        return torch.randn(4, SIZE, generator=generator).to(self.dtype)

    def loss(self, number, micro=0, part=False):
        model = self.model.first if part else self.model
        return model(self.batch(number, micro)).square().mean()

    @property
    def step_now(self):
        return len(self.states)

    def probe(self):
        with torch.no_grad():
            self.probes.append((self.step_now, self.loss(99).item()))

    def backward(self, number, how):
        if how == "micro":
            with self.update.accumulate():
                (self.loss(number) / 2).backward()
            (self.loss(number, 1) / 2).backward()
        elif how == "twice":
            self.loss(number).backward()
            self.loss(number, 1).backward()
        elif how == "graph":
            self.loss(number).backward(create_graph=True)
        elif how == "assign":
            given = [p for p in self.model.parameters() if p.requires_grad]
            grads = torch.autograd.grad(self.loss(number), given, allow_unused=True)
            for p, grad in zip(given, grads):
                p.grad = grad
        elif how.startswith("broken"):
            middle = self.model.first(self.batch(number))
            middle.register_hook(lambda _: 1 / 0)
            with contextlib.suppress(ZeroDivisionError):
                self.model.last(torch.tanh(middle)).square().mean().backward()
            if how == "broken skip":
                self.update.zero_grad()
        elif how != "nothing":
            self.loss(number, part=how == "part").backward()

    def work(self):
        """Yields after each step."""
        for number, step in enumerate(self.plan["steps"]):
            if step["lr"] is not None:
                self.update.lr = step["lr"]
            if step["weights"] in WEIGHT_CHANGES:
                WEIGHT_CHANGES[step["weights"]](self.model)
            elif step["weights"] is not None:
                swap(self, step["weights"])
            if step["freeze"] is not None:
                for p in self.model.last.parameters():
                    p.requires_grad_(not step["freeze"])
            zero(self, step["zero"])
            views = [p.grad for p in self.model.parameters() if p.grad is not None]
            with self.update.accumulate() if step["accumulate"] else contextlib.nullcontext():
                self.backward(number, step["backward"])
            if step["gradient"] is not None:
                change_gradients(self.model, step["gradient"], [view.detach() for view in views])
            if step["probe"]:
                self.probe()
            if step["late weights"] is not None:
                WEIGHT_CHANGES[step["late weights"]](self.model)
            self.update.step()
            yield  # in plain torch, a sync step has ended when all workers have called it
            self.states.append([p.detach().clone() for p in self.model.parameters()])
            if step["rejoin"] is not None:
                yield from self.update.rejoin(step["rejoin"])


class Plain:
    """The update of one worker of plain torch. The common optimizer has the mean of the gradients of all."""

    def __init__(self, side, common):
        self.side, self.common = side, common
        self.lr = None

    def accumulate(self):
        return contextlib.nullcontext()

    def zero_grad(self):
        for p in self.side.model.parameters():
            p.grad = torch.zeros_like(p)

    def step(self):
        self.common.step(self.side, self.lr)

    def rejoin(self, index):
        if self.side.index == index:
            self.common.fetch(self.side)
        yield


class Common:
    """Plain torch in place of the servers."""

    def __init__(self, plan, model):
        self.plan, self.model = plan, model
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = optimizer_of(plan["optimizer"], self.trained)
        self.sides = []

    def fetch(self, side):
        with torch.no_grad():
            for p, own in zip(self.model.parameters(), side.model.parameters()):
                own.copy_(p)

    def step(self, side, lr):
        waiting = [side]
        if self.plan["mode"] == "sync":
            self.sides.append(side)
            waiting = self.sides
            if len(waiting) < self.plan["workers"]:
                return
        if lr is not None:
            self.optimizer.param_groups[0]["lr"] = lr
        with torch.no_grad():
            pairs = list(zip(self.model.parameters(), *(one.model.parameters() for one in waiting)))
            for p, *owns in pairs:
                grads = [torch.zeros_like(p) if own.grad is None else own.grad.detach().to(p) for own in owns]
                if any(p is one for one in self.trained):
                    if len(owns) == self.plan["workers"]:  # in async, a worker has not seen the steps of the others
                        p.copy_(owns[0])
                    p.grad = sum(grads) / len(grads)
            self.optimizer.step()
        for one in waiting:
            self.fetch(one)
            one.update.zero_grad()
        self.sides = []


def optimizer_of(kind, parameters):
    sgd = {"sgd": {}, "decay": {"weight_decay": 0.1}, "momentum": {"momentum": 0.9}, "nesterov": {"momentum": 0.9, "nesterov": True}}
    if kind in sgd:
        return torch.optim.SGD(parameters, lr=0.02, **sgd[kind])
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](parameters, lr=0.02, eps=1e-3)


class Exchanged:
    """The update of one worker of gradrail."""

    def __init__(self, side, where, meet):
        self.side, self.where, self.meet = side, where, meet
        self.exchange = None
        self.join()

    def join(self):
        kind = self.side.plan["optimizer"]
        options = {"decay": {"optimizer": "sgd", "weight_decay": 0.1}, "adam": {"optimizer": "adam", "epsilon": 1e-3},
                   "adamw": {"optimizer": "adamw", "epsilon": 1e-3}}.get(kind, {"optimizer": kind})
        self.exchange = gradrail.torch.Exchange(self.side.model, lr=0.02, mode=self.side.plan["mode"],
                                                **options, **self.where[self.side.index])

    def accumulate(self):
        return self.exchange.accumulate()

    def zero_grad(self):
        self.exchange.zero_grad()

    def step(self):
        self.exchange.step()

    def rejoin(self, index):
        if self.side.index == index:
            rate = self.exchange.lr
            self.exchange.leave()
            self.join()
            self.exchange.lr = rate
        self.meet()
        yield

    @property
    def lr(self):
        return self.exchange.lr

    @lr.setter
    def lr(self, rate):
        self.exchange.lr = rate


def modules():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(SIZE, SIZE)
            self.last = torch.nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))

    class Double(torch.nn.Module):
        def forward(self, weight):
            return weight * 2

    return Network, Double


def model_of(plan):
    torch.manual_seed(plan["seed"])
    network, doubled = modules()
    model, tie = network(), plan["tie"]
    if plan["model"] == "double":
        model.double()
    if plan["model"] == "parametrized":
        torch.nn.utils.parametrize.register_parametrization(model.first, "weight", doubled())
        tie = None if tie in ("parameter", "data", "overlap", "flat", "alias") else tie
    elif plan["model"] == "frozen layer":
        model.first.bias.requires_grad_(False)
    elif plan["model"] == "channels":
        model.first.weight = torch.nn.Parameter(torch.randn(SIZE, SIZE).t())
    first, last = model.first, model.last
    if tie == "parameter":
        last.weight = first.weight
    elif tie == "data":
        last.weight.data = first.weight.data
    elif tie in ("flat", "overlap"):
        cut = SIZE * SIZE
        flat = torch.randn(2 * cut, dtype=last.weight.dtype)
        first.weight.data = flat[:cut].view(SIZE, SIZE)
        last.weight.data = flat[cut - (3 if tie == "overlap" else 0):][:cut].view(SIZE, SIZE)
    elif tie == "shared":
        model.share_memory()
    elif tie == "alias":
        model.register_buffer("alias", first.weight.data[0])
    if plan["model"] == "traced":
        model = torch.jit.trace(model, torch.ones(1, SIZE, dtype=last.weight.dtype))
    return model


class Program:
    def __init__(self, seed, servers):
        self.plan = plan_of(seed)
        self.servers = servers[self.plan["workers"]]

    def plain(self):
        common = Common(self.plan, model_of(self.plan))
        sides = [Side(self.plan, index, model_of(self.plan)) for index in range(self.plan["workers"])]
        for side in sides:
            side.update = Plain(side, common)
            side.update.zero_grad()
        for _ in itertools.zip_longest(*(side.work() for side in sides)):  # in turns
            pass
        return sides

    def exchanged(self):
        """Returns the sides, and the refusals as (step, text)."""
        process, where = self.servers.next()
        barrier = threading.Barrier(self.plan["workers"])
        meet = barrier.wait if self.plan["mode"] == "sync" else lambda: None
        sides = [Side(self.plan, index, model_of(self.plan)) for index in range(self.plan["workers"])]
        refused, lost = [], []

        def begin(side):
            side.update = Exchanged(side, where, meet)
            return side.work()

        def run(parts):
            with contextlib.ExitStack() as stack:
                active = []
                for side in parts:
                    active.append(begin(side))
                    stack.callback(lambda update=side.update: update.exchange.__exit__(*sys.exc_info()))
                for _ in itertools.zip_longest(*active):  # in turns
                    pass

        def guarded(parts):
            try:
                run(parts)
            except (gradrail.FailedPrecondition, gradrail.InvalidArgument) as error:
                refused.append((min(side.step_now for side in parts), str(error)))
                barrier.abort()
            except (gradrail.Aborted, gradrail.Unavailable, threading.BrokenBarrierError) as error:
                lost.append(repr(error))
                barrier.abort()
            except BaseException as error:
                lost.append(repr(error))
                barrier.abort()
                raise

        try:
            if self.plan["mode"] == "async":
                guarded(sides)
            else:
                threads = [threading.Thread(target=guarded, args=([side],), daemon=True) for side in sides]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(60 * cluster.PATIENCE)
                    assert not thread.is_alive(), "a worker waits for ever"
        finally:
            self.servers.end(process)
        assert refused or not lost, lost
        return sides, refused

    def run(self):
        """Returns "equal", or the reason of the refusal."""
        sides, refused = self.exchanged()
        until = min((step for step, _ in refused), default=None)
        expected = self.plain()
        for side, other in zip(sides, expected):
            self.compare(side, other, until)
        if not refused:
            if self.plan["mode"] == "sync" and self.plan["seed"] % 3 == 0:
                again, _ = self.exchanged()
                for side, other in zip(sides, again):
                    for a, b in zip(side.states, other.states):
                        assert all(map(torch.equal, a, b)), "two runs differ in their bits"
            return "equal"
        assert self.plan["may be refused"], f"refused: {refused}"
        for _, text in refused:
            for name, pattern in REASONS.items():
                if re.search(pattern, text):
                    return name
        raise AssertionError(f"refused with another text: {refused}")

    def compare(self, side, other, until):
        assert until is not None or len(side.states) == len(other.states) == len(self.plan["steps"])
        for step, (ours, theirs) in enumerate(zip(side.states[:until], other.states)):
            for a, b in zip(ours, theirs):
                apart = (a.double() - b.double()).abs().max().item()
                assert apart < ABSOLUTE, f"worker {side.index}, step {step}: differs by {apart:.2e}"
        for (step, ours), (other_step, theirs) in zip(side.probes, other.probes):
            if until is None or step < until:
                assert step == other_step and abs(ours - theirs) < 10 * ABSOLUTE, f"probe in step {step}: {ours}, {theirs}"


def main():
    warnings.simplefilter("ignore")
    faulthandler.enable()
    torch.set_num_threads(1)
    first, count = int(os.environ["GRADRAIL_TEST_SEED"]), int(os.environ["GRADRAIL_RANDOM_PROGRAMS"])
    servers = {workers: own_servers.OwnServers(workers) for workers in (1, 2)}
    results = collections.Counter()
    for seed in range(first, first + count):
        program = Program(seed, servers)
        faulthandler.dump_traceback_later(120 * cluster.PATIENCE, exit=True)
        try:
            results[program.run()] += 1
        except Exception:
            print(f"GRADRAIL_TEST_SEED={seed} GRADRAIL_RANDOM_PROGRAMS=1: {program.plan}", flush=True)
            traceback.print_exc()
            results["DIFFERENT"] += 1
    for one in servers.values():
        one.close()
    print(f"{count} programs: {dict(results)}", flush=True)
    assert results["equal"] >= count // 20, results  # about half of them
    sys.stdout.flush()
    os._exit(1 if results["DIFFERENT"] else 0)  # torch 1.13 can block after an exception in backward


class RandomPrograms(package.PackageTest):
    MODULES = ("numpy", "torch")

    def test_programs_end_equal_or_refused(self):
        seed = os.environ.get("GRADRAIL_TEST_SEED") or str(random.randrange(1 << 31))
        count = os.environ.get("GRADRAIL_RANDOM_PROGRAMS") or str(COUNT)
        print(f"GRADRAIL_TEST_SEED={seed} GRADRAIL_RANDOM_PROGRAMS={count}", flush=True)
        command = [cluster.python_with(*self.MODULES), __file__, "--programs"]
        task = self.launch("programs", command, self.environment({"GRADRAIL_TEST_SEED": seed, "GRADRAIL_RANDOM_PROGRAMS": count}))
        self.assert_ends(task, cluster.GOOD, (60 + 2 * int(count)) * cluster.PATIENCE)
        print(task.text(), flush=True)


if __name__ == "__main__":
    if "--programs" not in sys.argv:
        unittest.main()
    import torch

    import gradrail.torch
    main()
