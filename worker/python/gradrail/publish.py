"""Weight publishing: a Publisher serves versions of the parameters to any number of Subscribers over TCP."""
import atexit
import collections.abc
import contextlib
import ctypes
import json
import os
import threading
import time
import weakref
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple, Union

import numpy as np

from . import _arguments, errors
from ._library import LIBRARY, PublishOptions, SubscribeOptions, last_error

_SLICE_S = 0.25  # length of a part of a wait: the handlers of signals run between two parts
_LONGEST_S = 1e9


def _check(code: int) -> None:
    if code:
        raise errors.error_of(code, last_error())


def _seconds(name: str, value: Any) -> float:
    seconds = _arguments.number(name, value)
    if not 0 <= seconds <= _LONGEST_S:
        raise errors.InvalidArgument(f"{name} {value}: must be from 0 to {_LONGEST_S:.0f}")
    return seconds


def _optional_text(name: str, value: Any) -> Optional[bytes]:
    return None if value is None else _arguments.text(name, value)


def _named(model: Any) -> Dict[str, Any]:
    """Returns the tensors of a mapping, or the floating-point tensors of a torch module. Its counters stay out."""
    if hasattr(model, "state_dict"):
        return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
    if isinstance(model, collections.abc.Mapping):
        return dict(model)
    raise errors.InvalidArgument(f"must be a mapping of names to arrays or a torch module, not {type(model).__name__}")


def _wrong_dtype(name: str, given: Any) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"tensor {name!r} has dtype {given.dtype}: only floating-point tensors are published")


def _float32(name: str, given: Any) -> np.ndarray:
    """Returns the values in C order; a float32 array on the host is not copied."""
    if hasattr(given, "detach"):  # a tensor of torch, maybe bfloat16 or on a GPU
        if not given.is_floating_point():
            raise _wrong_dtype(name, given)
        given = given.detach().float().cpu().numpy()
    array = np.asarray(given)
    if array.dtype.kind != "f":
        raise _wrong_dtype(name, array)
    return np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape)


def _pointers(arrays: Dict[str, np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays.values()))


def _matching(tensors: Any, shapes: Dict[str, Tuple[int, ...]]) -> Dict[str, np.ndarray]:
    """Returns the values in the order of `shapes`."""
    named = _named(tensors)
    missing = [name for name in shapes if name not in named]
    excess = [name for name in named if name not in shapes]
    if missing or excess:
        raise errors.InvalidArgument(f"the tensors are {', '.join(shapes)}; missing: {missing}, unknown: {excess}")
    arrays = {name: _float32(name, named[name]) for name in shapes}
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise errors.InvalidArgument(f"tensor {name!r} has shape {shapes[name]}; the values have {array.shape}")
    return arrays


class _Handle:
    """An object of the C library. Its threads do not exist in a forked child."""

    def __init__(self, pointer: ctypes.c_void_p, free: Any):
        self._pointer, self._free, self._process = pointer, free, os.getpid()

    @property
    def pointer(self) -> ctypes.c_void_p:
        if self._process != os.getpid():
            raise errors.FailedPrecondition("this process was forked from the one that opened it: open another one here")
        return self._pointer

    def __del__(self):
        if self._process == os.getpid():
            self._free(self._pointer)


_publishers: "weakref.WeakSet[Publisher]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The readers of a program that ends without close() learn the end, and no thread of the library outlives it."""
    for publisher in list(_publishers):
        with contextlib.suppress(errors.Error):
            publisher.close(0.0)


