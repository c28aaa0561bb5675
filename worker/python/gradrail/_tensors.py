"""The arrays of a client by their names."""
import collections.abc
import operator
from typing import Any, Dict, Iterator

import numpy as np

from . import errors


class Tensors(collections.abc.Mapping):
    """Arrays by the names of the tensors: float32, in the shapes of join(), over the memory of the exchange (no copy).

    `tensors[name][:] = values` or `tensors[name] = values` writes them.
    """

    def __init__(self, arrays: Dict[str, np.ndarray]):
        self._arrays = arrays

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self._arrays[name]
        except KeyError:
            raise KeyError(f"{name!r}: the tensors are {', '.join(self._arrays)}") from None

    def __setitem__(self, name: str, values: Any) -> None:
        target = self[name]
        if values is target:  # tensors[name] += values
            return
        given = np.asarray(values)
        if given.shape != target.shape:
            raise errors.InvalidArgument(f"tensor {name!r} has shape {target.shape}; the values have {given.shape}")
        if given.dtype.kind == "c":
            raise errors.InvalidArgument(f"tensor {name!r} is float32; the values are complex: pass .real or .imag")
        target[...] = given

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Tensors({self._arrays!r})"


def fixed(name: str) -> property:
    """A property that is read-only: other arrays in its place would not be sent. attrgetter keeps a read short."""

    def refuse(_client: Any, _values: Any) -> None:
        raise AttributeError(f"client.{name} cannot be replaced: write into its arrays, as in "
                             f"client.{name}[\"w\"][:] = values")

    return property(operator.attrgetter("_" + name), refuse)
