"""Random programs of the NumPy client, and the same programs in plain NumPy. Both must agree bit for bit.

A program is a list of rounds for one or two workers. It writes gradients in full, in part or never, accumulates them,
changes parameters in place, makes calls that are refused, ends by an exception and joins again. The reference makes the
updates of docs/design/exchange.md in float32. random_numpy_test.py starts this file; each program has servers of its
own, and the workers are threads of this process.
"""
import concurrent.futures
import copy
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
import traceback

import numpy as np

import gradrail

F = np.float32
SHAPES = [(), (1,), (3,), (7,), (2, 3), (4, 5), (20, 3), (64,), (5, 4, 3), (300,)]
NAMES = ["w", "b", "scale", "layer.0/kernel", "ünïcode"]
LONGEST_S = 90  # a program has some milliseconds of work


def bf16(values):
    """Rounds float32 to nearest even."""
    bits = np.atleast_1d(values).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(F).reshape(values.shape)


class Arrays(dict):
    """The reference of gradrail.Tensors: an assignment writes into the array."""

    def __setitem__(self, name, values):
        if name in self:
            self[name][...] = values
        else:
            super().__setitem__(name, values)


class Optimizer:
    """The optimizer of the servers. Names and order of the operations are those of ps/optimizer/kernel_body.h."""

    def __init__(self, options):
        self.kind = options["optimizer"]
        self.constants = {name: F(options.get(name, default)) for name, default in (
            ("momentum", 0.9), ("beta1", 0.9), ("beta2", 0.999), ("epsilon", 1e-8), ("weight_decay", 0.0))}

    def rate_and_epsilon(self, rate, index):
        epsilon = self.constants["epsilon"]
        if "adam" not in self.kind:
            return rate, epsilon
        root = np.sqrt(1.0 - np.float64(self.constants["beta2"]) ** np.float64(index))
        correction = 1.0 - np.float64(self.constants["beta1"]) ** np.float64(index)
        if self.kind != "adam":
            epsilon = F(np.float64(epsilon) * root)
        return F(np.float64(rate) * root / correction), epsilon

    def fresh(self, p, g, state, rate, index):
        """Returns the new parameters, and changes the state."""
        c = self.constants
        if self.kind == "mean":
            return g
        decay = c["weight_decay"]
        if decay and self.kind == "adamw":
            p = p * (F(1) - rate * decay)
        elif decay:
            g = g + decay * p
        rate, epsilon = self.rate_and_epsilon(rate, index)
        if self.kind == "sgd":
            return p - rate * g
        if self.kind in ("momentum", "nesterov"):
            v = state[0] = c["momentum"] * state[0] + g
            return p - rate * (v if self.kind == "momentum" else g + c["momentum"] * v)
        m = state[0] = c["beta1"] * state[0] + (F(1) - c["beta1"]) * g
        v = state[1] = c["beta2"] * state[1] + (F(1) - c["beta2"]) * (g * g)
        return p - rate * m / (np.sqrt(v) + epsilon)


def mean(gradients, weights):
    """The mean in the order of the workers. Equal weights are no weights."""
    if len(set(map(float, weights))) == 1:
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        return total * (F(1) / F(len(gradients)))
    shares = [F(np.float64(weight) / sum(map(float, weights))) for weight in weights]
    total = shares[0] * gradients[0]
    for share, gradient in zip(shares[1:], gradients[1:]):
        total = total + share * gradient
    return total


