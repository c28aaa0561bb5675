"""Reads the files of `gradrail bench SUITE -J FILE` as rows.

A file can come from any machine and any version. A value that is not valid raises a Problem, which names the file, the
row and the field.
"""
import fnmatch
import json
import os
import pathlib
import re
from dataclasses import dataclass, field, replace

MOST_BYTES = 1 << 28  # a row has about a kilobyte
KNOWN_MAJOR = 0  # major version of gradrail; a later version may change the meaning of a field
LARGEST = 1e18  # limit of all numbers: eleven days are 1e12 us, and matplotlib cannot draw axes with larger ones
OURS, BOUND = "gradrail ", "bound"  # prefixes of paths of `gradrail bench peers`


class Problem(Exception):
    """An error that the user can correct. It is reported in one line, without a traceback."""


@dataclass
class Row:
    """The results of one path at one size."""
    label: str  # the path; with the name of the file if several files have that path
    path: str
    what: str  # "latency" or "bandwidth" if a suite has both, else ""
    size: int
    min_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    samples: int
    samples_a_round: float  # samples of one worker in a round, from which a quantile was computed
    alg_bw: float
    bus_bw: float
    bound_bw: float  # bandwidth of memory, measured with this row; 0: not measured
    stages: list
    distribution: list  # (share, microseconds), ascending
    rounds_us: list  # median of each round, by which two runs are compared
    wrong: float  # elements or arrivals that were not what they had to be
    failed: str  # the reason why there is no figure, or ""
    trouble: str  # the reason why the row is not drawn, or ""

    @property
    def is_bound(self):
        return self.path.startswith(BOUND)


@dataclass
class Run:
    file: str
    question: str
    version: str
    machine: str
    title: str
    arguments: str
    config: dict  # settings of the run
    libraries: dict
    rows: list = field(default_factory=list)


def size_text(size):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.4g} {unit}"
    return f"{size} B"