class Publisher:
    """Serves versions of named parameters to any number of readers.

    Parameters
    ----------
    model : mapping of names to arrays, or a torch module
        Names and shapes. publish() without values reads it.
    listen : "host:port"
        Port 0 chooses one; `address` has the result. An address beyond this host needs `secret_file`, or insecure=True.
    format : "bf16" or "fp32"
        Bits of an element. bf16 rounds to nearest even.
    keep : int
        Versions from which a reader can continue with a delta.
    max_readers, reader_timeout
        A reader that receives nothing of its version for reader_timeout seconds is disconnected.

    publish() copies the values and returns. It waits for no reader. One thread of the library encodes, one sends;
    neither needs Python. Any thread may use a Publisher. Raises InvalidArgument, FailedPrecondition, AlreadyExists.
    """

    def __init__(self, model: Any, *, listen: str = "127.0.0.1:0", format: str = "bf16", keep: int = 8,
                 max_readers: int = 256, reader_timeout: float = 30.0,
                 secret_file: Union[None, str, os.PathLike] = None, insecure: bool = False):
        named = _named(model)
        self._model = model
        self._shapes, described = _arguments.schema({name: np.shape(value) for name, value in named.items()})
        for name, value in named.items():
            if hasattr(value, "__array__") or hasattr(value, "detach"):
                _float32(name, value)
        options = PublishOptions(struct_bytes=ctypes.sizeof(PublishOptions))
        options.listen = _arguments.text("listen", listen)
        options.format = _arguments.text("format", format)
        options.keep = _arguments.whole("keep", keep, 1 << 20)
        options.max_readers = _arguments.whole("max_readers", max_readers, 1 << 20)
        if options.keep == 0 or options.max_readers == 0:
            raise errors.InvalidArgument("keep and max_readers: must be at least 1")
        options.reader_timeout_s = _seconds("reader_timeout", reader_timeout)
        options.secret_file = _optional_text("secret_file", secret_file)
        options.insecure = _arguments.flag("insecure", insecure)
        pointer = ctypes.c_void_p()
        _check(LIBRARY.gradrail_publisher_open(ctypes.byref(options), described, len(self._shapes),
                                               ctypes.byref(pointer)))
        self._handle = _Handle(pointer, LIBRARY.gradrail_publisher_free)
        _publishers.add(self)

    @property
    def address(self) -> str:
        """"host:port" for subscribers on this host. For others, replace 0.0.0.0 by the name of this host."""
        return LIBRARY.gradrail_publisher_address(self._handle.pointer).decode()

    def publish(self, version: int, values: Any = None) -> None:
        """Publishes `values`, or those of the model, as `version`. Returns after one copy.

        Versions increase. Raises InvalidArgument, ResourceExhausted, FailedPrecondition after close().
        """
        arrays = _matching(self._model if values is None else values, self._shapes)
        number = _arguments.whole("version", version, (1 << 64) - 1)
        _check(LIBRARY.gradrail_publisher_publish(self._handle.pointer, number, _pointers(arrays), len(arrays)))

    def stats(self) -> Dict[str, Any]:
        """Returns counters: versions, readers, bytes sent, the hash of the newest version."""
        text = LIBRARY.gradrail_publisher_stats_json(self._handle.pointer)
        if text is None:
            raise errors.ResourceExhausted(last_error())
        return json.loads(text)

    def close(self, wait: float = 5.0) -> None:
        """Waits up to `wait` seconds until each reader has the last version, then reports the end to them."""
        _check(LIBRARY.gradrail_publisher_close(self._handle.pointer, _seconds("wait", wait)))

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close(5.0 if kind is None else 0.0)


class Weights(collections.abc.Mapping):
    """Parameters by name, float32. fp32: views of the subscriber's memory. bf16: each access makes a wider copy."""

    def __init__(self, bits: Dict[str, np.ndarray]):
        self._bits = bits

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            bits = self._bits[name]
        except KeyError:
            raise KeyError(f"{name!r}: the tensors are {', '.join(self._bits)}") from None
        if bits.dtype == np.uint32:
            return bits.view(np.float32)
        wide = np.left_shift(bits.reshape(-1), 16, dtype=np.uint32)
        return wide.view(np.float32).reshape(bits.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._bits)

    def __len__(self) -> int:
        return len(self._bits)


