"""gradrail for PyTorch: the optimizer of the parameter servers replaces that of torch.

    exchange = gradrail.torch.Exchange(model, optimizer="sgd", lr=0.1, mode="sync")
    for x, y in batches:
        loss(model(x), y).backward()    # gradients leave while backward goes on
        exchange.step()                 # fresh parameters are in the model
    exchange.leave()
"""
import contextlib
from typing import Any, Dict, Iterator, List, Optional

import numpy as np
import torch

from . import client, errors

__all__ = ["Exchange"]


class _Slot:
    """A parameter of the model beside its place in the registered memory."""

    def __init__(self, name: str, parameter: torch.nn.Parameter):
        self.name = name
        self.parameter = parameter
        self.fresh: torch.Tensor = parameter  # views of the registered memory, after bind()
        self.gradient: torch.Tensor = parameter
        self.in_place = parameter.device.type == "cpu" and parameter.dtype == torch.float32
        self.accumulator: Any = None  # it exists as long as a reference to it
        self.is_sent = False

    def shape(self) -> "tuple[int, ...]":
        return tuple(self.parameter.shape) or (1,)

    def bind(self, parameters: np.ndarray, gradients: np.ndarray) -> None:
        self.fresh = torch.from_numpy(parameters).view(self.parameter.shape)
        self.gradient = torch.from_numpy(gradients).view(self.parameter.shape)
        self.fresh.copy_(self.parameter.detach())

    def take(self) -> None:
        """The model computes with the fresh parameters."""
        if self.in_place:
            self.parameter.data = self.fresh
        else:
            self.parameter.data.copy_(self.fresh)

    def clear(self) -> None:
        self.is_sent = False
        self.gradient.zero_()
        if self.in_place:
            self.parameter.grad = self.gradient
        else:
            self.parameter.grad = None

    def fill(self) -> None:
        """The registered memory has the gradient, also one that the program has made itself. None counts as zero."""
        given = self.parameter.grad
        if given is None:
            self.gradient.zero_()
        elif given.data_ptr() != self.gradient.data_ptr():
            self.gradient.copy_(given.to_dense() if given.is_sparse else given)


class Exchange:
    """Exchanges the gradients of a model for fresh parameters, step by step. It replaces the optimizer.

    Parameters
    ----------
    model : torch.nn.Module
        Parameters that require no gradient, and buffers, stay local. A shared parameter is exchanged once. Parameters on
        a GPU, and of another dtype than float32, are copied in each step; the servers compute in float32.
    optimizer, lr, mode
        As `optimizer`, `learning_rate` and `mode` of gradrail.join().
    options
        The other arguments of gradrail.join(), such as ps_hosts.

    Raises
    ------
    As gradrail.join(). All workers must have the same model; the chief's initial parameters count.
    """

    def __init__(self, model: torch.nn.Module, *, optimizer: str = "sgd", lr: Optional[float] = None,
                 mode: str = "async", **options: Any):
        self._slots: List[_Slot] = [_Slot(name, parameter) for name, parameter in model.named_parameters()
                                    if parameter.requires_grad]
        if not self._slots:
            raise errors.InvalidArgument("the model has no parameter that requires a gradient")
        self.client = client.join({slot.name: slot.shape() for slot in self._slots}, optimizer=optimizer,
                                  learning_rate=lr, mode=mode, **options)
        self._sends_early = True
        for slot in self._slots:
            slot.bind(self.client.parameters[slot.name], self.client.gradients[slot.name])
        self.client.start()
        for slot in self._slots:
            slot.take()
            slot.clear()
            slot.accumulator = slot.parameter.expand_as(slot.parameter).grad_fn.next_functions[0][0]
            slot.accumulator.register_hook(lambda *_, slot=slot: self._on_gradient(slot))

    def _on_gradient(self, slot: _Slot) -> None:
        """Called when backward has accumulated the gradient of a parameter."""
        if not self._sends_early:
            return
        if slot.is_sent:
            raise errors.FailedPrecondition(f"a second gradient of {slot.name} before step(): the first has left; use "
                                            "`with exchange.accumulate():` around all backward passes but the last")
        slot.fill()
        slot.is_sent = True
        self.client.ready(slot.name)

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """In this context backward() adds to the gradients, and nothing is sent."""
        before, self._sends_early = self._sends_early, False
        try:
            yield
        finally:
            self._sends_early = before

    @torch.no_grad()
    def step(self) -> None:
        """Sends the gradients that have not left yet, and waits for fresh parameters. The gradients are zero then."""
        for slot in self._slots:
            if not slot.is_sent:
                slot.fill()
        self.client.exchange()
        self.client.wait()
        for slot in self._slots:
            if not slot.in_place:
                slot.take()
            slot.clear()

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Has no effect after step(), which clears the gradients; the name is that of torch.optim.Optimizer."""
        if any(slot.is_sent for slot in self._slots):
            raise errors.FailedPrecondition("zero_grad() between backward() and step(): gradients have left already")
        for slot in self._slots:
            slot.clear()

    def stats(self) -> Dict[str, Any]:
        """As Client.stats()."""
        return self.client.stats()

    def leave(self) -> None:
        """As Client.leave()."""
        self.client.leave()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *error: Any) -> None:
        self.client.__exit__(*error)
