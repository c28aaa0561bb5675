"""Reads the log and the exit status of a suite: the number of passes, the failures, the skips and their reasons."""
import re
from dataclasses import dataclass, field


@dataclass
class Result:
    passed: int = 0
    failed: list = field(default_factory=list)  # (name, why)
    skipped: list = field(default_factory=list)  # (name, why)


def read_gtest(log, status):
    """googletest's own words. A test that began and never ended was the last thing before a crash or a time limit."""
    result = Result()
    running = None
    lines = log.splitlines()
    for number, line in enumerate(lines):
        begun = re.match(r"\[ RUN      \] (\S+)", line)
        ended = re.match(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?),? .*\(\d+ ms\)", line)
        if begun:
            if running:  # the log of another guest begins
                result.failed.append((running, f"never ended: {meaning(status)}"))
            running, first = begun.group(1), number + 1
        elif ended and running:
            outcome, name = ended.groups()
            said = lines[first:number]
            if outcome == "OK":
                result.passed += 1
            elif outcome == "FAILED":
                result.failed.append((name, _first_words(said, ": Failure")))
            else:
                result.skipped.append((name, _first_words(said, ": Skipped")))
            running = None
    if running:
        result.failed.append((running, f"never ended: {meaning(status)}"))
    elif status and not result.failed:
        result.failed.append(("(suite)", meaning(status)))
    elif not result.passed and not result.failed and not result.skipped:
        result.failed.append(("(suite)", "no test ran"))
    return result


def read_steps(log, status):
    """Jobs in shell print "PASS name", "FAIL name: why", "SKIP name: why" for each of their steps (jobs/steps.sh)."""
    result = Result()
    for word, name, why in re.findall(r"^(PASS|FAIL|SKIP) ([^:\n]+):? ?(.*)$", log, re.M):
        if word == "PASS":
            result.passed += 1
        else:
            (result.failed if word == "FAIL" else result.skipped).append((name, why or "no reason given"))
    if status and not result.failed:
        result.failed.append(("(job)", meaning(status)))
    elif not (result.passed or result.failed or result.skipped):
        result.failed.append(("(job)", "no step ran"))
    return result


def read_status(log, status):
    if status:
        lines = log.strip().splitlines()
        return Result(failed=[("(program)", f"{meaning(status)}: {lines[-1] if lines else 'no output'}")])
    return Result(passed=1)


def meaning(status):
    if status in (124, 137):
        return "past its time limit"
    if status > 128:
        return f"ended by signal {status - 128}"
    return f"exit status {status}"


def _first_words(lines, mark):
    """The lines after the one that ends with `mark`, on one line."""
    for number, line in enumerate(lines):
        if line.endswith(mark):
            return " ".join(" ".join(lines[number + 1:number + 4]).split())[:200]
    return "see the log"
