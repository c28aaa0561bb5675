#!/usr/bin/env python3
"""Compares `gradrail predict` with `gradrail bench exchange` between network namespaces with shaped links.

Each task has a namespace. A veth pair joins it to a bridge. tbf limits both directions of the pair, as a NIC does.
The model has the size of the queue of tbf. A prediction is the middle one of SEEDS simulations. Each has as many steps as the
run, because the largest of six steps differs from the largest of fifty.
Cases with a delay have two hosts, joined by a process that moves frames (tests/system/slow_link.py). Connections use cubic,
the default of Linux, and BBR beyond a round trip of 5 ms, as gradrail selects it. Rates are low, so that two cores carry all
tasks. UNFAIRNESS, one value for all cases, is calibrated with their 99th percentiles; no other value is fitted. Needs root,
ip, tc, /dev/net/tun.

validate.py [--binary FILE] [--cases REGEX] [--seconds S] [--repeats N] [--keep FOLDER]
"""
import argparse
import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/system"))
import slow_link  # noqa: E402  pylint: disable=wrong-import-position

QUEUE_BYTES = 2 << 20  # of a port of a switch
BURST_BYTES = 2 * 1514  # a larger bucket would give each message a head start
UNFAIRNESS = 0.25  # of connections of TCP (cubic)
FRAME_BYTES = 14  # tc counts the header of Ethernet
RTT_US = 100  # without load, between two namespaces
SEEDS = 9


