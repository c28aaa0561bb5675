"""gradrail for PyTorch: the optimizer of the parameter servers replaces that of torch.

    exchange = gradrail.torch.Exchange(model, optimizer="sgd", lr=0.1, mode="sync")
    for x, y in batches:
        loss(model(x), y).backward()    # gradients leave while backward goes on
        exchange.step()                 # fresh parameters are in the model
    exchange.leave()
"""
import contextlib
import threading
import weakref
from typing import Any, Dict, Iterator, List, Optional

import torch
import torch.distributed

from . import _arguments, client, errors
from .diloco import SGD, Adam, DelayedNesterov, DiLoCo, Nesterov
from ._torch_state import Slot, Watch, check_apart, check_real, load_state, same_bits, save_state, shape_of, start, trained

__all__ = [
    "Adam", "DelayedNesterov", "DiLoCo", "Exchange", "MeanExchange", "Nesterov", "SGD", "ddp_mean_hook", "load_state", "save_state"
]


# Optimizers of Exchange and their names at the servers. "adam" of the servers adds epsilon elsewhere, as TensorFlow.
_OPTIMIZERS = {"sgd": "sgd", "momentum": "momentum", "nesterov": "nesterov", "adam": "torch_adam", "adamw": "adamw"}
# A tensor beside the parameters: which of them have a gradient at this worker. No parameter has this name.
_PRESENT = ".has_gradient"


class _Slot(Slot):
    """A parameter with its gradient, which leaves for the servers."""

    def take(self) -> None:
        """The model computes with the fresh parameters. As after a step of torch, backward() refuses an older graph."""
        self.parameter.copy_(self.fresh)

    def fill(self) -> None:
        """The registered memory has the gradient, also one that the program has made itself. None counts as zero."""
        given = self.parameter.grad
        if given is None:
            self.gradient.zero_()
            return
        if given.requires_grad:  # result of backward(create_graph=True): the copy would keep the graph
            given = given.detach()
        self.gradient.copy_(given.to_dense() if given.is_sparse else given)

    def take_mean(self) -> None:
        """The gradient of the parameter is the mean, which the registered memory has."""
        given = self.parameter.grad
        if given is None or given.is_sparse or given.requires_grad:
            self.parameter.grad = given = torch.empty_like(self.parameter)
        given.copy_(self.fresh)
        given._mean_version = given._version  # average() recognizes a gradient that is no new one


class _Early(_Slot):
    """A parameter whose gradient leaves while backward goes on.

    The servers read the gradient, and write the fresh parameter, until step() ends. The program can change its tensors
    in this time, and torch counts no change through `.data`. The registered memory is therefore no memory of the program:
    the servers see what had left, and check() finds what the program has changed since.
    """

    def __init__(self, model: torch.nn.Module, name: str, parameter: torch.nn.Parameter):
        super().__init__(model, name, parameter)
        self.accumulator: Any = None  # exists as long as a reference to it
        self.hook: Any = None
        self.sent: "Optional[tuple[int, int]]" = None  # state() when the gradient left, and None before
        self.zeros = torch.zeros_like(parameter, requires_grad=False)  # the gradient begins here, and the program changes it
        self.kept = parameter.detach().clone()  # the parameter as the servers have it
        self.kind = self._kind()

    def _kind(self) -> "tuple[Any, ...]":
        return self.parameter.device, self.parameter.dtype, self.parameter.shape

    def memory(self) -> "tuple[Any, ...]":
        """Differs after share_memory_(), `p.data = values` and the like."""
        return self.parameter.data_ptr(), self.parameter.stride()

    def take(self) -> None:
        super().take()
        self.kept.copy_(self.fresh)

    def state(self) -> "tuple[int, int]":
        """Differs after each change of the gradient, as far as torch counts changes."""
        given = self.parameter.grad
        return (0, 0) if given is None else (id(given), given._version)

    def _has_left(self) -> bool:
        """Whether the gradient is that which the servers have."""
        given = self.parameter.grad
        if given is None or self.sent != self.state() or given.shape != self.gradient.shape:
            return False
        if given.is_sparse or given.dtype != torch.float32 or not given.is_cpu:
            given = torch.empty_like(self.gradient).copy_(given.to_dense() if given.is_sparse else given)
        return same_bits(self.gradient, given)

    def check_weight(self) -> None:
        """Refuses a parameter that the servers do not have."""
        self.check_place("Exchange")
        if self._kind() != self.kind:
            raise errors.FailedPrecondition(f"{self.name} was moved or converted: make the Exchange after that")
        if not same_bits(self.kept, self.parameter):
            raise errors.FailedPrecondition(
                f"{self.name} was changed by the program, and the servers have another value: make the Exchange after "
                "load_state_dict() and the like; put the former values back before step(), after a swap; or use MeanExchange, "
                "which keeps changes in each step, such as a clamp")

    def check(self) -> None:
        """Refuses what the servers would not see."""
        self.check_weight()
        if self.sent is not None and not self._has_left():
            raise errors.FailedPrecondition(f"the gradient of {self.name} was changed between backward() and step(), when "
                                            "it had left: use `with exchange.accumulate(): loss.backward()`, for "
                                            "example to clip gradients")

    def clear(self) -> None:
        self.sent = None
        self.parameter.grad = self.zeros.zero_().detach()  # `p.grad.data = values` does not replace the memory


