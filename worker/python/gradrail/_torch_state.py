"""The parameters of a model beside their exchange, and the state of its optimizer as a file of the checkpoint commands."""
import ctypes
import functools
import operator
import os
from typing import Any, Dict, Iterable, List, Optional, Type, Union

import numpy as np
import torch

from . import _arguments, _arrays, client, errors


def trained(model: torch.nn.Module) -> "List[tuple[str, torch.nn.Parameter]]":
    """Returns the parameters that are exchanged. A shared parameter has its first name."""
    if not isinstance(model, torch.nn.Module):
        raise errors.InvalidArgument(f"model: must be a torch.nn.Module, not {type(model).__name__}")
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, module in model.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):  # its import is slow
            raise errors.InvalidArgument(f"{name or 'the model'}: FullyShardedDataParallel gives each worker other parameters, and "
                                         "all workers must have the same: use the module without it")
    if not named:
        raise errors.InvalidArgument("the model has no parameter that requires a gradient")
    for name, parameter in named:
        _check_kind(name, parameter)
        check_real(name, parameter)
    return named


def _check_kind(name: str, parameter: torch.nn.Parameter) -> None:
    """Refuses parameters without values of their own, which would fail after the join."""
    if torch.nn.parameter.is_lazy(parameter):
        raise errors.InvalidArgument(f"parameter {name}: has no shape yet: call the lazy module with a first batch before")
    if parameter.device.type == "meta":
        raise errors.InvalidArgument(f"parameter {name}: is on the device meta and has no values: use model.to_empty(device=...) "
                                     "and initialize it before")
    kind = type(parameter.detach())
    if parameter.layout != torch.strided or kind not in (torch.Tensor, torch.nn.Parameter):
        what = kind.__name__ if parameter.layout == torch.strided else parameter.layout
        raise errors.InvalidArgument(f"parameter {name}: is a {what}: must be an ordinary dense tensor")
    if not parameter.is_leaf:  # a copy of a module of TorchScript has such ones
        raise errors.InvalidArgument(f"parameter {name}: is the result of a computation, and backward() gives it no gradient: must "
                                     "be torch.nn.Parameter(values.detach())")
    if parameter.is_inference():
        raise errors.InvalidArgument(f"parameter {name}: was made in torch.inference_mode() and cannot be trained: make the model "
                                     "outside of it")


def check_real(name: str, values: torch.Tensor) -> None:
    """A copy to float32 would drop the imaginary part."""
    if values.is_complex():
        raise errors.InvalidArgument(f"parameter {name}: has the dtype {values.dtype}, and the servers compute in float32: hold "
                                     "it as torch.view_as_real(parameter), and use torch.view_as_complex() in forward()")


def check_apart(user: str, named: "Iterable[tuple[str, torch.nn.Parameter]]",
                refusal: Type[errors.Error] = errors.InvalidArgument) -> None:
    """Refuses parameters that share memory: the servers move each one alone, and the last one would remain."""
    placed = []
    for name, parameter in named:
        first = parameter.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride()))
        placed.append((str(parameter.device), first, first + (last + 1) * parameter.element_size(), name, parameter))
    placed.sort(key=operator.itemgetter(0, 1))
    open_ones: list = []  # parts that end after the begin of the next one
    for one in placed:
        device, first, end, name, parameter = one
        open_ones = [other for other in open_ones if other[0] == device and other[2] > first]
        for other in open_ones:
            base, size = other[1], max(end, other[2]) - other[1]
            if (_touched(parameter, base, size) & _touched(other[4], base, size)).any():
                raise refusal(
                    f"{other[3]} and {name}: share memory, and the servers would move each one alone: tie them as one "
                    f"Parameter before the {user}, as in `model.b.weight = model.a.weight`, separate them by "
                    "`p.data = p.data.clone()`, or use MeanExchange, which permits it")
        if not parameter.is_contiguous() and _touched(parameter, first, end - first).sum() < parameter.numel() * parameter.element_size():
            raise refusal(f"{name}: its elements share memory, as those of expand() do: use `p.data = p.data.clone()` before the {user}")
        open_ones.append(one)