class Reference:
    """The servers and the workers in plain NumPy."""

    def __init__(self, program):
        self.program = program
        self.optimizer = Optimizer(program.options)
        self.fragment_of = {name: fragment for fragment, names in program.fragments().items() for name in names}
        self.steps = dict.fromkeys(program.fragments(), 0)
        self.parameters = {}
        self.state = {}
        self.workers = {}
        self.is_ended = set()
        self.is_raced = False  # the order of the pushes is not known
        self.has_arrived = False  # the gradients of an interruption
        self.interrupted = []

    def join(self, worker, initial):
        self.is_ended.discard(worker)
        shapes = self.program.shapes
        self.workers[worker] = {
            "p": Arrays({name: np.array(initial[name], F) for name in shapes}),
            "g": Arrays({name: np.zeros(shape, F) for name, shape in shapes.items()}),
            "rest": {name: np.zeros(shape, F) for name, shape in shapes.items()},
            "rate": F(self.program.options["learning_rate"]), "weight": F(1)}

    def start(self, worker):
        if not self.parameters:  # the chief
            self.parameters = {name: values.copy() for name, values in self.workers[worker]["p"].items()}
            self.state = {name: [np.zeros_like(values), np.zeros_like(values)] for name, values in self.parameters.items()}
        self.pull(worker)

    def pull(self, worker, names=None):
        rounds = self.program.options["return_format"] != "fp32"
        for name in names or self.parameters:
            values = self.parameters[name]
            self.workers[worker]["p"][name][...] = bf16(values) if rounds else values

    def pushed(self, worker, name):
        """The gradient as it arrives. What the format leaves out is added to the next one."""
        of = self.workers[worker]
        push = self.program.options["push"]
        if push == "fp32":
            return of["g"][name].copy()
        exact = np.asarray(of["g"][name] + of["rest"][name])
        sent = bf16(exact)
        of["rest"][name] = exact - sent
        return sent

    def apply(self, workers, fragment):
        """One update of a fragment with the gradients of these workers."""
        self.steps[fragment] += 1
        names = [name for name in self.program.shapes if self.fragment_of[name] == fragment]
        rate = self.workers[min(workers)]["rate"]
        weights = [self.workers[worker]["weight"] for worker in workers]
        for name in names:
            gradient = mean([self.pushed(worker, name) for worker in workers], weights if self.program.forms_means() else [1])
            self.parameters[name] = np.asarray(self.optimizer.fresh(self.parameters[name], gradient, self.state[name], rate,
                                                                    self.steps[fragment]), F)
        for worker in workers:
            self.pull(worker, names)