def _hook(exchange: "weakref.ref[Exchange]", slot: _Early) -> Any:
    """The hook does not keep the exchange: a program that drops it without leave() leaves."""

    def on_gradient(*_: Any) -> None:
        found = exchange()
        if found is not None:
            found._on_gradient(slot)

    return on_gradient


def _check_modules(model: torch.nn.Module) -> None:
    """Refuses modules that change parameters or gradients themselves: the servers would not see it."""
    for name, module in model.named_modules():
        where = name or "the model"
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise errors.InvalidArgument(f"{where}: DistributedDataParallel averages the gradients itself: use Exchange(ddp.module), "
                                         "or ddp_mean_hook with MeanExchange(ddp.module)")
        norm = getattr(module, "max_norm", None)
        if norm is not None and isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.weight.requires_grad:
            raise errors.InvalidArgument(f"{where}: max_norm={norm} changes the weight in forward(), and the servers have another "
                                         "value: use MeanExchange, which keeps such changes")


class Exchange:
    """Exchanges the gradients of a model for fresh parameters, step by step. It replaces the optimizer.

    Parameters
    ----------
    model : torch.nn.Module
        Parameters that require no gradient, and buffers, stay local. A shared parameter is exchanged once. The servers
        compute in float32.
    optimizer : "sgd", "momentum", "nesterov", "adam" or "adamw"
        The same updates as torch.optim.SGD, Adam and AdamW, with the defaults of torch for `weight_decay` and `lr` of the
        two last. "momentum" and "nesterov" are SGD with `momentum` (0.9). Only "adamw" decays the parameters themselves.
    lr, mode
        As `learning_rate` and `mode` of gradrail.join(). A schedule sets `exchange.lr` between two steps.
    options
        The other arguments of gradrail.join(), such as weight_decay, momentum, epsilon or ps_hosts.

    Raises
    ------
    As gradrail.join(). All workers must have the same model; the chief's initial parameters count.
    """

    def __init__(self, model: torch.nn.Module, *, optimizer: str = "sgd", lr: Optional[float] = None,
                 mode: str = "async", **options: Any):
        named = trained(model)
        _check_modules(model)
        check_apart("Exchange", named)
        if optimizer not in _OPTIMIZERS:
            raise errors.InvalidArgument(f"optimizer {optimizer!r}: must be one of {', '.join(_OPTIMIZERS)}; MeanExchange "
                                         "averages gradients for each optimizer of torch")
        if "learning_rate" in options:
            raise errors.InvalidArgument("learning_rate: the argument of an Exchange is lr")
        if optimizer == "adamw":
            options.setdefault("weight_decay", 0.01)
        if lr is not None:
            _arguments.constant("lr", lr)  # join() would name it learning_rate
        self._lr = 0.001 if lr is None else lr
        self._slots: List[_Early] = [_Early(model, name, parameter) for name, parameter in named]
        self._memory = [slot.memory() for slot in self._slots]
        self._watch = Watch(model)
        # These options move a parameter without a gradient too.
        self._moves_all = optimizer != "sgd" or options.get("weight_decay", 0) != 0
        try:
            self.client = client.join({slot.name: shape_of(slot.parameter) for slot in self._slots},
                                      optimizer=_OPTIMIZERS[optimizer], learning_rate=lr, mode=mode, **options)
        except errors.FailedPrecondition as error:
            if "torch_adam" not in str(error):
                raise
            raise errors.FailedPrecondition(f'{error} (torch_adam is "adam" of an Exchange)') from None
        self._sends_early = True
        self._error: Optional[Exception] = None
        self._hooks_lock = threading.Lock()  # backward has a thread for each device
        start(self.client, self._slots)
        for slot in self._slots:
            with torch.no_grad():
                slot.take()
                slot.clear()
            with torch.enable_grad():
                slot.accumulator = slot.parameter.expand_as(slot.parameter).grad_fn.next_functions[0][0]
            slot.hook = slot.accumulator.register_hook(_hook(weakref.ref(self), slot))

    def _on_gradient(self, slot: _Early) -> None:
        """Called when backward has accumulated the gradient of a parameter. step() raises its errors.

        After an exception in backward, torch 1.13 keeps the rest of the graph and can block at the end of the process.
        """
        if not self._sends_early or self._error is not None:
            return
        try:
            if slot.sent is not None:
                raise errors.FailedPrecondition(
                    f"a second gradient of {slot.name} before step(): the first has left; use `with "
                    "exchange.accumulate():` around all backward passes but the last")
            slot.fill()
            with self._hooks_lock:
                self.client.ready(slot.name)
            slot.sent = slot.state()
        except Exception as error:
            self._error = error

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Returns a context in which backward() adds to the gradients, and nothing is sent before step().

        For several backward passes in one step, and for gradients that the program changes, for example clips.
        """
        before, self._sends_early = self._sends_early, False
        try:
            yield
        finally:
            self._sends_early = before

    @torch.no_grad()
    def step(self) -> None:
        """Sends the gradients that have not left yet, and waits for fresh parameters. The gradients are zero then.

        Raises the errors of the exchange and of backward(), and FailedPrecondition for parameters that the program has
        changed since the last step, and for gradients that were changed after they had left.
        """
        if self._error is not None:
            raise self._error
        try:
            for slot in self._slots:
                slot.check()
                if self._moves_all and not slot.parameter.requires_grad:
                    raise errors.FailedPrecondition(
                        f"{slot.name} requires no gradient any more, and the servers would still move it: make the Exchange "
                        "after that, or use MeanExchange")
            self._check_memory()
        except errors.FailedPrecondition as error:
            self._error = error  # the next backward pass would report a second gradient
            raise
        self._watch.check("Exchange")
        for slot in self._slots:
            if slot.sent is None:
                slot.fill()
        self.client.step()
        for slot in self._slots:
            slot.take()
            slot.clear()

    def _check_memory(self) -> None:
        """The program may have tied parameters, with equal values, since the last look."""
        memory = [slot.memory() for slot in self._slots]
        if memory != self._memory:
            check_apart("Exchange", [(slot.name, slot.parameter) for slot in self._slots], errors.FailedPrecondition)
            self._memory = memory

    @property
    def lr(self) -> float:
        """The learning rate of the next step. All workers set the same one, except in async and ssp."""
        return self._lr

    @lr.setter
    def lr(self, rate: float) -> None:
        self.client.set_learning_rate(_arguments.not_negative("lr", rate))
        self._lr = rate

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = False) -> None:
        """Has no effect after step(), which clears the gradients; the name is that of torch.optim.Optimizer."""
        if any(slot.sent is not None for slot in self._slots):
            raise errors.FailedPrecondition("zero_grad() between backward() and step(): gradients have left already; use `with "
                                            "exchange.accumulate():` around a backward pass that may be dropped")
        for slot in self._slots:
            slot.clear()

    @property
    def global_step(self) -> int:
        """The global step of the client: steps of all workers. A program that may be started again trains until a number."""
        return self.client.global_step

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the chief now; see Client.is_chief."""
        return self.client.is_chief

    def save_checkpoint(self) -> None:
        """Saves a checkpoint, like Client.save_checkpoint(): for the chief, between two steps. The file has the parameters of
        the servers: like step(), it raises FailedPrecondition for parameters that the program has changed."""
        for slot in self._slots:
            slot.check_weight()
        self.client.save_checkpoint()

    def stats(self) -> Dict[str, Any]:
        """Returns the statistics of the client; see Client.stats()."""
        return self.client.stats()

    def leave(self) -> None:
        """Leaves the run, like Client.leave(). The model keeps its parameters, and backward() sends nothing more."""
        self._remove_hooks()
        self.client.leave()

    def _remove_hooks(self) -> None:
        for slot in self._slots:
            slot.hook.remove()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *error: Any) -> None:
        self._remove_hooks()
        self.client.__exit__(*error)


