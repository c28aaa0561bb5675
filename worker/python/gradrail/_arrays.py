"""Files of named arrays: what `python3 -m gradrail.checkpoint export` writes and its `import` reads."""
import contextlib
import errno
import json
import os
import stat
import zipfile
from typing import Any, BinaryIO, Dict, Iterator, Tuple

import numpy as np

from . import errors

_METADATA = "__metadata__"
_TYPES = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
_LONGEST_HEADER = 100_000_000  # as the reference implementation


def check_kind(path: str) -> None:
    """Raises OSError if the name has no regular file and no link to one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            raise OSError(errno.EINVAL, f"cannot be read: is a symbolic link to {os.readlink(path)}, which is not there (is its "
                          "storage mounted?)", path) from None
        raise
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe (FIFO)", stat.S_IFSOCK: "a socket"}
        raise OSError(errno.EINVAL, f"is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a regular file", path)


def open_regular(path: str) -> BinaryIO:
    """Opens a regular file. A pipe would wait for its writer, and a device may have no end."""
    check_kind(path)  # before open(): to open some devices does something
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "has become another kind of file", path)
    return file


def read(path: str) -> Dict[str, np.ndarray]:
    """Returns the arrays of a .safetensors or .npz file. OSError names the file."""
    if path.endswith(".safetensors"):
        return read_safetensors(path)[0]
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, EOFError) as error:
        raise errors.InvalidArgument(f"{path}: is not an .npz file, or is damaged ({error!r})") from None


def read_safetensors(path: str) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Returns the arrays in the order of their bytes, and the metadata. OSError names the file."""
    try:
        with open_regular(path) as file:
            # The length first: a file of another format can have gigabytes.
            prefix, rest = file.read(8), os.fstat(file.fileno()).st_size - 8
            length = int.from_bytes(prefix, "little")
            if rest < 0 or length > min(rest, _LONGEST_HEADER):
                raise ValueError(f"its first 8 bytes are no length of a header ({length})")
            header = json.loads(file.read(length).decode())
            data = np.fromfile(file, np.uint8)
        metadata = header.pop(_METADATA, {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError(f"{_METADATA} has a value that is no text")
        found = sorted(((_place(entry), name, entry) for name, entry in header.items()), key=lambda each: each[:2])
        arrays, end = {}, 0
        for (begin, after), name, entry in found:
            if entry["dtype"] not in _TYPES:
                raise errors.InvalidArgument(f"{path}: array {name} has the type {entry['dtype']}: save it as float32 (F32)")
            # The format permits neither gaps nor common bytes.
            if begin != end:
                raise ValueError(f"array {name} has a gap before it, or overlaps another one")
            arrays[name] = _array(name, entry, data, begin, after)
            end = after
        if end != len(data):
            raise ValueError(f"{len(data) - end} bytes belong to no array")
        return arrays, metadata
    except errors.Error:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise errors.InvalidArgument(f"{path}: is not a safetensors file, or is damaged: {error}") from None


def _place(entry: Dict[str, Any]) -> Tuple[int, int]:
    begin, end = entry["data_offsets"]
    if type(begin) is not int or type(end) is not int:
        raise ValueError("an offset is no integer")
    return begin, end


def _array(name: str, entry: Dict[str, Any], data: np.ndarray, begin: int, end: int) -> np.ndarray:
    kind, size = _TYPES[entry["dtype"]], 1
    if not begin <= end <= len(data):
        raise ValueError(f"array {name} is not within the file")
    for dimension in entry["shape"]:
        if type(dimension) is not int:
            raise ValueError(f"array {name} has a dimension that is no integer")
        size *= max(dimension, -1)
    if min(entry["shape"], default=0) < 0 or size * kind.itemsize != end - begin:
        raise ValueError(f"array {name} has {end - begin} bytes, which is not its shape")
    return data[begin:end].view(kind).reshape(entry["shape"])


@contextlib.contextmanager
def replacement(path: str) -> Iterator[BinaryIO]:
    """A file that gets its name at the end. An error leaves the old file or the whole new one. OSError names the file."""
    temporary = f"{path}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            check_kind(path)  # os.replace() would replace a device such as /dev/null
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)  # of an earlier crash; it may also be a link to another file, or a pipe
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)  # a crash could lose the name although the bytes are on the disk
        finally:
            os.close(folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if isinstance(error, OSError) and error.filename in (None, temporary):  # a write has no file name
            hint = " (`ulimit -f`?)" if error.errno == errno.EFBIG else ""
            raise OSError(error.errno, f"{error.strerror}{hint}", path) from None
        raise


def write_safetensors(file: BinaryIO, arrays: Dict[str, np.ndarray], metadata: Dict[str, str]) -> None:
    header: Dict[str, Any] = {_METADATA: metadata}
    end = 0
    for name, array in arrays.items():
        if name == _METADATA:
            raise errors.InvalidArgument(f"the format safetensors reserves the name {_METADATA}, which a tensor has: write an .npz "
                                         "file")
        header[name] = {"dtype": "F32" if array.dtype == np.float32 else "I64", "shape": list(array.shape),
                        "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # readers map the file: the numbers begin at a multiple of 8
    file.write(len(text).to_bytes(8, "little") + text)
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).data)


def write_npz(file: BinaryIO, arrays: Dict[str, np.ndarray]) -> None:
    """Writes a file of numpy.savez(), which takes no array with the name `file`. Not compressed: weights hardly shrink."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
