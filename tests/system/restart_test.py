"""Tests parameter servers that fail and restart while their workers run."""
import os
import re
import signal
import time
import unittest

import cluster
import digits

NOTICED = 5 * cluster.PATIENCE + 3


def position(worker):
    """Returns (epoch, batch) of the last progress line."""
    return [tuple(map(int, found)) for found in re.findall(r"Epoch: +(\d+),  Batch: +(\d+) of", worker.text())][-1]


class Restarted(cluster.ClusterTest):
    EPOCHS = 400  # long enough for a loss and the recovery

    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        self.data = digits.write(self.folder / "data")

    def start(self, *flags, ps=1, workers=2, saves=True):
        self.saved = self.folder / "checkpoints"
        keeps = ["--checkpoint_dir", self.saved, "--save_steps", 50] if saves else []
        servers, started = self.start_cluster(workers, "--epochs", self.EPOCHS, "--data_dir", self.data, *keeps, *flags,
                                              ps=ps, model="mlp")
        for worker in started:
            worker.wait_for(r"Step: \d+")
        return servers, started

    def start_ps(self, index):
        return self.train(*self.common_flags, "--job_name", "ps", "--task_index", index, name=f"ps/{index} again")

    def wait_for_a_checkpoint(self, ps=1):
        """Waits until each of `ps` tasks has saved a checkpoint."""
        cluster.wait_until(lambda: len(list(self.saved.glob("*.ckpt"))) >= ps, cluster.START, lambda: "no checkpoint")

    def assert_stop(self, workers, *servers):
        """Checks that all tasks end with exit code 0 after SIGTERM."""
        for worker in workers:
            worker.signal(signal.SIGTERM)
        for task in (*workers, *servers):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)

    def assert_came_back(self, workers):
        for worker in workers:
            worker.wait_for(r"parameter server \d \(.*\) was lost: .*; waiting up to 60 s for its restart", NOTICED)
            worker.wait_for(r"all parameter servers are back: global step \d+ where it was \d+; \d+ steps of this worker",
                            cluster.START)

    def test_a_local_cluster_starts_its_ps_again(self):
        flags = ["--mode", "sync", "--optimizer", "adam", "--data_dir", self.data, "--epochs", 120, "--log_every", 10,
                 "--ps", 2, "--workers", 2, "--save_steps", 20]
        undisturbed = self.train(*flags, "--checkpoint_dir", self.folder / "undisturbed")
        whole = cluster.hash_of(undisturbed)
        run = self.train(*flags, "--checkpoint_dir", self.folder / "disturbed")
        for restart, ps in ((1, 0), (2, 1)):
            pid = int(run.wait_for(rf"^# ps/{ps}: pid (\d+)").group(1))
            cluster.wait_until(lambda: len(list((self.folder / "disturbed").glob("*.ckpt"))) >= 2, cluster.START,
                               lambda: "no checkpoint")
            os.kill(pid, signal.SIGKILL)
            run.wait_for(rf"ps/{ps} is started again \({restart} of 3 restarts\)", NOTICED)
            run.wait_for(r"all parameter servers are back", cluster.START, after=len(run.lines()) - 1)
        self.assert_ends(run, cluster.GOOD)
        self.assertEqual(cluster.hash_of(run), whole)

    def test_a_local_cluster_replaces_both_tasks_of_a_pair_in_turn(self):
        """A backup starts before its primary, and learns its port from it. Without it the run had one takeover only."""
        flags = ["--mode", "sync", "--optimizer", "adam", "--data_dir", self.data, "--epochs", 250, "--log_every", 10,
                 "--ps", 2, "--backup-ps", 1, "--workers", 2]
        whole = cluster.hash_of(self.train(*flags))
        run = self.train(*flags, "--restarts", 2)
        run.wait_for(r"^Step: \d+")  # a worker that joins after the loss reports no takeover
        for killed, other in ((0, 1), (1, 0)):
            run.wait_for(rf"\[ps/{killed}\] the backup at .* has everything", cluster.START)
            pid = int(re.findall(rf"^# ps/{killed}: pid (\d+)", run.text(), re.MULTILINE)[-1])
            said = len(run.lines())
            os.kill(pid, signal.SIGKILL)
            # A worker that still connects to a server when this one is killed too waits 20 s for it.
            for worker in range(2):
                run.wait_for(rf"^worker/{worker} .* has taken over at step", cluster.START, after=said)
            run.wait_for(rf"\[ps/{other}\] the backup at .* has everything", cluster.START)
        self.assert_ends(run, cluster.GOOD)
        self.assertEqual(cluster.hash_of(run), whole)

    @cluster.long("no other test loses a worker of a local cluster before it joins")
    def test_a_local_cluster_ends_if_a_worker_that_it_waits_for_never_joined(self):
        for mode, worker in (("async", 0), ("sync", 0), ("sync", 1), ("ssp:2", 1)):
            with self.subTest(mode=mode, worker=worker):
                run = self.train("--ps", 1, "--workers", 2, "--mode", mode, "--epochs", 1)  # they read MNIST before they join
                os.kill(int(run.wait_for(rf"^# worker/{worker}: pid (\d+)").group(1)), signal.SIGKILL)
                self.assert_ends(run, cluster.RETRY, cluster.START, [
                    rf"worker/{worker} ended before it joined, and the run waits for it; .*start it again"])

    @cluster.long("no other test loses a worker of a local cluster before it joins")
    def test_a_local_cluster_goes_on_without_a_worker_that_it_does_not_wait_for(self):
        for mode in ("async", "quorum:1"):
            with self.subTest(mode=mode):
                run = self.train("--ps", 1, "--workers", 2, "--mode", mode, "--epochs", 1)
                os.kill(int(run.wait_for(r"^# worker/1: pid (\d+)").group(1)), signal.SIGKILL)
                self.assert_ends(run, cluster.RETRY, cluster.FINISH, [r"(?m)^done", r"Exchange: 550 exchanges"])

    @cluster.long("ClientRejoin; recovery_test.a_killed_ps_restarts; run_test starts servers and workers again")
    def test_sync_ends_in_the_same_bits(self):
        whole = None
        for transport in ("shm", "tcp"):
            for ps in (1, 2):
                with self.subTest(transport=transport, ps=ps):
                    flags = ["--mode", "sync", "--optimizer", "adam", "--transport", transport]
                    if whole is None:
                        (server,), workers = self.start(*flags, saves=False)
                        for task in (*workers, server):
                            self.assert_ends(task, cluster.GOOD)
                        whole = cluster.hash_of(workers[0])
                    self.folder = self.folder / f"{transport}-{ps}"
                    self.folder.mkdir()
                    servers, workers = self.start(*flags, ps=ps)
                    self.wait_for_a_checkpoint(ps)
                    servers[-1].signal(signal.SIGKILL)
                    servers[-1].code()
                    servers[-1] = self.start_ps(ps - 1)
                    self.assert_came_back(workers)
                    for task in (*workers, *servers):
                        self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)
                    self.assertRegex(workers[0].text(), r"Rejoined: 1 times .*, \d+ steps done once more")
                    self.assertEqual(cluster.hash_of(workers[0]), whole)

    @cluster.long("ClientRejoin.TheChiefOffersTheParametersThatItHas; the warning is seen here alone")
    def test_without_a_checkpoint_the_chiefs_parameters_go_on(self):
        (ps,), workers = self.start("--mode", "sync", saves=False)
        reached = position(workers[0])
        ps.signal(signal.SIGKILL)
        ps.code()
        ps = self.start_ps(0)
        self.assert_came_back(workers)
        workers[0].wait_for(r"restored no checkpoint \(not all of them have --checkpoint_dir\): the run continues with the chief's parameters")
        self.assert_goes_on(workers[0])
        self.assertGreater(position(workers[0]), reached)
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)
        cluster.hash_of(workers[0])

    def test_half_a_checkpoint_is_none(self):
        servers, workers = self.start("--mode", "sync", "--save_steps", 100000, "--save_secs", 0, ps=2)
        self.saved.mkdir(exist_ok=True)
        (self.saved / "gradrail-000000000050-1795282738754160-0-of-2.ckpt").write_bytes(b"the ps failed before the other half")
        servers[1].signal(signal.SIGKILL)
        servers[1].code()
        servers[1] = self.start_ps(1)
        self.assert_came_back(workers)
        self.assert_goes_on(workers[0])
        self.assertTrue(servers[0].has("no complete set"), servers[0].transcript())

    @cluster.long("simulation stops servers in its own time; a real one stops here and in soak_test")
    def test_one_that_was_stopped_loses_nothing(self):
        (ps,), workers = self.start("--mode", "sync", "--optimizer", "adam", "--heartbeat-timeout", 60)
        ps.signal(signal.SIGSTOP)
        for worker in workers:
            worker.wait_for(r"was lost: .*; waiting up to 60 s", 10 * cluster.PATIENCE + 3)
        ps.signal(signal.SIGCONT)
        self.assert_came_back(workers)
        for worker in workers:
            self.assertRegex(worker.text(), "; 0 steps of this worker are done once more")
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)

    @cluster.long("MembershipTest.APauseOfThisProcessMakesNoMemberSilent; a real pause is measured here and in soak_test")
    def test_a_short_stall_of_the_ps_loses_no_worker(self):
        """The stall is longer than the heartbeat timeout, and too short for all workers to notice."""
        (ps,), workers = self.start("--mode", "sync", "--min_workers", 2)
        for seconds in (4.5, 5.5):
            ps.signal(signal.SIGSTOP)
            time.sleep(seconds)
            ps.signal(signal.SIGCONT)
            for worker in workers:
                self.assert_goes_on(worker)
        self.assert_stop(workers, ps)

    def test_a_ps_that_returns_without_its_folder_is_reported(self):
        (ps,), workers = self.start("--mode", "sync")
        self.wait_for_a_checkpoint()
        ps.signal(signal.SIGKILL)
        ps.code()
        at = self.common_flags.index("--checkpoint_dir")
        self.common_flags = [*self.common_flags[:at], *self.common_flags[at + 2:]]
        again = self.start_ps(0)
        for worker in workers:
            worker.wait_for("no checkpoints are saved any more", NOTICED + cluster.START)
        self.assert_stop(workers, again)

    def test_a_ps_that_gets_sigterm_makes_no_more_steps(self):
        (ps,), workers = self.start("--mode", "sync")
        self.wait_for_a_checkpoint()
        ps.signal(signal.SIGTERM)
        self.assert_ends(ps, cluster.GOOD)
        made = int(ps.wait_for(r"^global step (\d+),").group(1))
        again = self.start_ps(0)
        for worker in workers:
            was = worker.wait_for(r"are back: global step \d+ where it was (\d+);", cluster.START)
            self.assertLessEqual(int(was.group(1)), made, worker.transcript())
        self.assert_stop(workers, again)

    def test_one_that_stays_away_is_named_in_the_end(self):
        (ps,), workers = self.start("--rejoin-timeout", 2, saves=False)
        ps.signal(signal.SIGKILL)
        for worker in workers:
            self.assert_ends(worker, cluster.retry_worthy, 2 + NOTICED + cluster.START,
                             says=[rf"parameter server 0 \({self.ps_addresses[0]}\) was lost: .*, and did not return"])

    def test_a_signal_ends_the_waiting_and_the_run_is_unfinished(self):
        (ps,), workers = self.start(saves=False)
        ps.signal(signal.SIGKILL)
        for worker in workers:
            worker.wait_for("waiting up to 60 s", NOTICED)
            worker.signal(signal.SIGTERM)
            self.assert_ends(worker, cluster.RETRY, NOTICED,
                             says=[r"gradrail: stopped after [1-9]\d* steps of this worker; the run is unfinished, its last "
                                   r"known global step is [1-9]\d*: parameter server 0 \S+ was lost"])
            self.assertFalse(worker.has("^(Global-Step|Test-Accuracy|Final Cost):"), worker.transcript())


if __name__ == "__main__":
    unittest.main()