_arguments.fix_options(Exchange, client.join, Exchange, remedy="make another Exchange; its lr can be set")


class MeanExchange:
    """Averages the gradients of all workers through parameter servers. The optimizers of PyTorch make the updates.

        with gradrail.torch.MeanExchange(model) as mean:
            for x, y in batches:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                mean.average()          # each .grad is the mean of all workers
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    All workers begin with the parameters of the chief, rounded to float32. In the place of average(), a MeanExchange can
    be the state of ddp_mean_hook() in DistributedDataParallel.

    Parameters
    ----------
    model : torch.nn.Module
        For ddp_mean_hook(), the model inside of DistributedDataParallel. Parameters that require no gradient, and buffers,
        stay local. Gradients are copied to and from registered memory as float32.
    options
        The other arguments of gradrail.join(), such as ps_hosts. There is a worker for each rank.

    Raises
    ------
    As gradrail.join(). All workers must have the same model.
    """

    def __init__(self, model: torch.nn.Module, **options: Any):
        named = trained(model)
        # DDP changes its buckets after the first step: parameters identify the gradients.
        for fixed in ("optimizer", "mode", "learning_rate"):
            if fixed in options:
                raise errors.InvalidArgument(f"{fixed}: a MeanExchange has none; the optimizer of torch makes the updates")
        self._slots = {parameter: _Slot(model, name, parameter) for name, parameter in named}
        self._placed = [(parameter.device, parameter.dtype) for _, parameter in named]
        self._watch = Watch(model)
        self._used: Optional[str] = None  # average() or ddp_mean_hook, after the first call
        self._waiting: List[Any] = []  # buckets of this backward pass, with their futures
        shapes = {name: shape_of(parameter) for name, parameter in named}
        self.client = client.join({**shapes, _PRESENT: len(named)}, optimizer="mean", mode="sync", **options)
        start(self.client, self._slots.values())
        self._missed = self.client.global_step  # the servers have parameters before the first step, and means after it
        if not self._missed:
            with torch.no_grad():
                for slot in self._slots.values():
                    slot.take()

    @torch.no_grad()
    def average(self) -> None:
        """Replaces `.grad` of each parameter by the mean of all workers. Each worker calls it once in each step.

        A `.grad` that is None counts as zero. It stays None if it is None at all workers, so that optimizers skip
        the parameter. A worker that has left no longer counts.

        Raises the errors of the exchange, and FailedPrecondition for a call out of order.
        """
        self._use("average()")
        if self._missed:
            raise errors.FailedPrecondition(f"average(): the run has made {self._missed} steps before this worker joined, and the "
                                            "servers have means instead of parameters: start all workers again, from a "
                                            "checkpoint of PyTorch and without --checkpoint_dir")
        self._check()
        present = self.client.gradients[_PRESENT]
        for index, slot in enumerate(self._slots.values()):
            present[index] = slot.parameter.grad is not None
            slot.fill()
        self.client.step()
        present = self.client.parameters[_PRESENT]
        for index, slot in enumerate(self._slots.values()):
            if present[index] > 0:
                slot.take_mean()

    def _use(self, call: str) -> None:
        if self._used not in (None, call):
            raise errors.FailedPrecondition(f"{call}: this MeanExchange is used by {self._used}, which has averaged the "
                                            "gradients: use one of the two")
        self._used = call

    def _check(self) -> None:
        """Refuses gradients that the optimizer of the program would not see, or that are no new ones."""
        for placed, slot in zip(self._placed, self._slots.values()):
            if slot.is_replaced() or (slot.parameter.device, slot.parameter.dtype) != placed:
                raise errors.FailedPrecondition(f"{slot.name} was moved, converted or replaced: make the MeanExchange after that")
        self._watch.check("MeanExchange")
        grads = [slot.parameter.grad for slot in self._slots.values() if slot.parameter.grad is not None]
        if grads and all(getattr(grad, "_mean_version", None) == grad._version for grad in grads):
            raise errors.FailedPrecondition("average(): the gradients are the mean of the last average() already: call "
                                            "zero_grad() and backward() before each average()")

    def _add(self, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
        self._use("ddp_mean_hook")
        future: "torch.futures.Future[torch.Tensor]" = torch.futures.Future()
        slots = [self._slots[parameter] for parameter in bucket.parameters()]
        for slot, gradient in zip(slots, bucket.gradients()):
            check_real(slot.name, gradient)  # the program can convert the model after the check of trained()
            slot.gradient.copy_(gradient)
        self.client.ready(*(slot.name for slot in slots))
        self._waiting.append((bucket, slots, future))
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.client.step()
        for bucket, slots, future in waiting:
            for slot, gradient in zip(slots, bucket.gradients()):
                gradient.copy_(slot.fresh)
            future.set_result(bucket.buffer())

    def leave(self) -> None:
        """Leaves the run; see Client.leave()."""
        self.client.leave()

    def __enter__(self) -> "MeanExchange":
        return self

    def __exit__(self, *error: Any) -> None:
        self.client.__exit__(*error)


_arguments.fix_options(MeanExchange, client.join, MeanExchange, remedy="the optimizer of torch has the rate")


# DDP compares these annotations with its types.
def ddp_mean_hook(state: MeanExchange,
                  bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel: the gradients become the mean of those of all workers."""
    return state._add(bucket)
