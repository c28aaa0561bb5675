"""Runs with a fault every few seconds. The faults are those of faults.py, and a full disk. The long form of Soak is
GRADRAIL_SOAK_SECONDS=3600 GRADRAIL_SOAK_EVERY=15; GRADRAIL_SOAK_TABLE=FILE adds a line for each piece, and soak_totals.py
adds the lines up. GRADRAIL_JUMPING_CLOCK is the library of jumping_clock.c; without it, no clock jumps.
The long form of the comparisons is GRADRAIL_ROUNDS=5 GRADRAIL_SOAK_SECONDS=60."""
import collections
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

import cluster
import faults
import four_hosts
import process_use
import stalls

ROUNDS = int(os.environ.get("GRADRAIL_ROUNDS", "1"))
SECONDS = float(os.environ.get("GRADRAIL_SOAK_SECONDS", "30"))
EVERY = float(os.environ.get("GRADRAIL_SOAK_EVERY", "2"))
ROUND = min(SECONDS / 2, 180.0)  # without a fault, one round of a soak takes about this time
RUN = 180 * cluster.PATIENCE
SETTLED = 1.0
BATCHES = 550  # batches of MNIST in an epoch of one worker
LOG_EVERY = 10
# Growth of a task between its first fault and its last. gRPC keeps connections to lost peers, and threads, for seconds.
MORE_FILES = 6
MORE_THREADS = 12
MORE_MEMORY_KB = 24 << 10


def position(task):
    """Returns the steps that this process of a worker has reported."""
    for line in reversed(task.lines()):
        found = re.match(r"Step: .* Epoch: +(\d+),  Batch: +(\d+) of", line.text)
        if found:
            return (int(found[1]) - 1) * BATCHES + int(found[2])
    return 0


def furthest(run):
    """Returns the largest position of the workers of a run."""
    return max(position(run.now[host]) for host in run.WORKERS)


def speed(task):
    """Returns the steps per second of a worker that has ended. The median counts: the first steps are slower."""
    times = [line.time for line in task.lines() if line.text.startswith("Step: ")]
    return LOG_EVERY / max(statistics.median(later - earlier for earlier, later in zip(times, times[1:])), 0.001)


