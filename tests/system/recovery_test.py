"""Measures the times of recovery: a task is killed again and again, and each loss must be noticed and repaired.
GRADRAIL_KILLS=10000 is the long form, which compares the medians with goals; a class prints its distributions as a table.
Without it the machine may be busy: most losses must be noticed by an event, and not by silence. The time of a loss is that of its line
in the log (resolution 1 ms). A step is noticed when its progress line arrives, which is later than the step itself."""
import datetime
import os
import re
import signal
import time
import unittest

import cluster
import four_hosts

HAS_GOALS = "GRADRAIL_KILLS" in os.environ
KILLS = int(os.environ.get("GRADRAIL_KILLS", "6"))
FORGET_EVERY = 50
LIMIT = 60 * cluster.PATIENCE  # for one recovery
# Goals of the medians in seconds. An event is noticed when its connection ends, and not by a missing heartbeat (5 s).
NOTICED, NOTICED_BETWEEN_HOSTS, TAKEN_OVER, REJOINED = 1.0, 1.0, 1.0, 3.0
SILENCE = "no heartbeat for|did not answer in time"  # in the line of a loss that no event has announced


def logged_at(line):
    """Returns the time of day in a line of the log, in seconds since 1970."""
    found = re.search(r" W (\d\d):(\d\d):(\d\d)\.(\d{3}) ", line)
    hour, minute, second, ms = map(int, found.groups())
    now = datetime.datetime.now()
    when = now.replace(hour=hour, minute=minute, second=second, microsecond=1000 * ms)
    if when - now > datetime.timedelta(hours=12):  # midnight has passed since then
        when -= datetime.timedelta(days=1)
    return when.timestamp()


