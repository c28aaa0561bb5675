"""Files of named arrays: what `gradrail checkpoint export` writes and `gradrail checkpoint import` reads."""
import contextlib
import errno
import json
import os
import stat
import zipfile
from typing import Any, BinaryIO, Dict

import numpy as np

from . import errors


def _check_kind(path: str) -> None:
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe (FIFO)", stat.S_IFSOCK: "a socket"}
        raise OSError(errno.EINVAL, f"is {kinds.get(stat.S_IFMT(mode), 'a device')}, not a regular file", path)


def _open(path: str) -> BinaryIO:
    """Opens a regular file. A pipe would wait for its writer, and a device may have no end."""
    _check_kind(path)  # precedes open(), which has side effects on some devices
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "has become another kind of file", path)
    return file


def read(path: str) -> Dict[str, np.ndarray]:
    """Returns the arrays of a file of `gradrail checkpoint export`. OSError names the file."""
    try:
        if not path.endswith(".safetensors"):
            with _open(path) as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        types = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
        with _open(path) as file:
            size = int.from_bytes(file.read(8), "little")
            if size > os.path.getsize(path):
                raise ValueError(f"its header has {size} bytes")
            header = json.loads(file.read(size))
            data = np.fromfile(file, np.uint8)
        arrays = {}
        for name, entry in header.items():
            if name != "__metadata__":
                first, end = entry["data_offsets"]
                arrays[name] = data[first:end].view(types[entry["dtype"]]).reshape(entry["shape"])
        return arrays
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, EOFError) as error:
        raise errors.InvalidArgument(f"{path}: is not a file of `gradrail checkpoint export`, or is damaged ({error!r})") from None


def write(path: str, arrays: Dict[str, np.ndarray], metadata: Dict[str, str]) -> None:
    """Writes a .safetensors file. An error leaves the old file or the whole new one. OSError names the file."""
    header: Dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32" if array.dtype == np.float32 else "I64", "shape": list(array.shape),
                        "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.tmp"
    with contextlib.suppress(FileNotFoundError):
        _check_kind(path)  # os.replace() would replace a device such as /dev/null
    try:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)  # file of an earlier crash; it may also be a link to another file, or a pipe
        with open(temporary, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if isinstance(error, OSError):  # a write has no file name
            raise OSError(error.errno, error.strerror, path) from None
        raise