class Program:
    """A random program: options, shapes and rounds. Each round is a list of (worker, action, arguments)."""

    def __init__(self, seed, index):
        self.seed, self.index = seed, index
        self.rng = rng = random.Random(f"{seed}/{index}")
        self.workers = rng.choice([1, 2, 2])
        self.mode = rng.choice(["sync", "sync", "async", "async", "ssp:4"])
        if self.workers == 1:
            self.mode = rng.choice(["sync", "async", "ssp:1", "quorum:1", "quorum:1,grace=0"])
        self.servers = rng.choice([1] * 9 + [2])
        self.shards = rng.choice([1, 1, 2, 3])
        names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        self.shapes = {name: rng.choice(SHAPES) for name in names}
        kind = rng.choice(["sgd", "sgd", "sgd", "momentum", "nesterov", "adam", "torch_adam", "adamw"] +
                          (["mean"] if self.mode == "sync" else []))
        self.options = {"optimizer": kind, "learning_rate": rng.choice([0.001, 0.1, 0.5, 1.0, 0.3]), "mode": self.mode,
                        "push": rng.choice(["fp32"] * 8 + ["bf16"] * 2),
                        "return_format": rng.choice(["fp32"] * 8 + ["bf16", "delta"]),
                        "bucket_bytes": rng.choice([0, 0, 64, 256, 1024]),
                        "transports": rng.choice(["auto", "auto", "auto", "tcp"])}
        if kind in ("momentum", "nesterov") and rng.random() < 0.5:
            self.options["momentum"] = rng.choice([0.5, 0.99])
        if "adam" in kind and rng.random() < 0.5:
            self.options.update(beta1=rng.choice([0.5, 0.9]), beta2=rng.choice([0.9, 0.99]), epsilon=rng.choice([1e-3, 1e-8]))
        if kind != "mean" and rng.random() < 0.3:
            self.options["weight_decay"] = rng.choice([0.01, 0.25])
        if len(names) > 1 and rng.random() < 0.3:
            self.options["fragments"] = {"f": rng.sample(names, rng.randint(1, len(names)))}
        # In any order, sums of few small eighths have the same bits.
        self.is_free = (not self.forms_means() and kind == "sgd" and self.options["push"] == "fp32" and
                        "weight_decay" not in self.options and rng.random() < 0.5)
        if self.is_free:
            self.options["learning_rate"] = rng.choice([0.25, 0.5, 1.0])
        self.rate = None  # of all members, after the first change of it
        self.members = set()  # they make steps
        self.finished = set()  # they are members, and have made their last step
        self.rounds = [[(worker, "join", self.initial()) for worker in range(self.workers)],
                       [(worker, "start") for worker in range(self.workers)]]
        self.members = set(range(self.workers))
        if self.is_free:
            self.rounds += [[(worker, "race", self.race()) for worker in range(self.workers)],
                            [(worker, "barrier", "raced") for worker in range(self.workers)],
                            [(worker, "pull") for worker in range(self.workers)]]
        for _ in range(rng.randint(2, 9)):
            self.rounds += self.some_round()
        if "adam" not in kind and rng.random() < 0.2:
            self.rounds += self.interruption()
        self.rounds.append([(worker, rng.choice(["leave", "leave", "drop"])) for worker in sorted(self.members | self.finished)])

    def forms_means(self):
        return self.mode.partition(":")[0] in ("sync", "quorum", "backup")

    def fragments(self):
        """Names of the tensors by fragment, in the order of the tensors."""
        named = self.options.get("fragments", {})
        of = {name: next((fragment for fragment, names in named.items() if name in names), "") for name in self.shapes}
        return {fragment: [name for name in self.shapes if of[name] == fragment] for fragment in dict.fromkeys(of.values())}

    def initial(self):
        """Text that evaluates to the argument of join(), and one with what the program writes before start()."""
        arguments, writes = [], []
        for name, shape in self.shapes.items():
            form = self.rng.choice(["shape", "array", "array", "written", "list", "float64"])
            if form in ("array", "float64"):
                arguments.append(f"{name!r}: np.asarray({self.values(shape)}, {'np.float32' if form == 'array' else 'float'})")
            else:
                arguments.append(f"{name!r}: {list(shape) if form == 'list' else shape}")
                if form == "written":
                    writes.append(f"p[{name!r}] = {self.values(shape)}")
        return "{" + ", ".join(arguments) + "}", writes

    def values(self, shape):
        seed = self.rng.randrange(1 << 30)
        if not self.is_free and self.rng.random() < 0.7:
            return f"np.random.default_rng({seed}).standard_normal({shape})"
        return f"(np.random.default_rng({seed}).integers(-16, 16, {shape}) / 8)"

    def part(self, shape):
        """An index that selects a part of a tensor, and the shape of the part."""
        if not shape:
            return "...", ()
        first = self.rng.randrange(shape[0])
        if self.rng.random() < 0.5:
            return f"{first}:", (shape[0] - first, *shape[1:])
        return f"{first}", shape[1:]

    def write(self, name):
        """One line that changes the gradient of a tensor."""
        rng, shape = self.rng, self.shapes[name]
        part, of_part = self.part(shape)
        g = f"g[{name!r}]"
        return rng.choice([
            f"{g}[...] = {self.values(shape)}", f"{g} = {self.values(shape)}", f"{g} = {self.values(shape)}.tolist()",
            f"{g} += {self.values(shape)}", f"{g} += {self.values(shape)}", f"np.add({g}, {self.values(shape)}, out={g})",
            f"{g} *= 0.5", f"{g}.fill(0.25)", f"{g}[...] = 0", f"{g}[{part}] = {self.values(of_part)}",
            f"{g}[{part}] += {self.values(of_part)}", f"{g} -= p[{name!r}]", f"{g} = 2 * p[{name!r}] - 1",
            f"np.clip({g}, -0.5, 0.5, out={g})", f"{g}[{g} > 0] = 1", f"np.copyto({g}, {self.values(shape)}, casting='unsafe')",
            f"{g} = {g}[::-1].copy()" if shape else f"{g} /= 3",
            f"{g} = np.array({self.values(shape)}, order='F')", f"{g}.reshape(-1)[::2] = 0.125",
            f"try:\n    {g}[{part}] = 1.5; raise ArithmeticError\nexcept ArithmeticError: pass"])

    def writes(self):
        rng = self.rng
        lines = [self.write(name) for name in self.shapes for _ in range(rng.choice([0, 1, 1, 2]))]
        if rng.random() < 0.2:  # the servers do not see it, and the next step replaces it
            name = rng.choice(list(self.shapes))
            lines.insert(rng.randrange(len(lines) + 1), rng.choice([f"p[{name!r}] *= 0.9", f"p[{name!r}][...] = 7",
                                                                    f"p[{name!r}] -= 0.1 * g[{name!r}]"]))
        return lines

    def refusal(self, is_under_way):
        """A call that is refused, and the names of its exceptions."""
        name = self.rng.choice(list(self.shapes))
        refusals = [(f"g[{name!r}] = np.zeros((9, 9, 9))", "InvalidArgument"), ("g['nothing']", "KeyError"),
                    (f"g[{name!r}] = np.zeros({self.shapes[name]}, complex)", "InvalidArgument"),
                    ("client.gradients = {}", "AttributeError"), ("client.ready('nothing')", "InvalidArgument"),
                    ("client.start()", "FailedPrecondition"), ("client.set_learning_rate(-1)", "InvalidArgument"),
                    ("client.set_learning_rate(float('nan'))", "InvalidArgument"), ("client.set_weight(0)", "InvalidArgument"),
                    ("client.step('nothing')", "InvalidArgument"), ("client.save_checkpoint()", "FailedPrecondition"),
                    ("client.barrier(3)", "InvalidArgument"), (f"g[{name!r}] = 'text'", "ValueError")]
        if is_under_way:
            refusals = [("client.exchange()", "FailedPrecondition"), ("client.step()", "FailedPrecondition"),
                        ("client.pull()", "FailedPrecondition"), ("client.set_learning_rate(1)", "FailedPrecondition"),
                        ("client.set_weight(2)", "FailedPrecondition"), ("client.start()", "FailedPrecondition")]
        return self.rng.choice(refusals)

    def step(self, worker, fragment):
        rng = self.rng
        names = [name for name in self.shapes if fragment is None or name in self.fragments()[fragment]]
        early = rng.sample(names, rng.randint(1, len(names))) if rng.random() < 0.3 else []
        halves = rng.random() < 0.5
        refused = self.refusal(halves) if rng.random() < 0.15 else None
        return worker, "step", {"writes": self.writes(), "ready": early, "fragment": fragment, "halves": halves,
                                "refused": refused}

    def race(self):
        """The writes of some steps that no other worker waits for."""
        return [[f"g[{name!r}] {self.rng.choice(['', '+'])}= {self.values(shape)}" for name, shape in self.shapes.items()]
                for _ in range(self.rng.randint(1, 4))]

    def interruption(self):
        """A worker ends while its gradients are under way: each element has them, or has not. The last rounds."""
        worker = self.rng.choice(sorted(self.members))
        ended = [(worker, "interrupted", self.writes())]
        if len(self.members) == 1:
            return [ended, [(worker, "join", self.initial())], [(worker, "start")]]
        self.members.discard(worker)
        other, = self.members
        return [ended, [self.step(other, None) if self.forms_means() else (other, "pull")]]

    def some_round(self):
        """Returns one or more rounds. The members are those after it."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.72:
            fragment = rng.choice([None, *self.fragments()]) if "fragments" in self.options else None
            return [[self.step(worker, fragment) for worker in sorted(self.members)]]
        worker = rng.choice(sorted(self.members))
        if draw < 0.78:
            return [[(rng.choice(sorted(self.members | self.finished)), "pull")]]
        if draw < 0.83:
            self.rate = rng.choice([0.0, 0.25, 0.01, 2.0])
            # The workers of a step have one rate.
            return [[(each, "rate", self.rate) for each in (sorted(self.members) if self.forms_means() else [worker])]]
        if draw < 0.88:
            return [[(worker, "weight", rng.choice([1, 3, 0.5, 100]))]]
        if draw < 0.90:
            name = f"after round {len(self.rounds)}"  # a worker that has joined again counts the calls of a name from 0
            return [[(worker, "barrier", name) for worker in sorted(self.members | self.finished)]]
        if len(self.members) == 2 and draw < 0.92:
            self.members.discard(worker)
            self.finished.add(worker)
            return [[(worker, "finish")], [(worker, "pull")]]
        if self.workers == 2 and len(self.members) == 1 and not self.finished:
            back, = {0, 1} - self.members
            self.members = {0, 1}
            return [[(back, "join", self.initial())], [(back, "start")],
                    *([[(back, "rate", self.rate)]] if self.rate is not None and self.forms_means() else [])]
        ends = ["exception", "give_up"]
        if len(self.members) == 2:
            self.members.discard(worker)
            return [[(worker, rng.choice([*ends, "leave", "drop"]), self.writes())]]
        # The only worker of a run: the servers wait for it after a loss, and end after leave().
        self.rate = None
        return [[(worker, rng.choice(ends), self.writes())], [(worker, "join", self.initial())], [(worker, "start")]]

    def text(self):
        lines = [f"seed {self.seed}, program {self.index}: {self.workers} workers, {self.servers} servers, {self.shards} shards",
                 f"options {self.options}", f"shapes {self.shapes}"]
        for number, actions in enumerate(self.rounds):
            for action in actions:
                lines.append(f"round {number}: worker {action[0]}: {' '.join(map(str, action[1:]))}")
        return "\n".join(lines)


class Boom(Exception):
    pass


class Worker:
    """Executes the actions of one worker, in a thread of its own."""

    def __init__(self, program, hosts, index):
        self.program, self.hosts, self.index = program, hosts, index
        self.client = None
        self.arrays = {}

    def do(self, action, *arguments):
        return getattr(self, action)(*arguments)

    def scope(self):
        return {"np": np, "client": self.client, **self.arrays}

    def run(self, lines):
        for line in lines:
            exec(line, self.scope())

    def join(self, initial):
        tensors, writes = initial
        self.client = gradrail.join(eval(tensors, {"np": np}), ps_hosts=self.hosts, task_index=self.index,
                                    worker_hosts=[f"localhost:{3000 + index}" for index in range(self.program.workers)],
                                    join_timeout=30, **self.program.options)
        self.arrays = {"p": self.client.parameters, "g": self.client.gradients}
        self.run(writes)

    def start(self):
        self.client.start()

    def step(self, how):
        self.run(how["writes"])
        if how["refused"] and not how["halves"]:
            self.refused(*how["refused"])
        if how["ready"]:
            self.client.ready(*how["ready"])
        if not how["halves"]:
            return self.client.step(how["fragment"])
        self.client.exchange(how["fragment"])
        if how["refused"] and how["fragment"] is None:
            self.refused(*how["refused"])
        self.client.wait(how["fragment"])

    def refused(self, line, kind):
        try:
            exec(line, self.scope())
        except Exception as error:
            if kind not in (each.__name__ for each in type(error).__mro__) or not str(error):
                raise AssertionError(f"{line}: {error!r} in the place of {kind}") from error
        else:
            raise AssertionError(f"{line}: was not refused")

    def pull(self):
        self.client.pull()

    def finish(self):
        self.client.finish_steps()
        self.refused("client.step()", "FailedPrecondition")

    def rate(self, rate):
        self.client.set_learning_rate(rate)

    def weight(self, weight):
        self.client.set_weight(weight)

    def barrier(self, name):
        self.client.barrier(name)

    def leave(self, _writes=()):
        self.client.leave()

    def drop(self, _writes=()):
        self.client = None  # the arrays keep the memory, and the client leaves
        gc.collect()

    def give_up(self, writes):
        self.run(writes)
        self.client.give_up("a random program")

    def race(self, steps):
        for writes in steps:
            self.run(writes)
            self.client.step()

    def interrupted(self, writes):
        try:
            with self.client:
                self.run(writes)
                self.client.exchange()
                raise Boom("before wait()")
        except Boom:
            pass

    def exception(self, writes):
        try:
            with self.client:
                self.run(writes)
                raise Boom("in the middle")
        except Boom:
            pass


class Servers:
    """The parameter servers of a program."""

    def __init__(self, program, ports):
        self.hosts = [f"127.0.0.1:{port}" for port in ports[:program.servers]]
        workers = ",".join(f"localhost:{3000 + index}" for index in range(program.workers))
        self.processes = [
            subprocess.Popen([os.environ["GRADRAIL_BINARY"], "train", "--job_name", "ps", "--task_index", str(index), "--ps_hosts",
                              ",".join(self.hosts), "--worker_hosts", workers, "--shards", str(program.shards)],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for index in range(program.servers)]

    def end(self):
        """Each server ends when the workers have left."""
        for process in self.processes:
            try:
                said, _ = process.communicate(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
                raise AssertionError(f"a server did not end:\n{said}") from None
            if process.returncode != 0:
                raise AssertionError(f"a server ended with {process.returncode}:\n{said}")

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


def follow(reference, program, round_of):
    """Makes one round in the reference."""
    stepping = [action for action in round_of if action[1] == "step"]
    reference.is_raced = reference.is_raced and round_of[0][1] != "pull"
    for worker, action, *arguments in round_of:
        of = reference.workers.get(worker)
        if action == "join":
            tensors, writes = arguments[0]
            given = eval(tensors, {"np": np})
            reference.join(worker, {name: value if hasattr(value, "__array__") else np.zeros(tuple(value))
                                    for name, value in given.items()})
            for line in writes:
                exec(line, {"np": np, "p": reference.workers[worker]["p"]})
        elif action == "start":
            reference.start(worker)
        elif action == "pull":
            reference.pull(worker)
        elif action == "rate":
            of["rate"] = F(arguments[0])
        elif action == "weight":
            of["weight"] = F(arguments[0])
        elif action == "step":
            for line in arguments[0]["writes"]:
                exec(line, {"np": np, "p": of["p"], "g": of["g"]})
            if not program.forms_means():
                push(reference, [worker], arguments[0]["fragment"])
        elif action == "race":
            reference.is_raced = True
            for writes in arguments[0]:
                for line in writes:
                    exec(line, {"np": np, "p": of["p"], "g": of["g"]})
                push(reference, [worker], None)
        elif action in ("exception", "give_up", "interrupted"):
            for line in arguments[0]:
                exec(line, {"np": np, "p": of["p"], "g": of["g"]})
            reference.is_ended.add(worker)
            if action == "interrupted" and reference.has_arrived:
                if program.forms_means() and set(reference.workers) - reference.is_ended:
                    reference.interrupted = [worker]  # part of the step of the other worker
                else:
                    push(reference, [worker], None)
        elif action in ("finish", "leave", "drop"):
            reference.is_ended.add(worker)
    if stepping and program.forms_means():
        push(reference, sorted([action[0] for action in stepping] + reference.interrupted), stepping[0][2]["fragment"])


def push(reference, workers, fragment):
    for each in reference.steps if fragment is None else [fragment]:
        reference.apply(workers, each)


def compare(references, workers, number):
    """Each element has the bits of one of the references."""
    for worker in workers:
        for kind in ("g",) if references[0].is_raced else ("g", "p"):
            for name, found in worker.arrays[kind].items():
                all_expected = [reference.workers[worker.index][kind][name] for reference in references]
                agrees = [found.view(np.uint32) == expected.view(np.uint32) for expected in all_expected]
                if not np.logical_or.reduce(agrees).all():
                    raise AssertionError(f"after round {number}: {kind}[{name!r}] of worker {worker.index} is "
                                         f"{found.reshape(-1)[:8]}, and must be "
                                         f"{' or '.join(str(expected.reshape(-1)[:8]) for expected in all_expected)}")


def run(program, servers):
    """Runs a program. Raises AssertionError if it differs from the reference."""
    references = [Reference(program)]
    threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in range(program.workers)]
    workers = [Worker(program, servers.hosts, index) for index in range(program.workers)]
    try:
        for number, round_of in enumerate(program.rounds):
            # In async the order of the pushes matters: one worker after the other. Others wait for each other.
            in_turns = not program.forms_means() and round_of[0][1] == "step"
            begun = []
            for worker, action, *arguments in round_of:
                begun.append(threads[worker].submit(workers[worker].do, action, *arguments))
                if in_turns or action == "start" and worker == 0:
                    begun[-1].result()
            for each in begun:
                each.result()
            if round_of[0][1] == "interrupted":
                references.append(copy.deepcopy(references[0]))
                references[1].has_arrived = True
            for reference in references:
                follow(reference, program, round_of)
            compare(references, [worker for worker in workers if worker.arrays], number)
    finally:
        for worker, thread in zip(workers, threads):
            if worker.client is not None and sys.exc_info()[0] is not None:
                thread.submit(worker.client.__exit__, Boom, Boom("failed"), None)
            thread.shutdown()


def main():
    seed, first, count = (int(os.environ[name]) for name in ("PROGRAMS_SEED", "PROGRAMS_FIRST", "PROGRAMS_COUNT"))
    ports = json.loads(os.environ["PROGRAMS_PORTS"])
    turns = [ports[:len(ports) // 2], ports[len(ports) // 2:]]
    faulthandler.enable()
    failed, rounds, began = [], 0, time.monotonic()

    def blocked(program):
        for each in begun:
            each.kill()
        print(f"blocked for {LONGEST_S} s\n{program.text()}", flush=True)
        faulthandler.dump_traceback()
        os._exit(1)

    following = Servers(Program(seed, first), turns[first % 2])
    for index in range(first, first + count):
        program, servers = Program(seed, index), following
        if index + 1 < first + count:  # starts while this program runs
            following = Servers(Program(seed, index + 1), turns[(index + 1) % 2])
        begun = [servers, following]
        timer = threading.Timer(LONGEST_S, blocked, [program])
        timer.start()
        try:
            run(program, servers)
            servers.end()
            rounds += len(program.rounds)
        except Exception:
            servers.kill()
            failed.append(index)
            print(f"{program.text()}\n{traceback.format_exc()}", flush=True)
        finally:
            timer.cancel()
    print(f"{count - len(failed)} of {count} programs agree, {rounds} rounds, {time.monotonic() - began:.1f} s; seed {seed}, "
          f"failed: {failed}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
