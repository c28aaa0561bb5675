"""Runs suites in the guests. Suites for one guest run first, one in each guest. Suites for two guests follow."""
import collections
import math
import os
import shlex
import time

import results
from guests import POLL_SECONDS, Guests
from problem import GuestLost, Problem
from suites import ENVIRONMENT

GRACE_SECONDS = 30  # a guest that has not ended a job this long after the limit of the job counts as lost
FULL_FACTOR = 6  # --full multiplies the limit of each suite by it


class Job:
    """A suite that runs in one guest or in two guests."""

    def __init__(self, suite, roles, folder, limit_seconds):
        self.suite = suite
        self.roles = roles
        self.folder = folder
        self.started = time.monotonic()
        self.deadline = self.started + limit_seconds + GRACE_SECONDS

    def status(self):
        """Returns None while the job runs, then the first status that is not 0, or 0."""
        try:
            statuses = [int((self.folder / f"status.{role}").read_text()) for role in self.roles]
        except FileNotFoundError:
            return None
        return next(filter(None, statuses), 0)

    def log(self):
        logs = [self.folder / f"log.{role}" for role in self.roles]
        return "\n".join(log.read_text(errors="replace") for log in logs if log.exists())


class Runner:
    def __init__(self, kernel, out, options, say, deadline):
        self._kernel = kernel
        self._out = out
        self._options = options
        self._build = options.build_dir.resolve()
        self._say = say
        self._deadline = deadline
        self._waiting = []
        self._running = []
        self._booted_again = False
        self._totals = collections.Counter()

    def run(self, suites):
        """Returns (whether no test failed, whether a test passed)."""
        for suite in suites:
            missing = suite.missing(self._build)
            if missing:
                self._report(suite, results.Result(skipped=[(suite.name, f"not built: {', '.join(missing)}")]), 0)
            else:
                self._waiting.append(suite)
        # After a failure of a guest, the remaining suites run in new guests. Each round removes at least one suite.
        while self._waiting:
            try:
                self._boot_and_run()
            except Problem as why:
                self._give_up(why)
        return not self._totals["failed"], self._totals["passed"] > 0

    def total_line(self):
        return "total: " + ", ".join(f"{self._totals[word]} {word}" for word in ("passed", "failed", "skipped"))

    def _boot_and_run(self):
        count = 2 if len(self._waiting) > 1 else self._waiting[0].guests
        start = time.monotonic()
        with Guests(self._kernel, count, self._out, self._build, self._options, self._deadline) as guests:
            self._say(f"{count} guest{'s' if count > 1 else ''} booted in {time.monotonic() - start:.1f} s")
            while self._waiting or self._running:
                self._start_what_can(guests)
                guests.cable.serve()
                guests.check_alive()
                self._collect()
                time.sleep(POLL_SECONDS)

    def _start_what_can(self, guests):
        busy = {role for job in self._running for role in job.roles}
        idle = [role for role in range(guests.count) if role not in busy]
        alone = [suite for suite in self._waiting if suite.guests == 1]
        for role, suite in zip(idle, alone):
            self._start(guests, suite, [role])
        if self._waiting and not alone and not busy:
            self._start(guests, self._waiting[0], list(range(self._waiting[0].guests)))

    def _start(self, guests, suite, roles):
        folder = self._out / suite.name
        folder.mkdir()
        for prepare in suite.prepare:
            prepare(self._out)
        limit = suite.seconds * self._options.slower * (FULL_FACTOR if self._options.full else 1)
        words = {**ENVIRONMENT, **suite.environment, "RANKS": suite.guests, "OUT": f"/out/{suite.name}",
                 "SLOWER": math.ceil(self._options.slower), "FULL": "1" if self._options.full else ""}
        exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in words.items())
        (folder / "job").write_text(exports + suite.job + "\n")
        guests.cable.repair()
        self._waiting.remove(suite)
        self._running.append(Job(suite, roles, folder, limit))
        for role in roles:
            guests.send(role, f"{suite.name} {limit:.0f}")

    def _collect(self):
        for job in list(self._running):
            status = job.status()
            if status is not None:
                self._running.remove(job)
                self._report(job.suite, job.suite.read(job.log(), status), time.monotonic() - job.started)
            elif time.monotonic() > job.deadline:
                raise GuestLost(job.roles[0],
                                f"the guest does not answer {GRACE_SECONDS} s after the time limit of {job.suite.name}")
        if time.monotonic() > self._deadline:
            raise Problem(f"the time limit of the run, {self._options.limit:.0f} s, was exceeded (--limit)")

    def _give_up(self, why):
        """Reports the suites of the lost guest as failed. The other running suites start again in new guests."""
        jobs, self._running = self._running, []
        late = time.monotonic() > self._deadline
        if not jobs and not late and not self._booted_again:
            self._say(f"{why}; the lab boots the guests again")
            self._booted_again = True
            return
        blamed = [job for job in jobs if late or not isinstance(why, GuestLost) or why.role in job.roles]
        for job in jobs:
            if job not in blamed:
                job.folder.rename(job.folder.with_suffix(f".interrupted-{time.monotonic():.0f}"))
                self._waiting.append(job.suite)
        # All suites fail if no guest booted (no suite was running), and after the time limit of the run.
        lost = [job.suite for job in blamed] + (self._waiting if late or not jobs else [])
        self._waiting = [suite for suite in self._waiting if suite not in lost]
        for suite in lost:
            self._report(suite, results.Result(failed=[(suite.name, str(why))]), 0)

    def _report(self, suite, result, seconds):
        forbidden = os.environ.get("GRADRAIL_FORBID_SKIPS") == "1" or suite.is_required(os.environ.get("GRADRAIL_REQUIRE", ""))
        if forbidden:
            result.failed += [(name, f"skip forbidden: {why}") for name, why in result.skipped]
            result.skipped = []
        counts = {"passed": result.passed, "failed": len(result.failed), "skipped": len(result.skipped)}
        self._totals.update(counts)
        shown = "  ".join(f"{count:4} {word}" for word, count in counts.items())
        self._say(f"{suite.name:28}{shown}  {seconds:6.1f} s")
        for name, why in result.failed:
            self._say(f"  failed   {name}: {why}")
        for name, why in result.skipped:
            self._say(f"  skipped  {name}: {why}")
        if result.failed:
            self._say(f"  log      {self._out / suite.name}/log.*")
