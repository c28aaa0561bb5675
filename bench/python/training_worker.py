"""One process of the parts `mnist` and `transformer` of compare_python.py: steps of one contender.

The contenders compute the same batches with one torch thread in each process. They differ in the exchange only:

    alone      no exchange: the bound; Gloo serves only the barrier before the timed steps
    gradrail   gradrail.torch.Exchange, in a mode and over a list of transports; `late`: nothing leaves during backward
    ddp        torch.nn.parallel.DistributedDataParallel over Gloo
    rpc        a parameter server over torch.distributed.rpc: gradients to the server, parameters back; `sync` waits for
               all workers, as in PyTorch's tutorial on batched RPC, `async` does not
"""
import argparse
import collections
import contextlib
import itertools
import json
import os
import pathlib
import statistics
import sys
import threading
import time

import torch
import torch.distributed
import torch.distributed.rpc

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "worker" / "python" / "examples"
sys.path.insert(0, str(EXAMPLES))
import mnist_data  # noqa: E402
import mnist_torch  # noqa: E402
import text_torch  # noqa: E402

VERIFIED_STEPS = 20  # number of steps after which the parameters of all sync contenders are compared
WARM_UP_STEPS = 10


class Mnist:
    """The MLP of mnist_torch.py with plain SGD."""

    optimizer, rate, torch_optimizer = "sgd", 0.01, torch.optim.SGD

    def __init__(self, flags, worker):
        self._images, self._labels = mnist_torch.load(mnist_data.find_folder(""), "train")
        order = torch.Generator().manual_seed(worker)
        self._batches = torch.randperm(len(self._images), generator=order).split(flags.batch)[:-1]
        self.model = mnist_torch.make_model()

    def loss(self, model, step):
        chosen = self._batches[step % len(self._batches)]
        return torch.nn.functional.cross_entropy(model(self._images[chosen]), self._labels[chosen])


class Text:
    """The transformer of text_torch.py with Adam."""

    optimizer, rate, torch_optimizer = "adam", 0.001, torch.optim.Adam

    def __init__(self, flags, worker):
        text = text_torch.generate_text()
        characters = sorted(set(text))
        self._data = torch.tensor([characters.index(character) for character in text])
        self._context, self._batch, self._worker = flags.context, flags.batch, worker
        torch.manual_seed(1)
        self.model = text_torch.Transformer(len(characters), flags.context, width=160, layers=4, heads=4)

    def loss(self, model, step):
        pieces = torch.Generator().manual_seed(1000 * step + self._worker)
        starts = torch.randint(len(self._data) - self._context - 1, (self._batch,), generator=pieces)
        batch = torch.stack([self._data[start:start + self._context + 1] for start in starts])
        return torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def start_gloo(flags):
    torch.distributed.init_process_group("gloo", init_method=f"file://{flags.out}/store", rank=flags.rank,
                                         world_size=flags.workers)


@contextlib.contextmanager
def alone(flags, task):
    """A worker without an exchange. Its parameters do not change: a real step has an optimizer too."""

    def step(number):
        task.model.zero_grad()
        task.loss(task.model, number).backward()

    start_gloo(flags)
    yield step, torch.distributed.barrier
    torch.distributed.destroy_process_group()


@contextlib.contextmanager
def with_gradrail(flags, task):
    import gradrail.torch
    with gradrail.torch.Exchange(task.model, optimizer=task.optimizer, lr=task.rate, mode=flags.mode,
                                 transports=flags.transports) as exchange:

        def step(number):
            with exchange.accumulate() if flags.late else contextlib.nullcontext():
                task.loss(task.model, number).backward()
            exchange.step()

        names = itertools.count()
        yield step, lambda: exchange.client.barrier(f"barrier {next(names)}")


@contextlib.contextmanager
def ddp(flags, task):
    start_gloo(flags)
    model = torch.nn.parallel.DistributedDataParallel(task.model)
    optimizer = task.torch_optimizer(model.parameters(), lr=task.rate)

    def step(number):
        optimizer.zero_grad()
        task.loss(model, number).backward()
        optimizer.step()

    yield step, torch.distributed.barrier
    torch.distributed.destroy_process_group()


