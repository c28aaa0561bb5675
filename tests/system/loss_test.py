"""Tasks that fail, stall and join late: the other tasks continue or end soon, and name the lost task."""
import os
import re
import signal
import time
import unittest

import cluster

LONG = ["--epochs", 100000, "--rejoin-timeout", 0]  # no ps restarts; restart_test.py tests restarts
# The documented limit, plus the delay of a busy machine.
NOTICED = 5 * cluster.PATIENCE + 3
SILENCE = 2


class Killed(cluster.ClusterTest):
    def running(self, *flags):
        servers, started = self.start_cluster(3, *LONG, *flags)
        for worker in started:
            worker.wait_for(r"Step: \d+")
        return servers, started

    def test_async_run_ends_well_without_a_killed_worker(self):
        (ps,), workers = self.start_cluster(3, "--epochs", 20)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        workers[2].signal(signal.SIGKILL)
        for task in (workers[0], workers[1], ps):
            self.assert_ends(task, cluster.GOOD)
        cluster.hash_of(workers[0])

    def test_every_mode_goes_on_without_a_worker(self):
        silent = []
        for mode in ("sync", "ssp:3", "quorum:2"):
            for transport in ("shm", "tcp"):
                with self.subTest(mode=mode, transport=transport):
                    (ps,), workers = self.running("--mode", mode, "--transport", transport)
                    workers[1].signal(signal.SIGKILL)
                    why = ps.wait_for(r"worker 1 \(localhost:3001\) was lost: (.*); 2 workers remain", NOTICED).group(1)
                    silent.append("no heartbeat for" in why)
                    self.assert_goes_on(workers[0])
                    self.assert_goes_on(workers[2])
                    for worker in (workers[0], workers[2]):
                        worker.signal(signal.SIGTERM)
                    for task in (workers[0], workers[2], ps):
                        self.assert_ends(task, cluster.GOOD)
        # The end of the connection announces a loss. Only silence does before the first heartbeat has arrived.
        self.assertLess(2 * sum(silent), len(silent), silent)

    def test_the_next_worker_becomes_the_chief(self):
        (ps,), workers = self.start_cluster(3, "--epochs", 300, "--mode", "sync")
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        workers[0].signal(signal.SIGKILL)
        for task in (workers[1], workers[2], ps):
            self.assert_ends(task, cluster.GOOD)
        cluster.hash_of(workers[1])
        self.assertFalse(workers[2].has("Parameter-Hash"), workers[2].transcript())

    def test_workers_end_without_their_ps(self):
        for flags in (["--transport", "shm"], ["--transport", "tcp"], ["--mode", "sync"]):
            with self.subTest(flags=flags):
                (ps,), workers = self.running(*flags)
                ps.signal(signal.SIGKILL)
                for worker in workers:
                    self.assert_ends(worker, cluster.retry_worthy, NOTICED,
                                     says=[rf"parameter server 0 \({self.ps_addresses[0]}\) was lost"])

    def test_local_cluster_without_a_worker(self):
        task = self.train("--model", "linear", *LONG, "--mode", "sync")
        task.wait_for(r"Step: \d+")
        worker = int(task.wait_for(r"# worker/2: pid (\d+)").group(1))
        os.kill(worker, signal.SIGKILL)
        task.wait_for(r"worker/2 \(pid \d+\) was killed by signal 9", NOTICED)
        task.wait_for(r"worker 2 .* was lost", NOTICED)
        self.assert_goes_on(task)
        task.signal(signal.SIGTERM)
        self.assert_ends(task, cluster.retry_worthy, NOTICED + 10)

    def test_local_cluster_leaves_no_orphans(self):
        task = self.train("--model", "linear", *LONG)
        task.wait_for(r"Step: \d+")
        pids = [int(pid) for pid in cluster.children(task.pid)]
        task.signal(signal.SIGKILL)
        task.code(5)
        deadline = time.monotonic() + NOTICED
        while any(os.path.exists(f"/proc/{pid}") and "Z" != state(pid) for pid in pids):
            self.assertLess(time.monotonic(), deadline, "tasks still run after the end of their supervisor")
            time.sleep(0.02)


