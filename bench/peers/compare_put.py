#!/usr/bin/env python3
"""Compares the cost of puts with that of the libraries themselves: bench/put over ofi and ucx beside bare libfabric,
fi_pingpong and ucx_perftest. An RDMA device adds ib_write_lat and ib_write_bw. README.md derives every column.

One host: `gradrail bench peers` has the turns and the table. It asks this script for single figures (--one), because
this script has the flags and output formats of the other programs.
Two hosts: `--serve` on one, `--peer ADDRESS` on the other, with the same groups. Contenders take turns, so that only
neighbours are compared: machines have faster and slower minutes. Exit status 1: a figure is missing.
"""
import argparse
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

FIRST_PORT = 18700
PORTS = 200  # then from the first again, which is free then
START_SECONDS = 30
RUN_SECONDS = 90
FEWEST, MOST = 10, 200_000  # iterations of a peer's program
WINDOW = 32


@dataclass(frozen=True)
class Task:
    """One run of one contender: both sides make their command line of it."""
    group: str
    contender: str
    what: str
    size: int
    count: int
    seconds: float
    port: int


@dataclass
class Contender:
    name: str
    command: object  # (task, server's address or None, options) -> command line
    read: object  # output -> {"p50_us": …, "mean_us": …} or {"gb_per_s": …}
    whats: tuple = ("latency", "bandwidth")
    counted: bool = True  # takes a number of iterations, not seconds
    environment: dict = field(default_factory=dict)


# Ours, and bare libfabric: the same flags.

def our_program(program, *flags):
    def command(task, server, options):
        where = ["--connect", f"{server}:{task.port}"] if server else ["--listen", f":{task.port}"]
        bind = ["--bind-host", options.bind_host] if options.bind_host else []
        return [options.build_dir / "bench" / program, *flags, *where, *bind, "--what", task.what, "--sizes", task.size,
                "--seconds", task.seconds, "--window", WINDOW, "--json", "/proc/self/fd/1"]
    return command


def read_json(text):
    figure = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    if figure["wrong"]:
        raise ValueError(f"{figure['wrong']} wrong arrivals")
    if figure["what"] == "bandwidth":
        return {"count": figure["count"], "gb_per_s": figure["gb_per_s"], "p50_gb_per_s": figure["bytes"] * figure["window"] / figure["p50_us"] * 1e-3}
    return {"count": figure["count"], "p50_us": figure["p50_us"], "mean_us": figure["mean_us"]}


def ours(name, *flags, **environment):
    return Contender(f"gradrail {name}", our_program("put", "--transport", name, *flags), read_json, counted=False, environment=environment)


def bare(provider, endpoint="rdm", *flags):
    return Contender("bare fi_writedata",
                     our_program("fi_writedata", "--provider", provider, "--endpoint", endpoint, *flags), read_json, counted=False)


# The libraries' own programs.

def fi_pingpong(provider, endpoint="rdm"):
    def command(task, server, options):
        port = ["-P", task.port, server] if server else ["-B", task.port]
        return ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", task.count, "-S", task.size, *port]

    def read(text):  # bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec
        return {"mean_us": float(text.strip().splitlines()[-1].split()[-2])}
    return Contender("fi_pingpong", command, read, whats=("latency",))


