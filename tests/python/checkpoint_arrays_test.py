"""Tests `python3 -m gradrail.checkpoint`: the export of a checkpoint as .npz and .safetensors file, and the import."""
import ast
import json
import os
import random
import re
import shutil
import struct
import unittest
import zipfile

import cluster
import digits

PARAMETERS = {"W1": (784, 100), "W2": (100, 10), "b1": (100,), "b2": (10,)}
MODULES = ("checkpoint.py", "errors.py", "_arrays.py", "_crc32c.py")


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


class CheckpointTest(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.python = cluster.python_with("numpy")
        self.saved = self.folder / "checkpoints"

    def run_digits(self, *flags):
        if not (self.folder / "data").exists():
            (self.folder / "data").mkdir()
            digits.write(self.folder / "data")
        task = self.train("--data_dir", self.folder / "data", "--mode", "sync", "--checkpoint_dir", self.saved, *flags)
        self.assert_ends(task, cluster.GOOD)
        return task

    def command(self, *arguments):
        return [self.python, "-m", "gradrail.checkpoint", *map(str, arguments)]

    def checkpoint(self, *arguments, code=cluster.GOOD):
        task = self.launch("checkpoint", self.command(*arguments), cluster.python_environment())
        self.assertEqual(task.code(), code, task.transcript())
        self.assertFalse(task.has("Traceback"), task.transcript())
        return task

    def refused(self, words, *arguments, code=cluster.CONFIGURATION):
        self.assert_says(self.checkpoint(*arguments, code=code), words)

    def verify(self, folder, says):
        task = self.launch("verify", [cluster.binary(), "checkpoint", "verify", str(folder)])
        self.assert_ends(task, cluster.GOOD)
        self.assert_says(task, says)

    def python_program(self, text):
        task = self.launch("program", [self.python, "-c", text], cluster.python_environment())
        self.assert_ends(task, cluster.GOOD)
        return task

    def files(self):
        return sorted(self.saved.glob("*.ckpt"))


class Export(CheckpointTest):
    def test_arrays_are_what_was_saved(self):
        out, same = self.folder / "model.npz", self.folder / "model.safetensors"
        self.run_digits("--epochs", 1, "--ps", 2, "--optimizer", "adam")
        self.assert_says(self.checkpoint("export", self.saved, out), r"model\.npz: 4 arrays of step 11$")
        arrays = read_npz(out)
        self.assertEqual({name: shape for name, (_, shape, _) in arrays.items()}, PARAMETERS)
        self.assertEqual({type for type, _, _ in arrays.values()}, {"<f4"})
        halves = [numbers_of(path) for path in self.files()]
        vectors = [(len(half) - 3 * 4) // 3 for half in halves]  # parameters, m and v, each with a CRC32C
        self.assertEqual(b"".join(data for _, _, data in arrays.values()),
                         b"".join(half[:size] for half, size in zip(halves, vectors)))
        self.checkpoint("export", "--optimizer-state", self.saved, out)
        arrays = read_npz(out)
        for state, name in enumerate("mv", 1):
            self.assertEqual(b"".join(arrays[f"{tensor}:{name}"][2] for tensor in PARAMETERS),
                             b"".join(half[state * (size + 4):][:size] for half, size in zip(halves, vectors)))
        self.assertEqual(arrays[":global_step"], ("<i8", (), struct.pack("<q", 11)))
        self.assert_says(self.checkpoint("export", "--optimizer-state", self.saved, same),
                         r"model\.safetensors: 13 arrays of step 11$")
        self.assertEqual(read_safetensors(same), (arrays, {"format": "pt", "optimizer": "adam"}))
        self.assertEqual(list(self.folder.glob("*.tmp")), [])
        task = self.python_program(f"import numpy; a = numpy.load({str(out)!r}); print(a['W1'].shape, a['W1'].tobytes().hex()[:64])")
        self.assert_says(task, rf"^\(784, 100\) {arrays['W1'][2].hex()[:64]}$")

    def test_the_modules_alone_are_enough(self):
        """The modules without the library, as in the Debian package."""
        self.run_digits("--epochs", 1)
        alone = self.folder / "python/gradrail"
        alone.mkdir(parents=True)
        for name in MODULES:
            shutil.copy2(cluster.ROOT / "worker/python/gradrail" / name, alone)
        task = self.launch("alone", self.command("export", self.saved, self.folder / "model.npz"),
                           {"PYTHONPATH": str(alone.parent), "GRADRAIL_LIBRARY": "/none"})
        self.assert_ends(task, cluster.GOOD, says=["4 arrays of step 11"])

    def test_vectors_of_several_chunks_and_fragments(self):
        """Where the fragment changes, the next tensor begins at a multiple of 64 elements."""
        out = self.folder / "model.safetensors"
        program = f"""
import gradrail, numpy as np
random = np.random.default_rng(1)
model = {{name: random.standard_normal(shape).astype(np.float32)
         for name, shape in (("a", (300, 1000)), ("b", (7,)), ("c", (600, 1000)), ("d", (2, 3)), ("s", (1,)))}}
with gradrail.join(model, fragments={{"x": ["a", "c"], "y": ["b", "s"]}}, mode="sync", learning_rate=0.1) as client:
    client.start()
    for name in model:
        client.gradients[name][:] = 1
    client.step()
    client.save_checkpoint()
    np.savez({str(self.folder / "expected.npz")!r}, **{{name: client.parameters[name] for name in model}})
"""
        task = self.launch("run", [cluster.binary(), "run", "--ps", "2", "--checkpoint_dir", str(self.saved), "--", self.python, "-c",
                                   program], cluster.python_environment())
        self.assert_ends(task, cluster.GOOD)
        self.checkpoint("export", self.saved, out)
        self.assertEqual(read_safetensors(out)[0], read_npz(self.folder / "expected.npz"))
        self.checkpoint("import", self.folder / "new", out, "--optimizer", "sgd")
        self.verify(self.folder / "new", "^step 0 is whole")
        self.checkpoint("export", self.folder / "new", self.folder / "again.safetensors")
        self.assertEqual((self.folder / "again.safetensors").read_bytes(), out.read_bytes())

    def test_the_newest_that_is_whole_or_a_step(self):
        out = self.folder / "model.npz"
        self.run_digits("--epochs", 1)
        self.run_digits("--epochs", 1)
        newest = self.files()[1]
        self.checkpoint("export", self.saved, "--step", 11, out)
        eleven = out.read_bytes()
        newest.write_bytes(newest.read_bytes()[:-1])
        self.assert_says(self.checkpoint("export", self.saved, out), rf"{newest.name}: truncated.*: going back to step 11$",
                         "4 arrays of step 11$")
        self.assertEqual(out.read_bytes(), eleven)
        self.refused(rf"{newest.name}: truncated", "export", self.saved, "--step", 22, out)
        self.assertEqual(out.read_bytes(), eleven, "a refused export changed the existing file")
        self.files()[0].write_bytes(b"")
        self.refused(r"truncated.* \(the 1 older ones are damaged too\)", "export", self.saved, out)

    def test_damage_is_named(self):
        out = self.folder / "model.npz"
        self.run_digits("--epochs", 1, "--ps", 2, "--optimizer", "momentum")
        first, second = self.files()
        whole = first.read_bytes()
        fields = struct.unpack("<I", whole[12:16])[0]

        def flipped(at):
            return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]

        for content, words in (
                (whole[:20], "truncated: 20 bytes are too few for a header"),
                (b"\0" + whole[1:], r"not a gradrail checkpoint \(its first 8 bytes differ\)"),
                (whole[:8] + b"\5" + whole[9:], r"format version 5 where this program reads 6 \(use the version"),
                (whole[:12] + b"\xff\xff\xff\x7f" + whole[16:], "truncated or damaged: a header of 2147483647 bytes in a file of"),
                (flipped(16), rf"header \(bytes 0 to {24 + fields}\): CRC32C is"),
                (flipped(40), r"header \(bytes 0 to"),
                (flipped(28 + fields), r"parameters, elements 0 to \d+: CRC32C is"),
                (flipped(len(whole) - 1), r"state 0, elements 0 to \d+: CRC32C is"),
                (whole[:-1], rf"truncated: {len(whole) - 1} of {len(whole)} bytes"),
                (whole + b"12", rf"2 bytes follow its end at byte {len(whole)}"),
                (second.read_bytes(), "does not belong to its set: it holds shard 1 of 2")):
            with self.subTest(words=words):
                first.write_bytes(content)
                self.refused(rf"checkpoint {re.escape(str(first))}: {words}.* \(there is no older one\)", "export", self.saved, out)
        first.unlink()
        self.refused("no complete set: step 11 is incomplete: of 2 shards 1 are there, missing 0", "export", self.saved, out)
        first.symlink_to("/not/mounted/file")
        self.refused(f"{first.name}: cannot be read: is a symbolic link to /not/mounted/file, which is not there", "export", self.saved,
                     out)
        first.unlink()
        os.mkfifo(first)
        self.refused(f"{first.name}: is a pipe", "export", self.saved, out)
        self.assertEqual(sorted(path.name for path in self.folder.glob("model*")), [])

    def test_nan_is_a_warning(self):
        state = self.folder / "nan.safetensors"
        header = b'{"__metadata__":{"optimizer":"sgd"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        state.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", float("nan")))
        self.checkpoint("import", self.saved, state)
        listed = self.launch("ls", [cluster.binary(), "checkpoint", "ls", str(self.saved)])
        self.assert_ends(listed, cluster.GOOD, says=["NaN/inf"])
        self.assert_says(self.checkpoint("export", self.saved, self.folder / "model.npz"),
                         "state of step 0 have NaN or infinity; `gradrail checkpoint ls` shows", "1 arrays of step 0")

    def test_export_names_what_is_wrong(self):
        self.run_digits("--epochs", 1)
        out, nowhere, null = self.folder / "model.npz", self.folder / "none/x.npz", self.folder / "null.npz"
        null.symlink_to("/dev/null")
        for arguments, words in (
                ((self.saved, "--step", 7, out), "no complete set of step 7: no file"),
                ((self.folder, out), f"{self.folder}: holds no checkpoint"),
                ((self.folder / "none", out), "none: No such file"),
                ((self.saved, nowhere), "none/x.npz: No such file"),
                ((self.saved, null), "null.npz: is a device"),
                ((self.saved, self.folder / "model.pt"), "model.pt: the name must end with .safetensors or .npz"),
                ((self.saved, self.folder), f"{self.folder}: is a folder; give the name of a file, such as {self.folder}/model.safetensors")):
            with self.subTest(arguments=arguments):
                self.refused(words, "export", *arguments)
        self.refused("FILE", "export", self.saved, code=cluster.USAGE)
        self.refused("a whole number from 0", "export", self.saved, out, "--step", "-1", code=cluster.USAGE)
        self.assertFalse(out.exists())
        self.checkpoint("export", self.saved, out)
        self.refused("model.npz: import reads .safetensors", "import", self.folder / "new", out)

    def test_an_export_without_room_leaves_no_file(self):
        self.run_digits("--epochs", 1)
        for out in (self.folder / "new.npz", self.folder / "new.safetensors"):
            before = sorted(self.folder.iterdir())
            task = self.launch("checkpoint", ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *self.command("export", self.saved, out)],
                               cluster.python_environment())
            self.assert_ends(task, cluster.CONFIGURATION, says=[rf"{out}: File too large \(`ulimit -f`\?\)"])
            self.assertEqual(sorted(self.folder.iterdir()), before)


