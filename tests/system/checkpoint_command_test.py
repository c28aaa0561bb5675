"""Tests `gradrail checkpoint`: the list of a folder, the verification, and the export as .npz and .safetensors files. Also
tests that kept sets are restored with other numbers of shards."""
import ast
import json
import os
import struct
import subprocess
import sys
import unittest
import zipfile

import cluster
import digits

PARAMETERS = {"W1": (784, 100), "W2": (100, 10), "b1": (100,), "b2": (10,)}


def read_npz(path):
    """Returns {name: (type, shape, bytes)}, read without NumPy."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for entry in archive.namelist():
            data = archive.read(entry)
            assert data[:8] == b"\x93NUMPY\x01\x00", entry
            end = 10 + struct.unpack("<H", data[8:10])[0]
            assert end % 64 == 0 and data[end - 1:end] == b"\n", entry
            fields = ast.literal_eval(data[10:end].decode())
            assert entry.endswith(".npy") and not fields["fortran_order"], entry
            arrays[entry[:-4]] = (fields["descr"], fields["shape"], data[end:])
    return arrays


def read_safetensors(path):
    """Returns {name: (type, shape, bytes)} and the metadata, read without the package safetensors."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    assert start % 8 == 0
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    arrays, end = {}, 0
    for name, fields in sorted(header.items(), key=lambda entry: entry[1]["data_offsets"]):
        begin, after = fields["data_offsets"]
        assert begin == end, f"{name} begins at {begin}, after {end}"
        end = after
        arrays[name] = ({"F32": "<f4", "I64": "<i8"}[fields["dtype"]], tuple(fields["shape"]), data[start + begin:start + end])
    assert start + end == len(data)
    return arrays, metadata


def numbers_of(path):
    """Returns the bytes after the header of a checkpoint file. A small vector is one chunk and its CRC32C."""
    data = path.read_bytes()
    return data[28 + struct.unpack("<I", data[12:16])[0]:]


