"""A parameter server and three workers on four hosts, with a fault every few seconds. Tasks are killed, stopped or slowed
down; cables are cut; unauthenticated connections arrive. GRADRAIL_SOAK_SECONDS=1800 GRADRAIL_SOAK_EVERY=15 is the long form of
the soak, GRADRAIL_ROUNDS=5 GRADRAIL_SOAK_SECONDS=60 that of the comparisons with undisturbed runs."""
import collections
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

import cluster
import four_hosts

ROUNDS = int(os.environ.get("GRADRAIL_ROUNDS", "1"))
SECONDS = float(os.environ.get("GRADRAIL_SOAK_SECONDS", "30"))
EVERY = float(os.environ.get("GRADRAIL_SOAK_EVERY", "5"))
# The limit for the recovery from a fault, or for the loss and return of a worker. A ps without a link takes longest.
RECOVERY = 45 * cluster.PATIENCE
SETTLED = 1.0
RUN = 180 * cluster.PATIENCE
# Growth of a task between its first fault and its last. gRPC keeps connections to lost peers, and threads, for seconds.
MORE_FILES = 6
MORE_THREADS = 12
MORE_MEMORY_KB = 24 << 10

Use = collections.namedtuple("Use", "files threads kib")


def use_of(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return Use(len(os.listdir(f"/proc/{pid}/fd")), int(re.search(r"Threads:\s+(\d+)", status)[1]),
               int(re.search(r"VmRSS:\s+(\d+)", status)[1]))


class Faults(four_hosts.FourHosts):
    """Host 0 has the parameter server, each other host a worker. A fault returns its description when it ends."""

    MODEL = "linear"
    LASTS = [0.5, 2, 5, 7]  # seconds; --heartbeat-timeout is 4

    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("GRADRAIL_SOAK_SEED", random.randrange(2 ** 32)))
        print(f"GRADRAIL_SOAK_SEED={self.seed}", flush=True)
        self.chance = random.Random(self.seed)

    def start(self, host):
        job, index = ("ps", 0) if host == 0 else ("worker", host - 1)
        cores = sorted(os.sched_getaffinity(0))  # without a flag, each host would use all of them
        # This is the process of the task, not that of ip: the faults signal it.
        flags = [*self.flags, "--cores", cores[host % len(cores)]]
        task = self.train_on(host, job, index, *flags, binary_flags=("--model", self.MODEL))
        self.now[host] = task
        self.every[host].append(task)
        return task

    def start_all_hosts(self, *flags):
        self.flags = flags
        self.now, self.every = {}, {host: [] for host in range(4)}
        for host in range(4):
            self.start(host)
        for host in (1, 2, 3):
            self.now[host].wait_for(r"Step: \d+")

    def mended(self, host):
        """Restarts a task that ended with a code that asks for a restart, like a service manager."""
        task = self.now[host]
        if task.running():
            return
        code = task.code(5)
        self.assertTrue(code == -signal.SIGKILL or cluster.retry_worthy(code), task.transcript())
        self.start(host)

    def kill(self):
        host = self.chance.randrange(1, 4)
        self.now[host].signal(signal.SIGKILL)
        return f"kill of worker {host - 1}"

    def kill_ps(self):
        self.now[0].signal(signal.SIGKILL)
        return "kill of the ps"

    def stop(self):
        host = self.chance.randrange(4)
        seconds = self.chance.choice(self.LASTS)
        self.now[host].signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.now[host].signal(signal.SIGCONT)
        return f"stop of host {host} for {seconds} s"

    def link_down(self):
        host = self.chance.randrange(4)
        seconds = self.chance.choice(self.LASTS)
        four_hosts.ip("-n", self.switch, "link", "set", f"port{host}", "down")
        time.sleep(seconds)
        four_hosts.ip("-n", self.switch, "link", "set", f"port{host}", "up")
        return f"link of host {host} down for {seconds} s"

    def slow(self):
        host = self.chance.randrange(4)
        for _ in range(20):
            self.now[host].signal(signal.SIGSTOP)
            time.sleep(0.09)
            self.now[host].signal(signal.SIGCONT)
            time.sleep(0.01)
        return f"host {host} slowed ten times for 2 s"

    def garbage(self):
        ports = subprocess.run(["ip", "netns", "exec", self.hosts[0], "ss", "-Htln"], capture_output=True, text=True,
                               check=True).stdout
        code = ("import random,socket,sys\n"
                "for port in sys.argv[2:]:\n"
                "  for _ in range(20):\n"
                "    try:\n"
                "      s=socket.create_connection((sys.argv[1],int(port)),1)\n"
                "      s.sendall(random.randbytes(random.randrange(1,9000)))\n"
                "    except OSError: pass\n")
        found = re.findall(r":(\d+)\s", ports)
        subprocess.run(["ip", "netns", "exec", self.hosts[3], sys.executable, "-c", code, f"{four_hosts.NETWORK}.1",
                        *sorted(set(found))], check=False, timeout=60)
        return f"garbage at {len(set(found))} ports of the ps"


