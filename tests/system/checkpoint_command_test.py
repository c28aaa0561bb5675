"""Tests `gradrail checkpoint`: the list of a folder, and the verification. Also tests that kept sets are restored with other
numbers of shards."""
import os
import subprocess
import unittest

import cluster
import digits


class CheckpointCommand(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "checkpoints"
        (self.folder / "data").mkdir()
        self.data = digits.write(self.folder / "data")

    def run_digits(self, *flags):
        task = self.train("--data_dir", self.data, "--mode", "sync", "--checkpoint_dir", self.saved, *flags)
        self.assert_ends(task, cluster.GOOD)
        return task

    def checkpoint(self, *arguments, code=cluster.GOOD):
        task = self.launch("checkpoint", [cluster.binary(), "checkpoint", *map(str, arguments)])
        self.assertEqual(task.code(), code, task.transcript())
        return task

    def files(self):
        return sorted(self.saved.glob("*.ckpt"))

    def test_ls_says_what_is_there_and_what_is_missing(self):
        self.run_digits("--epochs", 1, "--ps", 2)
        self.run_digits("--epochs", 1, "--ps", 2, "--optimizer", "sgd")
        self.run_digits("--epochs", 1, "--ps", 1)
        files = self.files()
        files[1].unlink()
        files[2].write_bytes(b"no checkpoint at all")
        (self.saved / (files[0].name.replace("0000000011-", "0000000005-") + ".tmp")).write_bytes(b"")
        empty = self.folder / "empty"
        empty.mkdir()
        task = self.checkpoint("ls", self.saved, empty)
        elements = "79510 elements in 4 tensors: W1 \\[784, 100\\], W2 \\[100, 10\\], b1 \\[100\\], b2 \\[10\\]"
        self.assert_says(task, rf"^{self.saved}$", rf"^ +33 +1 +\d+ +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +complete +sgd +{elements}$",
                         rf"^ +22 +2 .* damaged: .*{files[2].name}: truncated", r"^ +11 +2 .*step 11 is incomplete: .*missing 1$",
                         r"^unfinished: .*0000000005-.*\.tmp$", rf"^{empty}: holds no checkpoint$")

    def test_what_cannot_be_read_is_an_error(self):
        """A run began from zero, and `ls` found no checkpoint, both with exit code 0."""
        name = "gradrail-000000000033-0000000000000001-0-of-1.ckpt"
        self.saved.mkdir()
        (self.saved / name).symlink_to("/not/mounted/file")
        says = f"{name}: cannot be read: is a symbolic link to /not/mounted/file, which is not there"
        self.assert_says(self.checkpoint("ls", self.saved, code=cluster.CONFIGURATION), f"unreadable: .*{says}", f"^gradrail: .*{says}")
        self.assert_says(self.checkpoint("verify", self.saved, code=cluster.FAILED), f"^unreadable: .*{says}")
        task = self.train("--data_dir", self.data, "--checkpoint_dir", self.saved)
        self.assert_ends(task, cluster.CONFIGURATION, says=[says])
        (self.saved / name).unlink()
        os.mkfifo(self.saved / name)
        task = self.train("--data_dir", self.data, "--checkpoint_dir", self.saved)
        self.assert_ends(task, cluster.CONFIGURATION, says=[f"{name}: is a pipe"])

    def test_a_folder_whose_name_is_not_utf_8(self):
        self.saved = self.folder / os.fsdecode(b"u\xe9") / "saved"
        self.run_digits("--epochs", 1, "--ps", 2)
        self.assertEqual(len(self.files()), 2)
        again = self.run_digits("--epochs", 1, "--ps", 1)
        self.assert_says(again, "restored global step 11")
        self.checkpoint("ls", self.saved)
        self.checkpoint("verify", self.saved)
        # The text of an error crosses the control plane, too.
        for path in self.files():
            path.write_bytes(b"")
        task = self.train("--data_dir", self.data, "--checkpoint_dir", self.saved)
        self.assert_ends(task, cluster.CONFIGURATION, says=["truncated"])

    def test_verify_reads_every_byte(self):
        self.run_digits("--epochs", 1, "--ps", 2)
        self.run_digits("--epochs", 1, "--ps", 2)
        self.assert_says(self.checkpoint("verify", self.saved), r"^step 22 is whole: \d+ bytes in 2 files$", r"^step 11 is whole")
        good = [path.read_bytes() for path in self.files()]
        for index in (0, 3):
            damaged = bytearray(good[index])
            damaged[len(damaged) // 2] ^= 1
            self.files()[index].write_bytes(damaged)
        task = self.checkpoint("verify", self.saved, code=cluster.FAILED)
        for index in (0, 3):
            self.assert_says(task, rf"^damaged: checkpoint {self.files()[index]}: chunk 0 of 1 \(parameters, .*CRC32C")
        self.files()[0].write_bytes(good[0])
        # An incomplete set of a killed run is reported, but it is not an error.
        self.files()[3].unlink()
        self.assert_says(self.checkpoint("verify", self.saved), r"^step 22 is incomplete: .*missing 1$", r"^step 11 is whole")
        self.files()[0].unlink()
        self.assert_says(self.checkpoint("verify", self.saved, code=cluster.FAILED), "holds no whole checkpoint$")
        nowhere = self.folder / "nowhere"
        self.assert_says(self.checkpoint("verify", nowhere, code=cluster.CONFIGURATION), f"{nowhere}: No such file or directory")
        self.assert_says(self.checkpoint("verify", nowhere, self.saved, code=cluster.CONFIGURATION),
                         f"{nowhere}: No such file or directory", "holds no whole checkpoint$")

    def test_other_shards_go_on_from_what_was_kept(self):
        """A run keeps its last three sets. A run with other numbers of ps and shards restores from the same folder."""
        self.run_digits("--epochs", 2, "--ps", 2, "--shards", 2, "--save_steps", 4, "--keep", 3, "--optimizer", "adam")
        self.checkpoint("verify", self.saved)
        step, hashes = 22, set()
        for cut in (["--ps", 3], ["--ps", 1, "--shards", 3], ["--ps", 2, "--shards", 2]):
            copy = self.folder / "-".join(map(str, ["copy", *cut]))
            subprocess.run(["cp", "-r", self.saved, copy], check=True)
            original, self.saved = self.saved, copy
            task = self.run_digits("--epochs", 1, "--keep", 3, "--optimizer", "adam", *cut)
            self.assertTrue(task.has(rf"restored global step {step} from"), task.transcript())
            self.assertTrue(task.has(rf"^Global-Step: {step + 11}$"), task.transcript())
            hashes.add(cluster.hash_of(task))
            verified = self.checkpoint("verify", self.saved)
            whole = [line for line in verified.lines() if " is whole: " in line.text]
            self.assertIn(len(whole), (2, 3), verified.transcript())  # a slow disk can skip a periodic save
            self.saved = original
        self.assertEqual(len(hashes), 1)


if __name__ == "__main__":
    unittest.main()
