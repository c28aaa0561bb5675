"""Converts checkpoints of the parameter servers to files of arrays for NumPy and PyTorch, and back.

    python3 -m gradrail.checkpoint export FOLDER model.safetensors --optimizer-state
    python3 -m gradrail.checkpoint import NEW_FOLDER model.safetensors

`gradrail checkpoint ls` and `verify` show what is in a folder. docs/design/wire-formats.md describes its files.

Exit status: 0 success, 2 usage, 4 a file is missing, damaged or unfit, or cannot be written; the message names it.
"""
import argparse
import contextlib
import fcntl
import itertools
import logging
import math
import os
import re
import socket
import struct
import sys
import time
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

try:
    import numpy as np
except ModuleNotFoundError as error:
    raise ImportError("gradrail.checkpoint needs NumPy: apt-get install python3-numpy, or pip install numpy") from error

from . import _arrays, _crc32c, errors

LOGGER = logging.getLogger("gradrail")
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "mean", "adamw", "torch_adam", "delayed_nesterov")  # by their numbers
# Names of the state vectors, in the order of the file.
_STATES = {"momentum": (":velocity",), "nesterov": (":velocity",), "adam": (":m", ":v"), "adamw": (":m", ":v"),
           "torch_adam": (":m", ":v"), "delayed_nesterov": (":collected", ":velocity")}
_SUFFIXES = (":m", ":v", ":velocity", ":collected")
_STEP = ":global_step"
_MAGIC, _FORMAT = b"\x89GRCKPT\n", 6
_PROLOGUE = struct.Struct("<8sIIQ")
_FIXED = struct.Struct("<B6f2Q2QQ3I")  # the fields before the tensors
_SETTINGS = (0.001, 0.9, 0.9, 0.999, 1e-8, 0.0)  # learning rate, …, weight decay: a run has its own
_CHUNK = 1 << 18  # elements
_ALIGNMENT = 64  # elements, where the fragment changes
_MAX_STEP, _MAX_ELEMENTS, _MAX_NAME = 2**62, 2**38, 1024
_NAME = re.compile(r"gradrail-(\d+)-(\d+)-(\d+)-of-(\d+)\.ckpt")


class _Tensor(NamedTuple):
    name: str
    shape: Tuple[int, ...]
    fragment: str = ""


class _Header(NamedTuple):
    optimizer: str
    settings: Tuple[float, ...]
    first: int
    count: int
    step: int
    saved_us: int
    run: int
    shard: int
    shards: int
    bucket_bytes: int
    tensors: List[_Tensor]
    finite: bool


class _Checkpoint(NamedTuple):
    header: _Header
    vectors: List[np.ndarray]  # the parameters, then the state


def _vector_count(optimizer: str) -> int:
    return 1 + len(_STATES.get(optimizer, ()))


def _places(tensors: List[_Tensor]) -> Tuple[List[int], int]:
    """Returns the first element of each tensor, and the number of all elements."""
    places, end = [], 0
    for index, tensor in enumerate(tensors):
        if index > 0 and tensor.fragment != tensors[index - 1].fragment:
            end += -end % _ALIGNMENT
        places.append(end)
        end += math.prod(tensor.shape)
    return places, end


def _check_tensors(tensors: List[_Tensor]) -> None:
    """Raises ValueError for a schema that the servers refuse."""
    names = set()
    for index, (name, shape, fragment) in enumerate(tensors):
        for text in (name, fragment):
            if len(text.encode("utf-8", "surrogatepass")) > _MAX_NAME:
                raise ValueError(f"tensor {index}: its name has more than {_MAX_NAME} bytes")
            if any(ord(character) < 32 or ord(character) == 127 for character in text):
                raise ValueError(f"tensor {index}: its name {text!r} contains a control character")
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise ValueError(f"tensor {index}: its name is not UTF-8")
        if not name or name in names:
            raise ValueError(f"tensor {index}: its name {name!r} is empty, or that of another tensor")
        names.add(name)
        if min(shape, default=1) < 1 or math.prod(shape) > _MAX_ELEMENTS:
            raise ValueError(f"tensor '{name}' {list(shape)}: dimensions must be at least 1, and all elements together at most "
                             f"{_MAX_ELEMENTS}")
    if not tensors or _places(tensors)[1] > _MAX_ELEMENTS:
        raise ValueError(f"the tensors must have 1 to {_MAX_ELEMENTS} elements")