def python_with_numpy():
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            if subprocess.run([python, "-c", "import numpy"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return python
        except FileNotFoundError:
            continue
    return None


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
        out = self.folder / "model.npz"
        self.assert_says(self.checkpoint("export", self.saved, "--out", out, code=cluster.CONFIGURATION), says)
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

    def test_export_is_what_was_saved(self):
        out = self.folder / "model.npz"
        self.run_digits("--epochs", 1, "--ps", 2, "--optimizer", "adam")
        self.assert_says(self.checkpoint("export", self.saved, "--out", out), r"model\.npz: 4 arrays of step 11$")
        arrays = read_npz(out)
        self.assertEqual({name: shape for name, (_, shape, _) in arrays.items()}, PARAMETERS)
        self.assertEqual({type for type, _, _ in arrays.values()}, {"<f4"})
        halves = [numbers_of(path) for path in self.files()]
        vectors = [(len(half) - 3 * 4) // 3 for half in halves]  # parameters, m and v, each with a CRC32C
        self.assertEqual(b"".join(data for _, _, data in arrays.values()),
                         b"".join(half[:size] for half, size in zip(halves, vectors)))
        self.checkpoint("export", "--optimizer-state", "--out", out, self.saved)
        arrays = read_npz(out)
        for state, name in enumerate("mv", 1):
            self.assertEqual(b"".join(arrays[f"{tensor}:{name}"][2] for tensor in PARAMETERS),
                             b"".join(half[state * (size + 4):][:size] for half, size in zip(halves, vectors)))
        self.assertEqual(arrays[":global_step"], ("<i8", (), struct.pack("<q", 11)))
        same = self.folder / "model.safetensors"
        self.assert_says(self.checkpoint("export", "--optimizer-state", "--out", same, self.saved),
                         r"model\.safetensors: 13 arrays of step 11$")
        self.assertEqual(read_safetensors(same), (arrays, {"format": "pt", "optimizer": "adam"}))
        python = python_with_numpy()
        if python is None:
            print("NumPy is not installed: numpy.load() was not tested", flush=True)
            return
        script = "import numpy, sys; a = numpy.load(sys.argv[1]); print({name: a[name].shape for name in a}, a['W1'].tobytes().hex()[:64])"
        printed = subprocess.run([python, "-c", script, out], capture_output=True, text=True, check=True).stdout
        shapes = {name: shape for name, (_, shape, _) in arrays.items()}
        self.assertEqual(printed, f"{shapes} {arrays['W1'][2].hex()[:64]}\n")

    def test_export_of_the_newest_that_is_whole_or_of_a_step(self):
        out = self.folder / "model.npz"
        self.run_digits("--epochs", 1)
        self.run_digits("--epochs", 1)
        newest = self.files()[1]
        self.checkpoint("export", self.saved, "--step", 11, "--out", out)
        eleven = out.read_bytes()
        newest.write_bytes(newest.read_bytes()[:-1])
        self.assert_says(self.checkpoint("export", self.saved, "--out", out), rf"{newest.name}: truncated.*: going back to step 11$",
                         "4 arrays of step 11$")
        self.assertEqual(read_npz(out).keys(), PARAMETERS.keys())
        out.write_bytes(eleven)
        self.assert_says(self.checkpoint("export", self.saved, "--step", 22, "--out", out, code=cluster.CONFIGURATION),
                         rf"{newest.name}: truncated")
        self.assertEqual(out.read_bytes(), eleven, "a refused export changed the existing file")

    def test_export_says_what_is_wrong(self):
        self.run_digits("--epochs", 1)
        for arguments, code, words in (
                ((self.saved, self.saved, "--out", "x.npz"), cluster.CONFIGURATION, "takes one folder, not 2"),
                ((self.saved, "--step", 7, "--out", "x.npz"), cluster.CONFIGURATION, "no complete set of step 7: no file"),
                ((self.folder, "--out", "x.npz"), cluster.CONFIGURATION, f"{self.folder}: holds no checkpoint"),
                ((self.saved, "--out", self.folder / "none/x.npz"), cluster.CONFIGURATION, "none/x.npz: .*No such file"),
                ((self.saved, "--out", self.folder / "none/x.safetensors"), cluster.CONFIGURATION, "none/x.safetensors.*No such file"),
                ((self.saved, "--out", self.folder), cluster.CONFIGURATION,
                 f"--out {self.folder}: is a folder; give the name of a file, such as {self.folder}/model.safetensors"),
                (("--out", "x.npz"), cluster.USAGE, "FOLDER is required; write `gradrail checkpoint export FOLDER`"),
                ((self.saved,), cluster.USAGE, "--out")):
            with self.subTest(arguments=arguments):
                self.assert_says(self.checkpoint("export", *arguments, code=code), words)

    def test_an_export_without_room_leaves_no_file(self):
        self.run_digits("--epochs", 1)
        for out in (self.folder / "new.npz", self.folder / "new.safetensors"):
            before = sorted(self.folder.iterdir())
            task = self.launch("checkpoint", ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", cluster.binary(), "checkpoint", "export",
                                              str(self.saved), "--out", str(out)])
            self.assert_ends(task, cluster.CONFIGURATION, says=[rf"{out}.*File too large \(`ulimit -f`\?\)"])
            self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_a_run_continues_from_imported_arrays_as_from_the_checkpoint(self):
        # Step 11 is between two updates of the momentum, so that the collected gradients count.
        for name, *constants in (["adam"], ["delayed_nesterov", "--momentum_every", 4]):
            with self.subTest(optimizer=name):
                self.saved = self.folder / name
                self.continue_from_imported_arrays(name, "--optimizer", name, *constants)

    def continue_from_imported_arrays(self, name, *optimizer):
        self.run_digits("--epochs", 1, "--ps", 2, *optimizer)
        first, second = self.folder / f"{name}-first.safetensors", self.folder / f"{name}-second.safetensors"
        self.checkpoint("export", self.saved, "--optimizer-state", "--out", first)
        imported = self.folder / name / "imported"
        self.assert_says(self.checkpoint("import", imported, "--from", first),
                         rf"^{imported}: 4 tensors of step 11 for the optimizer {name}$")
        self.assert_says(self.checkpoint("verify", imported), r"^step 11 is whole: \d+ bytes in 1 files$")
        self.checkpoint("export", imported, "--optimizer-state", "--out", second)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        hashes = []
        for self.saved in (self.saved, imported):
            task = self.run_digits("--epochs", 1, "--ps", 2, *optimizer)
            self.assert_says(task, "restored global step 11 from", "^Global-Step: 22$")
            hashes.append(cluster.hash_of(task))
        self.assertEqual(*hashes)

    def test_arrays_without_state_are_a_start(self):
        self.run_digits("--epochs", 1)
        out, imported = self.folder / "model.safetensors", self.folder / "imported"
        self.checkpoint("export", self.saved, "--out", out)
        self.checkpoint("import", imported, "--from", out, "--optimizer", "momentum")
        self.saved = imported
        self.assert_says(self.run_digits("--epochs", 1, "--optimizer", "momentum"), "restored global step 0 from", "^Global-Step: 11$")

    def test_import_says_what_is_wrong(self):
        self.run_digits("--epochs", 1, "--optimizer", "momentum")
        out, new = self.folder / "model.safetensors", self.folder / "new"
        self.checkpoint("export", self.saved, "--optimizer-state", "--out", out)
        self.assert_says(self.checkpoint("import", self.saved, "--from", out, code=cluster.CONFIGURATION),
                         "checkpoints: holds a checkpoint of step 11 already: give another folder")
        self.assert_says(self.checkpoint("import", new, self.saved, "--from", out, code=cluster.CONFIGURATION), "takes one folder, not 2")
        self.assert_says(self.checkpoint("import", new, "--from", self.folder / "none", code=cluster.CONFIGURATION), "none: .*No such file")
        self.assert_says(self.checkpoint("import", new, "--from", out, "--optimizer", "adam", code=cluster.CONFIGURATION),
                         "array W1:velocity is no state of optimizer adam for an array of the file: give")
        self.assert_says(self.checkpoint("import", new, "--from", out, "--optimizer", "best", code=cluster.USAGE), "best")
        self.assert_says(self.checkpoint("import", "/proc/new", "--from", out, code=cluster.CONFIGURATION),
                         "checkpoint folder /proc/new: No such file .*it must be a folder in which this user may write")
        self.assertFalse(new.exists(), "a refused import has made a folder")

        def array(name, type, shape, begin, end):
            return f'"{name}":{{"dtype":"{type}","shape":{shape},"data_offsets":[{begin},{end}]}}'

        a, step = array("a", "F32", [2], 0, 8), array(":global_step", "I64", [], 8, 16)
        sgd, adam = '"__metadata__":{"optimizer":"sgd"}', '"__metadata__":{"optimizer":"adam"}'
        for arrays, numbers, words in (
                ([a], 8, "does not name an optimizer: give --optimizer"),
                ([sgd], 0, "has no array of parameters"),
                ([sgd, a], 7, "array a is not within the file"),
                ([sgd, a], 12, "4 bytes belong to no array"),
                ([sgd, array("a", "F32", [2], 4, 12)], 12, "array a has a gap before it"),
                ([sgd, a, array("b", "F32", [2], 4, 12)], 12, "array b has a gap before it, or overlaps"),
                ([sgd, array("a", "F32", [3], 0, 8)], 8, "array a has 8 bytes, which is not its shape"),
                ([sgd, array("a", "F32", [4294967296, 4294967296], 0, 8)], 8, "which is not its shape"),
                ([sgd, array("a", "F32", [-2], 0, 8)], 8, "which is not its shape"),
                ([sgd, array("a", "F32", [0], 0, 0)], 0, "tensor .*a.*dimension"),
                ([sgd, array("a", "BF16", [4], 0, 8)], 8, "array a has the type BF16: save it as float32"),
                ([sgd, array("a", "I64", [1], 0, 8)], 8, "array a is int64, and parameters are float32"),
                ([sgd, '"a":{"dtype":"F32"}'], 0, "is not a safetensors file, or is damaged"),
                ([sgd, '"a":'], 0, "is not a safetensors file, or is damaged"),
                ([adam, a, step], 16, "has step 72340172838076673 and no state of adam"),
                ([adam, a, array("a:m", "F32", [2], 8, 16)], 16, "array a:v is missing"),
                ([adam, a, array("b:m", "F32", [2], 8, 16)], 16, "array b:m is no state of optimizer adam for an array"),
                ([adam, a, array("a:m", "F32", [1, 2], 8, 16), array("a:v", "F32", [2], 16, 24)], 24,
                 "array a:m must be float32 and have the shape of a"),
                ([adam, a, array("a:m", "F32", [2], 8, 16), array("a:v", "F32", [2], 16, 24)], 24, "has a state and no array :global_step"),
                ([sgd, a, array(":global_step", "F32", [2], 8, 16)], 16, "array :global_step must be one number of int64")):
            with self.subTest(arrays=arrays):
                text = ("{" + ",".join(arrays) + "}").encode()
                out.write_bytes(struct.pack("<Q", len(text)) + text + b"\1" * numbers)
                self.assert_says(self.checkpoint("import", new, "--from", out, code=cluster.CONFIGURATION), words)
        text = ("{" + ",".join([sgd, a, step]) + "}").encode()
        for steps, code in ((2**63 - 1, cluster.CONFIGURATION), (2**62 + 1, cluster.CONFIGURATION), (2**62, cluster.GOOD)):
            out.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<ffq", 1, 1, steps))
            task = self.checkpoint("import", self.folder / f"{steps}", "--from", out, code=code)
            if code != cluster.GOOD:
                self.assert_says(task, f"array :global_step must be one number of int64, from 0 to {2**62}")
        for content in (b"", b"1234", struct.pack("<Q", 3) + b"{}", struct.pack("<Q", 2**64 - 1) + b"{}"):
            out.write_bytes(content)
            self.assert_says(self.checkpoint("import", new, "--from", out, code=cluster.CONFIGURATION), "is not a safetensors file, or is damaged")
        self.assertFalse(new.exists())

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
    if any("export" in argument for argument in sys.argv):
        errors = subprocess.run([cluster.binary(), "checkpoint", "export", ".", "--out", "x"], capture_output=True, text=True,
                                check=False).stderr
        if "without libzip" in errors:
            print("skipped: built without libzip")
            sys.exit(77)
    unittest.main()
