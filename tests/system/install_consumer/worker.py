#!/usr/bin/env python3
"""The worker of worker.cc through ctypes. Usage: worker.py LIBRARY PS_HOSTS WORKER_HOSTS TASK_INDEX VERSION"""
import ctypes
import sys


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("dimension_count", ctypes.c_size_t)]


class Options(ctypes.Structure):
    """The first members of gradrail_options: struct_bytes states the size, and the others have their defaults."""
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("ps_hosts", ctypes.c_char_p), ("worker_hosts", ctypes.c_char_p),
                ("task_index", ctypes.c_uint32), ("bucket_bytes", ctypes.c_uint32), ("mode", ctypes.c_char_p),
                ("optimizer", ctypes.c_char_p), ("learning_rate", ctypes.c_float)]


def load(path):
    library = ctypes.CDLL(path)
    library.gradrail_version.restype = ctypes.c_char_p
    library.gradrail_last_error.restype = ctypes.c_char_p
    for name in ("gradrail_parameters", "gradrail_gradients"):
        function = getattr(library, name)
        function.restype = ctypes.POINTER(ctypes.c_float)
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    library.gradrail_free.restype = None
    for name in ("start", "exchange", "wait", "leave", "free"):
        getattr(library, "gradrail_" + name).argtypes = [ctypes.c_void_p]
    return library


def main():
    path, ps_hosts, worker_hosts, task_index, version = sys.argv[1:]
    library = load(path)
    assert library.gradrail_version() == version.encode(), library.gradrail_version()

    def check(status):
        if status != 0:
            sys.exit(f"worker.py: status {status}: {library.gradrail_last_error().decode()}")

    options = Options(struct_bytes=ctypes.sizeof(Options), ps_hosts=ps_hosts.encode(),
                      worker_hosts=worker_hosts.encode(), task_index=int(task_index), mode=b"sync", learning_rate=1.0)
    tensor = Tensor(b"w", (ctypes.c_int64 * 1)(4), 1)
    client = ctypes.c_void_p()
    check(library.gradrail_join(ctypes.byref(options), ctypes.byref(tensor), ctypes.c_size_t(1), ctypes.byref(client)))
    elements = ctypes.c_size_t()
    parameters = library.gradrail_parameters(client, 0, ctypes.byref(elements))
    gradients = library.gradrail_gradients(client, 0, None)
    assert elements.value == 4, elements.value
    for i in range(elements.value):
        parameters[i] = 10.0
    check(library.gradrail_start(client))
    for i in range(elements.value):
        gradients[i] = options.task_index + 1.0
    check(library.gradrail_exchange(client))
    check(library.gradrail_wait(client))
    assert parameters[:4] == [7.5] * 4, parameters[:4]
    check(library.gradrail_leave(client))
    library.gradrail_free(client)


if __name__ == "__main__":
    main()