class Server:
    """The parameter server over torch.distributed.rpc."""

    def __init__(self, parameters, optimizer, rate, workers, mode):
        self._parameters = [torch.nn.Parameter(values) for values in parameters]
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._optimizer = optimizer(self._parameters, lr=rate)
        self._expected = workers if mode == "sync" else 1
        self._received = 0
        self._fresh = torch.futures.Future()
        self._lock = threading.Lock()

    @staticmethod
    @torch.distributed.rpc.functions.async_execution
    def update(server, gradients):
        """Adds the gradients. The result comes when those of all expected workers have arrived."""
        self = server.local_value()
        with self._lock:
            for parameter, gradient in zip(self._parameters, gradients):
                parameter.grad += gradient
            self._received += 1
            result = self._fresh
            if self._received == self._expected:
                for parameter in self._parameters:
                    parameter.grad /= self._expected
                self._optimizer.step()
                for parameter in self._parameters:
                    parameter.grad.zero_()
                self._received = 0
                self._fresh = torch.futures.Future()
                result.set_result([parameter.detach() for parameter in self._parameters])
        return result


def start_rpc(flags, name):
    options = torch.distributed.rpc.TensorPipeRpcBackendOptions(init_method=f"file://{flags.out}/store")
    torch.distributed.rpc.init_rpc(name, rank=flags.rank, world_size=flags.workers + 1, rpc_backend_options=options)


_server = []  # the server of this process: each worker requests a reference to it
_server_made = threading.Event()


def find_server():
    _server_made.wait()
    return torch.distributed.rpc.RRef(_server[0])


_arrived = collections.Counter()  # number of workers at the server, by the number of the barrier
_changed = threading.Condition()


def reach_barrier(number, workers):
    """Runs at the server: blocks until all workers have called it with this number."""
    with _changed:
        _arrived[number] += 1
        _changed.notify_all()
        _changed.wait_for(lambda: _arrived[number] >= workers)


@contextlib.contextmanager
def rpc(flags, task):
    start_rpc(flags, f"worker{flags.rank}")
    server = torch.distributed.rpc.rpc_sync("ps", find_server)
    parameters = list(task.model.parameters())

    def step(number):
        task.model.zero_grad()
        task.loss(task.model, number).backward()
        fresh = torch.distributed.rpc.rpc_sync("ps", Server.update, (server, [each.grad for each in parameters]))
        with torch.no_grad():
            for parameter, values in zip(parameters, fresh):
                parameter.copy_(values)

    numbers = itertools.count()
    yield step, lambda: torch.distributed.rpc.rpc_sync("ps", reach_barrier, (next(numbers), flags.workers))
    torch.distributed.rpc.shutdown()


def serve(flags, task):
    start_rpc(flags, "ps")
    values = [parameter.detach().clone() for parameter in task.model.parameters()]
    _server.append(Server(values, task.torch_optimizer, task.rate, flags.workers, flags.mode))
    _server_made.set()
    torch.distributed.rpc.shutdown()


def measure(flags, task, step, barrier):
    """Returns the times of the steps, and how far the parameters are from their initial values after some steps."""
    initial = [parameter.detach().clone() for parameter in task.model.parameters()]
    for number in range(VERIFIED_STEPS):
        step(number)
    with torch.no_grad():
        moved = sum(((now - before) ** 2).sum().item() for now, before in zip(task.model.parameters(), initial)) ** 0.5
    for number in range(WARM_UP_STEPS):
        step(VERIFIED_STEPS + number)
    times = []
    barrier()  # a worker that begins before the others would measure a smaller run
    begin = time.monotonic()
    for number in range(flags.steps):
        before = time.perf_counter()
        step(VERIFIED_STEPS + WARM_UP_STEPS + number)
        times.append(time.perf_counter() - before)
    end = time.monotonic()
    barrier()
    with torch.no_grad():
        loss = task.loss(task.model, 0).item()
    return {"begin": begin, "end": end, "steps": flags.steps, "step_p50": statistics.median(times),
            "moved": moved, "loss": loss}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=["mnist", "transformer"], required=True)
    parser.add_argument("--contender", choices=["alone", "gradrail", "ddp", "rpc"], required=True)
    parser.add_argument("--mode", default="sync", choices=["sync", "async"])
    parser.add_argument("--transports", default="auto", help="of gradrail")
    parser.add_argument("--late", action="store_true", help="gradrail: no gradient leaves during backward")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--rank", type=int, help="of alone, ddp and rpc; the server of rpc is the last one")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--context", type=int, default=48, help="characters of a piece of text")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the results")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    if flags.rank is None:  # `gradrail run` has started this worker
        flags.rank = int(os.environ["GRADRAIL_TASK_INDEX"])
    task = {"mnist": Mnist, "transformer": Text}[flags.task](flags, flags.rank)
    if flags.contender == "rpc" and flags.rank == flags.workers:
        serve(flags, task)
        return
    with {"alone": alone, "gradrail": with_gradrail, "ddp": ddp, "rpc": rpc}[flags.contender](flags, task) as (step, barrier):
        result = measure(flags, task, step, barrier)
    (flags.out / f"worker-{flags.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
