"""DiLoCo while a process is killed every few seconds: a learner, the chief, a primary or a backup. `gradrail run` restarts it.

The ledgers of storm_learner.py show that each outer step was applied once. The loss is compared with a run without kills. The
long form is GRADRAIL_SOAK_SECONDS=1800 GRADRAIL_SOAK_EVERY=15; GRADRAIL_SOAK_TABLE=FILE adds a line of JSON.
"""
import collections
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time
import unittest

import cluster
import package
import stalls
import storm_learner

SECONDS = float(os.environ.get("GRADRAIL_SOAK_SECONDS", "40"))
EVERY = float(os.environ.get("GRADRAIL_SOAK_EVERY", "8"))
WORKERS = 3
PAUSE = 0.03  # seconds before an inner step; the undisturbed run has no pause
LONGEST_GAP = 5.0 * cluster.PATIENCE  # seconds between two merges
RECOVERY = 60 * cluster.PATIENCE
AS_GOOD = 1.03  # loss / loss of the undisturbed run
ROUNDING = 0.5  # of float32 parameters of some 100,000; a contribution is at least 4

# Times of the begin and the end of the exchange, and the global step after it.
# contributed: the learner has contributed to exactly this step.
# steps: the least and the largest element of the last column of the ledger, which counts the steps.
# rows: rows of the ledger from each bucket, without the last column.
Merge = collections.namedtuple("Merge", "began time step contributed steps rows")


def merges_of(file):
    """Returns the lines of a learner. A kill may cut the last one."""
    lines = file.read_text(encoding="ascii").split("\n")[:-1]
    return [Merge(*json.loads(line)) for line in lines]


def gradients(values):
    """Returns the outer gradients that moved a value from each step to the next: the outer optimizer, solved for them."""
    lr, momentum = storm_learner.OUTER_LR, storm_learner.OUTER_MOMENTUM
    velocity = 0.0
    for before, after in zip(values, values[1:]):
        gradient = ((before - after) / lr - momentum ** 2 * velocity) / (1 + momentum)
        velocity = momentum * velocity + gradient
        yield gradient


def is_near(value, other):
    return abs(value - other) < ROUNDING


class Ledger:
    """The merges of all learners of a run, by step. The first line of a learner is its join, and counts for step 0 only.
    In the parameters that a later learner takes, and in its first step, some buckets can be one step ahead."""

    def __init__(self, folder):
        self.learners = {file: [merge for i, merge in enumerate(merges_of(file)) if i > 0 or merge.step == 0]
                         for file in sorted(folder.glob("*-*.jsonl"))}
        self.first = {}  # step: its earliest merge
        for merge in sorted((merge for merges in self.learners.values() for merge in merges), key=lambda merge: merge.time):
            self.first.setdefault(merge.step, merge)
        self.last_step = max(self.first)

    def errors(self):
        """Returns what contradicts that each step was made once, with each contribution that a learner has seen."""
        found = []
        for file, merges in self.learners.items():
            for before, after in zip(merges, merges[1:]):
                if after.step <= before.step:
                    found.append(f"{file.name}: step {after.step} follows {before.step}")
            found += [f"{file.name}: another ledger at step {merge.step} than {self.first[merge.step]}: {merge}"
                      for merge in merges if (merge.steps, merge.rows) != self.first[merge.step][-2:]]
            found += [f"{file.name}: step {merge.step} is in a part of the ledger only: {merge.steps}"
                      for merge in merges if merge.steps[0] != merge.steps[1]]
        missing = [step for step in range(self.last_step + 1) if step not in self.first]
        return found + ([f"no learner has seen the steps {missing}"] if missing else self.wrong_steps())

    def wrong_steps(self):
        """Returns the steps that are not one outer step, or lack a contribution."""
        merges = [self.first[step] for step in range(self.last_step + 1)]
        found = [f"step {step} is not one outer step but {gradient / storm_learner.UNIT}"
                 for step, gradient in enumerate(gradients([merge.steps[0] for merge in merges]), 1)
                 if not is_near(gradient, storm_learner.UNIT)]
        seen = collections.defaultdict(set)
        for file, lines in self.learners.items():
            for before, merge in zip(lines, lines[1:]):  # not the first step of a later learner
                if merge.contributed and before.step == merge.step - 1:
                    seen[merge.step].add(int(file.name.split("-")[0]))
        for row in range(len(merges[0].rows)):
            columns = [gradients([merge.rows[row][learner] for merge in merges]) for learner in range(WORKERS)]
            for step, shares in enumerate(zip(*columns), 1):
                contributors = {learner for learner, share in enumerate(shares) if not is_near(share, 0.0)}
                good = all(is_near(shares[learner], storm_learner.UNIT / len(contributors)) for learner in contributors)
                if not good or not contributors or not seen[step] <= contributors:
                    found.append(f"step {step}, row {row}: contributions {shares}, and those of {seen[step]} were answered")
        return found

    def is_in_exchange(self, at):
        """Returns whether an exchange that completed was under way at this time."""
        return any(merge.contributed and merge.began <= at < merge.time for merges in self.learners.values() for merge in merges)

    def gaps(self, begin=0.0):
        """Returns (seconds, time of the later merge) for each two consecutive steps."""
        times = [self.first[step].time for step in sorted(self.first)]
        return [(later - earlier, later) for earlier, later in zip(times, times[1:]) if later > begin]


