"""Records times in which a CPU did not run the processes of this machine. A loaded virtual machine has such times of
several seconds: all tasks on that CPU are silent meanwhile."""
import os
import subprocess
import sys
import tempfile
import time

PERIOD = 0.02
SHORTEST = 0.5  # seconds of a stall that is recorded


class StallWatch:
    """A process on each CPU that sleeps for PERIOD and compares its clock."""

    def __init__(self):
        # pylint: disable-next=consider-using-with
        self.file = tempfile.NamedTemporaryFile("r", prefix="gradrail-stalls-")
        # pylint: disable-next=consider-using-with
        self.watchers = [subprocess.Popen([sys.executable, __file__, str(cpu), self.file.name])
                         for cpu in sorted(os.sched_getaffinity(0))]

    def longest_since(self, begin):
        """Returns the seconds of the longest stall that ended after this time.monotonic()."""
        self.file.seek(0)
        stalls = [tuple(map(float, line.split())) for line in self.file.read().splitlines()]
        return max((seconds for end, seconds in stalls if end >= begin), default=0.0)

    def close(self):
        for watcher in self.watchers:
            watcher.kill()
            watcher.wait()
        self.file.close()


def watch(cpu, path):
    os.sched_setaffinity(0, {cpu})
    before = time.monotonic()
    while os.getppid() != 1:
        time.sleep(PERIOD)
        now = time.monotonic()
        if now - before > SHORTEST:
            with open(path, "a", encoding="ascii") as out:
                out.write(f"{now} {now - before}\n")
        before = now


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
