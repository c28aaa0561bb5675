#!/usr/bin/env python3
"""Measures what Python adds to an exchange, and training in PyTorch beside PyTorch's own ways to distribute it.

    exchange       the loops of exchange_worker.py in Python, and in C with the same client, in turns
    mnist          the MLP of mnist_torch.py, 3 workers: gradrail, DDP over Gloo, torch.distributed.rpc
    transformer    the model of text_torch.py, 2 workers: gradrail, DDP over Gloo

All figures are medians over the rounds. The contenders take turns in each round: a machine has faster and slower minutes.
README.md derives the columns. Exit status 1: a figure is missing or a result is wrong.
"""
import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "peers"))
import compare_put  # noqa: E402

LIMIT_SECONDS = 600  # limit of one contender in one round
CALIBRATION_STEPS = 5
# Limits of the time that Python adds to a step in C, by bytes of the gradient: microseconds, or a share of it.
GOALS = {4096: ("us", 5.0), 318040: ("share", 0.02), 64 << 20: ("share", 0.01)}
BLOCK_SECONDS = 0.02  # a block of the exchange loop: many exchanges of a small gradient, one or two of a large one
SAME_WITHIN = {"mnist": 1e-3, "transformer": 0.03}  # Adam of PyTorch and of gradrail have different formulas
VERSIONS = """
import importlib.metadata as packages, platform
found = [f", {name} {packages.version(name)}" for name in ("numpy", "torch") if any(packages.distributions(name=name))]
print("Python", platform.python_version() + "".join(found))
"""


@dataclass(frozen=True)
class Contender:
    name: str
    flags: tuple
    launcher: str = "torch"  # or "gradrail": `gradrail run` starts the workers and a parameter server
    has_server: bool = False  # it needs a server of torch.distributed.rpc
    is_sync: bool = True


def gradrail(name, *flags, is_sync=True):
    return Contender(name, ("--contender", "gradrail", *flags), "gradrail", is_sync=is_sync)


ALONE = Contender("no exchange", ("--contender", "alone"), is_sync=False)
DDP = Contender("DDP, Gloo", ("--contender", "ddp"))
CONTENDERS = {
    "mnist": (ALONE, gradrail("gradrail async", "--mode", "async", is_sync=False), gradrail("gradrail sync"),
              gradrail("gradrail async, tcp", "--mode", "async", "--transports", "tcp", is_sync=False),
              gradrail("gradrail sync, tcp", "--transports", "tcp"), DDP,
              Contender("rpc async", ("--contender", "rpc", "--mode", "async"), has_server=True, is_sync=False),
              Contender("rpc sync", ("--contender", "rpc"), has_server=True)),
    "transformer": (ALONE, gradrail("gradrail sync"), gradrail("gradrail sync, late", "--late"),
                    gradrail("gradrail sync, tcp", "--transports", "tcp"),
                    gradrail("gradrail sync, tcp, late", "--transports", "tcp", "--late"), DDP),
}


class Report:
    """The table for people, and a line of JSON for each row."""

    def __init__(self, options):
        self._options = options
        self.origin = {"machine": compare_put.machine(), "commit": compare_put.commit(), "versions": versions(options)}
        self.failures = 0
        if options.output:
            options.output.write_text("")

    def say(self, text=""):
        print(text, flush=True)
        if self._options.output:
            with self._options.output.open("a") as file:
                file.write(text + "\n")

    def row(self, text, **figures):
        self.say(text)
        if self._options.json:
            with self._options.json.open("a") as file:
                file.write(json.dumps({**figures, **self.origin}) + "\n")

    def failed(self, text):
        self.failures += 1
        self.say(f"# {text}")


def versions(options):
    program = subprocess.run([str(options.binary), "--version"], capture_output=True, text=True, check=True)
    python = subprocess.run([options.python, "-c", VERSIONS], capture_output=True, text=True, check=False)
    return f"{program.stdout.splitlines()[0]}, {python.stdout.strip() or options.python}"