class StormTest(package.PackageTest):
    MODULES = ("numpy", "torch")

    def start(self, name, pause, *flags):
        """Starts learners that write their ledgers to a folder. Returns the task of `gradrail run` and the folder."""
        folder = self.folder / name
        folder.mkdir()
        learner = [cluster.python_with(*self.MODULES), storm_learner.__file__, folder, "--pause", pause]
        command = [cluster.binary(), "run", "--workers", WORKERS, *flags, "--", *learner]
        return self.launch(name, list(map(str, command)), self.environment(None)), folder

    def final_loss(self, run, folder, step):
        """Lets the learners end at this step. Returns the loss of the test text, which they have in common."""
        (folder / "new").write_text(str(step), encoding="ascii")
        (folder / "new").rename(folder / "target")
        self.assert_ends(run, cluster.GOOD, SECONDS + RECOVERY)
        ends = re.findall(r"^\[worker/\d+\] final \[(\d+), ([0-9.]+)\]", run.text(), re.M)
        self.assertEqual(len(ends), WORKERS, run.transcript())
        self.assertEqual(set(ends), {(str(step), ends[0][1])})
        return float(ends[0][1])

    def pids(self):
        """Returns the newest process of each task, from the output of `gradrail run`."""
        return {name: int(pid) for name, pid in re.findall(r"^# (\S+/\d+): pid (\d+)", self.storm.text(), re.M)}

    def serving(self):
        """Returns the index of the ps that serves with a complete backup. None: the pair is not complete."""
        events = re.findall(r"^# ps/\d+: pid|^\[ps/(\d+)\].*has everything", self.storm.text(), re.M)
        return int(events[-1]) if events and events[-1] else None

    def is_whole(self):
        """Returns whether all learners merge and the backup is complete."""
        merged = [file.stat().st_size > 0 and len(merges_of(file)) > 1 for name, pid in self.pids().items()
                  if name.startswith("worker") for file in self.storm_folder.glob(f"*-{pid}.jsonl")]
        return len(merged) == WORKERS and all(merged) and self.serving() is not None

    def await_whole(self):
        cluster.wait_until(self.is_whole, RECOVERY, lambda: "not all tasks are back\n" + self.storm.transcript())

    def kill_one(self, chance):
        """Kills a task. Returns the name of its kind."""
        pids = self.pids()
        name = chance.choice(sorted(pids))
        job, index = name.split("/")
        if job == "worker":
            kind = "chief" if index == "0" else "learner"
        else:
            kind = "primary" if int(index) == self.serving() else "backup"
        os.kill(pids[name], signal.SIGKILL)
        return kind

    @cluster.long("diloco_test.a_killed_learner_joins_again; simulation repeats steps after each loss")
    def test_each_outer_step_is_made_once(self):
        seed = int(os.environ.get("GRADRAIL_SOAK_SEED", random.randrange(2 ** 32)))
        print(f"GRADRAIL_SOAK_SEED={seed}", flush=True)
        chance, watch = random.Random(seed), stalls.StallWatch()
        self.addCleanup(watch.close)
        self.storm, self.storm_folder = self.start("storm", PAUSE, "--ps", 2, "--backup-ps", 1, "--shards", 2,
                                                    "--restarts", 10 ** 6)
        self.await_whole()
        begun, load = time.monotonic(), []
        kills = []  # (time, kind)
        while time.monotonic() < begun + SECONDS:
            # Without a complete backup the loss of a ps is that of a pair, and its steps are lost, as documented.
            self.await_whole()
            kills.append((time.monotonic(), self.kill_one(chance)))
            load.append(os.getloadavg()[0])
            time.sleep(max(0.0, kills[-1][0] + EVERY - time.monotonic()))
        self.await_whole()
        ended = time.monotonic()
        loss = self.final_loss(self.storm, self.storm_folder, Ledger(self.storm_folder).last_step + 5)
        ledger = Ledger(self.storm_folder)
        gaps = [gap for gap in ledger.gaps(begun) if gap[1] < ended]
        worst = {}
        for at, kind in kills:
            later = [gap for gap, end in gaps if at <= end < at + EVERY]
            worst.setdefault(kind, []).append(max(later, default=0.0))
        even, even_folder = self.start("undisturbed", 0)
        even_loss = self.final_loss(even, even_folder, ledger.last_step)
        errors = ledger.errors()
        ordered = sorted(gap for gap, _ in gaps)
        record = {"date": time.strftime("%Y-%m-%d %H:%M"), "seed": seed, "every_s": EVERY, "seconds": round(ended - begun),
                  "kills": collections.Counter(kind for _, kind in kills),
                  "kills_in_an_exchange": sum(ledger.is_in_exchange(at) for at, _ in kills), "steps": ledger.last_step, "ledger_errors": errors[:9],
                  "learners": len(ledger.learners), "loss": loss, "loss_undisturbed": even_loss,
                  "gap_s": {"p50": round(ordered[len(ordered) // 2], 2), "p99": round(ordered[len(ordered) * 99 // 100], 2),
                            "max": round(ordered[-1], 2)},
                  "gap_s_after_kill": {kind: round(max(values), 2) for kind, values in sorted(worst.items())},
                  "longest_stall_of_a_cpu_s": round(watch.longest_since(begun), 2), "load": round(sum(load) / len(load), 1),
                  "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=pathlib.Path(__file__).parent,
                                           capture_output=True, text=True, check=False).stdout.strip()}
        print(json.dumps(record), flush=True)
        if "GRADRAIL_SOAK_TABLE" in os.environ:
            with open(os.environ["GRADRAIL_SOAK_TABLE"], "a", encoding="utf-8") as table:
                table.write(json.dumps(record) + "\n")
        self.assertEqual(errors, [])
        self.assertEqual(Ledger(even_folder).errors(), [])
        self.assertLess(loss, AS_GOOD * even_loss)
        self.assertLess(ordered[-1], LONGEST_GAP)


if __name__ == "__main__":
    unittest.main()