def _touched(parameter: torch.nn.Parameter, base: int, size: int) -> np.ndarray:
    """Marks the bytes of a parameter, from an address on."""
    marks = np.zeros(size, np.bool_)
    width = parameter.element_size()
    strides = [stride * width for stride in parameter.stride()]
    np.lib.stride_tricks.as_strided(marks[parameter.data_ptr() - base:], (*parameter.shape, width), (*strides, 1))[...] = True
    return marks


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape, dtype and device have the same bits, also those of NaN. torch.equal() is slower."""
    if a.is_cpu and a.is_contiguous() and b.is_contiguous():
        return _memcmp(a.data_ptr(), b.data_ptr(), a.numel() * a.element_size()) == 0
    bits = _BITS[a.element_size()]
    return torch.equal(a.view(bits), b.view(bits))


class Watch:
    """Finds parameters that a model gets after trained()."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._known = [parameter for _, parameter in trained(model)]  # references: an id is not used again
        self._added: List[str] = []
        self._note()

    def _note(self) -> None:
        self._modules = list(self._model.modules())
        self._content = self._read()
        self._frozen = [parameter for parameter in self._model.parameters() if not parameter.requires_grad]

    def _read(self) -> list:
        content: list = []
        for module in self._modules:
            content += module._parameters.values()
            content += module._modules.values()
        return content

    def check(self, user: str) -> None:
        """Part of each step. `user` has the other parameters, and is to be made again."""
        content = self._read()
        changed = len(content) != len(self._content) or any(map(operator.is_not, content, self._content))
        if changed or any(parameter.requires_grad for parameter in self._frozen):
            known = {id(parameter) for parameter in self._known}
            self._note()
            self._added += [name for name, parameter in self._model.named_parameters()
                            if parameter.requires_grad and id(parameter) not in known and name not in self._added]
        if self._added:
            raise errors.FailedPrecondition(f"{', '.join(sorted(self._added))}: requires a gradient since the {user} was made: "
                                            f"make the {user} after that")


def _attribute(owner: Any, key: str) -> Any:
    return getattr(owner, key, None)


class Slot:
    """A parameter of the model beside its place in the registered memory."""

    def __init__(self, model: torch.nn.Module, name: str, parameter: torch.nn.Parameter):
        self.name = name
        self.parameter = parameter
        *modules, key = name.split(".")
        owner = functools.reduce(getattr, modules, model)  # get_submodule() does not exist in TorchScript
        find: Any = owner._parameters.get if isinstance(owner._parameters, dict) else functools.partial(_attribute, owner)
        self._find = functools.partial(find, key)
        self.fresh: torch.Tensor = parameter  # views of the registered memory, after bind()
        self.gradient: torch.Tensor = parameter

    def bind(self, parameters: np.ndarray, gradients: np.ndarray) -> None:
        self.fresh = torch.from_numpy(parameters).view(self.parameter.shape)
        self.gradient = torch.from_numpy(gradients).view(self.parameter.shape)
        self.fresh.copy_(self.parameter.detach())

    def is_replaced(self) -> bool:
        """Whether the model has another parameter of this name, or none."""
        return self._find() is not self.parameter

    def check_place(self, user: str) -> None:
        """`user` has the former parameter, and is to be made again."""
        if self.is_replaced():
            raise errors.FailedPrecondition(f"{self.name} was replaced by the program, and the servers have the former "
                                            f"parameter: make the {user} after that")


def start(joined: client.Client, slots: Iterable[Slot]) -> None:
    """The chief offers the parameters of the model. A worker that cannot start leaves the run."""
    try:
        for slot in slots:
            slot.bind(joined.parameters[slot.name], joined.gradients[slot.name])
        joined.start()
    except BaseException as error:
        joined.__exit__(type(error), error, None)
        raise


def shape_of(parameter: torch.nn.Parameter) -> "tuple[int, ...]":
    return tuple(parameter.shape) or (1,)