class Subscriber:
    """Follows the versions of a Publisher.

        subscriber = gradrail.Subscriber("10.0.0.1:7000", secret_file="secret")
        for version, weights in subscriber:
            subscriber.load_into(model)

    It has no thread: next() receives, verifies the hash, and then replaces the values in place. A lost publisher is
    connected again, with growing pauses, until it returns. A Subscriber belongs to one thread at a time.

    Parameters
    ----------
    address : "host:port"
    have : (version, values), optional
        Parameters from an earlier run. The reader then receives a delta, if the publisher keeps that version.
    follow : "newest" or "each"
        "newest" skips versions that were replaced meanwhile. "each" receives each version that the publisher keeps.
    connect_timeout : seconds or None
        To wait for the publisher; None: without limit. Raises DeadlineExceeded.
    silence_timeout : seconds
        A publisher that sends nothing for so long is lost.

    Attributes
    ----------
    shapes : names and shapes. weights : the values of `version`, float32. bits : read-only views, uint16 for bf16 and
    uint32 for fp32. version, hash : of the version in place, or None. Before the first version, weights and bits raise
    FailedPrecondition.
    """

    def __init__(self, address: str, have: Optional[Tuple[int, Any]] = None, *, follow: str = "newest",
                 connect_timeout: Optional[float] = 60.0, silence_timeout: float = 30.0,
                 secret_file: Union[None, str, os.PathLike] = None, insecure: bool = False):
        options = SubscribeOptions(struct_bytes=ctypes.sizeof(SubscribeOptions))
        options.address = _arguments.text("address", address)
        options.follow = _arguments.text("follow", follow)
        options.silence_timeout_s = _seconds("silence_timeout", silence_timeout)
        options.secret_file = _optional_text("secret_file", secret_file)
        options.insecure = _arguments.flag("insecure", insecure)
        pointer = ctypes.c_void_p()
        _check(LIBRARY.gradrail_subscriber_open(ctypes.byref(options), ctypes.byref(pointer)))
        self._handle = _Handle(pointer, LIBRARY.gradrail_subscriber_free)
        self._busy = threading.Lock()
        self.version: Optional[int] = None
        self._wait(LIBRARY.gradrail_subscriber_connect, connect_timeout)
        self.format: str = LIBRARY.gradrail_subscriber_format(self._handle.pointer).decode()
        self._arrays = self._memory()
        self._bits = {name: array.view() for name, array in self._arrays.items()}
        for array in self._bits.values():
            array.flags.writeable = False
        self.shapes: Dict[str, Tuple[int, ...]] = {name: array.shape for name, array in self._bits.items()}
        if have is not None:
            self._resume(have)

    @property
    def bits(self) -> Dict[str, np.ndarray]:
        if self.version is None:
            raise errors.FailedPrecondition("there is no version yet: call next() first")
        return self._bits

    @property
    def weights(self) -> Weights:
        return Weights(self.bits)

    def _memory(self) -> Dict[str, np.ndarray]:
        count = ctypes.c_size_t()
        tensors = LIBRARY.gradrail_subscriber_tensors(self._handle.pointer, ctypes.byref(count))
        arrays = {}
        for index in range(count.value):
            tensor = tensors[index]
            size = ctypes.c_size_t()
            address = LIBRARY.gradrail_subscriber_bits(self._handle.pointer, index, ctypes.byref(size))
            memory = (ctypes.c_ubyte * size.value).from_address(address)
            memory.handle = self._handle  # the memory exists as long as the array
            array = np.frombuffer(memory, np.uint16 if self.format == "bf16" else np.uint32)
            arrays[tensor.name.decode()] = array.reshape(tensor.shape[:tensor.dimension_count])
        return arrays

    def _resume(self, have: Tuple[int, Any]) -> None:
        try:
            version, values = have
        except (TypeError, ValueError):
            raise errors.InvalidArgument("have: must be (version, values)") from None
        number = _arguments.whole("version in have", version, (1 << 64) - 1)
        arrays = _matching(values, self.shapes)
        _check(LIBRARY.gradrail_subscriber_resume(self._handle.pointer, number, _pointers(arrays), len(arrays)))
        self.version = number

    def _wait(self, function: Any, timeout: Optional[float], *arguments: Any) -> None:
        """Calls a function that can be continued, in slices."""
        limit = None if timeout is None else _seconds("timeout", timeout)
        deadline = time.monotonic() + (_LONGEST_S if limit is None else limit)
        if not self._busy.acquire(blocking=False):
            raise errors.FailedPrecondition("another thread uses this subscriber: it belongs to one thread at a time")
        try:
            while True:
                left = max(0.0, deadline - time.monotonic())
                code = function(self._handle.pointer, min(left, _SLICE_S), *arguments)
                if code != errors.DeadlineExceeded.code:
                    return _check(code)
                if time.monotonic() >= deadline:
                    raise errors.DeadlineExceeded(f"{last_error()} (waited {limit} s)")
        finally:
            self._busy.release()

    def next(self, timeout: Optional[float] = None) -> Tuple[int, Weights]:
        """Waits for the next version and returns it with its parameters, which are valid until the next version.

        Raises DeadlineExceeded after `timeout` seconds; the values in place stay valid, and a further call continues.
        Aborted: the publisher has ended; a further call waits for its next start. A restarted publisher may have lower
        version numbers. DataLoss: two versions in a row had a wrong hash. FailedPrecondition: another secret, or other
        tensors after a restart.
        """
        version = ctypes.c_uint64()
        self._wait(LIBRARY.gradrail_subscriber_next, timeout, ctypes.byref(version))
        self.version = version.value
        return self.version, self.weights

    def __iter__(self) -> Iterator[Tuple[int, Weights]]:
        """Yields version after version until the publisher ends."""
        while True:
            try:
                yield self.next()
            except errors.Aborted:
                return

    @property
    def hash(self) -> Optional[str]:
        """SHA-256 over names, shapes and bits of the version in place, as hexadecimal digits."""
        text = LIBRARY.gradrail_subscriber_hash(self._handle.pointer)
        return None if text is None else text.decode()

    def load_into(self, model: Any) -> None:
        """Copies the parameters into a torch module or a mapping of torch tensors, in their dtype and on their device."""
        import torch  # imported here: NumPy users need no torch
        targets = model.state_dict() if hasattr(model, "state_dict") else model
        if not isinstance(targets, collections.abc.Mapping):
            raise errors.InvalidArgument(f"load_into: must be a torch module or a mapping of torch tensors, not "
                                         f"{type(model).__name__}")
        missing = [name for name in self.bits if name not in targets]
        if missing:
            raise errors.InvalidArgument(f"load_into: the model has no tensor {', '.join(missing)}")
        kind = torch.bfloat16 if self.format == "bf16" else torch.float32
        signed = np.int16 if self.format == "bf16" else np.int32
        with torch.no_grad():
            for name, bits in self._arrays.items():
                if not isinstance(targets[name], torch.Tensor) or not targets[name].is_floating_point():
                    raise errors.InvalidArgument(f"load_into: {name!r} must be a torch tensor of a floating-point type")
                if tuple(targets[name].shape) != bits.shape:
                    raise errors.InvalidArgument(f"load_into: tensor {name!r} has shape {tuple(targets[name].shape)}; "
                                                 f"the publisher has {bits.shape}")
                source = np.array(bits.view(signed), copy=True) if bits.ndim == 0 else bits.view(signed)
                targets[name].copy_(torch.from_numpy(source).view(kind))

    def stats(self) -> Dict[str, Any]:
        """Returns counters: versions and bytes, full and delta, connections, wrong hashes, the last lag in seconds."""
        text = LIBRARY.gradrail_subscriber_stats_json(self._handle.pointer)
        if text is None:
            raise errors.ResourceExhausted(last_error())
        return json.loads(text)
