"""The resources of processes, and their growth in a long run."""
import collections
import os
import pathlib
import re
import statistics
import time

Use = collections.namedtuple("Use", "time files threads kib")


def use_of(pid):
    """Returns the resources of a process; None: it has ended."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    if "VmRSS" not in status:
        return None
    return Use(time.monotonic(), len(os.listdir(f"/proc/{pid}/fd")), int(re.search(r"Threads:\s+(\d+)", status)[1]),
               int(re.search(r"VmRSS:\s+(\d+)", status)[1]))


def cpu_seconds(pid):
    """Returns the CPU time that a process has used; 0: it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slope(histories, value):
    """Returns the growth per hour of `value` within the processes: one regression with an own mean for each process."""
    above = below = 0.0
    for history in histories:
        mean_time = statistics.mean(use.time for use in history)
        mean = statistics.mean(value(use) for use in history)
        above += sum((use.time - mean_time) * (value(use) - mean) for use in history)
        below += sum((use.time - mean_time) ** 2 for use in history)
    return 3600 * above / below if below > 0 else 0.0