def _vectors(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Dict[str, str]:
    """Returns the servers' names of the state vectors of an optimizer of torch. Refuses what the servers do not have."""
    if not isinstance(optimizer, (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)):
        raise errors.InvalidArgument(f"optimizer {type(optimizer).__name__}: must be SGD, Adam or AdamW of torch.optim")
    groups = optimizer.param_groups
    for unknown in ("amsgrad", "maximize", "dampening"):
        if any(group.get(unknown) for group in groups):
            raise errors.InvalidArgument(f"{unknown}: the optimizers of the servers have no {unknown}")
    held = {id(parameter) for group in groups for parameter in group["params"]}
    for name, parameter in trained(model):
        if id(parameter) not in held:
            raise errors.InvalidArgument(f"parameter {name}: the optimizer does not have it; is it an optimizer of another "
                                         "model?")
    if not isinstance(optimizer, torch.optim.SGD):
        return {"exp_avg": "m", "exp_avg_sq": "v"}
    if len({(bool(group["momentum"]), group["nesterov"]) for group in groups}) > 1:
        raise errors.InvalidArgument("momentum, nesterov: differ between parameter groups; the servers have one kind for all")
    return {"momentum_buffer": "velocity"} if groups[0]["momentum"] else {}


# The optimizers of torch by their state vectors at the servers.
_BY_VECTORS = {frozenset(): "SGD without momentum", frozenset(["velocity"]): "SGD with momentum",
               frozenset(["m", "v"]): "Adam or AdamW", frozenset(["velocity", "collected"]): "delayed_nesterov"}


def _check_vectors(name_of_file: str, arrays: Dict[str, np.ndarray], names: List[str], wanted: Iterable[str]) -> None:
    """Refuses the state of another optimizer, also for one without a state of its own."""
    known = frozenset().union(*_BY_VECTORS)
    found = frozenset(vector for vector in known for name in names
                      if f"{name}:{vector}" in arrays and f"{name}:{vector}" not in names)
    if found != frozenset(wanted):
        raise errors.InvalidArgument(f"{name_of_file}: has the state of {_BY_VECTORS.get(found, 'an unknown optimizer')}, and "
                                     f"the optimizer is {_BY_VECTORS[frozenset(wanted)]}")


def _adam(optimizer: torch.optim.Optimizer) -> str:
    """Returns the servers' name of an Adam of torch. Newer releases derive AdamW from Adam, and Adam may decouple too."""
    groups = optimizer.param_groups
    decoupled = {isinstance(optimizer, torch.optim.AdamW) or bool(group.get("decoupled_weight_decay")) for group in groups}
    if len(decoupled) > 1:
        raise errors.InvalidArgument("decoupled_weight_decay: differs between parameter groups; the servers have one kind for "
                                     "all")
    return "adamw" if decoupled.pop() else "torch_adam"


# Modules that put the name of an attribute before the names of the parameters.
_WRAPPERS = {"_orig_mod.": "torch.compile(model)", "module.": "torch.nn.DataParallel(model)"}


def _check_names(name_of_file: str, wanted: List[str], arrays: Dict[str, np.ndarray], rest: str) -> None:
    """Refuses a file without a parameter of the model. A wrapper of the model is the usual cause. `rest`: of the arguments."""
    missing = [name for name in wanted if name not in arrays]
    if not missing:
        return
    others = sorted(other for other in arrays if ":" not in other)
    for other in others:
        prefix = other[:-len(missing[0])]
        if other.endswith("." + missing[0]) and all(prefix + name in arrays for name in wanted):
            wrapped = _WRAPPERS.get(prefix, f"a module that has the model as {prefix[:-1]}")
            raise errors.InvalidArgument(f"{name_of_file}: its names have the prefix {prefix} ({other}), and those of the model have "
                                         f"not ({missing[0]}): load it with load_state(path, {wrapped}{rest})")
        prefix = missing[0][:-len(other)]
        if missing[0].endswith("." + other) and all(name.removeprefix(prefix) in arrays for name in wanted):
            raise errors.InvalidArgument(f"{name_of_file}: its names have no prefix ({other}), and those of the model have {prefix} "
                                         f"({missing[0]}): load it with load_state(path, model.{prefix[:-1]}{rest})")
    raise errors.InvalidArgument(f"{name_of_file}: has no array {missing[0]}, only {', '.join(others)}")


@torch.no_grad()
def load_state(path: "Union[str, os.PathLike[str]]", model: torch.nn.Module,
               optimizer: Optional[torch.optim.Optimizer] = None) -> Optional[int]:
    """Loads a file of gradrail.checkpoint.export_arrays() into a model. Training can then continue without gradrail.

    Parameters
    ----------
    path : the file, .npz or .safetensors
    model : torch.nn.Module
        Receives all parameters of the file, by name. One that requires no gradient may be missing in the file.
    optimizer : torch.optim.SGD, Adam or AdamW over parameters of the model
        Receives the state of the servers' optimizer, exported with --optimizer-state.

    Returns the global step, or None without --optimizer-state.

    Raises
    ------
    InvalidArgument: a parameter is missing in the file or in the model, or has another shape, or the state is that of
    another optimizer.
    """
    name_of_file = os.fsdecode(path)
    arrays = _arrays.read(name_of_file)

    def read(name: str, parameter: torch.nn.Parameter) -> torch.Tensor:
        if name not in arrays:
            raise errors.InvalidArgument(f"{name_of_file}: has no array {name}: is it the state of another optimizer?")
        if arrays[name].shape != shape_of(parameter):
            raise errors.InvalidArgument(f"{name_of_file}: {name} has the shape {arrays[name].shape}, and the parameter of "
                                         f"the model has {shape_of(parameter)}")
        return torch.from_numpy(arrays[name]).view(parameter.shape).to(parameter)

    named = trained(model)
    _check_names(name_of_file, [name for name, _ in named], arrays, "" if optimizer is None else ", optimizer")
    frozen = [(name, parameter) for name, parameter in model.named_parameters()
              if not parameter.requires_grad and name in arrays]
    step = int(arrays[":global_step"]) if ":global_step" in arrays else None
    vectors: Dict[str, str] = {}
    if optimizer is not None:
        if step is None:
            raise errors.InvalidArgument(f"{name_of_file}: was exported without --optimizer-state")
        vectors = _vectors(optimizer, model)
        _check_vectors(name_of_file, arrays, [name for name, _ in named], vectors.values())
    # Everything is read before the first change: an error leaves model and optimizer as they were.
    loaded = []
    for name, parameter in named:
        state = {key: read(f"{name}:{vector}", parameter) for key, vector in vectors.items()}
        if "exp_avg" in state:
            state["step"] = torch.tensor(float(step or 0))
        loaded.append((parameter, read(name, parameter), state))
    others = [(parameter, read(name, parameter)) for name, parameter in frozen]
    of_file = {name for name in arrays if ":" not in name and not name.startswith(".")}
    unknown = sorted(of_file - {name for name, _ in model.named_parameters()})
    if unknown:
        raise errors.InvalidArgument(f"{name_of_file}: has {', '.join(unknown)}, which the model has not: is it the file of "
                                     "another model?")
    for parameter, values, state in loaded:
        parameter.copy_(values)
        if optimizer is not None:
            optimizer.state[parameter].clear()
            optimizer.state[parameter].update(state)
    for parameter, values in others:
        parameter.copy_(values)
    return step


@torch.no_grad()
def save_state(path: "Union[str, os.PathLike[str]]", model: torch.nn.Module,
               optimizer: torch.optim.Optimizer, global_step: Optional[int] = None) -> None:
    """Saves a model and its optimizer, so that training can continue with gradrail.

    gradrail.checkpoint.import_arrays() makes a checkpoint of the file. Parameter servers with this folder restore it.

    Parameters
    ----------
    path : the file to write, .safetensors
    model : torch.nn.Module
        The parameters that require a gradient are saved, as Exchange takes them.
    optimizer : torch.optim.SGD, Adam or AdamW over parameters of the model
        The Exchange needs the same kind: "sgd", "momentum", "nesterov", "adam" or "adamw". Rates are not saved.
    global_step : int
        Default: the step of Adam, and 0 for SGD.

    Raises
    ------
    InvalidArgument: the servers have no such optimizer, or the parameters have made different numbers of steps. OSError:
    the file cannot be written; an old file stays.
    """
    name_of_file = os.fsdecode(path)
    if not name_of_file.endswith(".safetensors"):
        raise errors.InvalidArgument(f"{name_of_file}: the name must end with .safetensors")
    if global_step is not None:
        global_step = _arguments.whole("global_step", global_step, 2**62)
    vectors = _vectors(optimizer, model)
    named = trained(model)
    step = 0
    if isinstance(optimizer, torch.optim.SGD):
        kind = "sgd"
        if vectors:
            kind = "nesterov" if optimizer.param_groups[0]["nesterov"] else "momentum"
    else:
        kind = _adam(optimizer)
        steps = {int(optimizer.state[parameter].get("step", 0)): name for name, parameter in named}
        if len(steps) > 1:
            made = ", ".join(f"{name} {count}" for count, name in sorted(steps.items()))
            raise errors.InvalidArgument(f"the parameters have made different numbers of steps ({made}): the servers count "
                                         "one for all")
        step, = steps
        if global_step is not None and global_step != step:
            raise errors.InvalidArgument(f"global_step {global_step}: the optimizer has made {step} steps")

    def array(values: Optional[torch.Tensor], parameter: torch.nn.Parameter) -> np.ndarray:
        if values is None:  # no step yet
            return np.zeros(shape_of(parameter), np.float32)
        return values.detach().to("cpu", torch.float32).reshape(shape_of(parameter)).numpy()

    arrays = {name: array(parameter, parameter) for name, parameter in named}
    for key, vector in vectors.items():
        for name, parameter in named:
            arrays[f"{name}:{vector}"] = array(optimizer.state[parameter].get(key), parameter)
    arrays[":global_step"] = np.array(step if global_step is None else global_step, np.int64)
    with _arrays.replacement(name_of_file) as file:
        _arrays.write_safetensors(file, arrays, {"format": "pt", "optimizer": kind})