def ucx_perftest(kind, reports_errors=True, **environment):
    def command(task, server, options):
        # Their default of 10000 turns to warm up takes most of a minute for large sizes.
        test = f"{kind}_{'lat' if task.what == 'latency' else 'bw'}"
        common = ["ucx_perftest", "-p", task.port, *(["-e"] if reports_errors else [])]
        return [*common, "-t", test, "-s", task.size, "-n", task.count, "-w", max(2, task.count // 10), "-f", "-v",
                server] if server else common

    def read(text):  # iterations, p50, average, overall us; average, overall MiB/s; …
        cells = text.strip().splitlines()[-1].split(",")
        return {"p50_us": float(cells[1]), "mean_us": float(cells[3]), "gb_per_s": float(cells[5]) * 2**20 * 1e-9}
    name = f"ucx_perftest {kind}" if reports_errors else f"{kind}, no errors reported"
    return Contender(name, command, read, environment=environment)


def ib_write(device):
    def command(task, server, options):
        latency = task.what == "latency"
        program = ["ib_write_lat"] if latency else ["ib_write_bw", "-t", min(2 * WINDOW, task.count), "--report_gbits"]
        return [*program, "-d", device, "-x", 1, "-F", "-p", task.port, "-s", task.size, "-n", task.count,
                *([server] if server else [])]

    def read(text):
        cells = next(line for line in reversed(text.splitlines()) if line.strip()[:1].isdigit()).split()
        if len(cells) < 6:  # bytes, iterations, peak, average Gb/s, Mpps
            return {"gb_per_s": float(cells[3]) / 8}
        return {"p50_us": float(cells[4]), "mean_us": float(cells[5])}  # bytes, iterations, min, max, typical, average
    return Contender("ib_write", command, read)


# The setting is that of our transport (transport/ucx/device/settings.cc): both run with the same.
UCX_TCP = {"UCX_TLS": "tcp", "UCX_TCP_TX_SEG_SIZE": "64k", "UCX_TCP_RX_SEG_SIZE": "64k"}
UCX_POSIX = {"UCX_TLS": "posix", "UCX_POSIX_ERROR_HANDLING": "y"}
UCX_RC = {"UCX_TLS": "rc_verbs,ud_verbs"}


def against_ucx(**environment):
    # tag equals our put: the receiver is notified and has the bytes at their place. An am leaves them in
    # UCX's buffer up to its eager limit, and a put sends no notification.
    kinds = ("tag", "ucp_am", "ucp_put")
    # The endpoints report errors, as ours must; the last row is the cost of that in UCX.
    return [ours("ucx", **environment), *(ucx_perftest(kind, **environment) for kind in kinds),
            ucx_perftest("tag", reports_errors=False, **environment)]


# The first of each group is what the others are compared with.
GROUPS = {
    "ofi-tcp": [ours("ofi", "--ofi-provider", "tcp;ofi_rxm"), bare("tcp;ofi_rxm"), fi_pingpong("tcp;ofi_rxm")],
    "ofi-shm": [ours("ofi", "--ofi-provider", "shm"), bare("shm"), fi_pingpong("shm")],
    "ucx-tcp": against_ucx(**UCX_TCP),
    "ucx-posix": against_ucx(**UCX_POSIX),
    "ofi-verbs": [ours("ofi", "--ofi-provider", "verbs"), bare("verbs", "msg"), fi_pingpong("verbs", "msg"), ib_write("rxe0")],
    "ofi-verbs-rxm": [ours("ofi", "--ofi-provider", "verbs;ofi_rxm"), bare("verbs;ofi_rxm"), fi_pingpong("verbs;ofi_rxm"),
                      ib_write("rxe0")],
    "ucx-rc": [*against_ucx(**UCX_RC), ib_write("rxe0")],
}
ON_ONE_HOST = ("ofi-tcp", "ofi-shm", "ucx-tcp", "ucx-posix")

PACKAGES = {"ucx_perftest": "ucx-utils", "fi_pingpong": "libfabric-bin", "ib_write_lat": "perftest", "ib_write_bw": "perftest"}


def contender_of(task):
    return next(each for each in GROUPS[task.group] if each.name == task.contender)


def why_not(task, options):
    """Why this contender cannot run here; "" where it can."""
    program = str(contender_of(task).command(task, None, options)[0])
    if shutil.which(program):
        return ""
    name = pathlib.Path(program).name
    return f"{name} is not installed (apt install {PACKAGES[name]})" if name in PACKAGES else f"{name} was not built"


def end_with_us():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: however this script ends


def start(task, server, options, output):
    contender = contender_of(task)
    command = [str(word) for word in contender.command(task, server, options)]
    if options.realtime:
        command = ["chrt", "--rr", "1", *command]
    if options.pin:
        command = ["taskset", "-c", "1" if server else "0", *command]
    environment = {**os.environ, "UCX_WARN_UNUSED_ENV_VARS": "n", **contender.environment}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, text=True,
                            preexec_fn=end_with_us)


def stop(process, patience):
    """A moment to end by itself, another to clean up after SIGTERM."""
    for tell, seconds in ((process.poll, patience), (process.terminate, 0.2), (process.kill, None)):
        tell()
        try:
            process.wait(timeout=seconds)
            return
        except subprocess.TimeoutExpired:
            pass


def listening(port):
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            cells = line.split()
            if cells[1].endswith(wanted) and cells[3] == "0A":
                return True
    return False