def environment(options):
    # Each process has one thread: pools of threads of several workers on few cores wait for one another.
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo", "GRADRAIL_PS_HOSTS": "",
            "PYTHONPATH": str(ROOT / "worker" / "python"), "GRADRAIL_LIBRARY": str(options.library)}


def finish(processes):
    """Waits for all processes. Ends the rest at the first failure, or after the limit. Returns their output."""
    try:
        outputs = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not finished after {LIMIT_SECONDS} s") from None
    finally:
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # includes all that the process has started
            except ProcessLookupError:
                pass
    for process, output in zip(processes, outputs):
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {output.strip()[-600:]}")
    return outputs


def start(command, options):
    return subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=environment(options), start_new_session=True)


def run_with_servers(options, workers, command):
    return finish([start([options.binary, "run", "--ps", 1, "--workers", workers, "--", *command], options)])[0]


def compile_loop(options, folder):
    """Returns exchange_loop.c as a library and as a program."""
    made = []
    for name, flags in (("exchange_loop.so", ["-shared", "-fPIC"]), ("exchange_loop", [])):
        made.append(folder / name)
        subprocess.run(["cc", "-std=gnu11", "-O2", *flags, f"-I{ROOT}/include", HERE / "exchange_loop.c", "-o", made[-1],
                        options.library, f"-Wl,-rpath,{options.library.parent}"], check=True)
    return made


def exchange(options, report, folder):
    report.say("# exchange: 1 worker, 1 shard, sync, sgd. Python and C use the same client, in turns. "
               "`halves`: exchange() and wait() in place of step().")
    report.say("# `added`: median of the differences between neighboring blocks; [25 %, 75 %] of them. "
               "`C alone`: the loop of steps without Python in the process.")
    report.say(f"{'# bytes':>10}{'call':>8}{'C us':>12}{'Python us':>12}{'added us':>11}{'[25 %':>10}{'75 %]':>10}{'added %':>9}"
               f"{'C alone us':>12}{'pairs':>7}{'#wrong':>7}  goal")
    loop, program = compile_loop(options, folder)
    for size in options.sizes:
        for call in ("step", "halves"):
            try:
                exchange_row(options, report, folder, size, call, loop, program)
            except RuntimeError as error:
                report.failed(f"exchange of {size} bytes, {call}: {error}")


