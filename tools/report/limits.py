"""Checks a recorded run against limits: a test of a host.

LIMITS is a JSON list, or a recorded run of a good host with --tolerance:

  [{"path": "tcp", "what": "bandwidth", "size": "4M", "min_GB/s": 1.2},
   {"path": "shm*", "size": 65536, "max_us": 50, "max_99_us": 200}]

path       column `path` of the rows; * at the end matches any rest
what       quantity: latency or bandwidth of `put`; without it, all
size       bytes, as a number or as text with K, M, G; without it, each size
min_GB/s   least algbw in 10^9 bytes/s; latencies have none
max_us     largest median
max_99_us  largest 99th percentile

A limit binds each row that it selects. A limit that selects no measured row is violated, too.

Exit status: 0 all limits are kept, 1 a limit is violated, 2 wrong flags or files, 3 the run has wrong results.
"""
import argparse
import math
import pathlib
import re
import sys
from dataclasses import dataclass

import compare
import runs

WRONG_RESULTS = 3
MOST_PERCENT = 1e6
FIELDS = ("path", "what", "size", "min_GB/s", "max_us", "max_99_us")
# Settings that select rows, or the effort of the measurement. All others change what a row measures.
FREE_SETTINGS = {"begin", "end", "factor", "iterations", "warmup", "check", "seconds", "rounds", "seed", "transport",
                 "transports", "bind_host", "plugin_dir", "cluster", "ps_hosts", "worker_hosts"}
# bound: (whether it is a minimum, unit, value of a row or 0)
QUANTITIES = {"min_GB/s": (True, "GB/s", lambda row: 0 if row.what == "latency" else row.alg_bw),
              "max_us": (False, "us", lambda row: row.p50_us),
              "max_99_us": (False, "us (99 %)", lambda row: row.p99_us)}


@dataclass
class Limit:
    origin: str  # source of the bounds, for messages: "limits.json, limit 2"
    path: str
    what: str  # "": each quantity
    size: int  # 0: each size
    bounds: dict  # {name of QUANTITIES: number}

    def matches(self, path):
        return path.startswith(self.path[:-1]) if self.path.endswith("*") else path == self.path

    def selects(self, row):
        return self.matches(row.path) and self.what in ("", row.what) and self.size in (0, row.size)


def percent(text):
    number = text.removesuffix("%")
    if not re.fullmatch(r"\d+(\.\d*)?(e\d+)?", number) or float(number) > MOST_PERCENT:
        raise argparse.ArgumentTypeError(f"'{text}' is no percentage from 0 to {MOST_PERCENT:.0f}, such as 30 or 30%")
    return float(number)


def add_flags(parser):
    parser.add_argument("run", help="the run that `gradrail bench SUITE -J` has recorded; -: standard input")
    parser.add_argument("limits", help="a list of limits, or a recorded run of a good host")
    parser.add_argument("--tolerance", type=percent, metavar="PERCENT",
                        help="limits of a recorded run: percent by which a median may exceed the recorded one; 30 and 30%% are equal")


def run(options):
    measured = runs.read_run(options.run)
    limits = read_limits(options.limits, options.tolerance, measured)
    lines = violations(limits, measured.rows)
    for line in lines:
        print(f"gradrail-report limits: {line}", file=sys.stderr)
    wrong = sum(row.wrong > 0 for row in measured.rows)
    if wrong:
        print(f"gradrail-report limits: {wrong} rows have wrong results", file=sys.stderr)
    print(f"{len(limits)} limits, {len(lines)} violations")
    return WRONG_RESULTS if wrong else 1 if lines else 0


def read_limits(file, tolerance, measured):
    """The run that has to keep the limits is `measured`."""
    content, name = runs.read_json(file), pathlib.Path(file).name
    if isinstance(content, list):
        if tolerance is not None:
            raise runs.Problem(f"{file}: --tolerance is for a recorded run, and this is a list of limits")
        limits = [limit_from(entry, f"{file}: limit {index}", f"{name}, limit {index}")
                  for index, entry in enumerate(content, 1)]
    else:
        good = runs.run_from(content, file)
        if tolerance is None:
            raise runs.Problem(f"{file}: a recorded run needs --tolerance PERCENT, such as --tolerance 20")
        limits = limits_of_run(good, name, tolerance, measured)
    if not limits:
        raise runs.Problem(f"{file}: has no limit, and each run would keep it")
    return limits