def parse_size(text):
    """Parses a size in the format of the benchmark flags: 318040, 64K, 1M."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not match:
        raise Problem(f"--size {text}: must be bytes, such as 318040 or 64K (suffixes K, M, G)")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def printable(text):
    """Replaces control characters, which XML does not permit."""
    return "".join(character if character.isprintable() else " " for character in str(text))


def shown(value):
    """Returns a value as errors show it: JSON in ASCII, at most 60 characters."""
    text = json.dumps(value, separators=(",", ":"))
    return text if len(text) <= 60 else text[:60] + "…"


def _read_text(file):
    """Does not wait for the writer of a pipe that has none, and reads no device without an end. `-` is standard input."""
    return read_bytes(file, MOST_BYTES).decode("utf-8")


def read_bytes(file, most):
    if file == "-":
        file = "/dev/stdin"
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)  # a writer, such as the shell's <(command), is awaited
    with open(descriptor, "rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise Problem(f"{file}: is longer than {most} bytes")
    return content


def read_json(file):
    """Returns the value of a file. A run is in lines: first the run, then its rows. Earlier versions wrote a document."""
    try:
        text = _read_text(file)
    except OSError as error:
        raise Problem(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Problem(f"{file}: not JSON but binary") from None
    if not text.strip():
        raise Problem(f"{file}: empty: the run that writes it did not finish")
    try:
        first, _, rows = text.partition("\n")
        if first.startswith("{") and first.rstrip().endswith("}") and '"results"' not in first:
            return {**json.loads(first), "results": [json.loads(line) for line in rows.splitlines()]}
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Problem(f"{file}: not JSON: {error}") from None


def read_run(file):
    return run_from(read_json(file), file)


def run_from(run, file):
    parts = {"version": str, "machine": str, "config": dict, "results": list}
    if not isinstance(run, dict) or any(not isinstance(run.get(name), kind) for name, kind in parts.items()):
        raise Problem(f"{file}: JSON, but not of `gradrail bench SUITE -J FILE`: "
                      f"the fields {', '.join(parts)} are required")
    version = re.match(r"gradrail (\d+)\.", run["version"])
    if not version or int(version[1]) > KNOWN_MAJOR:
        raise Problem(f"{file}: written by {run['version']!r}; this program reads gradrail {KNOWN_MAJOR}.x; "
                      "use the gradrail-report of that version")
    config = run["config"]
    arguments = run.get("arguments")
    read = Run(file=str(file), question=str(config.get("question", "")), version=printable(run["version"]),
               machine=printable(run["machine"]), title=printable(run.get("title", "")),
               arguments=printable(" ".join(map(str, arguments)) if isinstance(arguments, list) else arguments or ""),
               config=config, libraries=run.get("libraries"))
    # incast has one row per worker. In the other suites, a row has the samples of all workers.
    workers = 1 if read.question == "incast" else config.get("workers")
    for index, result in enumerate(run["results"]):
        read.rows.append(_read_row(Fields(result, f"{file}: results[{index}]"), workers))
    return read


class Fields:
    """An object of the file. Its errors name the place and the field."""

    def __init__(self, value, where):
        if not isinstance(value, dict):
            raise Problem(f"{where}: damaged: not an object")
        self.value, self.where = value, where

    def number(self, name):
        value = self.value.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
            raise Problem(f"{self.where}: damaged: {name} is {json.dumps(value)[:60]}, "
                          f"not a number from 0 to {LARGEST:g}")
        return float(value)

    def text(self, name):
        value = self.value.get(name)
        if not isinstance(value, str):
            raise Problem(f"{self.where}: damaged: {name} is {json.dumps(value)[:60]}, not a string")
        return printable(value)

    def list(self, name):
        value = self.value.get(name, [])
        if not isinstance(value, list):
            raise Problem(f"{self.where}: damaged: {name} is {shown(value)}, not a list")
        return value

    def part(self, name):
        return Fields(self.value.get(name), f"{self.where}.{name}")

    def pairs(self, name):
        """Returns the pairs (name, number) of an object or of a list of pairs. A missing field has no pairs."""
        value = self.value.get(name, {})
        entries = list(value.items()) if isinstance(value, dict) else value
        if not isinstance(entries, list) or any(not isinstance(e, (list, tuple)) or len(e) != 2 for e in entries):
            raise Problem(f"{self.where}: damaged: {name} is neither an object nor a list of pairs")
        return [(printable(key), Fields({name: number}, self.where).number(name)) for key, number in entries]


def _read_row(result, workers):
    times = result.part("percentiles")
    path, failed = result.text("path"), result.text("failed")
    size = int(result.number("size"))
    samples, wrong, p50_us = times.number("iterations"), result.number("nwrong"), times.number("p50_us")
    trouble = failed
    if not failed and wrong > 0:
        trouble = f"{wrong:.0f} wrong results"
    elif not failed and (p50_us == 0 or size == 0):
        trouble = "a time of 0" if size > 0 else "a size of 0"
    rounds = [Fields({"rounds_us": each}, result.where).number("rounds_us") for each in result.list("rounds_us")]
    sets = max(1, len(rounds)) * max(1, workers if isinstance(workers, int) else 1)
    try:
        distribution = sorted((float(share), us) for share, us in result.pairs("distribution_us"))
    except ValueError as error:
        raise Problem(f"{result.where}: damaged: distribution_us: {error}") from None
    return Row(label=path, path=path, what=result.text("what"), size=size,
               min_us=times.number("min_us"), p50_us=p50_us, p99_us=times.number("p99_us"),
               p999_us=times.number("p999_us"), max_us=times.number("max_us"), samples=int(samples),
               samples_a_round=samples / sets, alg_bw=result.number("alg_bw"), bus_bw=result.number("bus_bw"),
               bound_bw=dict(result.pairs("more")).get("bound_GB/s", 0.0), stages=result.pairs("stages"),
               distribution=distribution, rounds_us=rounds, wrong=wrong, failed=failed, trouble=trouble)


def read_runs(files, globs):
    """Reads the runs, and keeps the rows with a path that matches one of the globs. No globs keep all rows."""
    runs = [read_run(file) for file in files]
    for run in runs:
        for row in run.rows:
            if sum(any(other.path == row.path for other in each.rows) for each in runs) > 1:
                row.label = f"{row.path} [{printable(pathlib.Path(run.file).stem)}]"
    labels = {row.label for run in runs for row in run.rows}
    if globs:
        for run in runs:
            run.rows = [row for row in run.rows
                        if any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in (row.path, row.label))]
        if labels and not any(run.rows for run in runs):
            raise Problem(f"--paths {' '.join(globs)}: matches none of: {', '.join(sorted(labels))}")
    return runs


def parts_of(runs):
    """Returns {name: runs of one picture}. `gradrail bench peers` measures exchanges, and puts in groups of contenders,
    such as "ucx-posix: gradrail ucx". Contenders took turns only within a group."""
    parts = {}
    for run in runs:
        groups = {_group(row) for row in run.rows if row.what} - {""} if run.question == "peers" else set()
        for name in ["", *sorted(groups)]:
            rows = [row for row in run.rows if (_group(row) if _group(row) in groups else "") == name]
            if name:
                rows = [replace(row, label=row.label.removeprefix(f"{name}: ")) for row in rows]
            part = replace(run, rows=rows)
            if name:
                part = replace(part, question="put", title=f"{run.title} (puts, {name})")
            if rows or not groups:
                parts.setdefault(name, []).append(part)
    return parts


def _group(row):
    return row.path.partition(": ")[0] if ": " in row.path and not row.is_bound else ""


def title_of(runs, options):
    return options.title or " / ".join(dict.fromkeys(run.title for run in runs))


def lines_of(rows):
    """Returns {label: rows sorted by size}, in the order of the file."""
    lines = {}
    for row in rows:
        lines.setdefault(row.label, []).append(row)
    return {label: sorted(line, key=lambda row: row.size) for label, line in lines.items()}


def not_measured(rows):
    """Returns a text such as "tcp at 64 B: why" for each path and reason. It has sizes if other sizes of that path were
    measured."""
    reasons = {}
    for row in rows:
        if row.trouble:
            reasons.setdefault((row.label, row.trouble), []).append(row.size)
    drawn = {row.label for row in rows if not row.trouble}
    return [f"{label}{' at ' + ', '.join(map(size_text, sorted(set(sizes)))) if label in drawn else ''}: {why}"
            for (label, why), sizes in reasons.items()]
