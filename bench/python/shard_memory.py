#!/usr/bin/python3
"""Memory of a parameter server against the number of its workers: gradients on their way, and what a delta needs.

The workers are threads of this process. Their parameters and gradients share a few megabytes of memory, so that many
workers with a large model fit into one host. The values mean nothing. The bytes are sent in full, over TCP.

    bench/python/shard_memory.py --elements 16M --workers 1,4,16,64 --slot_mib 0,4
    bench/python/shard_memory.py --elements 16M --workers 1,2,8,16 --slot_mib 4 --modes sync,async --return delta
"""
import argparse
import ctypes
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "worker" / "python"))
BINARY = os.environ.get("GRADRAIL_BINARY", str(REPOSITORY / "build" / "release" / "bin" / "gradrail"))
os.environ.setdefault("GRADRAIL_LIBRARY", str(REPOSITORY / "build" / "release" / "lib" / "libgradrail.so"))
import gradrail  # noqa: E402

SHARED_BYTES = 16 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


def number(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def share(array: np.ndarray, file: int) -> None:
    """Replaces the memory of the array by the same pages again and again."""
    read_write, shared_fixed = 3, 0x11
    first, bytes_left = array.ctypes.data, array.nbytes // 4096 * 4096
    while bytes_left > 0:
        part = min(bytes_left, SHARED_BYTES)
        if libc.mmap(first, part, read_write, shared_fixed, file, 0) != first:
            raise OSError(ctypes.get_errno(), "mmap")
        first, bytes_left = first + part, bytes_left - part


def free_ports(count: int) -> list:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def memory_of(process: int) -> dict:
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines())
    return {name: int(fields[key].split()[0]) // 1024
            for name, key in (("peak_mib", "VmHWM"), ("anonymous_mib", "RssAnon"), ("shared_mib", "RssShmem"))}


def measure(flags: argparse.Namespace, mode: str, workers: int, slot_mib: int, file: int) -> dict:
    ports = free_ports(workers + 1)
    hosts = [f"127.0.0.1:{port}" for port in ports]
    cluster = ["--ps_hosts", hosts[0], "--worker_hosts", ",".join(hosts[1:])]
    server = subprocess.Popen([BINARY, "train", "--job_name", "ps", "--task_index", "0", *cluster, "--shards", str(flags.shards),
                               "--slot_mib", str(slot_mib), "--transport", "tcp"], stdout=subprocess.DEVNULL)
    times, failed = [], []

    def work(index: int) -> None:
        try:
            client = gradrail.join({"w": (flags.elements,)}, mode=mode, ps_hosts=hosts[0], worker_hosts=hosts[1:],
                                   task_index=index, transports="tcp", join_timeout=60, return_format=flags.returns)
            share(client.parameters["w"], file)
            share(client.gradients["w"], file)
            client.start()
            client.barrier("begun")
            for _ in range(flags.steps):
                begun = time.monotonic()
                client.step()
                times.append(time.monotonic() - begun)
            client.finish_steps()
            client.barrier("ended")
            client.leave()
        except Exception as error:  # the thread ends, and the others with the run
            failed.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    memory = {}
    while any(thread.is_alive() for thread in threads):
        if server.poll() is None:
            memory = memory_of(server.pid)
        time.sleep(0.1)
    server.wait(60)
    if failed:
        raise failed[0]
    return {"model_mib": flags.elements * 4 >> 20, "mode": mode, "return": flags.returns, "workers": workers,
            "slot_mib": slot_mib, "shards": flags.shards, **memory, "step_s": round(float(np.median(times)), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=number, default="16M", help="elements of the model; K, M, G may follow")
    parser.add_argument("--workers", default="1,4,16,64", help="numbers of workers")
    parser.add_argument("--slot_mib", default="0,32", help="limits; 0: none")
    parser.add_argument("--modes", default="sync", help="consistency modes")
    parser.add_argument("--return", dest="returns", default="fp32", help="format of an answer")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--shards", type=int, default=2)
    flags = parser.parse_args()
    with tempfile.TemporaryFile() as file:
        file.truncate(SHARED_BYTES)
        for mode, slot_mib, workers in itertools.product(
                *(text.split(",") for text in (flags.modes, flags.slot_mib, flags.workers))):
            print(json.dumps(measure(flags, mode, int(workers), int(slot_mib), file.fileno())), flush=True)


if __name__ == "__main__":
    main()