class Import(CheckpointTest):
    def test_a_run_continues_as_from_the_checkpoint(self):
        # Step 11 is between two updates of the momentum, so that the collected gradients count.
        for name, *constants in (["adam"], ["delayed_nesterov", "--momentum_every", 4]):
            with self.subTest(optimizer=name):
                self.saved = self.folder / name
                self.continue_from_imported_arrays(name, "--optimizer", name, *constants)

    def continue_from_imported_arrays(self, name, *optimizer):
        self.run_digits("--epochs", 1, "--ps", 2, *optimizer)
        first, second = self.folder / f"{name}-first.safetensors", self.folder / f"{name}-second.safetensors"
        self.checkpoint("export", self.saved, "--optimizer-state", first)
        imported = self.folder / name / "imported"
        self.assert_says(self.checkpoint("import", imported, first),
                         rf"^{imported}: 4 tensors of step 11 for the optimizer {name}$")
        self.verify(imported, r"^step 11 is whole: \d+ bytes in 1 files$")
        self.checkpoint("export", imported, "--optimizer-state", second)
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
        self.checkpoint("export", self.saved, out)
        self.checkpoint("import", imported, out, "--optimizer", "momentum")
        self.saved = imported
        self.assert_says(self.run_digits("--epochs", 1, "--optimizer", "momentum"), "restored global step 0 from", "^Global-Step: 11$")

    def test_import_names_what_is_wrong(self):
        self.run_digits("--epochs", 1, "--optimizer", "momentum")
        out, new = self.folder / "model.safetensors", self.folder / "new"
        self.checkpoint("export", self.saved, "--optimizer-state", out)
        self.refused("checkpoints: holds a checkpoint of step 11 already: give another folder", "import", self.saved, out)
        self.refused("none: No such file", "import", new, self.folder / "none")
        self.refused("array W1:velocity is no state of optimizer adam for an array of the file: give", "import", new, out, "--optimizer",
                     "adam")
        self.refused("best", "import", new, out, "--optimizer", "best", code=cluster.USAGE)
        self.refused("checkpoint folder /proc/new: No such file .*it must be a folder in which this user may write", "import",
                     "/proc/new", out)
        self.refused("Not a directory .*it must be a folder", "import", out, out)
        self.assertFalse(new.exists(), "a refused import has made a folder")
        server = self.train(*self.addresses(1), "--job_name", "ps", "--task_index", 0, "--checkpoint_dir", new, name="ps/0")
        cluster.wait_until((new / "gradrail-lock-0").exists, cluster.START, "no lock")
        self.refused("new: another run uses it: .*ps/0, process", "import", new, out)
        server.end()

    def test_damaged_and_unfit_files_are_named(self):
        """One process, since the file is read before the folder."""
        def array(name, type, shape, begin, end):
            return f'"{name}":{{"dtype":"{type}","shape":{shape},"data_offsets":[{begin},{end}]}}'

        a, step = array("a", "F32", [2], 0, 8), array(":global_step", "I64", [], 8, 16)
        sgd, adam = '"__metadata__":{"optimizer":"sgd"}', '"__metadata__":{"optimizer":"adam"}'
        cases = []

        def case(arrays, numbers, words):
            text = ("{" + ",".join(arrays) + "}").encode()
            cases.append((struct.pack("<Q", len(text)) + text + numbers, words))

        for arrays, numbers, words in (
                ([a], 8, "does not name an optimizer: give --optimizer"),
                (['"__metadata__":{"optimizer":"best"}', a], 8, "optimizer 'best': must be one of sgd, "),
                ([sgd], 0, "has no array of parameters"),
                ([sgd, a], 7, "array a is not within the file"),
                ([sgd, a], 12, "4 bytes belong to no array"),
                ([sgd, array("a", "F32", [2], 4, 12)], 12, "array a has a gap before it"),
                ([sgd, a, array("b", "F32", [2], 4, 12)], 12, "array b has a gap before it, or overlaps"),
                ([sgd, array("a", "F32", [3], 0, 8)], 8, "array a has 8 bytes, which is not its shape"),
                ([sgd, array("a", "F32", [4294967296, 4294967296], 0, 8)], 8, "which is not its shape"),
                ([sgd, array("a", "F32", [-2], 0, 8)], 8, "which is not its shape"),
                ([sgd, array("a", "F32", [-2, -1], 0, 8)], 8, "which is not its shape"),
                ([sgd, array("a", "F32", [2.0], 0, 8)], 8, "dimension that is no integer"),
                ([sgd, array("a", "F32", [0], 0, 0)], 0, "tensor 'a' .*dimensions must be at least 1"),
                ([sgd, array("", "F32", [2], 0, 8)], 8, "its name '' is empty"),
                ([sgd, array("a\\n", "F32", [2], 0, 8)], 8, "its name .* contains a control character"),
                ([sgd, array("a\\ud800", "F32", [2], 0, 8)], 8, "is not UTF-8"),
                ([sgd, array("a" * 1025, "F32", [2], 0, 8)], 8, "has more than 1024 bytes"),
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
            case(arrays, b"\1" * numbers, words)
        for steps in (2**63 - 1, 2**62 + 1, -1):
            case([sgd, a, step], struct.pack("<ffq", 1, 1, steps), f"array :global_step must be one number of int64, from 0 to {2**62}")
        for content in (b"", b"1234", struct.pack("<Q", 3) + b"{}", struct.pack("<Q", 2**64 - 1) + b"{}", struct.pack("<Q", 2) + b"[]",
                        struct.pack("<Q", 100000) + b"[" * 100000):
            cases.append((content, "is not a safetensors file, or is damaged"))
        case([sgd, a, step], struct.pack("<ffq", 1, 1, 2**62), "")
        whole, seed = cases[-1][0], random.randrange(2**32)
        print(f"seed {seed}", flush=True)
        changes = random.Random(seed)
        for _ in range(500):  # a damaged file is refused, or is another file
            altered = bytearray(whole)
            altered[changes.randrange(len(altered))] = changes.randrange(256)
            cases.append((bytes(altered[:changes.choice((len(altered), changes.randrange(len(altered))))]), None))
        (self.folder / "cases").write_text(repr(cases))
        self.python_program(f"""
import ast, os, re, gradrail
from gradrail import checkpoint
os.chdir({str(self.folder)!r})
for index, (content, words) in enumerate(ast.literal_eval(open("cases").read())):
    with open("state.safetensors", "wb") as file:
        file.write(content)
    try:
        checkpoint.import_arrays(f"new{{index}}", "state.safetensors")
        assert not words, words
    except gradrail.InvalidArgument as error:
        assert words != "" and re.search("^state.safetensors: .*" + (words or ""), str(error)), (words, error)
        assert not os.path.exists(f"new{{index}}"), "a refused import has made a folder"
""")
        self.verify(self.folder / f"new{len(cases) - 501}", f"^step {2**62} is whole")

    def test_a_killed_import_leaves_no_set(self):
        """Kills the import at each of its writes to the disk."""
        out = self.folder / "model.safetensors"
        self.run_digits("--epochs", 1)
        self.checkpoint("export", self.saved, out)
        program = """
import os, signal, sys
from gradrail import checkpoint
name, left = sys.argv[1], int(sys.argv[2])
def killed(real):
    def call(*arguments):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    return call
os.fsync, os.replace = killed(os.fsync), killed(os.replace)
checkpoint.import_arrays(name, sys.argv[3], "sgd")
"""
        sets = []
        for calls in range(4):
            folder = self.folder / f"killed-{calls}"
            task = self.launch("program", [self.python, "-c", program, str(folder), str(calls), str(out)], cluster.python_environment())
            task.code()
            sets.append(len(list(folder.glob("*.ckpt"))))
            self.assertEqual(len(list(folder.glob("*.tmp"))), 1 - sets[-1])
        self.verify(folder, "^step 0 is whole")
        # fsync of the file, rename, fsync of the folder.
        self.assertEqual(sets, [0, 0, 1, 1])


if __name__ == "__main__":
    unittest.main()
