"""Local steps between two exchanges: DiLoCo, and its streaming form with delayed merges."""
import dataclasses
import functools
import inspect
import math
import threading
import types
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Union

import torch

from . import _arguments, client, errors
from ._library import LOGGER
from ._torch_state import Slot, Watch, check_apart, same_bits, shape_of, start, trained

_LEAST_CLIP = torch.finfo(torch.float32).tiny  # smaller differences are 0 or inexact
_MOST_STEPS = (1 << 32) - 1  # momentum_every of the servers
_PATIENCE_S = 10.0  # time for the exchange under way after an error of the program

__all__ = ["Adam", "DelayedNesterov", "DiLoCo", "Nesterov", "SGD"]

Rate = Union[float, Callable[[int], float]]  # learning rate of each outer step, or a function of its number, from 0


def _agreed(rate: Rate) -> Optional[float]:
    """The rate that joining workers compare. A learner with a schedule sends its rate with each push."""
    if not callable(rate):
        return _arguments.constant("lr", rate)
    return _rate(rate, 0) or None  # a warm-up may begin with 0, which join() does not take


@dataclasses.dataclass(frozen=True)
class Nesterov:
    """SGD with Nesterov momentum, as torch.optim.SGD: the outer optimizer of DiLoCo."""
    lr: Rate = 0.7
    momentum: float = 0.9

    def options(self) -> Dict[str, Any]:
        if self.momentum == 0:
            raise errors.InvalidArgument("outer: Nesterov with momentum 0: use gradrail.torch.SGD(lr)")
        return {"optimizer": "nesterov", "learning_rate": _agreed(self.lr), "momentum": self.momentum}


@dataclasses.dataclass(frozen=True)
class DelayedNesterov:
    """Nesterov for mode="async": N merges change the parameters as one step of Nesterov with their mean does.

    Each merge applies lr / N of its difference. Each N-th merge updates the momentum, with the mean of the last N
    differences. `every` is N. Default: the number of learners at the start, so that each has sent one difference.
    In other modes than async and ssp a merge has all of them already, and the default is 1.

    Source: Liu et al. 2024, arXiv 2401.09135 (delayed Nesterov momentum update, with c = 0).
    """
    lr: Rate = 0.7
    momentum: float = 0.9
    every: Optional[int] = None

    def options(self) -> Dict[str, Any]:
        if self.momentum == 0:
            raise errors.InvalidArgument("outer: DelayedNesterov with momentum 0: use gradrail.torch.SGD(lr / every)")
        every = 0 if self.every is None else _arguments.whole("every", self.every, _MOST_STEPS, 1)
        return {"optimizer": "delayed_nesterov", "learning_rate": _agreed(self.lr), "momentum": self.momentum,
                "momentum_every": every}


@dataclasses.dataclass(frozen=True)
class SGD:
    """SGD. With lr=1 the parameters become the mean of the workers: federated averaging, local SGD."""
    lr: Rate = 1.0

    def options(self) -> Dict[str, Any]:
        return {"optimizer": "sgd", "learning_rate": _agreed(self.lr)}


@dataclasses.dataclass(frozen=True)
class Adam:
    """Adam as torch.optim.Adam."""
    lr: Rate = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8

    def options(self) -> Dict[str, Any]:
        return {"optimizer": "torch_adam", "learning_rate": _agreed(self.lr), "beta1": self.beta1, "beta2": self.beta2,
                "epsilon": self.epsilon}


Outer = Union[Nesterov, DelayedNesterov, SGD, Adam]


_OTHER_OPTIMIZER = ("Is another optimizer in use, or a copy? Make the DiLoCo with the optimizer whose step() the program calls")


def _in_own_names(text: str) -> str:
    """The servers compare the options of all workers, and name them as join() does."""
    return text.replace("learning_rate", "lr of outer").replace("momentum_every", "every of outer")


