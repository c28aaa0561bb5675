"""Runs `gradrail-report` in this process, and has the rows of a recorded run."""
import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import subprocess
import sys
import unittest.mock

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "tools" / "report" / "gradrail-report"
sys.path.insert(0, str(PROGRAM.parent))
SHARES = (0.001, 0.005, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.995, 0.999, 0.9999)


def load_program():
    loader = importlib.machinery.SourceFileLoader("gradrail_report", str(PROGRAM))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


REPORT = load_program()


def report(*arguments, together=False):
    """Returns what a process with these arguments would: exit status, standard output and standard error. With
    `together`, both are in stdout, in the order in which they were written.
    """
    command = ["gradrail-report", *map(str, arguments)]
    outputs = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    if together:
        outputs[1] = outputs[0]
    with unittest.mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(outputs[0]), \
            contextlib.redirect_stderr(outputs[1]):
        try:
            status = REPORT.main()
        except SystemExit as ended:
            status = ended.code
    texts = [output.buffer.getvalue().decode(errors="surrogateescape") for output in outputs]
    return subprocess.CompletedProcess(command, status, texts[0], None if together else texts[1])


def row(path, size, p50, **other):
    """A row as bench/report/figure.cc writes it."""
    return {"path": path, "what": "", "size": size, "count": size // 4, "type": "float",
            "percentiles": {"iterations": 6000, "min_us": 0.9 * p50, "max_us": 9 * p50, "p50_us": p50, "mean_us": p50,
                            "stdev_us": 1.0, "p99_us": 2 * p50, "p999_us": 3 * p50},
            "distribution_us": {str(share): p50 * (0.9 + 0.2 * share) for share in SHARES},
            "rounds_us": [p50, p50, p50], "alg_bytes": size, "bus_bytes": 2 * size,
            "alg_bw": size / max(p50, 1e-3) * 1e-3, "bus_bw": 2 * size / max(p50, 1e-3) * 1e-3,
            "nwrong": 0, "failed": "", "why": "", "stages": [], "more": {}, **other}


def run_of(rows, question="peers", **config):
    return {"version": "gradrail 0.1.0 abcdef0", "machine": "a machine, 2 cores", "title": f"gradrail bench {question}: it",
            "arguments": f"bench {question}", "libraries": {}, "devices": [], "config": {"question": question, **config},
            "results": rows}