class Soak(faults.Faults):
    """Two ps tasks, each with a backup, and four workers, each on its own host. Rounds in sync and async alternate. A sync
    round must end with the parameters of an undisturbed run, so that its faults are too short for the loss of a worker. A
    stall of the machine may be long enough: then the ps declares a worker lost, and the others go on without it."""

    HOSTS = 8
    PS = (0, 1, 2, 3)  # the first two are primaries at the start
    WORKERS = (4, 5, 6, 7)
    MODEL = "mlp"
    DISK_MIB = 64
    LONG_STALL = 2.5  # seconds: a worker is lost after 4 s without a heartbeat

    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.DISK_MIB}m", "gradrail-soak", self.disk], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk], check=False)
        for host in range(self.HOSTS):
            self.clock_of(host).write_bytes(bytes(8))
        self.piece = {"date": time.strftime("%Y-%m-%d %H:%M"), "seed": self.seed, "every_s": EVERY, "seconds": 0,
                      "faults": collections.Counter(), "rounds": collections.Counter(), "same_bits": 0, "stalled": 0,
                      "steps": 0, "restarts": 0, "recovery_s": [], "result": "failed",
                      "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=pathlib.Path(__file__).parent,
                                               capture_output=True, text=True, check=False).stdout.strip()}
        self.samples = {}
        self.stalls = stalls.StallWatch()
        self.addCleanup(self.stalls.close)
        # A piece that is ended early is recorded as well.
        signal.signal(signal.SIGTERM, self.end_early)

    def end_early(self, *_):
        self.piece["result"] = "ended early"
        sys.exit("ended by SIGTERM")

    def clock_of(self, host):
        return self.folder / f"clock-{host}" if "GRADRAIL_JUMPING_CLOCK" in os.environ else None

    def mend_all(self):
        for host in range(self.HOSTS):
            # After the end of the run, a new process would wait for another run.
            if self.now[host].process.poll() not in (None, cluster.GOOD) and not self.was_replaced_at_the_end(host):
                self.mended(host)
                self.piece["restarts"] += 1

    def said(self, host, pattern):
        """Returns the time of the last line of this task with this pattern; 0: there is none."""
        return max((line.time for line in self.now[host].lines() if re.search(pattern, line.text)), default=0)

    def serving(self, pair):
        """Returns the host of the task of this pair that serves. None: not known."""
        # The former primary of a pair may still run when its backup serves.
        since = {host: self.said(host, "took over from|has everything") for host in (pair, pair + 2)}
        known = [host for host in since if since[host] and self.now[host].running()]
        return max(known, key=lambda host: since[host], default=None)

    def is_level(self, pair):
        """Returns whether the serving task of this pair has a complete backup."""
        host = self.serving(pair)
        if host is None:
            return False
        other = pair + 2 if host == pair else pair
        return self.now[other].running() and self.said(host, "has everything") > max(
            self.now[other].started, self.said(host, "took over from"))

    def kill_primary(self):
        host = self.serving(self.chance.randrange(2))
        self.kill_at(host)
        return f"kill of {self.name_of(host)}, a primary"

    def kill_backup(self):
        host = self.serving(self.chance.randrange(2))
        other = (host + 2) % 4
        self.kill_at(other)
        return f"kill of {self.name_of(other)}, a backup"

    def kill_pair(self):
        pair = self.chance.randrange(2)
        for host in (pair, pair + 2):
            self.now[host].signal(signal.SIGKILL)
        for host in (pair, pair + 2):
            self.now[host].code(10)
        return f"kill of {self.name_of(pair)} and {self.name_of(pair + 2)}, primary and backup"

    def stop(self):
        host = self.chance.randrange(self.HOSTS)
        return self.stop_at(host, self.chance.choice(self.lasts(host)))

    def link_down(self):
        host = self.chance.randrange(self.HOSTS)
        return self.cut_at(host, self.chance.choice(self.lasts(host)))

    def lasts(self, host):
        return [0.5, 2] if self.mode == "sync" and host in self.WORKERS else [0.5, 2, 5, 7]

    def disk_full(self):
        filler = self.disk / "filler"
        with filler.open("wb") as out:
            try:
                while True:
                    out.write(bytes(1 << 16))
                    out.flush()
            except OSError:
                pass
        # Longer than --save_secs. The last save of a run must not fail.
        end = time.monotonic() + 6
        while time.monotonic() < end and not self.is_late():
            time.sleep(0.05)
        filler.unlink()
        return "disk full for 6 s"

    def kinds(self):
        kinds = {"kill primary": self.kill_primary, "kill backup": self.kill_backup, "stop": self.stop,
                 "cut": self.link_down, "slow host": self.slow, "slow link": self.slow_link, "garbage": self.garbage,
                 "disk full": self.disk_full, "kill pair": self.kill_pair}
        if "GRADRAIL_JUMPING_CLOCK" in os.environ:
            kinds["clock jump"] = self.clock_jump
        if self.mode != "sync":
            kinds["kill worker"] = self.kill
        return kinds

    def begin_round(self, number, mode, epochs):
        self.mode = mode
        self.older_memory = set(os.listdir("/dev/shm"))
        saved = self.disk / f"round-{number}"
        self.start_all_hosts("--mode", mode, "--optimizer", "adam", "--backup-ps", 1, "--epochs", epochs,
                             "--checkpoint_dir", saved, "--save_secs", 5, "--keep", 3, "--log_every", LOG_EVERY,
                             "--join-timeout", 120)
        self.await_backups("the start")
        self.await_all(lambda: self.has_a_set(saved), "a checkpoint")
        return saved

    @staticmethod
    def has_a_set(saved):
        """Returns whether both primaries have saved a step: without a complete set, a lost pair costs the steps so far."""
        names = [path.name for path in saved.glob("*.ckpt")]
        return any(name.replace("-0-of-2", "-1-of-2") in names for name in names if "-0-of-2" in name)

    def await_all(self, condition, what):
        def holds():
            self.mend_all()
            return condition() or self.is_over()
        cluster.wait_until(holds, faults.RECOVERY, lambda: what + "\n" + "\n".join(
            task.transcript() for task in self.now.values()))

    def await_backups(self, event):
        self.await_all(lambda: all(self.is_level(pair) for pair in (0, 1)), f"complete backups after {event}")

    def is_over(self):
        return any(self.now[host].process.poll() == cluster.GOOD for host in self.WORKERS)

    def is_late(self):
        return self.is_over() or furthest(self) > self.limit

    def assert_recovers(self, fault, began):
        """Waits until all workers make steps again and the backups are complete. Returns the time of the former."""
        before = {host: (self.now[host].pid, len(self.now[host].lines())) for host in self.WORKERS}

        def makes_steps(host):
            """Not the position: it is an earlier one after a return to a checkpoint."""
            pid, said = before[host]
            lines = self.now[host].lines()[said if self.now[host].pid == pid else 0:]
            return sum(line.text.startswith("Step: ") for line in lines) >= 3

        def all_step():
            return all(makes_steps(host) for host in self.WORKERS)

        self.await_all(all_step, f"steps after {fault}")
        took = time.monotonic() - began
        self.await_backups(fault)
        return took

    def disturb(self, until, limit):
        """Adds faults until this time, or until a worker has made `limit` steps."""
        began, queue = time.monotonic(), []
        self.limit = limit
        while time.monotonic() < until and not self.is_late():
            due = time.monotonic() + EVERY
            if not queue:  # each kind once, then again in another order
                queue = sorted(self.kinds().items())
                self.chance.shuffle(queue)
            kind, fault = queue.pop()
            # A task may end after the fault: it finds that its backup serves when its link is up again.
            self.await_backups("the fault before")
            if self.is_late():
                break
            was_at = time.monotonic()
            what = fault()
            # A fault with a duration is over now; one without has begun just before.
            self.piece["faults"][kind] += 1
            took = self.assert_recovers(what, was_at if "kill" in kind else time.monotonic())
            self.piece["recovery_s"].append(round(took, 2))
            time.sleep(SETTLED)
            uses = {}
            for host in range(self.HOSTS):
                use = process_use.use_of(self.now[host].pid) if self.now[host].running() else None
                if use is not None:
                    uses[host] = use
                    # A backup that takes over opens the connections of a primary.
                    role = "serves" if host in (self.serving(0), self.serving(1)) else "does not serve"
                    self.samples.setdefault((self.name_of(host), self.now[host].pid, role), []).append(uses[host])
            print(f"{time.monotonic() - began:7.1f} s  {self.mode}: {what}; steps after {took:.1f} s; files/threads/KiB: "
                  + ", ".join(f"{use.files}/{use.threads}/{use.kib}" for use in uses.values()), flush=True)
            while time.monotonic() < due and not self.is_over():
                self.mend_all()
                time.sleep(0.05)

    def end_round(self, epochs):
        deadline = time.monotonic() + 3 * ROUND + RUN
        while any(task.running() for task in self.now.values()) and time.monotonic() < deadline:
            self.mend_all()
            time.sleep(0.05)
        for host in (*self.WORKERS, *self.PS):
            good = cluster.RETRY if self.was_replaced_at_the_end(host) else cluster.GOOD
            self.assert_ends(self.now[host], good, 1)
        self.assert_steps_complete(epochs)

    def was_replaced_at_the_end(self, host):
        """Returns whether a former primary ended so late that all other tasks ended before its restart."""
        return (host in self.PS and self.now[host].has("has taken over, because this ps task lost")
                and self.now[(host + 2) % 4].process.poll() == cluster.GOOD)

    def assert_steps_complete(self, epochs):
        """Checks that no step of a worker is skipped, and that the parameters contain all of them."""
        said = "\n".join(self.now[host].text() for host in self.WORKERS)
        made = max(map(int, re.findall(r"^Global-Step: (\d+)", said, re.M)))
        self.piece["steps"] += made
        whole = epochs * BATCHES
        if self.mode == "sync":
            self.assertEqual(made, whole)
        else:
            # The gradient of a worker that was declared lost may not have arrived, and is not sent again.
            self.assertGreaterEqual(made, whole * len(self.WORKERS) - said.count("this worker has joined again"))
        for host in self.WORKERS:
            task = self.every[host][-1]
            lines = [tuple(map(int, line)) for line in re.findall(
                r"^Step: (\d+),  Epoch: +(\d+),  Batch: +(\d+) of", task.text(), re.M)]
            reported = {(epoch - 1) * BATCHES + batch for _, epoch, batch in lines}
            if self.mode == "sync":
                self.assertEqual([line for line in lines if line[0] != (line[1] - 1) * BATCHES + line[2] + 1], [],
                                 task.transcript())
            # A line between multiples of LOG_EVERY follows a return to earlier steps.
            first = -(-min(reported) // LOG_EVERY) * LOG_EVERY
            missing = set(range(first, whole + 1, LOG_EVERY)) - reported
            self.assertEqual(missing, set(), task.transcript())
            if len(self.every[host]) == 1 or self.mode != "sync":
                self.assertLessEqual(min(reported), LOG_EVERY, task.transcript())

    def assert_nothing_left(self, saved):
        for name in self.hosts:
            left = four_hosts.ip("netns", "pids", name).stdout.split()
            self.assertEqual(left, [], f"processes left on host {name}")
        unknown = [path.name for path in saved.iterdir()
                   if path.suffix != ".ckpt" and not re.fullmatch(r"gradrail-(folder|lock(-\d+)?)", path.name)]
        self.assertEqual(unknown, [], "files left in the checkpoint folder")
        pids = {str(task.pid) for tasks in self.every.values() for task in tasks}
        # Names of shared memory contain the process. Older names are of other processes with the same number, and the
        # simulated GPU driver belongs to other tests.
        segments = [name for name in set(os.listdir("/dev/shm")) - self.older_memory
                    if pids & set(re.findall(r"\d+", name)) and not name.startswith("gradrail-simulation-")]
        self.assertEqual(segments, [], "shared memory left")

    def undisturbed(self, epochs):
        """Returns the hash of the parameters of a local run with these options, and without faults."""
        task = self.train("--ps", 2, "--workers", 4, "--mode", "sync", "--optimizer", "adam", "--epochs", epochs,
                          "--log_every", BATCHES)
        self.assert_ends(task, cluster.GOOD, 2 * ROUND + RUN)
        return cluster.hash_of(task)

    def epochs_of(self, mode):
        """Returns a number of epochs that takes about the time of a round."""
        self.begin_round(f"measure-{mode}", mode, 4)
        self.end_round(4)
        self.piece["steps"] = 0
        slowest = min(speed(self.every[host][-1]) for host in self.WORKERS)
        # In async a restarted worker makes all its steps, so that the round takes longer.
        return max(2, round(ROUND * (0.6 if mode == "async" else 0.9) * slowest / BATCHES))

    @cluster.long("recovery_test and backup_test have one fault each; simulation has thousands")
    def test_rounds_end_complete(self):
        began = time.monotonic()
        try:
            epochs = {mode: self.epochs_of(mode) for mode in ("sync", "async")}
            reference = self.undisturbed(epochs["sync"])
            began = time.monotonic()
            number = 0
            while number < 2 or time.monotonic() < began + SECONDS:
                mode = ("sync", "async")[number % 2]
                round_began = time.monotonic()
                saved = self.begin_round(number, mode, epochs[mode])
                # On a machine that has become slower, the round takes longer and has more faults.
                self.disturb(time.monotonic() + 4 * ROUND, 0.8 * epochs[mode] * BATCHES)
                self.end_round(epochs[mode])
                self.assert_nothing_left(saved)
                self.piece["rounds"][mode] += 1
                if mode == "sync":
                    self.compare_bits(reference, round_began)
                subprocess.run(["rm", "-rf", saved], check=True)
                self.tearDown()  # the checks of the ended tasks
                self.tasks = []
                number += 1
            self.assert_flat()
            self.piece["result"] = "passed"
        finally:
            self.piece["seconds"] = round(time.monotonic() - began)
            self.record()

    def compare_bits(self, reference, began):
        if cluster.hash_of(self.final_chief()) == reference:
            self.piece["same_bits"] += 1
            return
        stall = self.stalls.longest_since(began)
        if stall > self.LONG_STALL and self.has_lost_a_silent_worker():
            print(f"other bits: a CPU did not run for {stall:.1f} s, and a worker was lost", flush=True)
            self.piece["stalled"] += 1
        else:
            self.fail(f"other bits than {reference}, longest stall of a CPU {stall:.1f} s\n" + "\n".join(
                task.transcript() for tasks in self.every.values() for task in tasks))

    def has_lost_a_silent_worker(self):
        return any(task.has("was lost: no heartbeat") for host in self.PS for task in self.every[host])

    def final_chief(self):
        return next(self.now[host] for host in self.WORKERS if self.now[host].has("^Parameter-Hash"))

    def assert_flat(self):
        for task, history in self.samples.items():
            self.assertLess(history[-1].files - history[0].files, MORE_FILES, (task, history))
            self.assertLess(history[-1].threads - history[0].threads, MORE_THREADS, (task, history))
            if not cluster.instrumented():  # a sanitizer keeps what was freed
                self.assertLess(history[-1].kib - history[0].kib, MORE_MEMORY_KB, (task, history))

    def record(self):
        """Adds the line of this piece to the table."""
        long = [history for history in self.samples.values() if len(history) > 2]
        self.piece["load"] = os.getloadavg()[1]
        self.piece["rss_kib_per_hour"] = round(process_use.slope(long, lambda use: use.kib))
        self.piece["files_per_hour"] = round(process_use.slope(long, lambda use: use.files), 1)
        self.piece["files_most_growth"] = max((h[-1].files - h[0].files for h in long), default=0)
        line = json.dumps(self.piece)
        print(line, flush=True)
        if "GRADRAIL_SOAK_TABLE" in os.environ:
            with open(os.environ["GRADRAIL_SOAK_TABLE"], "a", encoding="utf-8") as table:
                table.write(line + "\n")


class Compared(faults.Faults):
    """Compares a run with faults with the same run without faults."""

    MODEL = "mlp"
    LASTS = [0.5, 2]  # too short for a loss: the others could end the run during an absence
    APART = 2.0  # seconds between two faults
    LATEST = 0.7  # share of the steps: a ps that is killed after the last step is not missed by a worker

    def run_through(self, chosen, epochs, *flags):
        """Returns the chief and the number of faults before LATEST."""
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self.start_all_hosts(*flags, "--epochs", epochs, "--checkpoint_dir", self.folder / "saved", "--save_secs", 2,
                             "--log_every", LOG_EVERY)
        count = 0
        deadline = time.monotonic() + RUN
        while any(self.now[host].running() for host in self.WORKERS) and time.monotonic() < deadline:
            if count < len(chosen) and furthest(self) < self.LATEST * epochs * BATCHES:
                try:
                    print(f"  {chosen[count]()}", flush=True)
                except ProcessLookupError:
                    break  # the task has just ended
                count += 1
            due = time.monotonic() + self.APART
            while time.monotonic() < due and any(self.now[host].running() for host in self.WORKERS):
                for host in range(self.HOSTS):
                    if self.now[host].process.poll() not in (None, cluster.GOOD):
                        self.mended(host)
                time.sleep(0.05)
        for host in (*self.WORKERS, *self.PS):
            self.assert_ends(self.now[host], cluster.GOOD)
        return self.now[1], count

    def run_disturbed(self, chosen, epochs, *flags):
        """Returns the chief, and the number of epochs. It is doubled until there is time for three faults."""
        chief, count = self.run_through(chosen, epochs, *flags)
        while count < 3 and epochs < 1000:
            epochs *= 2
            chief, count = self.run_through(chosen, epochs, *flags)
        self.assertGreaterEqual(count, 3, chief.transcript())
        print(f"{count} faults in {epochs} epochs", flush=True)
        return chief, epochs

    def epochs_that_last(self, seconds, *flags):
        """Returns a number of epochs that takes this time."""
        chief, _ = self.run_through([], self.SHORT, *flags)
        return max(self.SHORT, round(seconds * speed(chief) / BATCHES))


class SameBits(Compared):
    SHORT = 2

    @cluster.long("recovery_test and backup_test have one fault each; simulation has thousands")
    def test_sync_ends_in_the_bits_of_an_undisturbed_run(self):
        flags = ["--mode", "sync", "--optimizer", "adam"]
        list_of_faults = [self.garbage, self.stop, self.kill_ps, self.link_down, self.slow]  # kill_ps needs a checkpoint
        epochs = self.epochs_that_last(SECONDS / 2, *flags)
        for _ in range(ROUNDS):
            disturbed, epochs = self.run_disturbed(list_of_faults, epochs, *flags)
            undisturbed, _ = self.run_through([], epochs, *flags)
            self.assertEqual(cluster.hash_of(disturbed), cluster.hash_of(undisturbed))


class Accuracy(Compared):
    SHORT = 2
    AS_GOOD = 0.015  # share of the test set: about the difference between runs without faults

    @cluster.long("recovery_test and backup_test have one fault each; simulation has thousands")
    def test_async_learns_as_well_with_faults_as_without(self):
        flags = ["--mode", "async", "--optimizer", "adam"]
        disturbing = [self.kill, self.stop, self.garbage, self.kill_ps, self.link_down, self.slow]
        epochs = self.epochs_that_last(SECONDS / 2, *flags)
        found = {"without": [], "with": []}
        for _ in range(ROUNDS):
            disturbed, epochs = self.run_disturbed(disturbing, epochs, *flags)
            undisturbed, _ = self.run_through([], epochs, *flags)
            for name, chief in (("with", disturbed), ("without", undisturbed)):
                found[name].append(float(chief.wait_for(r"^Test-Accuracy: ([0-9.]+)").group(1)))
        for name, values in found.items():
            print(f"{name} faults: {values}, mean {statistics.mean(values):.4f}", flush=True)
        self.assertGreater(min(found["without"]), 0.9)
        self.assertLess(abs(statistics.mean(found["with"]) - statistics.mean(found["without"])), self.AS_GOOD)


if __name__ == "__main__":
    four_hosts.run_or_skip(unittest.main)