def _decode(data: bytes) -> _Header:
    """Raises ValueError or struct.error: the fields contradict each other."""
    at = 0

    def take(layout: str) -> Tuple[Any, ...]:
        nonlocal at
        at += struct.calcsize(layout)
        return struct.unpack_from(layout, data, at - struct.calcsize(layout))

    def items(kind: str) -> Tuple[Any, ...]:
        count, = take("<I")
        if count > len(data):  # before the memory for them
            raise ValueError(f"{count} items in a header of {len(data)} bytes")
        return take(f"<{count}{kind}")

    fixed = take(_FIXED.format)
    tensors = [_Tensor(items("s")[0].decode(), items("q"), items("s")[0].decode()) for _ in range(take("<I")[0])]
    items("Q")  # versions of the buckets
    items("Q")  # steps of the fragments
    finite, = take("<B")
    if at != len(data):
        raise ValueError(f"its fields end at byte {at} of {len(data)}")
    if fixed[0] >= len(OPTIMIZERS):
        raise ValueError(f"optimizer number {fixed[0]}")
    header = _Header(OPTIMIZERS[fixed[0]], fixed[1:7], *fixed[7:], tensors, finite == 1)
    _check_tensors(tensors)
    if header.first + header.count > _places(tensors)[1] or header.step > _MAX_STEP:
        raise ValueError(f"step {header.step} and {header.count} elements from {header.first}")
    return header


def _encode(header: _Header) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<I", len(value.encode())) + value.encode()

    data = _FIXED.pack(OPTIMIZERS.index(header.optimizer), *header.settings, *header[2:10])
    data += struct.pack("<I", len(header.tensors))
    for name, shape, fragment in header.tensors:
        data += text(name) + struct.pack(f"<I{len(shape)}q", len(shape), *shape) + text(fragment)
    # One bucket has the step of the whole model, and no fragment has a step of its own.
    return data + struct.pack("<IQIB", 1, header.step, 0, header.finite)


