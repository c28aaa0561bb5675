"""Tests checkpoints: a restarted run continues from the newest set, also with other shards. It reports unusable sets."""
import re
import signal
import subprocess
import time
import unittest

import cluster
import digits


class Restart(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "checkpoints"
        (self.folder / "data").mkdir()
        self.data = digits.write(self.folder / "data")

    def run_once(self, *flags):
        task = self.train("--model", "linear", "--epochs", 1, "--log_every", 50, "--checkpoint_dir", self.saved, *flags)
        self.assert_ends(task, cluster.GOOD)
        return task

    def run_digits(self, *flags):
        task = self.train("--data_dir", self.data, "--mode", "sync", "--log_every", 5, "--checkpoint_dir", self.saved,
                          *flags)
        self.assert_ends(task, cluster.GOOD)
        return task

    def files(self):
        return sorted(path.name for path in self.saved.glob("*.ckpt"))

    def steps(self):
        """Returns (global step, shard, number of shards) of each file."""
        found = [re.fullmatch(r"gradrail-(\d{12})-\d{16}-(\d+)-of-(\d+)\.ckpt", name) for name in self.files()]
        return [tuple(map(int, match.groups())) for match in found]

    def test_a_limit_of_the_file_size_is_named(self):
        # The memory of a connection has 512 KiB, and the checkpoint 930.
        task = self.launch("train", ["sh", "-c", 'ulimit -f 1400; exec "$@"', "sh", cluster.binary(), "train", "--local", "--ps", "1",
                                     "--workers", "1", "--epochs", "1", "--optimizer", "adam", "--data_dir", str(self.data),
                                     "--checkpoint_dir", str(self.saved)])
        self.assert_ends(task, cluster.CONFIGURATION, says=[r"checkpoint .*: write: File too large \(`ulimit -f`\?\)"])
        self.assertEqual(self.files(), [])

    def test_goes_on_from_the_global_step(self):
        first = self.run_once()
        self.assertTrue(first.has(r"^Global-Step: 300$"), first.transcript())
        self.assertEqual(self.steps(), [(300, 0, 1)])
        second = self.run_once()
        step = int(second.wait_for(r"Step: (\d+)").group(1))
        self.assertTrue(300 < step <= 600, second.transcript())
        self.assertTrue(second.has(r"^Global-Step: 600$"), second.transcript())
        self.assertTrue(second.has(rf"^\[ps/0\] restored global step 300 from {self.saved}$"), second.transcript())
        # A worker that has ended before the others have joined is the last member for a moment, and saves too.
        self.assertEqual((self.steps()[0], self.steps()[-1]), ((300, 0, 1), (600, 0, 1)))

    def test_keeps_the_last_few_and_no_halves(self):
        for every in (2, 22):  # 22: the last step is saved twice, by --save_steps and at the end
            self.saved = self.folder / f"every-{every}"
            for _ in range(3):  # each run saves at least once, at its end
                self.run_digits("--epochs", 2, "--save_steps", every, "--keep", 2, "--ps", 2)
            steps = [step for step, _, _ in self.steps()]
            self.assertEqual((len(steps), len(set(steps)), steps[-1]), (4, 2, 66), self.files())
            self.assertEqual(list(self.saved.glob("*.tmp")), [])

    def test_saves_by_the_clock_and_by_default_every_ten_minutes(self):
        self.run_digits("--epochs", 40, "--save_secs", 0.05, "--keep", 0)
        self.assertGreater(len(self.files()), 1)
        self.saved = self.folder / "by-default"
        self.run_digits("--epochs", 40)
        self.assertEqual(self.steps(), [(440, 0, 1)])

    def test_a_killed_run_goes_on_from_what_it_saved(self):
        task = self.train("--model", "linear", "--epochs", 100000, "--save_steps", 50, "--log_every", 100,
                          "--checkpoint_dir", self.saved)
        deadline = time.monotonic() + cluster.START
        while len(self.files()) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        task.end()
        newest = self.steps()[-1][0]
        self.assertGreater(newest, 100)
        again = self.run_once()
        self.assertTrue(again.has(rf"restored global step {newest} from"), again.transcript())
        self.assertGreater(int(again.wait_for(r"Step: (\d+)").group(1)), newest)

    def test_a_folder_with_nothing_but_half_a_set_is_no_place_to_begin_anew(self):
        self.run_digits("--epochs", 1, "--ps", 2)
        self.assertEqual(len(self.files()), 2)
        (self.saved / self.files()[1]).unlink()
        task = self.refused(cluster.CONFIGURATION, [r"step 11 is incomplete: of 2 shards 1 are there, missing 1",
                                                    "one shared folder", str(self.saved)], "--data_dir", self.data,
                            "--mode", "sync", "--checkpoint_dir", self.saved, within=15 * cluster.PATIENCE)
        self.assertFalse(task.has(r"^Step: "), task.transcript())

    def test_a_damaged_set_is_named_and_the_one_before_it_is_used_by_all_tasks(self):
        for _ in range(2):
            self.run_digits("--epochs", 1, "--ps", 2)
        damaged = self.saved / self.files()[3]  # a file of the second task
        damaged.write_bytes(damaged.read_bytes()[:-7])
        task = self.run_digits("--epochs", 1, "--ps", 2)
        self.assertTrue(task.has(rf"^ps/0 W .*{damaged.name}: truncated: .*: going back to step 11$"), task.transcript())
        for ps in range(2):
            self.assertTrue(task.has(rf"^\[ps/{ps}\] restored global step 11 "), task.transcript())
        self.assertTrue(task.has(r"^Global-Step: 22$"), task.transcript())
        again = self.run_digits("--epochs", 1, "--ps", 1)
        self.assertTrue(again.has(r"^\[ps/0\] restored global step 22 "), again.transcript())

    def test_all_tasks_begin_from_the_set_of_the_first(self):
        """On a slow file system, two tasks can see different content of a folder. The second task sees one set more."""
        flags = ["--ps", 2, "--workers", 1, "--epochs", 1]
        self.run_digits(*flags)
        here, there = self.saved, self.folder / "there"
        self.run_digits(*flags)
        subprocess.run(["cp", "-r", here, there], check=True)
        for path in here.glob("gradrail-000000000022-*"):
            path.unlink()
        common = ["--data_dir", self.data, "--mode", "sync", "--epochs", 1, *self.addresses(1, ps=2)]
        servers = [self.train(*common, "--job_name", "ps", "--task_index", i, "--checkpoint_dir", folder, name=f"ps/{i}")
                   for i, folder in enumerate((here, there))]
        worker = self.train(*common, "--job_name", "worker", "--task_index", 0, name="worker/0")
        self.assert_ends(worker, cluster.GOOD)
        self.assert_says(worker, r"^Global-Step: 22$")
        for server in servers:
            self.assert_ends(server, cluster.GOOD)
            self.assert_says(server, "^restored global step 11 ")

    def test_a_folder_that_cannot_be_made_is_noticed_before_training(self):
        blocker = self.folder / "file"
        blocker.write_text("not a folder")
        task = self.train("--model", "linear", "--epochs", 1, "--checkpoint_dir", blocker / "below")
        code = task.code()
        self.assertNotEqual(code, cluster.GOOD, task.transcript())
        self.assertRegex(task.text(), r"file/below")
        self.assertFalse(task.has(r"^Step: "), "noticed only after training\n" + task.transcript())

    def test_two_runs_do_not_share_a_folder(self):
        flags = ["--model", "linear", "--epochs", 1, "--checkpoint_dir", self.saved]
        first = self.train(*flags, *self.addresses(1), "--job_name", "ps", "--task_index", 0, name="ps/0")
        first.wait_for("listens on")
        second = self.train(*flags, name="second")
        self.assert_ends(second, cluster.CONFIGURATION,
                         says=[rf"another run uses it: ps hosts {self.ps_addresses[0]} "
                               rf"\(first task: ps/0, process {first.process.pid} of host "])
        first.signal(signal.SIGKILL)
        first.code()
        self.run_once()

    def test_two_folders_are_not_one(self):
        flags = ["--model", "linear", "--epochs", 1, *self.addresses(1, ps=2)]
        folders = [self.folder / "here", self.folder / "there"]
        servers = [self.train(*flags, "--job_name", "ps", "--task_index", i, "--checkpoint_dir", folder, name=f"ps/{i}")
                   for i, folder in enumerate(folders)]
        worker = self.train(*flags, "--job_name", "worker", "--task_index", 0, name="worker/0")
        self.assert_ends(worker, cluster.CONFIGURATION,
                         says=[rf"parameter server 0 \({self.ps_addresses[0]}\) and parameter server 1 "
                               rf"\({self.ps_addresses[1]}\) have different checkpoint folders", "shared file system"])
        self.assertTrue(all(server.running() for server in servers))
        servers[1].end()
        self.train(*flags, "--job_name", "ps", "--task_index", 1, name="ps/1")
        worker = self.train(*flags, "--job_name", "worker", "--task_index", 0, name="worker/0")
        self.assert_ends(worker, cluster.CONFIGURATION, says=[r"parameter server 1 .* has none", "--checkpoint_dir"])
        self.assertFalse(list(self.folder.glob("*/*.ckpt")))


if __name__ == "__main__":
    unittest.main()