def limit_from(entry, where, origin):
    def refuse(why):
        raise runs.Problem(f"{where}: {why}")
    if not isinstance(entry, dict):
        refuse(f"must be an object with {', '.join(FIELDS)}")
    for name, value in entry.items():
        is_text = isinstance(value, str)
        if name not in FIELDS:  # a misspelled bound must not be a limit that always holds
            refuse(f'no field is called "{name}"; fields: {", ".join(FIELDS)}')
        if name in ("path", "what") and not (is_text and value):
            refuse(f'"{name}" must be a text with at least one character, and is {runs.shown(value)}')
        if name == "size" and not (size_of(value) > 0):
            refuse(f'"size" must be a number of bytes such as 65536 or "64K", and is {runs.shown(value)}')
        if name in QUANTITIES and not (is_number(value) and 0 < value < math.inf):
            refuse(f'"{name}" must be a number above 0, and is {runs.shown(value)}')
    bounds = {name: value for name, value in entry.items() if name in QUANTITIES}
    if "path" not in entry:
        refuse('"path" is missing, such as "tcp" or "shm*"')
    if not bounds:
        refuse("has no bound: add min_GB/s, max_us or max_99_us")
    return Limit(origin, entry["path"], entry.get("what", ""), size_of(entry.get("size", 0)), bounds)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def size_of(value):
    """Returns bytes, or -1."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return runs.parse_size(value)
    except (runs.Problem, TypeError):
        return -1


def limits_of_run(good, name, tolerance, measured):
    """Each median of a good host is exceeded by at most the tolerance."""
    different = [f"{'suite' if key == 'question' else key} {runs.shown(one)} / {runs.shown(other)}"
                 for key, one, other in compare.differing(good.config, measured.config) if key not in FREE_SETTINGS]
    if different:
        raise runs.Problem(f"{good.file}: it was recorded with other settings than {measured.file} ({', '.join(different)}); "
                           "use the same flags")
    for row in good.rows:
        if row.wrong > 0:
            raise runs.Problem(f"{good.file}: '{row.path}' of {row.size} bytes has wrong results: no reference for a good host; "
                               "record it again")
    return [Limit(f"{name}: {row.p50_us:.2f} us and {tolerance:g} %", row.path, row.what, row.size,
                  {"max_us": row.p50_us * (1 + tolerance / 100)})
            for row in good.rows if not row.failed and row.p50_us > 0]


def row_name(path, what, size):
    return path + (f" {what}" if what else "") + (f" at {size} B" if size else "")


def violations(limits, rows):
    """Returns one line for each bound that a row exceeds, and for each bound that no measured row has a figure for."""
    lines = []
    for limit in limits:
        for name, (is_least, unit, value_of) in QUANTITIES.items():
            if name not in limit.bounds:
                continue
            bound, has_row = limit.bounds[name], False
            for row in rows:
                value = value_of(row)
                if row.failed or not limit.selects(row) or value <= 0:
                    continue
                has_row = True
                if value < bound if is_least else value > bound:
                    lines.append(f"{row_name(row.path, row.what, row.size)}: {value:.3f} {unit}, "
                                 f"{'less' if is_least else 'more'} than {bound:g} ({limit.origin})")
            if not has_row:
                lines.append(f"{row_name(limit.path, limit.what, limit.size)}: no measured row for {name} {bound:g} "
                             f"({limit.origin}); {why_no_row(limit, rows)}")
    return lines


def why_no_row(limit, rows):
    """Returns why there may be no row: paths that could not be measured, else the paths that were."""
    # A path that could not be opened has the name of its transport alone: "ofi" for "ofi verbs rxe0".
    reasons = {f"{row.path} was not measured: {row.failed}" for row in rows
               if row.failed and (limit.matches(row.path) or limit.path.startswith(row.path))}
    paths = {row_name(row.path, row.what, row.size) for row in rows if not row.failed}
    if reasons:
        return "; ".join(sorted(reasons))
    return f"measured: {', '.join(sorted(paths))}" if paths else "no row was measured"