class LocalServers:
    """The server's side, on this host."""
    address = "127.0.0.1"

    def __init__(self, options):
        self._options = options
        self._process = None

    def start(self, task):
        self._process = start(task, None, self._options, subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not listening(task.port):
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError("its server does not listen")
            time.sleep(0.02)

    def stop(self, patience=2):
        if self._process:
            stop(self._process, patience)


class RemoteServers:
    """The server's side, on the host where --serve runs."""

    def __init__(self, address, port):
        self.address = address
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._stream = socket.create_connection((address, port), timeout=RUN_SECONDS).makefile("rw")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _ask(self, request):
        self._stream.write(json.dumps(request) + "\n")
        self._stream.flush()
        answer = json.loads(self._stream.readline())
        if answer != "ok":
            raise RuntimeError(answer)

    def start(self, task):
        self._ask(vars(task))

    def stop(self, patience=2):
        self._ask("stop")


def serve(options):
    """Runs servers of the table for one other host, until that leaves."""
    servers = LocalServers(options)
    with socket.create_server(("", options.agent_port)) as listener:
        listener.settimeout(4 * START_SECONDS)
        stream = listener.accept()[0].makefile("rw")
    for line in stream:
        answer = "ok"
        try:
            request = json.loads(line)
            servers.stop() if request == "stop" else servers.start(Task(**request))
        except (RuntimeError, OSError) as why:  # OSError: no such program here
            answer = str(why)
        stream.write(json.dumps(answer) + "\n")
        stream.flush()


MISSING = (RuntimeError, OSError, ValueError, LookupError, StopIteration, subprocess.TimeoutExpired)


def run(task, servers, options):
    """The figure of one run of one contender. One of MISSING: there is none."""
    patience = 0  # used when a signal ends this program
    client = None
    try:
        servers.start(task)
        client = start(task, servers.address, options, subprocess.PIPE)
        text = client.communicate(timeout=RUN_SECONDS)[0]
        patience = 2
        if client.returncode:
            raise RuntimeError(f"exit status {client.returncode}: {(text.strip().splitlines() or ['no output'])[-1]}")
        return contender_of(task).read(text)
    finally:
        if client:
            stop(client, patience)
        servers.stop(patience)


def count_for(figure, what, size, seconds):
    """Iterations that take about so long."""
    if what == "latency":
        each = 2e-6 * figure.get("p50_us", figure.get("mean_us"))
    else:
        each = size / figure["gb_per_s"] * 1e-9
    return int(min(MOST, max(FEWEST, seconds / each)))


def free_port():
    for port in range(FIRST_PORT + os.getpid() % PORTS, FIRST_PORT + 2 * PORTS):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
                return port
            except OSError:
                pass
    raise RuntimeError("no free port")


def one(options):
    """A single figure as a line of JSON, for `gradrail bench peers`."""
    group, contender, what, size = options.one
    task = Task(group, contender, what, int(size), options.count or FEWEST, options.seconds, free_port())
    missing = why_not(task, options)
    try:
        if missing:
            raise RuntimeError(missing)
        figure = run(task, LocalServers(options), options)
        counted = contender_of(task).counted
        if counted and not options.count:  # those only determined the speed
            again = count_for(figure, what, task.size, options.seconds)
            task = Task(group, contender, what, task.size, again, options.seconds, free_port())
            figure = run(task, LocalServers(options), options)
        print(json.dumps({"count": task.count, **figure, "next_count": count_for(figure, what, task.size, options.seconds)}))
    except MISSING as why:
        print(json.dumps({"failed": str(why) or repr(why)}))


def contenders():
    """Prints the contenders of one host as JSON. The first one of each group is gradrail."""
    print(json.dumps([{"group": group, "contender": each.name, "whats": each.whats} for group in ON_ONE_HOST
                      for each in GROUPS[group]]))


class Comparison:
    def __init__(self, servers, options):
        self._servers = servers
        self._options = options
        self._runs = 0
        self.failures = 0

    def group(self, group):
        print(f"\n# {group}: {', '.join(each.name for each in GROUPS[group])}", flush=True)
        print(f"{'# contender':22}{'what':>10}{'bytes':>9}{'basis':>14}{'its':>11}{'ours':>11}{'ours/it':>9}{'of best':>9}  rounds")
        for size in self._options.sizes:
            for what in self._options.what.split(","):
                self._compare(group, what, size)

    def _compare(self, group, what, size):
        contenders = [each for each in GROUPS[group] if what in each.whats]
        rounds = []
        counts = {}  # number of iterations, so that each takes about as long as ours
        for _ in range(self._options.rounds):
            figures = {}
            for contender in contenders:
                count = counts.get(contender.name, counts.get(contenders[0].name, FEWEST))
                task = Task(group, contender.name, what, size, count, self._options.seconds, FIRST_PORT + (os.getpid() + self._runs) % PORTS)
                figure = figures[contender.name] = self._run(task)
                if figure:
                    counts[contender.name] = count_for(figure, what, size, self._options.seconds)
            rounds.append(figures)
        for contender in contenders[1:]:
            self._report(group, contender.name, what, size, rounds, contenders[0].name)

    def _run(self, task):
        self._runs += 1
        try:
            return run(task, self._servers, self._options)
        except MISSING as why:
            self.failures += 1
            print(f"# {task.contender}, {task.what} of {task.size} bytes: {str(why) or repr(why)}", flush=True)
            return None

    def _report(self, group, name, what, size, rounds, first):
        # Only rounds in which both have a figure count: neighbours in time.
        both = [(figures[name], figures[first]) for figures in rounds if figures[name] and figures[first]]
        if not both:
            return
        # The median, if the other program reports one: a mean includes delays by other load.
        bases = ("p50_gb_per_s", "gb_per_s") if what == "bandwidth" else ("p50_us", "mean_us")
        basis = next(each for each in bases if each in both[0][0])
        pairs = [(its[basis], our[basis]) for its, our in both]
        worse = (lambda its, our: its / our) if what == "bandwidth" else (lambda its, our: our / its)
        best = max if what == "bandwidth" else min
        row = {"question": "compare_put", "group": group, "contender": name, "what": what, "bytes": size, "basis": basis,
               "its": statistics.median(its for its, _ in pairs), "ours": statistics.median(our for _, our in pairs),
               "ours_over_it": statistics.median(worse(*pair) for pair in pairs),
               "ours_over_it_best": worse(best(its for its, _ in pairs), best(our for _, our in pairs)),
               "rounds": len(pairs), "rounds_its": [its for its, _ in pairs], "rounds_ours": [our for _, our in pairs],
               "machine": self._options.machine, "commit": self._options.commit}
        print(f"{name:22}{what:>10}{size:>9}{basis:>14}{row['its']:>11.4g}{row['ours']:>11.4g}"
              f"{row['ours_over_it']:>9.3f}{row['ours_over_it_best']:>9.3f}{row['rounds']:>8}", flush=True)
        if self._options.json:
            with open(self._options.json, "a") as lines:
                lines.write(json.dumps(row) + "\n")


def machine():
    names = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, {os.cpu_count()} cores, Linux {os.uname().release}"


def commit():
    try:
        return subprocess.run(["git", "describe", "--always", "--dirty"], cwd=pathlib.Path(__file__).parent, check=True,
                              capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def size_of(text):
    units = {"K": 2**10, "M": 2**20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs all `finally` blocks
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parent
    built = here.parent if (here / "put").exists() else here.parent / "build/release"
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--serve", action="store_true", help="start the servers that --peer on the other host asks for")
    asked.add_argument("--peer", help="address of the host where --serve runs")
    asked.add_argument("--one", nargs=4, metavar=("GROUP", "CONTENDER", "WHAT", "SIZE"), help="one figure on this host, as JSON")
    asked.add_argument("--contenders", action="store_true", help="those of --one, as JSON")
    parser.add_argument("--build-dir", type=pathlib.Path, default=built)
    parser.add_argument("--groups", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--sizes", default="8,64,512,4K,32K,256K,2M,4M")
    parser.add_argument("--what", default="latency,bandwidth")
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure")
    parser.add_argument("--count", type=int, default=0, help="--one: iterations; 0: as many as take --seconds")
    parser.add_argument("--rounds", type=int, default=5, help="contenders take turns this often")
    parser.add_argument("--realtime", action="store_true",
                        help="run all contenders with real-time priority; needs CAP_SYS_NICE")
    parser.add_argument("--pin", action="store_true", help="servers to core 0, clients to core 1")
    parser.add_argument("--agent-port", type=int, default=18699, help="where --serve waits for --peer")
    parser.add_argument("--bind-host", default="", help="address of this host's interface")
    parser.add_argument("--json", help="append one JSON line per row to this file")
    options = parser.parse_args()
    if options.serve:
        return serve(options)
    if options.contenders:
        return contenders()
    if options.one:
        return one(options)
    groups = (options.groups or parser.error(f"--peer needs --groups, of {', '.join(GROUPS)}")).split(",")
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        parser.error(f"no group is called {', '.join(unknown)}")
    options.sizes = [size_of(text) for text in options.sizes.split(",")]
    options.machine, options.commit = machine(), commit()
    print(f"# puts beside the libraries themselves | {options.commit} | {options.machine} | {options.rounds} round{'s' * (options.rounds != 1)} of "
          f"{options.seconds} s | two hosts")
    print("# ours/it: how many times as much ours costs; below 1 ours is faster. Goal: 1.05. Round by round, and best against best.")
    comparison = Comparison(RemoteServers(options.peer, options.agent_port), options)
    for group in groups:
        comparison.group(group)
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
