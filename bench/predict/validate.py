#!/usr/bin/env python3
"""Compares `gradrail predict` with `gradrail bench exchange` between network namespaces with shaped links.

Each task has a namespace. A veth pair joins it to a bridge. tbf limits both directions of the pair, as a NIC does. Rates are
low, so that two cores carry all tasks. No value of the model is fitted. Needs root, ip, tc.

validate.py [--binary FILE] [--cases REGEX] [--seconds S] [--keep FOLDER]
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile

QUEUE_BYTES = 2 << 20  # of a port of a switch
BURST_BYTES = 2 * 1514  # a larger bucket would give each message a head start
FRAME = 1514 / 1538  # bytes of a packet for tc, which counts the header of Ethernet only / those on a wire
RTT_US = 100  # without load, between two namespaces


@dataclasses.dataclass(frozen=True)
class Case:
    workers: int
    ps: int
    size: str
    mbit: float
    bucket_kib: int = 256
    shards: int = 1
    flags: tuple = ()

    def name(self):
        extra = "".join(f" {flag}" for flag in self.flags)
        return (f"{self.workers} x {self.ps}{f' x {self.shards}' if self.shards > 1 else ''}, {self.size}, "
                f"{self.bucket_kib} KiB, {self.mbit:g} Mbit/s{extra}")


CASES = [
    Case(1, 1, "4M", 100), Case(1, 1, "1M", 50, 1024), Case(1, 1, "4M", 200), Case(1, 1, "64K", 100), Case(1, 2, "4M", 100),
    Case(1, 4, "4M", 100), Case(1, 1, "4M", 100, shards=4), Case(2, 1, "2M", 100), Case(4, 1, "2M", 100),
    Case(4, 2, "4M", 100), Case(4, 4, "4M", 100), Case(8, 1, "1M", 200), Case(8, 2, "2M", 100),
    Case(8, 4, "4M", 100), Case(16, 1, "1M", 200), Case(16, 2, "2M", 200), Case(16, 4, "4M", 200),
    Case(16, 4, "2M", 50), Case(4, 1, "2M", 100, 2048), Case(16, 1, "1M", 200, 1024),
    Case(8, 1, "1M", 100), Case(16, 1, "1M", 100), Case(16, 2, "2M", 100), Case(16, 4, "4M", 100),
    Case(4, 2, "4M", 100, flags=("--mode", "async")), Case(4, 2, "4M", 100, flags=("--mode", "ssp:1")),
    Case(4, 1, "4M", 50, flags=("--push", "int8")), Case(8, 2, "4M", 100, flags=("--push", "bf16", "--return", "bf16")),
    Case(8, 4, "8M", 100, flags=("--push", "int4")),
]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Cluster:
    """Namespaces of `count` hosts, joined by a bridge."""

    def __init__(self, count, mbit):
        self.prefix = f"predict{os.getpid()}"
        self.switch = f"{self.prefix}s"
        self.hosts = [f"{self.prefix}h{i}" for i in range(count)]
        try:
            for host in self.hosts:
                ip("netns", "add", host)
                ip("-n", host, "link", "set", "lo", "up")
            self.join(mbit)
            for i, host in enumerate(self.hosts):
                ip("-n", host, "address", "add", f"{self.address(i)}/24", "dev", "eth0")
                ip("-n", host, "link", "set", "eth0", "up")
                # A route has it, because the value of the namespace is read-only in some containers.
                ip("-n", host, "route", "replace", "10.93.0.0/24", "dev", "eth0", "src", self.address(i), "congctl", "cubic")
        except BaseException:
            self.close()
            raise

    def join(self, mbit):
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for i, host in enumerate(self.hosts):
            ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{i}", "master", "bridge0", "up")
            for namespace, device in ((host, "eth0"), (self.switch, f"port{i}")):
                subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate",
                                f"{mbit}mbit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES)], check=True)

    @staticmethod
    def address(i):
        return f"10.93.0.{i + 1}"

    def start(self, i, command, **options):
        return subprocess.Popen(["nice", "-n", "-15", "ip", "netns", "exec", self.hosts[i], *command], **options)

    def close(self):
        for name in (*self.hosts, self.switch):
            subprocess.run(["ip", "netns", "delete", name], check=False)


def measure(binary, case, seconds, file):
    """Records one run of `bench exchange` in `file`."""
    cluster = Cluster(case.workers + case.ps, case.mbit)
    hosts = [f"{cluster.address(i)}:29400" for i in range(case.ps + case.workers)]
    common = [binary, "bench", "exchange", "--transport", "tcp", "-b", case.size, "-e", case.size, "--bucket_kib",
              str(case.bucket_kib), "--shards", str(case.shards), "--rounds", "1", "--seconds", str(seconds),
              "--no-stages", "-w", "2", "--block", "--ps_hosts", ",".join(hosts[:case.ps]), "--worker_hosts",
              ",".join(hosts[case.ps:]), *case.flags]
    started = []
    try:
        tasks = [("ps", i) for i in range(case.ps)] + [("worker", i) for i in range(case.workers)]
        for i, (job, index) in enumerate(tasks):
            command = [*common, "--job_name", job, "--task_index", str(index)]
            started.append(cluster.start(i, command + (["-J", str(file)] if i == 0 else []),
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        output, _ = started[0].communicate(timeout=540)
        if started[0].returncode != 0:
            raise RuntimeError(f"{case.name()}: {output.strip().splitlines()[-2:]}")
        for process in started[1:]:
            process.communicate(timeout=60)
    finally:
        for process in started:
            process.kill()
            process.wait()
        cluster.close()


def predict(binary, case, file):
    """The row of `predict --check` for a recorded run."""
    command = [binary, "predict", "--json", "--check", str(file), "--nic", str(case.mbit / 1000 / FRAME), "--rtt", str(RTT_US)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode not in (0, 1):  # 1: a median differs by more than 10 %
        raise RuntimeError(f"{' '.join(command)}: {ran.stderr}")
    return json.loads(ran.stdout)["rows"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/gradrail")
    parser.add_argument("--cases", default="", help="regular expression of the names of cases")
    parser.add_argument("--seconds", type=float, default=8, help="of measurement for each case")
    parser.add_argument("--keep", help="folder for the recorded runs; runs that it has are not repeated")
    flags = parser.parse_args()
    binary = os.path.abspath(flags.binary)
    folder = pathlib.Path(flags.keep or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows, failed = [], []
    for case in CASES:
        if not re.search(flags.cases, case.name()):
            continue
        file = folder / (re.sub(r"[^0-9A-Za-z]+", "-", case.name()) + ".json")
        try:
            if not file.exists():
                measure(binary, case, flags.seconds, file)
            rows.append((case, predict(binary, case, file)))
        except RuntimeError as error:
            file.unlink(missing_ok=True)
            print(f"# {error}", flush=True)
            failed.append(case.name())
    rows.sort(key=lambda each: -abs(each[1]["error"]["median"]))
    print(f"{'workers x ps, model, bucket, rate':<62} {'predicted':>9} {'measured':>9} {'error':>7}   {'p99':>9} "
          f"{'measured':>9} {'error':>7}  limit")
    for case, row in rows:
        predicted, measured, error = row["predicted_s"], row["measured_s"], row["error"]
        print(f"{case.name():<62} {predicted['median']:9.4f} {measured['median']:9.4f} {error['median']:+7.1%}   "
              f"{predicted['p99']:9.4f} {measured['p99']:9.4f} {error['p99']:+7.1%}  {row['bottleneck']}")
    within = sum(abs(row["error"]["median"]) <= 0.1 for _, row in rows)
    within_99 = sum(abs(row["error"]["p99"]) <= 0.2 for _, row in rows)
    for name in failed:
        print(f"{name:<62} not measured")
    print(f"median within 10 %: {within} of {len(rows)}; 99 % within 20 %: {within_99} of {len(rows)}")


if __name__ == "__main__":
    main()
