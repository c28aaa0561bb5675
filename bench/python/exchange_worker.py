"""Worker of the part `exchange` of compare_python.py: blocks of the loops in Python and in C, in turns.

Both loops use the same client, memory and connection, so that only the language differs.
"""
import argparse
import ctypes
import json
import pathlib
import time

import numpy as np

import gradrail

MOST_UPDATES = 1 << 24  # the parameters count the updates: fp32 has no further whole numbers


def python_steps(client, exchanges):
    """Returns the mean seconds of an exchange."""
    begin = time.perf_counter()
    for _ in range(exchanges):
        client.step()
    return (time.perf_counter() - begin) / exchanges


def python_halves(client, exchanges):
    """The same with the two halves of a step."""
    begin = time.perf_counter()
    for _ in range(exchanges):
        client.exchange()
        client.wait()
    return (time.perf_counter() - begin) / exchanges


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of each language")
    parser.add_argument("--block", type=float, required=True, help="seconds of a block")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the result")
    parser.add_argument("--loop", required=True, help="exchange_loop.c as a shared library")
    parser.add_argument("--call", choices=["step", "halves"], required=True, help="step(), or exchange() and wait()")
    flags = parser.parse_args()
    library = ctypes.CDLL(flags.loop)
    loop, in_python = {"step": (library.gradrail_bench_steps, python_steps),
                       "halves": (library.gradrail_bench_halves, python_halves)}[flags.call]
    loop.restype, loop.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_uint64]
    with gradrail.join({"gradient": (flags.bytes // 4,)}, learning_rate=1.0, mode="sync") as client:
        client.start()
        client.gradients["gradient"][:] = 1
        handle = client._handle.pointer  # the C loop needs the client of the library

        def python_block(exchanges):
            return in_python(client, exchanges)

        def c_block(exchanges):
            seconds = loop(handle, exchanges)
            if seconds < 0:
                raise RuntimeError(gradrail.client.last_error())
            return seconds

        fastest = min(python_block(1) for _ in range(20))
        exchanges = max(1, int(flags.block / fastest))
        python_block(exchanges)
        c_block(exchanges)
        blocks = {"python": [], "c": []}
        end = time.perf_counter() + 2 * flags.seconds
        while time.perf_counter() < end and client.global_step + 2 * exchanges < MOST_UPDATES or len(blocks["c"]) < 2:
            # The first language of a pair changes: an effect of the order then has no sign.
            pair = [("python", python_block), ("c", c_block)]
            for name, run in pair if len(blocks["c"]) % 2 else reversed(pair):
                blocks[name].append(run(exchanges))
        updates = client.global_step
        wrong = int(np.count_nonzero(client.parameters["gradient"] != np.float32(-updates)))
        paths = [str(path) for path in client.stats().get("paths", [])]
    result = {"exchanges": exchanges, "wrong": wrong, "path": "; ".join(paths), **blocks}
    (flags.out / "worker-0.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