class _Local(Slot):
    """A parameter of a learner. `fresh` is the common one, and `gradient` the difference between the two."""

    def check(self) -> None:
        self.check_place("DiLoCo")
        if self.parameter.shape != self.fresh.shape:
            raise errors.FailedPrecondition(f"{self.name} had the shape {tuple(self.fresh.shape)} and has "
                                            f"{tuple(self.parameter.shape)} now: make the DiLoCo after that")
        if not self.parameter.requires_grad:
            raise errors.FailedPrecondition(f"{self.name} requires no gradient any more, and the servers would still move it: "
                                            "make the DiLoCo after that")

    def subtract(self) -> None:
        """The difference in float32: a parameter in bfloat16 has too few bits for it. The learner has begun with the common
        parameter in the precision of its own. The rounding between the two is no difference."""
        self.gradient.copy_(self.parameter.detach())
        begun = self.fresh.to(self.parameter.dtype).to(torch.float32)
        torch.sub(begun, self.gradient, out=self.gradient)

    def norm(self) -> float:
        """The norm of the difference. In float64: squares of float32 overflow from 2e19, and long sums lose digits."""
        return float(torch.linalg.vector_norm(self.gradient, dtype=torch.float64))

    def is_common(self) -> bool:
        return same_bits(self.parameter.detach().to("cpu").contiguous(), self.fresh.to(self.parameter.dtype))

    def merge(self, keep: float) -> None:
        """Takes the common parameter, and keeps a share of the local one."""
        if keep == 0.0:
            self.parameter.data.copy_(self.fresh)
            return
        local = self.parameter.detach().to("cpu", torch.float32)
        self.parameter.data.copy_(torch.lerp(self.fresh, local, keep))