def share(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


class Measured(cluster.ClusterTest):
    """Collects the times of events, and prints their distributions at the end."""

    def setUp(self):
        super().setUp()
        self.times, self.silent = {}, []
        self.load = os.getloadavg()[0]
        self.addCleanup(self.print_table)

    def add(self, what, seconds):
        self.times.setdefault(what, []).append(seconds)

    def print_table(self):
        load = f"load {self.load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
        for what, values in self.times.items():
            print(f"{what:58} {len(values):6} times  p50 {1000 * share(values, 0.5):8.1f} ms  p99 "
                  f"{1000 * share(values, 0.99):8.1f} ms  max {1000 * max(values):8.1f} ms  ({load})", flush=True)

    def assert_median(self, what, goal):
        if HAS_GOALS:
            self.assertLessEqual(share(self.times[what], 0.5), goal * cluster.PATIENCE, what)

    def find_loss(self, task, pattern, after):
        """Waits for the line of a loss that an event announces. A heartbeat limit may be first on a busy machine."""
        line = self.find(task, pattern, after)
        self.silent.append(bool(re.search(SILENCE, line.text)))
        return line

    def assert_noticed_by_events(self):
        self.assertLess(2 * sum(self.silent), len(self.silent), self.silent)

    def find(self, task, pattern, after=0):
        """Waits for a line and returns its text and the time of its arrival."""
        found = []

        def there():
            found[:] = [line for line in task.lines()[after:] if re.search(pattern, line.text)]
            return found or not task.running()

        deadline = time.monotonic() + LIMIT
        while not there():
            self.assertLess(time.monotonic(), deadline, f"no /{pattern}/\n{task.transcript()}")
            time.sleep(0.002)
        self.assertTrue(found, task.transcript())
        return found[0]

    def replace(self, task, started):
        """The new process of a task."""
        self.tasks.remove(task)
        task.end()
        self.assertIsNone(cluster.CRASHES.search(task.text()), task.transcript())
        return started()


class KilledWorkers(Measured):
    """Kills three of four workers a few milliseconds apart, starts them again, and waits for their first steps."""

    def run_over(self, transport, kills, mode="async"):
        (ps,), workers = self.start_cluster(4, "--epochs", 10 ** 6, "--mode", mode, "--transport", transport,
                                            "--log_every", 20)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        for number in range(0, kills, 3):
            said = len(ps.lines())
            killed = {}
            for index in (1, 2, 3):
                killed[index] = time.time()
                workers[index].signal(signal.SIGKILL)
            for index in (1, 2, 3):
                line = self.find_loss(ps, rf"worker {index} \(.*\) was lost: ", said)
                self.add(f"killed worker noticed, one host, {transport}", logged_at(line.text) - killed[index])
            for index in (1, 2, 3):
                workers[index] = self.replace(workers[index], lambda index=index: self.start_worker(index))
            for index in (1, 2, 3):
                line = self.find(workers[index], r"^Step: \d+")
                self.add(f"worker started again until its step, {transport}", line.time - workers[index].started)
            if number % FORGET_EVERY < 3:
                for task in (ps, *workers):
                    task.forget()
        for task in (*workers, ps):
            self.tasks.remove(task)
            task.end()

    def test_a_killed_worker_is_noticed_and_rejoins(self):
        for transport in ("shm", "tcp"):
            self.run_over(transport, KILLS // 2)
            self.assert_noticed_by_events()
            self.assert_median(f"killed worker noticed, one host, {transport}", NOTICED)
            self.assert_median(f"worker started again until its step, {transport}", REJOINED)


class KilledServers(Measured):
    """Kills the primary of a pair, waits for the takeover, and starts the killed task again as the backup."""

    def steps(self, worker):
        return [line for line in worker.lines() if line.text.startswith("Step: ")]

    def run_over(self, transport, mode, kills):
        servers, workers = self.start_cluster(2, "--backup-ps", 1, "--epochs", 10 ** 6, "--mode", mode, "--transport",
                                              transport, "--log_every", 10, ps=2)
        serving, other = 0, 1
        self.find(servers[serving], "has everything")
        for number in range(kills):
            for worker in workers:
                worker.wait_for(r"Step: \d+", after=len(worker.lines()))
            said = [len(worker.lines()) for worker in workers]
            lost = servers[serving]
            killed, killed_mono = time.time(), time.monotonic()
            lost.signal(signal.SIGKILL)
            for worker, before in zip(workers, said):
                line = self.find_loss(worker, "has taken over at step", before)
                self.add(f"killed primary replaced, {transport}, {mode}", logged_at(line.text) - killed)
                after = len(worker.lines())
                worker.wait_for(r"Step: \d+", LIMIT, after)
                arrivals = [each.time for each in self.steps(worker)]
                last = max(each for each in arrivals if each < line.time)
                self.add(f"last step before a takeover until the next, {transport}, {mode}",
                         min(each for each in arrivals if each > line.time) - last)
                self.assertLess(last - killed_mono, LIMIT)
            task = self.replace(lost, lambda: self.train(*self.common_flags, "--job_name", "ps", "--task_index", serving,
                                                         name=f"ps/{serving}"))
            servers[serving] = task
            serving, other = other, serving
            line = self.find_level(servers[serving], task.started)
            self.add(f"ps started again until its copy is complete, {transport}", line.time - task.started)
            if number % FORGET_EVERY == 0:
                for worker in workers:
                    worker.forget()
        for task in (*workers, *servers):
            self.tasks.remove(task)
            task.end()

    def find_level(self, task, since):
        deadline = time.monotonic() + LIMIT
        while True:
            for line in task.lines():
                if line.time > since and "has everything" in line.text:
                    return line
            self.assertLess(time.monotonic(), deadline, task.transcript())
            time.sleep(0.005)

    def test_a_killed_primary_is_replaced(self):
        cases = [(transport, mode) for transport in ("shm", "tcp") for mode in ("sync", "async")]
        for transport, mode in cases:
            self.run_over(transport, mode, max(1, KILLS // len(cases)))
            self.assert_noticed_by_events()
            self.assert_median(f"last step before a takeover until the next, {transport}, {mode}", TAKEN_OVER)
            self.assert_median(f"ps started again until its copy is complete, {transport}", REJOINED)


class RestartedServers(Measured):
    """Kills a ps without a backup and starts it again; it restores a checkpoint."""

    def test_a_killed_ps_restarts(self):
        saved = self.folder / "saved"
        (ps,), workers = self.start_cluster(2, "--epochs", 10 ** 6, "--mode", "sync", "--log_every", 10,
                                            "--checkpoint_dir", saved, "--save_secs", 0.5)
        for _ in range(max(1, KILLS // 3)):
            for worker in workers:
                worker.wait_for(r"Step: \d+", after=len(worker.lines()))
            cluster.wait_until(lambda: any(saved.glob("*.ckpt")), LIMIT, lambda: "no checkpoint")
            said = [len(worker.lines()) for worker in workers]
            ps.signal(signal.SIGKILL)
            ps.code()
            ps = self.replace(ps, lambda: self.train(*self.common_flags, "--job_name", "ps", "--task_index", 0, name="ps/0"))
            for worker, before in zip(workers, said):
                self.find_loss(worker, "was lost: ", before)
                back = self.find(worker, "all parameter servers are back", before)
                step = self.find(worker, r"^Step: \d+", worker.lines().index(back))
                self.add("ps without a backup started again until a step", step.time - ps.started)
        self.assert_noticed_by_events()
        self.assert_median("ps without a backup started again until a step", REJOINED)


class KilledPairs(Measured):
    """Kills a primary and its backup at the same time and starts both again; they restore a checkpoint."""

    BOTH_RETURNED = 10.0  # s: the workers first ask both addresses for a takeover

    def test_a_killed_pair_restarts(self):
        for pairs in (1, 2):
            self.run_with(pairs)

    def run_with(self, pairs):
        """The pair with index 0 is killed; another one has to return to the checkpoint as well."""
        saved = self.folder / f"saved-{pairs}"
        what = f"primary and backup started again until a step, {pairs} pairs"
        servers, workers = self.start_cluster(2, "--backup-ps", 1, "--epochs", 10 ** 6, "--mode", "sync", "--log_every", 10,
                                              "--checkpoint_dir", saved, "--save_secs", 0.5, ps=2 * pairs)
        for _ in range(max(1, KILLS // 6)):
            for worker in workers:
                worker.wait_for(r"Step: \d+", after=len(worker.lines()))
            cluster.wait_until(lambda: any(saved.glob("*.ckpt")), LIMIT, lambda: "no checkpoint")
            for index in (0, pairs):
                servers[index].signal(signal.SIGKILL)
            for index in (0, pairs):
                servers[index].code()
                servers[index] = self.replace(servers[index], lambda index=index: self.train(
                    *self.common_flags, "--job_name", "ps", "--task_index", index, name=f"ps/{index}"))
            said = [len(worker.lines()) for worker in workers]
            for worker, before in zip(workers, said):
                back = self.find(worker, "all parameter servers are back", before)
                step = self.find(worker, r"^Step: \d+", worker.lines().index(back))
                self.add(what, step.time - servers[0].started)
        for task in (*workers, *servers):
            self.tasks.remove(task)
            task.end()
        self.assert_median(what, self.BOTH_RETURNED)


class BetweenHosts(Measured, four_hosts.FourHosts):
    """Workers on other hosts than the ps. A killed process closes its connections; a host that vanishes does not."""

    FLAGS = ("--epochs", 10 ** 6, "--log_every", 20, "--mode", "async")

    def start_hosts(self):
        self.ps, self.workers = self.start_all(*self.FLAGS)
        for worker in self.workers:
            worker.wait_for(r"Step: \d+")

    def restart(self, index):
        self.workers[index] = self.replace(self.workers[index],
                                           lambda: self.train_on(1 + index, "worker", index, *self.FLAGS))
        return self.find(self.workers[index], r"^Step: \d+")

    def test_a_killed_worker_is_noticed(self):
        self.start_hosts()
        for number in range(KILLS):
            said, index = len(self.ps.lines()), 1 + number % 2
            killed = time.time()
            self.workers[index].signal(signal.SIGKILL)
            line = self.find_loss(self.ps, rf"worker {index} \(.*\) was lost: ", said)
            self.add("killed worker noticed, between hosts, tcp", logged_at(line.text) - killed)
            self.workers[index].code(10)
            step = self.restart(index)
            self.add("worker started again until its step, between hosts", step.time - self.workers[index].started)
            if number % FORGET_EVERY == 0:
                for task in (self.ps, *self.workers):
                    task.forget()
        self.assert_noticed_by_events()
        self.assert_median("killed worker noticed, between hosts, tcp", NOTICED_BETWEEN_HOSTS)
        self.assert_median("worker started again until its step, between hosts", REJOINED)

    def test_a_host_that_vanishes_is_noticed(self):
        self.start_hosts()
        for _ in range(max(1, KILLS // 30)):
            said = len(self.ps.lines())
            cut = time.time()
            four_hosts.ip("-n", self.switch, "link", "set", "port2", "down")
            line = self.find(self.ps, r"worker 1 \(.*\) was lost: ", said)
            self.add("vanished host noticed (--heartbeat-timeout 4)", logged_at(line.text) - cut)
            self.workers[1].signal(signal.SIGKILL)
            self.workers[1].code(10)
            four_hosts.ip("-n", self.switch, "link", "set", "port2", "up")
            self.restart(1)
        self.assert_median("vanished host noticed (--heartbeat-timeout 4)", 5)


if __name__ == "__main__":
    # The classes on one host run without namespaces.
    four_hosts.run_or_skip(unittest.main)