class Stalled(cluster.ClusterTest):
    def running(self, *flags):
        # A shorter timeout would also expire for a correct worker that gets no core for a while.
        (ps,), started = self.start_cluster(3, *LONG, "--heartbeat-timeout", SILENCE, *flags)
        for worker in started:
            worker.wait_for(r"Step: \d+")
        return ps, started

    def test_a_grace_window_waits_for_a_silent_worker_until_its_loss(self):
        ps, workers = self.running("--mode", "quorum:2,grace=3600")
        workers[2].signal(signal.SIGSTOP)
        # On a busy machine `gradrail top` may take longer than the timeout.
        cluster.wait_until(lambda: re.search(r"^worker/2 .*\bawaited", self.table_of(self.ps_addresses), re.M) or ps.has("was lost"),
                           cluster.START, ps.transcript)
        ps.wait_for(rf"worker 2 \(localhost:3002\) was lost: no heartbeat for {SILENCE} s", SILENCE + NOTICED)
        self.assert_goes_on(workers[0])
        self.assert_goes_on(workers[1])

    def test_a_learned_window_goes_on_without_a_silent_worker(self):
        ps, workers = self.running("--mode", "quorum:2,grace=auto", "--heartbeat-timeout", 60)
        workers[2].signal(signal.SIGSTOP)
        self.assert_goes_on(workers[0])
        workers[2].signal(signal.SIGCONT)
        self.assert_goes_on(workers[2])
        self.assertFalse(ps.has("lost"), ps.transcript())

    def test_a_silent_worker_is_lost_within_five_seconds(self):
        (ps,), workers = self.start_cluster(2, *LONG, "--mode", "sync")
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        workers[1].signal(signal.SIGSTOP)
        ps.wait_for(r"worker 1 \(localhost:3001\) was lost: no heartbeat for 4 s", 5 * cluster.PATIENCE)
        self.assert_goes_on(workers[0])

    def test_ends_naming_the_silent_worker_where_none_can_be_spared(self):
        ps, workers = self.running("--mode", "sync", "--min_workers", 3)
        workers[2].signal(signal.SIGSTOP)
        for task in (workers[0], workers[1], ps):
            self.assert_ends(task, cluster.retry_worthy, SILENCE + NOTICED,
                             says=[rf"worker 2 \(localhost:3002\) was lost: no heartbeat for {SILENCE} s"])
        workers[2].signal(signal.SIGCONT)
        self.assert_ends(workers[2], cluster.retry_worthy, SILENCE + NOTICED)


class Stale(cluster.ClusterTest):
    def test_the_summary_has_the_histogram_what_was_waited_for_and_what_was_dropped(self):
        for mode, has in (("ssp:1", r"^Waited: \d+\.\d\ds for the gradients of other workers"),
                          ("quorum:2,late=drop", r"^Dropped: \d+ gradients arrived too late for their sum"),
                          ("quorum:2", r"^Late: \d+ gradients entered a later step")):
            with self.subTest(mode=mode):
                (ps,), workers = self.start_cluster(3, *LONG, "--mode", mode, "--heartbeat-timeout", 60)
                for worker in workers:
                    worker.wait_for(r"Step: \d+")
                workers[2].signal(signal.SIGSTOP)  # the others wait for it, or continue without
                if mode == "ssp:1":
                    self.wait_until_awaited("worker/2", self.ps_addresses)
                else:
                    self.assert_goes_on(workers[0])
                workers[2].signal(signal.SIGCONT)
                for worker in workers:
                    self.assert_goes_on(worker)
                for worker in workers:
                    worker.signal(signal.SIGTERM)
                for task in (*workers, ps):
                    self.assert_ends(task, cluster.GOOD)
                self.assertTrue(any(worker.has(has) for worker in workers), workers[0].transcript())
                said = workers[0].wait_for(r"^Staleness: mean \d+\.\d\d, max \d+ updates \((\d.*)\)$").group(1)
                made = int(workers[0].wait_for(r"^Exchange: (\d+) exchanges").group(1))
                self.assertEqual(sum(int(cell.rsplit(" ", 1)[1]) for cell in said.split(", ")), made)


class Late(cluster.ClusterTest):
    def test_the_same_task_twice_is_refused(self):
        (ps,), workers = self.start_cluster(2, *LONG)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        twin = self.start_worker(1, "--join-timeout", 2)
        self.assert_ends(twin, cluster.CONFIGURATION, 10 * cluster.PATIENCE,
                         says=[r"worker 1 is already running", r"the same task_index"])
        self.assert_goes_on(workers[1])
        self.assertLess(len(re.findall("already running", ps.text())), 4, ps.transcript())

    def test_workers_come_and_go_in_every_mode(self):
        for mode in ("sync", "ssp:2", "quorum:1,late=drop"):
            with self.subTest(mode=mode):
                (ps,), workers = self.start_cluster(2, *LONG, "--mode", mode)
                for worker in workers:
                    worker.wait_for(r"Step: \d+")
                late = self.start_worker(5)  # no list contains it
                late.wait_for(r"Step: \d+")
                self.assert_goes_on(late)
                self.assert_goes_on(workers[0])
                late.signal(signal.SIGTERM)
                self.assert_ends(late, cluster.GOOD)
                workers[1].signal(signal.SIGKILL)
                again = self.start_worker(1)
                again.wait_for(r"Step: \d+")
                self.assert_goes_on(again)
                self.assert_goes_on(workers[0])

    def test_a_late_worker_of_a_sync_run_ends_with_the_others(self):
        (ps,), workers = self.start_cluster(2, "--epochs", 200, "--mode", "sync")
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        workers[0].signal(signal.SIGSTOP)  # else it can end before the other one has started
        workers[1].signal(signal.SIGKILL)
        again = self.start_worker(1)
        again.wait_for("Variables initialized")
        workers[0].signal(signal.SIGCONT)
        for task in (workers[0], again, ps):
            self.assert_ends(task, cluster.GOOD)
        self.assertRegex(workers[0].text(), "Global-Step: 20000")
        self.assertRegex(again.text(), "Global-Step: 20000")
        self.assertNotRegex(again.text(), r"Epoch:  1,")


def state(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


if __name__ == "__main__":
    unittest.main()