class _Exchange(threading.Thread):
    """One exchange beside the inner steps. A daemon thread: it does not keep a program that ends."""

    def __init__(self, exchange: Callable[[], None]):
        super().__init__(name="gradrail-diloco", daemon=True)
        self._exchange = exchange
        self._error: Optional[BaseException] = None
        self.start()

    def run(self) -> None:
        try:
            self._exchange()
        except BaseException as error:  # finish() raises it in the thread of the program
            self._error = error

    def finish(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


def _warn_of_divergence(outer: Outer, mode: str, push: str) -> None:
    if isinstance(outer, Nesterov) and mode.partition(":")[0] in ("async", "ssp"):
        LOGGER.warning("DiLoCo in mode %s with outer=Nesterov: each learner's difference gets the whole rate and momentum, so "
                       "that the loss of several learners can diverge; use outer=gradrail.torch.DelayedNesterov(lr, momentum)",
                       mode)
    if isinstance(outer, Nesterov) and mode == "quorum:1":
        LOGGER.warning("DiLoCo in mode quorum:1 with outer=Nesterov: a merge of a single learner gets the whole rate and momentum, "
                       "so that the loss can diverge; use a larger K, or quorum:1,grace=auto")
    if isinstance(outer, (Nesterov, DelayedNesterov)) and push.startswith("topk"):
        LOGGER.warning("DiLoCo with push=%s and outer=%s: an element waits for many rounds until it is sent, and the momentum "
                       "continues it, so that the loss can diverge; use outer=gradrail.torch.SGD(lr)", push,
                       type(outer).__name__)


class DiLoCo:
    """Trains with `sync_every` inner steps between two exchanges. The parameter servers make the outer step.

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        with gradrail.torch.DiLoCo(model, inner, sync_every=50, push="int4") as diloco:
            for x, y in batches:
                inner.zero_grad()
                loss(model(x), y).backward()
                inner.step()            # each fiftieth step also merges the workers

    After each `sync_every` inner steps a worker sends the difference between the common parameters and its own. The outer
    optimizer takes the mean of all workers as a gradient. The workers continue with the new common parameters. At the end
    of the block the model has the common parameters.

    Parameters
    ----------
    model : torch.nn.Module
        Parameters that require no gradient, and buffers, stay local. The common parameters are float32 in host memory.
    inner_optimizer : torch.optim.Optimizer
        Its state stays local. The DiLoCo counts the calls of its step().
    sync_every : int
        Inner steps between two exchanges (H). The workers do not compare it: choose the same at all of them.
    fragments : int
        The parameters are cut into so many sets of about equal size, which are exchanged one after the other: one each
        sync_every / fragments inner steps, which must be a whole number. There are at most as many as parameters. The bytes
        of an exchange are fewer, and those of a round are the same.
    delay : int
        Inner steps that are made while an exchange is under way, less than sync_every / fragments. 0: the worker waits.
    keep : float
        The share of the local parameters in a merge, 0 to 1. Default: 0 without a delay, else 0.5, so that the inner steps of
        the delay are not lost.
    push : "fp32", "bf16", "int8", "int4" or "topk:P"
        The elements of the difference on its way; "topk:1" sends the largest 1 percent. What a push leaves out is added to
        the next difference.
    return_format : "fp32", "bf16" or "delta"
        The elements of the common parameters on their way back. The servers keep them in float32.
    outer : Nesterov, DelayedNesterov, SGD or Adam
        The optimizer of the parameter servers. Its lr is a number or a schedule: a function of the outer step, from 0. A
        worker calls it with the step of the fragment, so that a worker that joins late has the rate of the others.
    clip : float
        Each worker scales its difference of a fragment to this norm, if the norm is larger. None: no clipping.
    mode : "sync", "async", "ssp:K" or "quorum:K", with the options ",grace=SECONDS" or ",grace=auto", and ",late=drop"
        "async": each worker merges alone; use DelayedNesterov there. "quorum:K": a merge waits for K workers, and with a
        grace window so many seconds longer for the others. A late difference is part of the next merge; with several
        fragments it is dropped.
    options
        The other arguments of gradrail.join(), such as ps_hosts or rejoin_timeout.

    Raises
    ------
    As gradrail.join(). inner_optimizer.step() raises FailedPrecondition if the difference is not finite; nothing is sent then.
    The chief's initial parameters count. A worker that joins later begins with the common ones.

    Source: Douillard et al. 2023, arXiv 2311.08105 (DiLoCo); Douillard et al. 2025, arXiv 2501.18512 (delayed merges).
    """

    def __init__(self, model: torch.nn.Module, inner_optimizer: torch.optim.Optimizer, *, sync_every: int,
                 fragments: int = 1, delay: int = 0, keep: Optional[float] = None, push: str = "fp32",
                 return_format: str = "fp32", outer: Outer = Nesterov(), clip: Optional[float] = None, mode: str = "sync",
                 **options: Any):
        if not isinstance(inner_optimizer, torch.optim.Optimizer):
            raise errors.InvalidArgument(f"inner_optimizer: must be a torch.optim.Optimizer, not "
                                         f"{type(inner_optimizer).__name__}")
        if not isinstance(outer, (Nesterov, DelayedNesterov, SGD, Adam)):
            raise errors.InvalidArgument("outer: must be Nesterov, DelayedNesterov, SGD or Adam of gradrail.torch, not "
                                         f"{type(outer).__name__}")
        for fixed in ("optimizer", "learning_rate", "momentum", "momentum_every"):
            if fixed in options:
                raise errors.InvalidArgument(f"{fixed}: the argument of a DiLoCo is outer, such as "
                                             "outer=gradrail.torch.Nesterov(lr=0.7, momentum=0.9)")
        sync_every = _arguments.whole("sync_every", sync_every, _MOST_STEPS, 1)
        fragments = _arguments.whole("fragments", fragments, _MOST_STEPS, 1)
        if sync_every % fragments != 0:
            raise errors.InvalidArgument(f"fragments {fragments}: sync_every, {sync_every}, must be a multiple of it")
        self._every = sync_every // fragments
        self._delay = _arguments.whole("delay", delay, _MOST_STEPS)
        if self._delay >= self._every:
            raise errors.InvalidArgument(f"delay {delay}: must be less than sync_every / fragments, {self._every}: one exchange "
                                         "is under way at a time")
        self._keep = (0.5 if delay else 0.0) if keep is None else _arguments.number("keep", keep)
        if not 0.0 <= self._keep <= 1.0:
            raise errors.InvalidArgument(f"keep {keep}: must be 0 to 1")
        self._clip = None if clip is None else _arguments.number("clip", clip)
        if self._clip is not None and self._clip < _LEAST_CLIP:
            raise errors.InvalidArgument(f"clip {clip}: must be at least {_LEAST_CLIP:.2g}; None: no clipping")
        self._schedule = outer.lr if callable(outer.lr) else None
        unknown = [name for name in options if name not in inspect.signature(client.join).parameters]
        if unknown:
            raise errors.InvalidArgument(f"{unknown[0]}: a DiLoCo has no such argument: it has its own ones and those of "
                                         "gradrail.join(); lr and momentum are arguments of outer")
        agreed = outer.options()
        self._lr = _rate(outer.lr, 0) if callable(outer.lr) else outer.lr
        named = trained(model)
        check_apart("DiLoCo", named)
        self._locals: List[_Local] = [_Local(model, name, parameter) for name, parameter in named]
        self._check_optimizer(inner_optimizer)
        self._watch = Watch(model)
        self._inner_steps = 0
        self._has_left = False
        self._sent: Optional[_Exchange] = None
        self._norm = 0.0
        self._fragments = _cut(self._locals, fragments)
        try:
            self.client = client.join({one.name: shape_of(one.parameter) for one in self._locals}, push=push,
                                      return_format=return_format, mode=mode,
                                      fragments={name: [one.name for one in part] for name, part in self._fragments.items()},
                                      **agreed, **options)
        except errors.FailedPrecondition as error:
            raise errors.FailedPrecondition(_in_own_names(str(error))) from None
        _warn_of_divergence(outer, mode, push)
        start(self.client, self._locals)
        self._current = next(iter(self._fragments))
        self._steps = self._fragment_steps()
        self._merge(self._fragments, 0.0)
        self._note_changes()
        self._restore = _count_steps(inner_optimizer, weakref.WeakMethod(self._on_step))

    def _check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for one in self._locals:
            if id(one.parameter) not in held:
                raise errors.InvalidArgument(f"parameter {one.name}: the inner optimizer does not have it; is it an optimizer of "
                                             "another model?")

    @torch.no_grad()
    def _on_step(self) -> None:
        """Called after each step of the inner optimizer."""
        self._note_changes()
        self._inner_steps += 1
        since_sync = self._inner_steps % self._every
        if self._sent is not None and since_sync >= self._delay:
            self._finish(self._keep)
        if since_sync == 0:
            self._send()

    def _note_changes(self) -> None:
        self._versions = [one.parameter._version for one in self._locals]

    def _changes(self) -> int:
        """How often the program has changed the parameters since the last inner step, as torch counts."""
        return max(one.parameter._version - version for one, version in zip(self._locals, self._versions))

    def _check_changes(self) -> None:
        """leave() drops what the program has changed since the last inner step: usually with another optimizer."""
        changes = self._changes()
        if self._inner_steps == 0 and (changes or not all(one.is_common() for one in self._locals)):
            raise errors.FailedPrecondition(
                "the program has changed the parameters, and the inner optimizer has made no step: no difference was sent. "
                + _OTHER_OPTIMIZER)
        if changes > 1:  # one: a clamp after the step, for example
            LOGGER.warning("the program has changed the parameters %d times since the last step of the inner optimizer, and "
                           "the end of the DiLoCo drops these changes: another optimizer needs another DiLoCo", changes)

    def _send(self) -> None:
        for one in self._locals:
            one.check()
        self._watch.check("DiLoCo")
        # All workers must take the same fragment, because each waits for the others there.
        self._current = min(self._fragments, key=self.client.fragment_position)
        self._subtract(self._fragments[self._current])
        if self._schedule is not None:
            self._lr = _rate(self._schedule, self._steps[self._current])
            self.client.set_learning_rate(self._lr)
        self._sent = _Exchange(self._exchange) if self._delay else None
        if self._sent is None:
            self._exchange()
            self._merge_sent(self._keep)

    def _subtract(self, part: List[_Local]) -> None:
        """Makes the differences. Values that are not finite would spoil the common parameters, and thus all workers."""
        for one in part:
            one.subtract()
        norms = [one.norm() for one in part]
        for one, norm in zip(part, norms):
            if math.isfinite(norm):
                continue
            if not one.fresh.isfinite().all():
                raise errors.FailedPrecondition(f"{one.name}: the common values are not finite: start the run again, from an "
                                                "older checkpoint if there is one")
            raise errors.FailedPrecondition(
                f"{one.name}: the difference has values that are not finite: this learner has diverged after {self._inner_steps} "
                "inner steps, and has sent nothing; a restarted learner begins with the common parameters")
        self._norm = math.hypot(*norms)
        if self._clip is not None and self._norm > self._clip:
            for one in part:
                one.gradient.mul_(self._clip / self._norm)

    def _exchange(self) -> None:
        self.client.step(self._current)

    def _finish(self, keep: float) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.finish()
            self._merge_sent(keep)

    def _fragment_steps(self) -> Dict[str, int]:
        return {name: self.client.fragment_step(name) for name in self._fragments}

    def _merge_sent(self, keep: float) -> None:
        before, self._steps = self._steps, self._fragment_steps()
        self._merge([self._current], keep)
        # The servers have started again from a checkpoint, and this worker has received all parameters.
        self._merge([name for name in self._fragments if name != self._current and self._steps[name] != before[name]], 0.0)

    def _merge(self, names: Iterable[str], keep: float) -> None:
        self._global_step = min(self._steps.values())
        for name in names:
            for one in self._fragments[name]:
                one.merge(keep)

    @property
    def lr(self) -> float:
        """The learning rate of the next outer step. In sync all workers need the same.

        In backup and quorum the rate of the lowest worker counts.

        With a schedule: the rate of the last outer step that this worker has taken part in.
        """
        return self._lr

    @lr.setter
    def lr(self, rate: float) -> None:
        if self._schedule is not None:
            raise errors.FailedPrecondition("lr: the outer optimizer has a schedule, which sets the rate of each outer step")
        _arguments.not_negative("lr", rate)
        self._finish(self._keep)  # a client has one call at a time
        self.client.set_learning_rate(rate)
        self._lr = rate

    def set_weight(self, weight: float) -> None:
        """Sets the weight of the next differences in their mean, such as the number of samples. As Client.set_weight()."""
        self._finish(self._keep)
        self.client.set_weight(weight)

    @property
    def difference_norm(self) -> float:
        """The norm of the last difference of this worker, before clip: of one fragment. 0.0 before the first one."""
        return self._norm

    @property
    def inner_steps(self) -> int:
        """The inner steps of this worker."""
        return self._inner_steps

    @property
    def global_step(self) -> int:
        """The outer steps of the common parameters at the last merge. With several fragments: steps that all of them have made.

        Raises FailedPrecondition if another optimizer trains the model: a loop until some step would not end.
        """
        if not self._has_left and self._changes() > self._every * len(self._fragments):
            raise errors.FailedPrecondition(
                f"the program has changed the parameters {self._changes()} times since the last step of the inner optimizer. "
                + _OTHER_OPTIMIZER)
        return self._global_step

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the chief now; see Client.is_chief."""
        return self.client.is_chief

    def save_checkpoint(self) -> None:
        """Saves the common parameters and the outer optimizer; see Client.save_checkpoint(). It waits for an exchange under way."""
        self._finish(self._keep)
        self.client.save_checkpoint()

    def stats(self) -> Dict[str, Any]:
        """Returns the statistics of the client; see Client.stats(). It waits for an exchange under way."""
        self._finish(self._keep)
        return self.client.stats()

    @torch.no_grad()
    def leave(self) -> None:
        """Takes the common parameters into the model and leaves the run. Inner steps since the last exchange are dropped.

        Later steps of the inner optimizer train the model alone, and global_step does not change any more. A second call has
        no effect. Raises FailedPrecondition if the program has trained with another optimizer only; the model stays as it is.
        """
        if self._has_left:
            return
        try:
            self._check_changes()
        except errors.FailedPrecondition as error:
            self.__exit__(type(error), error, None)
            raise
        self._has_left = True
        self._restore()
        self._finish(0.0)
        self._merge(self._fragments, 0.0)
        self.client.leave()

    def __enter__(self) -> "DiLoCo":
        if self._has_left:
            raise errors.FailedPrecondition("this DiLoCo has left its run: make another one")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.leave()
            return
        self._has_left = True
        self._restore()
        if self._sent is not None:
            self._sent.join(_PATIENCE_S)  # a client has one call at a time
        self.client.__exit__(kind, error, trace)


_arguments.fix_options(DiLoCo, client.join, DiLoCo, remedy="make another DiLoCo; its lr can be set")


def _rate(schedule: Callable[[int], float], step: int) -> float:
    return _arguments.not_negative(f"lr of outer step {step}", schedule(step))


def _cut(all_locals: List[_Local], count: int) -> Dict[str, List[_Local]]:
    """Sets of consecutive parameters with about equal numbers of elements. One set has no name."""
    if count == 1:
        return {"": all_locals}
    if count > len(all_locals):
        raise errors.InvalidArgument(f"fragments {count}: the model has {len(all_locals)} parameters")
    total = sum(one.parameter.numel() for one in all_locals)
    parts: Dict[str, List[_Local]] = {}
    begun = 0
    for index, one in enumerate(all_locals):
        left = len(all_locals) - index
        # The middle of the parameter is behind the cut. Each set that is still empty needs a parameter.
        is_due = (2 * begun + one.parameter.numel()) * count >= 2 * total * len(parts) or left == count - len(parts)
        if len(parts) < count and (not parts or is_due):
            parts[str(len(parts))] = []
        list(parts.values())[-1].append(one)
        begun += one.parameter.numel()
    return parts


def _count_steps(optimizer: torch.optim.Optimizer, on_step: "weakref.WeakMethod[Any]") -> Any:
    """Calls on_step after each optimizer.step(). Returns a function that ends this.

    A scheduler of torch may wrap step() once more, so that the end only makes this wrapper do nothing.
    """
    step, own = optimizer.step, optimizer.__dict__.get("step")
    active = [True]

    @functools.wraps(step)
    def counted(_optimizer: Any, *arguments: Any, **named: Any) -> Any:
        result = step(*arguments, **named)
        method = on_step()
        if active and method is not None:
            method()
        return result

    bound = types.MethodType(counted, optimizer)  # schedulers of torch take step() for a method
    optimizer.step = bound  # type: ignore[method-assign]

    def restore() -> None:
        active.clear()
        if optimizer.__dict__.get("step") is not bound:
            return
        if own is None:
            del optimizer.step
        else:
            optimizer.step = own  # type: ignore[method-assign]

    return restore
