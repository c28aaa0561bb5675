#!/usr/bin/env python3
"""Runs suites over real RDMA verbs in virtual machines with soft-RoCE, without RDMA hardware. See README.md.

Exit status: 0 all suites passed, 1 a suite failed, 77 this machine cannot run the lab (the reason is printed).
GRADRAIL_FORBID_SKIPS=1 turns skips into failures. GRADRAIL_REQUIRE=rdma does the same.
"""
import argparse
import fnmatch
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import termios
import time

import guests
import kernel
from problem import CannotRun, Problem
from results import read_status
from runner import Runner
from suites import SUITES, Suite

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
WHOLE_SECONDS = 900  # all suites of `make test-all` take 235 s on two idle cores
FULL_SECONDS = 3600
KEPT_RUNS = 5


def part(text):
    """Parses "I/N" of --part."""
    index, count = map(int, text.split("/"))
    if not 1 <= index <= count:
        raise ValueError
    return index, count


def of_part(suites, index, count):
    """Returns the suites of one part. Each suite belongs to the part that contains the middle of its time limit."""
    whole = sum(suite.seconds for suite in suites)
    chosen_suites, before = [], 0
    for suite in suites:
        if (before + suite.seconds / 2) * count // whole + 1 == index:
            chosen_suites.append(suite)
        before += suite.seconds
    return chosen_suites


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the suites and their purpose")
    parser.add_argument("--only", action="append", default=[], metavar="NAME",
                        help="run these suites; shell patterns are allowed")
    parser.add_argument("--full", action="store_true", help="also run the long suites, which take most of an hour")
    parser.add_argument("--shell", action="store_true", help="start two guests and a shell in one of them; no suites")
    parser.add_argument("--run", metavar="COMMAND", help="run this command, no suites; $BUILD is the build folder")
    parser.add_argument("--guests", type=int, default=1, choices=(1, 2), help="guests of --run; $ROLE is 0 or 1")
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build/release", help="tested build folder")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "build/rdma-lab",
                        help="folder of the kernel and the logs")
    parser.add_argument("--limit", type=float, metavar="SECONDS",
                        help=f"time limit of the whole run ({WHOLE_SECONDS}; {FULL_SECONDS} with --full)")
    parser.add_argument("--part", metavar="I/N", type=part, default=(1, 1),
                        help="run part I of N parts with about equal time limits; all parts together are the whole list")
    parser.add_argument("--slower", type=float, default=float(os.environ.get("GRADRAIL_PATIENCE", "1")), metavar="N",
                        help="multiply all time limits, for sanitizers and busy machines ($GRADRAIL_PATIENCE)")
    parser.add_argument("--keep", action="store_true", help="also keep the logs of a successful run")
    parser.add_argument("--accel", default="tcg,thread=multi", help="QEMU accelerator; kvm is faster if available")
    parser.add_argument("--memory-mb", type=int, default=guests.MEMORY_MB, help="memory of each guest")
    options = parser.parse_args()
    if options.limit is None:
        options.limit = (FULL_SECONDS if options.full else WHOLE_SECONDS) * options.slower
    return options


def chosen(patterns, full):
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(suite.name, pattern) for suite in SUITES):
            raise SystemExit(f"no suite has the name {pattern}; --list lists the suites")
    if not patterns:
        return [suite for suite in SUITES if not suite.asked and (full or not suite.long)]
    return [suite for suite in SUITES if any(fnmatch.fnmatchcase(suite.name, p) for p in patterns)]


def say(text):
    print(f"rdma  {text}", flush=True)


def new_folder(cache):
    """Makes the folder for the logs of this run, and removes the logs of all but the latest runs."""
    for old in sorted(cache.glob("run-*"), key=lambda folder: folder.stat().st_mtime)[:-KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)
    return pathlib.Path(tempfile.mkdtemp(dir=cache, prefix=time.strftime("run-%H%M%S-")))


def run(options, suites):
    guests.check_machine()
    start = time.monotonic()
    cache = options.cache.resolve()
    prepared = kernel.prepare(cache, say)
    out = new_folder(cache)
    if options.shell:
        return open_shell(prepared, out, options)
    runner = Runner(prepared, out, options, say, deadline=start + options.limit)
    if options.run:
        suites = [Suite("run", "", job=options.run, seconds=int(options.limit), guests=options.guests, read=read_status)]
    good, ran = runner.run(suites)
    for log in sorted(out.glob("run/log.*")):
        print(log.read_text(errors="replace"), end="")
    say(f"{runner.total_line()} in {time.monotonic() - start:.0f} s (Linux {prepared.version}, soft-RoCE)")
    if good and not options.keep:
        shutil.rmtree(out, ignore_errors=True)
    else:
        say(f"logs: {out}")
    if good and not ran:
        raise CannotRun("no suite ran")
    return 0 if good else 1


def open_shell(prepared, out, options):
    if not sys.stdin.isatty():
        raise Problem("--shell needs a terminal")
    settings = termios.tcgetattr(sys.stdin)
    try:
        with guests.Guests(prepared, 2, out, options.build_dir.resolve(), options, deadline=float("inf")) as booted:
            booted.wait_for_shell()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)  # QEMU is killed and does not restore the terminal
        shutil.rmtree(out, ignore_errors=True)
    return 0


def is_required():
    return "rdma" in os.environ.get("GRADRAIL_REQUIRE", "").split(",")


def main():
    options = parse_arguments()
    suites = of_part(chosen(options.only or (["*"] if options.list else []), options.full), *options.part)
    if options.list:
        for suite in suites:
            print(f"{suite.name:24} {'--only' if suite.asked else '--full' if suite.long else '':8}{suite.about}")
        return 0
    # A signal becomes an exception, so that the guests are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return run(options, suites)
    except CannotRun as why:
        say(f"skipped: {why}")
        return 1 if is_required() else SKIPPED
    except Problem as why:
        say(f"failed: {why}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main())