@dataclasses.dataclass(frozen=True)
class Case:
    workers: int
    ps: int
    size: str
    mbit: float
    bucket_kib: int = 256
    shards: int = 1
    flags: tuple = ()
    delay_ms: float = 0  # of the link, in one direction
    loss: float = 0  # share of the packets

    def name(self):
        extra = "".join(f" {flag}" for flag in self.flags)
        extra += (f", {self.delay_ms:g} ms" if self.delay_ms else "") + (f", loss {self.loss:g}" if self.loss else "")
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
    Case(1, 1, "1M", 50, delay_ms=5), Case(1, 1, "4M", 50, delay_ms=20), Case(1, 1, "64K", 50, delay_ms=20),
    Case(1, 1, "4M", 50, delay_ms=20, loss=0.001), Case(1, 1, "4M", 50, delay_ms=5, loss=0.01),
    Case(1, 1, "4M", 50, delay_ms=1, loss=0.001), Case(1, 1, "4M", 50, delay_ms=2, loss=0.01),
]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Cluster:
    """Namespaces of `count` hosts, joined by a bridge, or two by a slow link."""

    def __init__(self, count, case):
        self.prefix = f"predict{os.getpid()}"
        self.switch = f"{self.prefix}s"
        self.hosts = [f"{self.prefix}h{i}" for i in range(count)]
        self.link = None
        try:
            for host in self.hosts:
                ip("netns", "add", host)
                ip("-n", host, "link", "set", "lo", "up")
            if case.delay_ms:
                self.join_slowly(case)
            else:
                self.join(case.mbit)
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

    def join_slowly(self, case):
        shape = slow_link.Shape(rate=case.mbit * 1e6, delay=case.delay_ms * 1e-3, loss=case.loss, queue=QUEUE_BYTES // 1514)
        self.link = slow_link.SlowLink([(host, "eth0") for host in self.hosts], shape)

    @staticmethod
    def address(i):
        return f"10.93.0.{i + 1}"

    def start(self, i, command, **options):
        return subprocess.Popen(["nice", "-n", "-15", "ip", "netns", "exec", self.hosts[i], *command], **options)

    def close(self):
        if self.link:
            self.link.close()
        for name in (*self.hosts, *([] if self.link else [self.switch])):
            subprocess.run(["ip", "netns", "delete", name], check=False)


def measure(binary, case, seconds, file):
    """Records one run of `bench exchange` in `file`."""
    cluster = Cluster(case.workers + case.ps, case)
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


def predict(binary, case, file, steps, seed):
    command = [binary, "predict", "--check", str(file), "--nic", str(case.mbit / 1000), "--frame_bytes", str(FRAME_BYTES),
               "--json", "--tolerance", "10000%", "--rtt", str(RTT_US + 2000 * case.delay_ms), "--loss", str(case.loss), "--steps",
               str(steps), "--seed", str(seed), "--unfairness", str(UNFAIRNESS), "--queue_kib", str(QUEUE_BYTES // 1024)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ran.stderr}")
    return json.loads(ran.stdout)["rows"][0]


def compare(binary, case, file):
    """Prediction and measurement of a recorded run, in seconds."""
    row = predict(binary, case, file, 1, 1)
    measured = row["measured_s"]
    steps = max(1, round(json.loads(file.read_text().splitlines()[0])["config"]["seconds"] / measured["median"]))
    rows = [predict(binary, case, file, steps, seed) for seed in range(1, SEEDS + 1)]
    row["predicted_s"] = {name: statistics.median(each["predicted_s"][name] for each in rows) for name in measured}
    row["error"] = {name: row["predicted_s"][name] / measured[name] - 1 for name in measured}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/bin/gradrail")
    parser.add_argument("--cases", default="", help="regular expression of the names of cases")
    parser.add_argument("--seconds", type=float, default=8, help="of measurement for each case")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case; the one with the middle median counts")
    parser.add_argument("--keep", help="folder for the recorded runs; runs that it has are not repeated")
    flags = parser.parse_args()
    binary = os.path.abspath(flags.binary)
    folder = pathlib.Path(flags.keep or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows, failed = [], []
    for case in CASES:
        if not re.search(flags.cases, case.name()):
            continue
        runs = []
        for repeat in range(flags.repeats):
            file = folder / (re.sub(r"[^0-9A-Za-z]+", "-", case.name()) + f"-{repeat}.json")
            try:
                if not file.exists():
                    measure(binary, case, flags.seconds, file)
                runs.append(compare(binary, case, file))
            except RuntimeError as error:
                file.unlink(missing_ok=True)
                print(f"# {error}", flush=True)
        if not runs:
            failed.append(case.name())
            continue
        runs.sort(key=lambda run: run["measured_s"]["median"])
        row = runs[len(runs) // 2]
        row["spread"] = runs[-1]["measured_s"]["median"] / runs[0]["measured_s"]["median"] - 1
        rows.append((case, row))
        print(f"# {case.name():<60} {row['measured_s']['median']:.4f} s {row['error']['median']:+.1%} "
              f"99 % {row['measured_s']['p99']:.4f} s {row['error']['p99']:+.1%} spread {row['spread']:.1%}", flush=True)
    rows.sort(key=lambda each: -abs(each[1]["error"]["median"]))
    print(f"\n{'workers x ps, model, bucket, rate':<62} {'predicted':>9} {'measured':>9} {'error':>7}   {'p99':>9} "
          f"{'measured':>9} {'error':>7}  {'spread':>6}  limit")
    for case, row in rows:
        predicted, measured, error = row["predicted_s"], row["measured_s"], row["error"]
        print(f"{case.name():<62} {predicted['median']:9.4f} {measured['median']:9.4f} {error['median']:+7.1%}   "
              f"{predicted['p99']:9.4f} {measured['p99']:9.4f} {error['p99']:+7.1%}  {row['spread']:6.1%}  {row['bottleneck']}")
    within = sum(abs(row["error"]["median"]) <= 0.1 for _, row in rows)
    within_99 = sum(abs(row["error"]["p99"]) <= 0.2 for _, row in rows)
    for name in failed:
        print(f"{name:<62} not measured")
    print(f"median within 10 %: {within} of {len(rows)}; 99 % within 20 %: {within_99} of {len(rows)}")


if __name__ == "__main__":
    main()