class Soak(Faults):
    def steps(self, host):
        return sum(len(re.findall(r"^Step: ", task.text(), re.M)) for task in self.every[host])

    def assert_recovers(self, fault):
        """Checks that all workers make steps again."""
        before = {host: self.steps(host) for host in (1, 2, 3)}

        def all_step():
            for host in range(4):
                self.mended(host)
            return all(self.steps(host) > before[host] + 2 for host in before)

        cluster.wait_until(all_step, RECOVERY, lambda: f"steps after {fault}\n" + "\n".join(
            self.now[host].transcript() for host in range(4)))

    def test_sync_goes_on_through_all_of_it(self):
        self.start_all_hosts("--mode", "sync", "--epochs", 10 ** 6, "--checkpoint_dir", self.folder / "saved", "--save_secs", 2,
                             "--log_every", 50, "--join-timeout", 60)
        self.assert_recovers("the start")
        faults = [self.kill, self.kill_ps, self.stop, self.link_down, self.slow, self.garbage]
        began, count, samples = time.monotonic(), 0, {}
        while time.monotonic() < began + SECONDS:
            due = time.monotonic() + EVERY
            fault = faults[count % len(faults)] if count < len(faults) else self.chance.choice(faults)
            count += 1
            what = fault()
            self.assert_recovers(what)
            time.sleep(SETTLED)
            uses = [use_of(self.now[host].pid) for host in range(4)]
            for host, use in enumerate(uses):
                samples.setdefault((host, self.now[host].pid), []).append(use)
            print(f"{time.monotonic() - began:7.1f} s  {what}; files, threads, KiB of the ps and the workers: "
                  + ", ".join("{}/{}/{}".format(*use) for use in uses), flush=True)
            time.sleep(max(0.0, due - time.monotonic()))
        for task, history in samples.items():
            self.assertLess(history[-1].files - history[0].files, MORE_FILES, (task, history))
            self.assertLess(history[-1].threads - history[0].threads, MORE_THREADS, (task, history))
            if not cluster.instrumented():  # a sanitizer keeps what was freed
                self.assertLess(history[-1].kib - history[0].kib, MORE_MEMORY_KB, (task, history))
        for host in (3, 2, 1):
            self.now[host].signal(signal.SIGTERM)
        for host in (1, 2, 3, 0):
            self.assert_ends(self.now[host], cluster.GOOD, 2 * cluster.FINISH)
        # No step is skipped or made twice: after each step, the version is equal to the position in the run.
        for host in (1, 2, 3):
            for task in self.every[host]:
                lines = re.findall(r"^Step: (\d+),  Epoch: +(\d+),  Batch: +(\d+) of 100", task.text(), re.M)
                wrong = [line for line in lines if int(line[0]) != (int(line[1]) - 1) * 100 + int(line[2]) + 1]
                self.assertEqual(wrong, [], task.transcript())
        self.assertRegex(self.now[1].text(), r"w = 2\.0000, b = 10\.0000")
        print(f"{count} faults in {time.monotonic() - began:.0f} s, {self.steps(1)} lines of worker 0")


