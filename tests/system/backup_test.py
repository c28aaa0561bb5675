"""Tests --backup-ps 1: each ps task has a backup, which replaces a killed task. No step is lost or applied twice."""
import os
import random
import re
import shutil
import signal
import time
import unittest
import unittest.mock

import certificates
import cluster
import digits

NOTICED = 20 * cluster.PATIENCE
EPOCHS = 2
BATCHES = 550  # batches of MNIST in an epoch of one worker
LOG_EVERY = 10
ROUNDS = int(os.environ.get("GRADRAIL_ROUNDS", "2"))  # use 10 or more after a change of the backup code


class Backup(cluster.ClusterTest):
    def start(self, *flags, epochs=EPOCHS):
        return self.start_cluster(2, "--backup-ps", 1, "--epochs", epochs, "--log_every", LOG_EVERY, *flags, ps=2, model="mlp")

    def wait_until_level(self, primary):
        primary.wait_for("the backup at .* has everything", cluster.START)

    def few_steps(self, epochs):
        """Returns the flags of a run with small data: an epoch has 11 batches."""
        data = self.folder / "data"
        data.mkdir()
        return "--data_dir", digits.write(data), "--epochs", epochs

    def kill(self, ps, worker, share, steps=EPOCHS * BATCHES):
        """Kills `ps` when its backup is up to date and `worker` has reported that share of the steps of the run."""
        self.wait_until_level(ps)
        due = 1 + share * steps // LOG_EVERY
        cluster.wait_until(lambda: len(re.findall(r"Step: \d+", worker.text())) >= due, cluster.START, worker.transcript)
        ps.signal(signal.SIGKILL)
        ps.code()

    def assert_went_on(self, worker):
        worker.wait_for(r"parameter server 0 .* was lost: .*; its backup .* has taken over at step \d+, no step of this worker lost",
                        NOTICED)

    def assert_all_end(self, *tasks):
        for task in tasks:
            self.assert_ends(task, cluster.GOOD, 4 * cluster.FINISH)

    def undisturbed(self, *flags):
        """Returns the hash of the final parameters of such a run without a fault."""
        servers, workers = self.start(*flags)
        self.assert_all_end(*workers, *servers)
        return cluster.hash_of(workers[0])

    def shares(self, count):
        """Returns random shares of a run. A kill at a share hits the run on a machine of any speed."""
        seed = random.randrange(1 << 30)
        print(f"seed {seed}", flush=True)
        generator = random.Random(seed)
        return [generator.random() * 0.5 for _ in range(count)]

    def test_sync_ends_in_the_same_bits_whenever_the_ps_is_killed(self):
        epochs = 60
        flags = ("--mode", "sync", "--optimizer", "adam", *self.few_steps(epochs))
        undisturbed = self.undisturbed(*flags)
        for number, share in enumerate(self.shares(ROUNDS)):
            with self.subTest(number=number, share=share):
                flags_now = (*flags, "--transport", ("shm", "tcp")[number % 2])
                (ps, backup), workers = self.start(*flags_now)
                self.kill(ps, workers[0], share, epochs * 11)
                for worker in workers:
                    self.assert_went_on(worker)
                self.assert_all_end(*workers, backup)
                self.assertEqual(cluster.hash_of(workers[0]), undisturbed, workers[0].transcript())

    def assert_goes_on_alike(self, *flags, share=0.3):
        """Checks that a run with a killed ps ends with the parameters of an undisturbed run."""
        flags = ("--mode", "sync", "--optimizer", "adam", *flags)
        undisturbed = self.undisturbed(*flags)
        (ps, backup), workers = self.start(*flags)
        self.kill(ps, workers[0], share)
        for worker in workers:
            self.assert_went_on(worker)
        self.assert_all_end(*workers, backup)
        self.assertEqual(cluster.hash_of(workers[0]), undisturbed, workers[0].transcript())

    def assert_goes_on_alike_over(self, transport):
        info = self.launch("info", [cluster.binary(), "info"])
        self.assert_ends(info, cluster.GOOD)
        if not info.has(f"^  {transport} .*; usable"):
            cluster.skip(f"built without {transport}")
        self.assert_goes_on_alike("--transport", transport)

    @cluster.long("Built/ClientBackup has shm and tcp; the library runs here alone with a killed ps")
    def test_over_ucx(self):
        self.assert_goes_on_alike_over("ucx")

    @cluster.long("Built/ClientBackup has shm and tcp; the library runs here alone with a killed ps")
    def test_over_ofi(self):
        self.assert_goes_on_alike_over("ofi")

    @cluster.long("Built/ClientBackup and DeviceStore; no test of `make test` has a backup with parameters on a GPU")
    def test_with_the_parameters_on_a_gpu(self):
        gpus = {"LD_LIBRARY_PATH": os.environ["GRADRAIL_SIMULATED_GPU_DIR"], "GRADRAIL_SIMULATED_GPU": "devices=2"}
        few_steps = (*self.few_steps(EPOCHS), "--batch_size", 20)  # the simulated GPU is slow
        with unittest.mock.patch.dict(os.environ, gpus):
            for transport in ("shm", "tcp"):
                with self.subTest(transport=transport):
                    self.assert_goes_on_alike("--ps_device", "gpu:0", "--towers", 1, "--transport", transport, *few_steps,
                                              share=0)

    def test_with_tls(self):
        certificates.make_authority(self.folder, "ca")
        certificates.make_certificate(self.folder, "task", "ca")
        self.assert_goes_on_alike("--cert-file", self.folder / "task.pem", "--key-file", self.folder / "task.key",
                                  "--trusted-ca-file", self.folder / "ca.pem", "--client-cert-auth", *self.few_steps(60), share=0)

    def test_with_a_secret(self):
        (ps, backup), workers = self.start("--mode", "sync", "--secret-file", self.secret_file(), epochs=2 * EPOCHS)
        self.kill(ps, workers[0], 0)
        self.assert_went_on(workers[0])
        self.assert_all_end(*workers, backup)

    @cluster.long("CheckpointKill and checkpoint_test; no test of `make test` has a takeover during a save")
    def test_what_was_being_saved_is_saved_by_the_backup(self):
        saved = self.folder / "saved"
        for number, share in enumerate(self.shares(ROUNDS)):
            with self.subTest(number=number, share=share):
                shutil.rmtree(saved, ignore_errors=True)
                (ps, backup), workers = self.start("--mode", "sync", "--checkpoint_dir", saved, "--save_steps", 5)
                self.kill(ps, workers[0], share)
                self.assert_went_on(workers[0])
                self.assert_all_end(*workers, backup)
                listed = self.launch("ls", [cluster.binary(), "checkpoint", "ls", str(saved)])
                self.assert_ends(listed, cluster.GOOD)
                self.assertRegex(listed.text(), rf"(?m)^ *{EPOCHS * BATCHES} ")

    @cluster.long("simulation stops servers; sockets of a stopped process stay open with processes alone")
    def test_a_ps_that_was_stopped_is_replaced_and_ends(self):
        (ps, backup), workers = self.start("--mode", "sync", "--heartbeat-timeout", 2, epochs=4 * EPOCHS)
        self.wait_until_level(ps)
        workers[0].wait_for(r"Step: \d+", cluster.START)
        ps.signal(signal.SIGSTOP)
        for worker in workers:
            self.assert_went_on(worker)
        ps.signal(signal.SIGCONT)
        self.assert_ends(ps, lambda code: code != cluster.GOOD, NOTICED, says=["the backup at .* has taken over"])
        self.assert_all_end(*workers, backup)
        made = int(workers[0].wait_for(r"^Global-Step: (\d+)").group(1))
        self.assertEqual(made, 4 * EPOCHS * BATCHES)

    @cluster.long("Pair; no test of `make test` has a ps that is back while all of its workers are in a step")
    def test_a_ps_that_is_back_at_once_takes_nothing_from_its_backup(self):
        """A new worker joins the restarted ps before the workers in a long step have joined the backup."""
        (ps, backup), workers = self.start()
        self.wait_until_level(ps)
        workers[0].wait_for(r"Step: \d+", cluster.START)
        for worker in workers:
            worker.signal(signal.SIGSTOP)
        ps.signal(signal.SIGKILL)
        ps.code()
        back = self.train(*self.common_flags, "--job_name", "ps", "--task_index", 0, name="ps/0 again")
        another = self.start_worker(2)
        back.wait_for("# ps/0 listens")
        time.sleep(3)  # no event exists: worker 2 waits for the others without output
        for worker in workers:
            worker.signal(signal.SIGCONT)
        self.assert_went_on(workers[0])
        self.assert_all_end(*workers, another, backup, back)
        made = max(int(worker.wait_for(r"^Global-Step: (\d+)").group(1)) for worker in (*workers, another)
                   if worker.has("^Global-Step: "))
        self.assertEqual(made, 3 * EPOCHS * BATCHES, workers[0].transcript())

    def test_a_ps_that_comes_back_too_late_begins_no_run_of_its_own(self):
        (ps, backup), workers = self.start("--mode", "sync", epochs=1000)
        self.kill(ps, workers[0], 0)
        for worker in workers:
            self.assert_went_on(worker)
        reached = int(workers[0].wait_for(r"has taken over at step (\d+)").group(1))
        back = self.train(*self.common_flags, "--job_name", "ps", "--task_index", 0, name="ps/0 again")
        workers[1].signal(signal.SIGKILL)
        workers[1].code()
        again = self.start_worker(1)
        back.wait_for("the ps task at .* has taken over; this one is its backup", NOTICED)
        self.assertGreater(int(again.wait_for(r"Step: (\d+)", cluster.START).group(1)), reached)
        self.assert_goes_on(workers[0])
        for worker in (workers[0], again):
            worker.signal(signal.SIGTERM)
        self.assert_all_end(workers[0], again, backup, back)

    @cluster.long("Pair has a backup that refuses for a while; here it does not answer")
    def test_a_backup_that_is_slow_to_answer_is_asked_again(self):
        (ps, backup), workers = self.start("--mode", "sync")
        self.wait_until_level(ps)
        workers[0].wait_for(r"Step: \d+", cluster.START)
        backup.signal(signal.SIGSTOP)
        ps.signal(signal.SIGKILL)
        time.sleep(4)
        backup.signal(signal.SIGCONT)
        for worker in workers:
            self.assert_went_on(worker)
        self.assert_all_end(*workers, backup)

    def test_a_worker_joins_again_if_the_ps_is_lost_before_the_others_have_joined(self):
        """No backup has the state of this run: the lost one had none yet, and the other starts later."""
        self.common_flags = [*self.addresses(2, ps=2), "--model", "linear", "--backup-ps", 1, "--mode", "sync",
                             "--epochs", 2]

        def start_ps(index, name):
            return self.train(*self.common_flags, "--job_name", "ps", "--task_index", index, name=name)
        ps = start_ps(0, "ps/0")
        first = self.start_worker(1)
        ps.wait_for("# ps/0 listens", cluster.START)
        self.wait_until_shown(r"^worker/1 ", self.ps_addresses[:1])
        ps.signal(signal.SIGKILL)
        ps.code()
        servers = [start_ps(0, "ps/0 again"), start_ps(1, "ps/1")]
        first.wait_for("was lost: .*; waiting up to 60 s for its restart", 2 * NOTICED)
        self.assert_all_end(self.start_worker(0), first, *servers)
        self.assert_says(first, "all parameter servers are back", r"w = 2\.0000, b = 10\.0000")

    def test_a_task_without_the_flag_is_refused(self):
        pair = ["--backup-ps", 1]
        for name, ps, backup, worker, says in (
                ("the backup", pair, [], pair, "the backup at .*: this ps task was started without --backup-ps 1"),
                ("the ps", [], pair, pair, "was started without --backup-ps 1, and this worker with"),
                ("the worker", pair, pair, [], "was started with --backup-ps 1, and this worker without")):
            with self.subTest(without=name):
                common = [*self.addresses(1, 2), "--model", "linear"]
                for index, flags in enumerate((ps, backup)):
                    self.train(*common, *flags, "--job_name", "ps", "--task_index", index, name=f"ps/{index}")
                refused = self.tasks[-2] if name == "the backup" else self.train(
                    *common, *worker, "--job_name", "worker", "--task_index", 0, name="worker/0")
                self.assert_ends(refused, cluster.CONFIGURATION, NOTICED, says=[says])

    def test_a_pair_is_alike(self):
        folders = [self.folder / "one", self.folder / "other"]
        for says, ps, backup in (("the backup has 1 shards, its primary has 2", ["--shards", 2], []),
                                  ("the backup has no checkpoint folder", ["--checkpoint_dir", folders[0]], []),
                                  ("the backup has another checkpoint folder", ["--checkpoint_dir", folders[0]],
                                   ["--checkpoint_dir", folders[1]])):
            with self.subTest(says=says):
                common = [*self.addresses(1, 2), "--model", "linear", "--backup-ps", 1]
                tasks = [self.train(*common, *flags, "--job_name", "ps", "--task_index", index, name=f"ps/{index}")
                         for index, flags in enumerate((ps, backup))]
                self.assert_ends(tasks[0], cluster.CONFIGURATION, NOTICED, says=[says])

    def test_a_replication_peer_that_comes_back_without_the_flag_is_no_backup(self):
        (ps, backup), workers = self.start("--mode", "sync", epochs=1000)
        self.kill(ps, workers[0], 0)
        self.assert_went_on(workers[0])
        back = self.train(*[flag for flag in self.common_flags if flag not in ("--backup-ps", 1)], "--job_name", "ps",
                          "--task_index", 0, name="ps/0 again")
        backup.wait_for("not replicated: the backup at .* was started without --backup-ps 1", NOTICED)
        back.wait_for("a ps task has this task as its backup: .* without --backup-ps 1", NOTICED)
        said = len(workers[0].lines())
        backup.signal(signal.SIGKILL)
        workers[0].wait_for("its backup did not take over: .* without --backup-ps 1", NOTICED, after=said)
        self.assertTrue(back.running(), back.transcript())

    def test_halves_that_are_none_are_refused(self):
        self.refused(cluster.CONFIGURATION, ["--backup-ps 1: .* even number .*--ps 2: one, and its backup"], "--backup-ps", 1)
        self.refused(cluster.USAGE, ["--backup-ps: '2' is not"], "--backup-ps", 2)


if __name__ == "__main__":
    unittest.main()