def _file_bytes(header: _Header, field_bytes: int) -> int:
    chunks = -(-header.count // _CHUNK)
    return _PROLOGUE.size + field_bytes + 4 + _vector_count(header.optimizer) * 4 * (header.count + chunks)


def _chunks(header_crc: int, vectors: Sequence[np.ndarray]) -> Iterator[Tuple[int, int, int, np.ndarray]]:
    """Yields the number of the vector, the first element, the start of the CRC, and the elements of each chunk of a file."""
    index = 0
    for number, vector in enumerate(vectors):
        for first in range(0, len(vector), _CHUNK):
            yield number, first, _crc32c.of_bytes(struct.pack("<Q", index), header_crc), vector[first:first + _CHUNK]
            index += 1


class _Shard:
    """One file of a set, open behind its header. DataLoss names the file and the damage."""

    def __init__(self, path: str):
        self.path = path
        try:
            self._file = _arrays.open_regular(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"checkpoint {path}") from None
        size = os.fstat(self._file.fileno()).st_size
        if size < _PROLOGUE.size + 4:
            raise self.damaged(f"truncated: {size} bytes are too few for a header")
        prologue = self._take(_PROLOGUE.size)
        magic, version, field_bytes, file_bytes = _PROLOGUE.unpack(prologue)
        if magic != _MAGIC:
            raise self.damaged("not a gradrail checkpoint (its first 8 bytes differ)")
        if version != _FORMAT:
            raise self.damaged(f"format version {version} where this program reads {_FORMAT} (use the version of gradrail that "
                               "wrote it, or another folder)")
        if field_bytes > size - _PROLOGUE.size - 4:
            raise self.damaged(f"truncated or damaged: a header of {field_bytes} bytes in a file of {size}")
        fields = self._take(field_bytes)
        self._crc = _crc32c.of_bytes(prologue + fields)
        self._check_crc(f"header (bytes 0 to {_PROLOGUE.size + field_bytes})", self._crc)
        try:
            self.header = _decode(fields)
        except (ValueError, struct.error) as error:
            raise self.damaged(f"header: {error}") from None
        implied = _file_bytes(self.header, field_bytes)
        if file_bytes != implied:
            raise self.damaged(f"its sizes contradict each other: {file_bytes} bytes by its header's total, {implied} by its range "
                               "and optimizer")
        if size != implied:
            raise self.damaged(f"truncated: {size} of {implied} bytes" if size < implied else
                               f"{size - implied} bytes follow its end at byte {implied}")

    def damaged(self, what: str) -> errors.DataLoss:
        return errors.DataLoss(f"checkpoint {self.path}: {what}")

    def _take(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self.damaged("became shorter while it was read")
        return data

    def _check_crc(self, place: str, crc: int) -> None:
        stored, = struct.unpack("<I", self._take(4))
        if crc != stored:
            raise self.damaged(f"{place}: CRC32C is {crc:08x}, must be {stored:08x}")

    def read(self, vectors: List[np.ndarray]) -> None:
        """Fills the range of this shard in each vector of the model."""
        first, end = self.header.first, self.header.first + self.header.count
        for number, begin, start, chunk in _chunks(self._crc, [vector[first:end] for vector in vectors]):
            chunk[:] = np.frombuffer(self._take(chunk.nbytes), "<f4")
            name = f"state {number - 1}" if number else "parameters"
            self._check_crc(f"{name}, elements {begin} to {begin + len(chunk)}", _crc32c.of_vector(chunk, start))


class _Set:
    """The files of one save in a folder."""

    def __init__(self, folder: str, step: int, saved_us: int, shards: int):
        self.folder, self.step, self.saved_us, self.shards = folder, step, saved_us, shards
        self.present: List[int] = []
        self.unreadable: Optional[OSError] = None

    def missing(self) -> str:
        """Returns a text for an incomplete set, "" for a complete one."""
        if len(self.present) == self.shards:
            return ""
        # The first few: a name may claim billions of shards.
        some = list(itertools.islice((str(shard) for shard in range(self.shards) if shard not in self.present), 8))
        return (f"step {self.step} is incomplete: of {self.shards} shards {len(self.present)} are there, missing {', '.join(some)}"
                + (", …" if self.shards - len(self.present) > len(some) else ""))

    def read(self) -> _Checkpoint:
        """Compares the headers before memory is allocated: one save, one model, no gap."""
        shards: List[_Shard] = []
        covered = 0
        for index in range(self.shards):
            shard = _Shard(os.path.join(self.folder, _file_name(self.step, self.saved_us, index, self.shards)))
            shards.append(shard)
            header, first = shard.header, shards[0].header
            if (header.step, header.saved_us, header.shard, header.shards) != (self.step, self.saved_us, index, self.shards):
                raise shard.damaged(f"does not belong to its set: it holds shard {header.shard} of {header.shards} of step "
                                    f"{header.step}, saved at {header.saved_us} us")
            if header._replace(first=0, count=0, shard=0, finite=True) != first._replace(first=0, count=0, shard=0, finite=True):
                raise shard.damaged("does not belong to its set: its tensors, optimizer or settings are not those of shard 0")
            if header.first != covered:
                raise shard.damaged(f"does not belong to its set: it begins at element {header.first}, the shard before ends at "
                                    f"{covered}")
            covered += header.count
        elements = _places(first.tensors)[1]
        if covered != elements:
            raise errors.DataLoss(f"checkpoint folder {self.folder}: the shards of step {self.step} hold {covered} of {elements} "
                                  "elements")
        vectors = [np.empty(elements, "<f4") for _ in range(_vector_count(first.optimizer))]
        for shard in shards:
            shard.read(vectors)
        return _Checkpoint(first._replace(finite=all(shard.header.finite for shard in shards)), vectors)


def _file_name(step: int, saved_us: int, shard: int, shards: int) -> str:
    return f"gradrail-{step:012}-{saved_us:016}-{shard}-of-{shards}.ckpt"


def _list_sets(folder: str) -> List[_Set]:
    """Returns the sets of a folder, the newest first."""
    sets: Dict[Tuple[int, int, int], _Set] = {}
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"checkpoint folder {folder}") from None
    for name in sorted(names):
        found = _NAME.fullmatch(name)
        step, saved_us, shard, shards = map(int, found.groups()) if found else (0, 0, 0, 0)
        if shard >= shards or name != _file_name(step, saved_us, shard, shards):
            continue
        one = _Set(folder, step, saved_us, shards)
        try:
            _arrays.check_kind(os.path.join(folder, name))
        except FileNotFoundError:
            continue  # removed since the listing
        except OSError as error:
            one.unreadable = OSError(error.errno, f"{error.strerror} (make its file readable, or remove it from the folder)",
                                     f"checkpoint {error.filename}")
        known = sets.setdefault((step, saved_us, shards), one)
        known.present.append(shard)
        known.unreadable = known.unreadable or one.unreadable
    return [sets[key] for key in sorted(sets, reverse=True)]


def _read(folder: str, step: Optional[int]) -> _Checkpoint:
    """Reads the set of a step, or the newest set that is complete in every byte, as a restore does."""
    sets = [one for one in _list_sets(folder) if step in (None, one.step)]
    passed_over: List[str] = []
    damage: List[str] = []
    for one in sets:
        # No crash leaves such a name: its storage may return, and an older set would discard its steps.
        if one.unreadable:
            raise one.unreadable
        if one.missing():
            passed_over.append(one.missing())
            continue
        try:
            checkpoint = one.read()
        except errors.DataLoss as error:  # only damage leads to an older set
            if step is not None:
                raise
            passed_over.append(str(error))
            damage.append(str(error))
            continue
        for reason in passed_over:
            LOGGER.warning("checkpoint folder %s: %s: going back to step %d", folder, reason, one.step)
        if not checkpoint.header.finite:
            LOGGER.warning("checkpoint folder %s: the parameters or the optimizer state of step %d have NaN or infinity; "
                           "`gradrail checkpoint ls` shows which sets are without them", folder, one.step)
        return checkpoint
    if damage:
        older = "there is no older one" if len(damage) == 1 else f"the {len(damage) - 1} older ones are damaged too"
        raise errors.DataLoss(f"{damage[0]} ({older})")
    if step is None and not sets:
        raise errors.FailedPrecondition(f"checkpoint folder {folder}: holds no checkpoint")
    raise errors.FailedPrecondition(f"checkpoint folder {folder}: no complete set{'' if step is None else f' of step {step}'}: "
                                    f"{(passed_over or ['no file'])[0]}")


def export_arrays(folder: str, path: str, step: Optional[int] = None, optimizer_state: bool = False) -> Tuple[int, int]:
    """Writes one array for each tensor of a checkpoint. Returns the number of arrays and the global step.

    Parameters
    ----------
    folder : --checkpoint_dir of a run
    path : NAME.safetensors, or NAME.npz for numpy.load()
    step : global step; default: the newest complete set
    optimizer_state : adds <tensor>:velocity, <tensor>:collected, or <tensor>:m and <tensor>:v of Adam, and :global_step

    Raises
    ------
    DataLoss: a file is damaged. FailedPrecondition: no complete set. OSError: a file cannot be read or written; an old
    `path` stays.
    """
    if os.path.isdir(path):
        raise errors.FailedPrecondition(f"{path}: is a folder; give the name of a file, such as "
                                        f"{os.path.join(path, 'model.safetensors')}")
    if not path.endswith((".safetensors", ".npz")):
        raise errors.InvalidArgument(f"{path}: the name must end with .safetensors or .npz, which selects the format")
    # Before the read: a wrong folder must not fail after gigabytes.
    with _arrays.replacement(path) as file:
        try:
            checkpoint = _read(folder, step)
        except FileNotFoundError:  # a run may have removed files between the listing and the read
            checkpoint = _read(folder, step)
        header, places = checkpoint.header, _places(checkpoint.header.tensors)[0]
        arrays: Dict[str, np.ndarray] = {}
        suffixes = _STATES.get(header.optimizer, ()) if optimizer_state else ()
        for suffix, vector in zip(("", *suffixes), checkpoint.vectors):
            for tensor, first in zip(header.tensors, places):
                arrays[tensor.name + suffix] = vector[first:first + math.prod(tensor.shape)].reshape(tensor.shape)
        if optimizer_state:
            arrays[_STEP] = np.array(header.step, "<i8")
        if path.endswith(".safetensors"):
            _arrays.write_safetensors(file, arrays, {"format": "pt", "optimizer": header.optimizer})
        else:
            _arrays.write_npz(file, arrays)
    return len(arrays), header.step


def _suffix(name: str) -> str:
    """Returns the part of a name that marks a state vector. Names of parameters may hold other colons."""
    return next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")


def _checkpoint_of(path: str, optimizer: Optional[str]) -> _Checkpoint:
    """Reads the arrays of a file. InvalidArgument names the array and the remedy."""
    if path.endswith(".npz"):
        raise errors.InvalidArgument(f"{path}: import reads .safetensors, which also names the optimizer: export the checkpoint "
                                     "with such a name")
    arrays, metadata = _arrays.read_safetensors(path)
    kind = optimizer or metadata.get("optimizer")

    def refused(name: str, why: str) -> errors.InvalidArgument:
        return errors.InvalidArgument(f"{path}: array {name} {why}")

    if kind is None:
        raise errors.InvalidArgument(f"{path}: does not name an optimizer: give --optimizer, such as adamw")
    if kind not in OPTIMIZERS:
        raise errors.InvalidArgument(f"{path}: optimizer '{kind}': must be one of {', '.join(OPTIMIZERS)}")
    parameters = {name: array for name, array in arrays.items() if not _suffix(name) and name != _STEP}
    if not parameters:
        raise errors.InvalidArgument(f"{path}: has no array of parameters")
    for name, array in parameters.items():
        if array.dtype != np.float32:
            raise refused(name, "is int64, and parameters are float32: leave out counters and other buffers")
    # A scalar of the file has one element here.
    tensors = [_Tensor(name, array.shape or (1,)) for name, array in parameters.items()]
    try:
        _check_tensors(tensors)
    except ValueError as error:
        raise errors.InvalidArgument(f"{path}: {error}") from None
    step = 0
    if _STEP in arrays:
        step = int(arrays[_STEP].flat[0]) if arrays[_STEP].size == 1 and arrays[_STEP].dtype == np.int64 else -1
        if not 0 <= step <= _MAX_STEP:
            raise refused(_STEP, f"must be one number of int64, from 0 to {_MAX_STEP}")
    states = _STATES.get(kind, ())
    of_state = [name for name in arrays if _suffix(name)]
    for name in of_state:
        if _suffix(name) not in states or name[:-len(_suffix(name))] not in parameters:
            raise refused(name, f"is no state of optimizer {kind} for an array of the file: give the --optimizer that made it")
    if states and not of_state and step > 0:
        raise errors.InvalidArgument(f"{path}: has step {step} and no state of {kind}: export it with --optimizer-state, or leave "
                                     f"out {_STEP}")
    vectors = [np.concatenate([array.ravel() for array in parameters.values()])]
    for suffix in states:
        vector = []
        for name, array in parameters.items():
            if of_state and name + suffix not in arrays:
                raise refused(name + suffix, "is missing")
            state = arrays.get(name + suffix, np.zeros(array.shape, "<f4"))
            if state.dtype != np.float32 or state.shape != array.shape:
                raise refused(name + suffix, f"must be float32 and have the shape of {name}")
            vector.append(state.ravel())
        vectors.append(np.concatenate(vector))
    if of_state and _STEP not in arrays:
        raise errors.InvalidArgument(f"{path}: has a state and no array {_STEP}: add the steps that the optimizer has made")
    finite = all(bool(np.isfinite(vector).all()) for vector in vectors)
    header = _Header(kind, _SETTINGS, first=0, count=len(vectors[0]), step=step, saved_us=time.time_ns() // 1000, run=0, shard=0,
                     shards=1, bucket_bytes=0, tensors=tensors, finite=finite)
    return _Checkpoint(header, vectors)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Holds the lock of a run in the folder. FailedPrecondition names a run that has it."""
    path = os.path.join(folder, "gradrail-lock")
    with contextlib.suppress(FileNotFoundError):
        _arrays.check_kind(path)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate()
            file.write(f"gradrail.checkpoint import\nprocess {os.getpid()} of host {socket.gethostname()}\n".encode())
            file.flush()
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a task can then read whose lock it is
        except BlockingIOError:
            owner = file.read(4096).decode(errors="replace").splitlines()
            raise errors.FailedPrecondition(f"checkpoint folder {folder}: another run uses it: {', '.join(owner)} (use another "
                                            "folder, or stop that run)") from None
        except OSError as error:
            LOGGER.warning("%s: %s: a run in this checkpoint folder is not refused", path, error.strerror)
        yield


def _write(file: BinaryIO, checkpoint: _Checkpoint) -> None:
    header, fields = checkpoint.header, _encode(checkpoint.header)
    data = _PROLOGUE.pack(_MAGIC, _FORMAT, len(fields), _file_bytes(header, len(fields))) + fields
    header_crc = _crc32c.of_bytes(data)
    file.write(data + struct.pack("<I", header_crc))
    for _, _, start, chunk in _chunks(header_crc, checkpoint.vectors):
        file.write(chunk.data)
        file.write(struct.pack("<I", _crc32c.of_vector(chunk, start)))


def import_arrays(folder: str, path: str, optimizer: Optional[str] = None) -> Tuple[int, int, str]:
    """Makes a checkpoint of the arrays of a file. A run with this --checkpoint_dir continues there. Without arrays of state, the
    state is zero, and the step must be 0 if the optimizer has a state. Returns the number of tensors, the global step and the
    optimizer.

    Parameters
    ----------
    folder : is made if it does not exist
    path : .safetensors file of an export with the state, or of gradrail.torch.save_state()
    optimizer : optimizer of the run; default: the one that the file names

    Raises
    ------
    InvalidArgument: the file is damaged, or an array does not fit. FailedPrecondition: the folder has a checkpoint, or a run uses
    it. OSError: a file cannot be read or written.
    """
    checkpoint = _checkpoint_of(path, optimizer)
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as error:
        what = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise errors.FailedPrecondition(f"checkpoint folder {folder}: {what} (it must be a folder in which this user may "
                                        "write)") from None
    header = checkpoint.header
    with _locked(folder):
        sets = _list_sets(folder)
        if sets:
            raise errors.FailedPrecondition(f"{folder}: holds a checkpoint of step {sets[0].step} already: give another folder")
        with _arrays.replacement(os.path.join(folder, _file_name(header.step, header.saved_us, 0, 1))) as file:
            _write(file, checkpoint)
    return len(header.tensors), header.step, header.optimizer


def _step(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: must be a global step, a whole number from 0")
    return int(text)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m gradrail.checkpoint", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    exports = commands.add_parser("export", help="write one array for each tensor of a checkpoint")
    exports.add_argument("folder", metavar="FOLDER", help="checkpoint folder (--checkpoint_dir of a run)")
    exports.add_argument("file", metavar="FILE", help="NAME.safetensors, or NAME.npz for numpy.load()")
    exports.add_argument("--step", type=_step, help="global step; default: the newest complete checkpoint")
    exports.add_argument("--optimizer-state", action="store_true",
                         help="also <tensor>:velocity, <tensor>:collected, or <tensor>:m and <tensor>:v of adam, and :global_step")
    imports = commands.add_parser("import", help="make a checkpoint of the arrays of a .safetensors file")
    imports.add_argument("folder", metavar="FOLDER", help="new checkpoint folder")
    imports.add_argument("file", metavar="FILE", help="file of export --optimizer-state, or of gradrail.torch.save_state()")
    imports.add_argument("--optimizer", choices=[name for name in OPTIMIZERS if name != "mean"],
                         help="optimizer of the run; default: the one that the file names")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]  # names of files are bytes
    logging.basicConfig(format="%(message)s")
    try:
        if options.command == "export":
            count, step = export_arrays(options.folder, options.file, options.step, options.optimizer_state)
            print(f"{options.file}: {count} arrays of step {step}")
        else:
            count, step, kind = import_arrays(options.folder, options.file, options.optimizer)
            print(f"{options.folder}: {count} tensors of step {step} for the optimizer {kind}")
        return 0
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except (errors.Error, MemoryError) as error:
        text = str(error)
    print(f"gradrail.checkpoint {options.command}: {text}", file=sys.stderr)
    return 4


if __name__ == "__main__":
    sys.exit(main())