class Compared(Faults):
    """Compares a run with faults with the same run without faults."""

    MODEL = "mlp"
    LASTS = [0.5, 2]  # too short for a loss: the others could end the run during an absence
    APART = 2.0  # seconds between two faults

    def run_through(self, faults, *flags):
        """Returns the chief and the number of faults before the end of the run."""
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self.start_all_hosts(*flags, "--checkpoint_dir", self.folder / "saved", "--save_secs", 2, "--log_every", 50)
        count = 0
        deadline = time.monotonic() + RUN
        while any(self.now[host].running() for host in (1, 2, 3)) and time.monotonic() < deadline:
            if count < len(faults):
                try:
                    print(f"  {faults[count]()}", flush=True)
                except ProcessLookupError:
                    break  # the task has just ended
                count += 1
            due = time.monotonic() + self.APART
            while time.monotonic() < due and any(self.now[host].running() for host in (1, 2, 3)):
                for host in range(4):
                    if self.now[host].process.poll() not in (None, cluster.GOOD):
                        self.mended(host)
                time.sleep(0.05)
        for host in (1, 2, 3, 0):
            self.assert_ends(self.now[host], cluster.GOOD)
        return self.now[1], count

    def epochs_that_last(self, seconds, *flags):
        """Returns a number of epochs that takes this time, so that the run does not end before the faults."""
        began = time.monotonic()
        self.run_through([], *flags, "--epochs", self.SHORT)
        return max(self.SHORT, round(self.SHORT * seconds / (time.monotonic() - began)))


class SameBits(Compared):
    SHORT = 2

    def test_sync_ends_in_the_bits_of_an_undisturbed_run(self):
        flags = ["--mode", "sync", "--optimizer", "adam"]
        faults = [self.garbage, self.stop, self.kill_ps, self.link_down, self.slow]  # kill_ps needs a checkpoint
        flags += ["--epochs", self.epochs_that_last(SECONDS / 2, *flags)]
        undisturbed, _ = self.run_through([], *flags)
        for _ in range(ROUNDS):
            disturbed, count = self.run_through(faults, *flags)
            self.assertGreaterEqual(count, 3, disturbed.transcript())
            self.assertEqual(cluster.hash_of(disturbed), cluster.hash_of(undisturbed))
            print(f"{count} faults, {flags[-1]} epochs, the same parameters bit for bit", flush=True)


class Accuracy(Compared):
    SHORT = 2
    AS_GOOD = 0.015  # share of the test set: about the difference between runs without faults

    def test_async_learns_as_well_with_faults_as_without(self):
        flags = ["--mode", "async", "--optimizer", "adam"]
        faults = [self.kill, self.stop, self.garbage, self.kill_ps, self.link_down, self.slow]
        flags += ["--epochs", self.epochs_that_last(SECONDS / 2, *flags)]
        found = {"without": [], "with": []}
        for _ in range(ROUNDS):
            for name, list_of_faults in (("without", []), ("with", faults)):
                chief, count = self.run_through(list_of_faults, *flags)
                found[name].append(float(chief.wait_for(r"^Test-Accuracy: ([0-9.]+)").group(1)))
                if list_of_faults:
                    self.assertGreaterEqual(count, 3, chief.transcript())
        for name, values in found.items():
            print(f"{name} faults: {values}, mean {statistics.mean(values):.4f}", flush=True)
        self.assertGreater(min(found["without"]), 0.9)
        self.assertLess(abs(statistics.mean(found["with"]) - statistics.mean(found["without"])), self.AS_GOOD)


if __name__ == "__main__":
    four_hosts.run_or_skip(unittest.main)
