#!/usr/bin/env python3
"""Measures a sync step of many workers at one shard behind slow links: flat, and through aggregators.

    bench/cluster/measure_aggregators.py --binary build/release/bin/gradrail --workers 64 --racks 2

The server, and each rack of workers with its aggregator, have a network namespace of their own behind one bridge. tbf limits
the link of each in both directions, as a NIC does. `gradrail bench incast` provides the workers, one process each. The kernel
counts the bytes into the server. It needs root. Exit status 1: a run has failed, or its results are wrong.

The prediction is that of `gradrail predict` for the workers, or for one worker per aggregator: for the shard an aggregator is one
worker. Its flags are those of bench/predict/validate.py.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

NETWORK = "10.79.0"
LIMIT_SECONDS = 400
QUEUE_KIB = 2048  # of each port
BURST_BYTES = 2 * 1514  # a larger bucket would give each message a head start


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """Namespaces behind one bridge, each with a link of the rate."""

    def __init__(self, hosts, rate):
        self.prefix = f"gragg{os.getpid()}"
        self.made = []
        try:
            self.switch = self.add("s")
            ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge0", "up")
            self.hosts = [self.add_host(index, rate) for index in range(hosts)]
        except BaseException:
            self.remove()
            raise

    def add(self, suffix):
        name = self.prefix + suffix
        ip("netns", "add", name)
        self.made.append(name)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    def add_host(self, index, rate):
        name = self.add(str(index))
        ip("-n", self.switch, "link", "add", f"port{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", self.switch, "link", "set", f"port{index}", "master", "bridge0", "up")
        ip("-n", name, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        for namespace, device in ((name, "eth0"), (self.switch, f"port{index}")):
            subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate}mbit",
                            "burst", str(BURST_BYTES), "limit", str(QUEUE_KIB * 1024)], check=True)
        return name

    @staticmethod
    def address(index):
        return f"{NETWORK}.{index + 1}"

    def start(self, host, command, **options):
        return subprocess.Popen(["ip", "netns", "exec", self.hosts[host], *map(str, command)], text=True, **options)

    def received(self):
        """Bytes that the server's host has received."""
        shown = subprocess.run(["ip", "-n", self.hosts[0], "-j", "-s", "link", "show", "dev", "eth0"], check=True,
                               capture_output=True, text=True)
        return json.loads(shown.stdout)[0]["stats64"]["rx"]["bytes"]

    def remove(self):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def run(options, network, uses_aggregators):
    """Returns (step in ms, bytes into the server)."""
    processes = []
    try:
        extra = []
        racks = range(1, options.racks + 1)
        if uses_aggregators:
            for rack in racks:
                where = f"{network.address(rack)}:2300"
                processes.append(network.start(rack, [options.binary, "aggregator", "--bind", where, "--transport",
                                                      "tcp", "--insecure"], stdout=subprocess.PIPE))
                processes[-1].stdout.readline()  # it listens
            extra = ["--aggregators", ",".join(f"{network.address(rack)}:2300" for rack in racks)]
        fan_in = -(-options.workers // options.racks)
        rack_of = [1 + worker // fan_in for worker in range(options.workers)]
        names = ",".join(f"{network.address(rack)}:{3000 + worker}" for worker, rack in enumerate(rack_of))
        common = [options.binary, "bench", "incast", "--mode", "sync", "--transport", "tcp", "-b", options.bytes, "-e",
                  options.bytes, "--rounds", 1, "-n", options.steps, "-w", 2, "--block", "--bucket_kib",
                  options.bucket_kib, "--push", options.push, "--return", options.returns, "--ps_hosts",
                  f"{network.address(0)}:2222", "--worker_hosts", names, *extra]
        with tempfile.TemporaryDirectory() as folder:
            result = pathlib.Path(folder) / "run.json"
            before = network.received()
            server = network.start(0, [*common, "--bind-host", network.address(0), "--job_name", "ps", "--task_index", 0,
                                       "-J", result], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            processes.append(server)
            for worker, rack in enumerate(rack_of):
                processes.append(network.start(rack, [*common, "--bind-host", network.address(rack), "--job_name",
                                                      "worker", "--task_index", worker], stdout=subprocess.DEVNULL))
            said, _ = server.communicate(timeout=LIMIT_SECONDS)
            if server.returncode != 0:
                raise SystemExit(f"measure_aggregators: the run has failed:\n{said}")
            row = json.loads(result.read_text())["results"][0]
            if row["failed"] or row["nwrong"]:
                raise SystemExit(f"measure_aggregators: wrong result: {row}")
            return row["percentiles"]["p50_us"] / 1000, network.received() - before
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def predict(options, workers, push):
    """Returns the step in ms that the model predicts for this number of connections to the shard."""
    command = [options.binary, "predict", "--workers", workers, "--workers_per_host", -(-workers // options.racks), "--model",
               options.bytes, "--bucket_kib", options.bucket_kib, "--push", push, "--return", options.returns,
               "--nic", options.rate / 1000, "--frame_bytes", 14, "--rtt", 100, "--unfairness", 0.25,
               "--queue_kib", QUEUE_KIB, "--json"]
    ran = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    return 1000 * json.loads(ran.stdout)["step_time_s"]["median"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--racks", type=int, default=2)
    parser.add_argument("--rate", type=int, default=100, help="Mbit/s of a link, each way")
    parser.add_argument("--bytes", default="256K", help="of the gradient of one worker")
    parser.add_argument("--bucket-kib", type=int, default=32)
    parser.add_argument("--push", default="fp32", help="format of the gradients")
    parser.add_argument("--return", default="fp32", dest="returns", help="format of the parameters")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["flat", "aggregators"], help="default: both, in turns")
    options = parser.parse_args()
    network = Network(1 + options.racks, options.rate)
    try:
        rounds = {name == "aggregators": [] for name in ("flat", "aggregators") if options.only in (None, name)}
        for _ in range(options.rounds):
            for uses_aggregators, figures in rounds.items():
                figures.append(run(options, network, uses_aggregators))
    finally:
        network.remove()
    print(f"# {options.workers} workers in {options.racks} racks, gradient {options.bytes}, link {options.rate} Mbit/s, "
          f"push {options.push}, return {options.returns}")
    print("#            step ms  predicted ms   MB into the server")
    medians = {}
    for uses_aggregators, figures in rounds.items():
        of_sums = options.push if options.push in ("fp32", "bf16") else "fp32" if options.push == "fp16" else "bf16"
        predicted = (predict(options, options.racks, of_sums) if uses_aggregators else
                     predict(options, options.workers, options.push))
        step, received = (statistics.median(column) for column in zip(*figures))
        medians[uses_aggregators] = (step, received)
        name = "aggregators" if uses_aggregators else "flat"
        print(f"{name:12} {step:7.1f} {predicted:13.1f} {received / 1e6:20.1f}")
    if options.only is None:
        print(f"# step {medians[False][0] / medians[True][0]:.1f} times shorter, "
              f"bytes {medians[False][1] / medians[True][1]:.1f} times fewer, fan-in {options.workers / options.racks:.1f}")


if __name__ == "__main__":
    sys.exit(main())