def exchange_row(options, report, folder, size, call, loop, program):
    python, c, differences, alone, wrong, path = [], [], [], [], 0, ""
    for _ in range(options.rounds):
        run_with_servers(options, 1, [options.python, HERE / "exchange_worker.py", "--bytes", size, "--seconds",
                                      options.seconds, "--block", BLOCK_SECONDS, "--loop", loop, "--call", call,
                                      "--out", folder])
        found = json.loads((folder / "worker-0.json").read_text())
        python += found["python"]
        c += found["c"]
        differences += [one - other for one, other in zip(found["python"], found["c"])]
        wrong, path = wrong + found["wrong"], found["path"]
        blocks = max(2, len(found["c"]) // 2)
        output = run_with_servers(options, 1, [program, size, found["exchanges"], blocks])
        alone += map(float, re.findall(r"block ([\d.]+)", output))
        wrong += int(re.search(r"wrong (\d+)", output)[1])
    added = statistics.median(differences)
    low, _, high = statistics.quantiles(differences, n=4)
    base = statistics.median(c)
    kind, limit = GOALS.get(size, (None, None)) if call == "step" else (None, None)
    goal = "" if kind is None else f"<= {limit} us" if kind == "us" else f"<= {100 * limit:g} %"
    if kind is not None:
        met = (1e6 * added if kind == "us" else added / base) <= limit
        goal += ", met" if met else ", missed"
    report.row(f"{size:>10}{call:>8}{1e6 * base:>12.3f}{1e6 * statistics.median(python):>12.3f}{1e6 * added:>11.3f}{1e6 * low:>10.3f}"
               f"{1e6 * high:>10.3f}{100 * added / base:>9.3f}{1e6 * statistics.median(alone):>12.3f}{len(differences):>7}"
               f"{wrong:>7}  {goal}",
               part="exchange", bytes=size, call=call, c_us=1e6 * base, python_us=1e6 * statistics.median(python), added_us=1e6 * added,
               added_us_quartiles=[1e6 * low, 1e6 * high], c_alone_us=1e6 * statistics.median(alone),
               pairs=len(differences), wrong=wrong, path=path)
    if wrong:
        report.failed(f"exchange of {size} bytes, {call}: {wrong} wrong parameters")


def training_round(options, part, contender, workers, steps, folder):
    """Runs a contender once. Returns the results of its workers."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [options.python, HERE / "training_worker.py", "--task", part, *contender.flags, "--workers", workers,
                   "--steps", steps, "--batch", options.batch[part], "--context", options.context, "--out", out]
        if contender.launcher == "gradrail":
            run_with_servers(options, workers, command)
        else:
            finish([start([*command, "--rank", rank], options) for rank in range(workers + contender.has_server)])
        return [json.loads((pathlib.Path(out) / f"worker-{rank}.json").read_text()) for rank in range(workers)]


def pace(results):
    """Returns the steps of all workers per second."""
    return sum(each["steps"] for each in results) / (max(each["end"] for each in results) - min(each["begin"] for each in results))


def measure(options, report, part, workers, folder):
    """Returns the results by contender, a list with one item for each round."""
    contenders = list(CONTENDERS[part])
    steps = {contender.name: options.steps or CALIBRATION_STEPS for contender in contenders}
    found = {contender.name: [] for contender in contenders}
    for number in range(options.rounds if options.steps else options.rounds + 1):
        for contender in list(contenders):
            try:
                results = training_round(options, part, contender, workers, steps[contender.name], folder)
            except RuntimeError as error:
                report.failed(f"{part}, {contender.name}: {error}")
                contenders.remove(contender)
                continue
            if number == 0 and not options.steps:  # an additional round sets the number of steps
                steps[contender.name] = max(CALIBRATION_STEPS, int(options.seconds * pace(results) / workers))
            else:
                found[contender.name].append(results)
    return {name: rounds for name, rounds in found.items() if rounds}


def verify(report, part, found):
    """All sync contenders must have made the same first steps."""
    moved = {contender.name: found[contender.name][0][0]["moved"] for contender in CONTENDERS[part]
             if contender.is_sync and contender.name in found}
    if not moved:
        return
    typical = statistics.median(moved.values())
    for name, value in moved.items():
        if abs(value - typical) > SAME_WITHIN[part] * typical:
            report.failed(f"{part}, {name}: wrong steps: the parameters moved by {value:.6g}, those of the others by {typical:.6g}")


def mnist(options, report, folder):
    workers = 3
    report.say(f"# mnist: MLP of 79,510 parameters, {workers} workers, batches of {options.batch['mnist']}, plain SGD.")
    report.say("# `steps/s`: gradients per second, all workers; [lowest round, highest round]. A sync step has one of each.")
    report.say(f"{'# contender':22}{'steps/s':>10}{'[low':>10}{'high]':>10}{'of DDP':>9}{'p50 ms':>9}{'rounds':>8}")
    found = measure(options, report, "mnist", workers, folder)
    paces = {name: [pace(results) for results in rounds] for name, rounds in found.items()}
    for name, values in paces.items():
        both = [own / ddp for own, ddp in zip(values, paces.get(DDP.name, []))]
        ratio = f"{statistics.median(both):9.2f}" if both else f"{'-':>9}"
        step = statistics.median(statistics.median(each["step_p50"] for each in results) for results in found[name])
        report.row(f"{name:22}{statistics.median(values):>10.1f}{min(values):>10.1f}{max(values):>10.1f}{ratio}{1e3 * step:>9.3f}"
                   f"{len(values):>8}",
                   part="mnist", contender=name, steps_per_s=statistics.median(values), rounds=values, step_p50_ms=1e3 * step)
    verify(report, "mnist", found)


def transformer(options, report, folder):
    workers = 2
    report.say(f"# transformer: {workers} workers, batches of {options.batch['transformer']} pieces of {options.context} "
               "characters, Adam.")
    report.say("# `exposed`: step beyond that without an exchange. `late`: no gradient leaves before the end of backward. "
               "`hidden`: 1 - exposed / exposed of late.")
    report.say(f"{'# contender':26}{'step ms':>10}{'[low':>10}{'high]':>10}{'of DDP':>9}{'exposed ms':>12}{'hidden %':>10}{'rounds':>8}")
    found = measure(options, report, "transformer", workers, folder)
    steps = {name: [statistics.median(each["step_p50"] for each in results) for results in rounds]
             for name, rounds in found.items()}
    # The values are compared per round: neighbors in time.
    exposed = {name: statistics.median(own - bound for own, bound in zip(values, steps.get(ALONE.name, [])))
               for name, values in steps.items() if ALONE.name in steps}
    for name, values in steps.items():
        both = [own / ddp for own, ddp in zip(values, steps.get(DDP.name, []))]
        ratio = f"{statistics.median(both):9.3f}" if both else f"{'-':>9}"
        late = exposed.get(f"{name}, late", 0.0)
        hidden = 1 - exposed[name] / late if late > 0 else None
        beyond = exposed.get(name) if name != ALONE.name else None
        report.row(f"{name:26}{1e3 * statistics.median(values):>10.2f}{1e3 * min(values):>10.2f}{1e3 * max(values):>10.2f}{ratio}"
                   + (f"{'-':>12}" if beyond is None else f"{1e3 * beyond:>12.2f}")
                   + (f"{'-':>10}" if hidden is None else f"{100 * hidden:>10.1f}") + f"{len(values):>8}",
                   part="transformer", contender=name, step_ms=1e3 * statistics.median(values), exposed_ms=beyond and 1e3 * beyond,
                   hidden=hidden, rounds=[1e3 * value for value in values])
    verify(report, "transformer", found)


PARTS = {"exchange": exchange, "mnist": mnist, "transformer": transformer}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=[*PARTS], help="repeatable; without it, all parts")
    parser.add_argument("--binary", type=pathlib.Path, default=os.environ.get("GRADRAIL_BINARY") or
                        ROOT / "build/release/bin/gradrail", help="the program gradrail of a build")
    parser.add_argument("--python", default=sys.executable, help="the Python of the workers")
    parser.add_argument("--sizes", default="4K,318040,64M", help="of --part exchange: bytes of the gradient")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a contender in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="of mnist and transformer, instead of --seconds")
    parser.add_argument("--batch", type=int, default=0, help="of each worker; 0: 100 images, 16 pieces of text")
    parser.add_argument("--context", type=int, default=48, help="characters of a piece of text")
    parser.add_argument("--output", type=pathlib.Path, help="write the table to this file too")
    parser.add_argument("--json", type=pathlib.Path, help="append one JSON line per row to this file")
    options = parser.parse_args(arguments)
    options.sizes = [compare_put.size_of(text) for text in options.sizes.split(",")]
    options.batch = {"mnist": options.batch or 100, "transformer": options.batch or 16}
    if not options.binary.exists():
        parser.error(f"{options.binary} does not exist: build the targets gradrail and gradrail_shared, or give --binary")
    options.library = options.binary.resolve().parents[1] / "lib" / "libgradrail.so.1"
    if not options.library.exists():
        parser.error(f"{options.library} does not exist: build the target gradrail_shared")
    return options


def main(arguments=None):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # runs all `finally` blocks
    options = parse(arguments)
    report = Report(options)
    report.say(f"# bench/python/{pathlib.Path(__file__).name} {' '.join(sys.argv[1:])}")
    report.say("# " + " | ".join(report.origin.values()))
    length = f"{options.steps} steps" if options.steps else f"{options.seconds:g} s"
    report.say(f"# rounds: {options.rounds} of {length}; one torch thread in each process")
    with tempfile.TemporaryDirectory() as folder:
        for part in options.part or PARTS:
            report.say()
            before = os.getloadavg()[0]
            PARTS[part](options, report, pathlib.Path(folder))
            report.say(f"# load average before this part {before:.1f}, after it {os.getloadavg()[0]:.1f}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
