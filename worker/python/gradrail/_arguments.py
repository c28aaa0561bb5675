"""The arguments of a client as the C library takes them. Each function raises InvalidArgument with their name."""
import collections.abc
import ctypes
import inspect
import math
import operator
import os
import reprlib
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Tuple, Union

import numpy as np

from . import errors
from ._library import Tensor


def fix_options(of: type, *takers: Callable[..., Any], remedy: str) -> None:
    """Refuses assignments to the options of a run, which would have no effect: they are arguments of `takers`, and stay as
    they are. A class that is derived from `of` may have attributes of its own with these names."""
    options = {name for taker in takers for name in inspect.signature(taker).parameters} | {"lr"}
    options -= set(dir(of))

    def set_attribute(target: Any, name: str, value: Any) -> None:
        if name in options and type(target) is of:
            raise AttributeError(f"{of.__name__}.{name} cannot be set: it is fixed for the run ({remedy})")
        object.__setattr__(target, name, value)

    of.__setattr__ = set_attribute  # type: ignore[assignment]


def text(name: str, value: Any) -> bytes:
    if not isinstance(value, (str, os.PathLike)):
        raise errors.InvalidArgument(f"{name}: must be a text, not {type(value).__name__}")
    try:
        # Python keeps bytes of a path that are no UTF-8 as surrogates, such as those of sys.argv.
        encoded = os.fsencode(value) if isinstance(value, os.PathLike) else value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise errors.InvalidArgument(f"{name}: {value!r} is not a valid text") from None
    if b"\0" in encoded:
        raise errors.InvalidArgument(f"{name}: contains a zero byte")
    return encoded


def choice(name: str, value: Any) -> bytes:
    """The library takes an empty text for its default, which may be another one than that of a function here."""
    if value == "":
        raise errors.InvalidArgument(f"{name}: must not be empty; omit it for the default")
    return text(name, value)


def hosts(name: str, value: Union[None, str, Iterable[str]]) -> Optional[bytes]:
    if value is None:
        return None
    try:
        return text(name, value if isinstance(value, str) else ",".join(value))
    except TypeError:
        raise errors.InvalidArgument(f"{name}: must be a text or a list of texts, not {value!r}") from None


def number(name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes, bytearray, bool, np.bool_)):  # float() accepts them
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise errors.InvalidArgument(f"{name}: must be a number, not {reprlib.repr(value)}") from None
    if not math.isfinite(ctypes.c_float(number).value):
        raise errors.InvalidArgument(f"{name}: must be a finite number within float32, not {number}")
    return number


def not_negative(name: str, value: Any) -> float:
    given = number(name, value)
    if given < 0:
        raise errors.InvalidArgument(f"{name}: must be 0 or more, not {given}")
    return given


def constant(name: str, value: Any) -> float:
    """A constant of the optimizer as the library reads it: float32, where 0 selects the default."""
    rounded = ctypes.c_float(number(name, value)).value
    if rounded == 0 and name == "momentum":
        raise errors.InvalidArgument("momentum 0: use optimizer=\"sgd\"")
    if rounded <= 0:
        raise errors.InvalidArgument(f"{name} {value}: must be more than 0; omit it for the default")
    return rounded


def flag(name: str, value: Any) -> bool:
    """A text such as "off" or "no" is true for Python."""
    if isinstance(value, (bool, np.bool_)) or isinstance(value, (int, np.integer)) and value in (0, 1):
        return bool(value)
    raise errors.InvalidArgument(f"{name}: must be True or False, not {reprlib.repr(value)}")


def whole(name: str, value: Any, most: int, least: int = 0) -> int:
    """Also the integers of NumPy and of other libraries. A bool is none, although Python takes it for one."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise errors.InvalidArgument(f"{name}: must be a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise errors.InvalidArgument(f"{name} {reprlib.repr(number)}: must be from {least} to {most}")
    return number


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def has_values(given: Any) -> bool:
    """Whether the argument of a tensor is an array with its initial values. np.prod(shape) is a size, although it has a shape."""
    return hasattr(given, "__array__") and not isinstance(given, np.generic)


def _shape(name: str, given: Any) -> Tuple[int, ...]:
    if isinstance(given, (bool, np.bool_)) or isinstance(given, np.generic) and not isinstance(given, np.integer):
        raise errors.InvalidArgument(f"tensor {name!r}: {given!r} ({type(given).__name__}) is not a shape: use int() for a size, "
                                     "or np.array() for the initial value of a scalar")
    if has_values(given):
        dimensions = tuple(np.shape(given))
        if not dimensions and _is_integer(given):
            raise errors.InvalidArgument(f"tensor {name!r}: {given!r} can be a size or an initial value: use int() for a size, or "
                                         "a float array for the initial value of a scalar")
    else:
        dimensions = (given,) if _is_integer(given) else tuple(getattr(given, "shape", given))
    return tuple(whole(f"shape of tensor {name!r}", dimension, (1 << 62)) for dimension in dimensions)


def schema(tensors: Mapping[str, Any]) -> Tuple[Dict[str, Tuple[int, ...]], Any]:
    if not isinstance(tensors, collections.abc.Mapping):
        raise errors.InvalidArgument(f"tensors: must map names to shapes, not {type(tensors).__name__}")
    shapes = {}
    described = (Tensor * max(len(tensors), 1))()
    for place, (name, given) in zip(described, tensors.items()):
        place.name = text("name of a tensor", name)
        try:
            shapes[name] = _shape(name, given)
        except TypeError:
            raise errors.InvalidArgument(f"tensor {name!r}: {given!r} is not a shape") from None
        try:
            np.empty((0,) * len(shapes[name]))
        except ValueError as error:  # releases of NumPy have different limits
            raise errors.InvalidArgument(f"tensor {name!r}: {error}: join it with fewer dimensions") from None
        place.shape = (ctypes.c_int64 * max(len(shapes[name]), 1))(*shapes[name])
        place.dimension_count = len(shapes[name])
    return shapes, described


def fragments(given: Optional[Mapping[str, Iterable[str]]], shapes: Mapping[str, Any]) -> Tuple[Any, Dict[str, int]]:
    """The name of the fragment of each tensor, and the index of each fragment: they count in the order of their tensors."""
    if given is None:
        return None, {"": 0}
    if not isinstance(given, collections.abc.Mapping):
        raise errors.InvalidArgument(f"fragments: must map names to names of tensors, not {type(given).__name__}")
    of_tensor: Dict[str, str] = {}
    for name, tensors in given.items():
        text("name of a fragment", name)
        tensors = [tensors] if isinstance(tensors, str) else list(tensors)
        if not tensors:
            raise errors.InvalidArgument(f"fragment {name!r}: has no tensors")
        for tensor in tensors:
            if tensor not in shapes:
                raise errors.InvalidArgument(f"fragment {name!r}: there is no tensor {tensor!r}")
            if of_tensor.setdefault(tensor, name) != name:
                raise errors.InvalidArgument(f"tensor {tensor!r}: is in the fragments {of_tensor[tensor]!r} and {name!r}")
    names = [of_tensor.get(tensor, "") for tensor in shapes]
    indexes = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return (ctypes.c_char_p * len(names))(*(name.encode() for name in names)), indexes
