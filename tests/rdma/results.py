"""Reads the log and the exit status of a suite: the number of passes, the failures, the skips and their reasons."""
import re
from dataclasses import dataclass, field


@dataclass
class Result:
    passed: int = 0
    failed: list = field(default_factory=list)  # (name, why)
    skipped: list = field(default_factory=list)  # (name, why)


def read_gtest(log, status):
    """Reads the log of googletest. A test that started and did not end was running at a crash or at the time limit."""
    result = Result()
    running = None
    lines = log.splitlines()
    for number, line in enumerate(lines):
        begun = re.match(r"\[ RUN      \] (\S+)", line)
        ended = re.match(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?),? .*\(\d+ ms\)", line)
        if begun:
            if running:  # the log of the other guest starts here
                result.failed.append((running, f"did not end: {meaning(status)}"))
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
        result.failed.append((running, f"did not end: {meaning(status)}"))
    elif status and not result.failed:
        result.failed.append(("(suite)", meaning(status)))
    elif not result.passed and not result.failed and not result.skipped:
        result.failed.append(("(suite)", "no test ran"))
    return result


def read_steps(log, status):
    """Reads the log of a shell job. Each step prints "PASS name", "FAIL name: why" or "SKIP name: why"."""
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
        return "the time limit was exceeded"
    if status > 128:
        return f"killed by signal {status - 128}"
    return f"exit status {status}"


def _first_words(lines, mark):
    """Returns the lines after the line that ends with `mark`, joined into one line."""
    for number, line in enumerate(lines):
        if line.endswith(mark):
            return " ".join(" ".join(lines[number + 1:number + 4]).split())[:200]
    return "see the log"
