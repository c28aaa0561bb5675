"""Rehearses tools/dev/first_contact on the simulated driver, with the bundle that tools/dev/device_bundle makes of this
build. The bundle also runs in a root folder that has the C library alone."""
import argparse
import gzip
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import cluster
import digits

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = os.environ["GRADRAIL_SIMULATED_GPU_DIR"]
OF_THE_HOST = re.compile(r"lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)\.so")
KERNELS = re.findall(r"^GRADRAIL_KERNEL\((\w+),", (ROOT / "gpu/kernels/list.inc").read_text(), re.M)
MOST_SECONDS = 400  # of a part with 540, before the time of the GPU itself
# The arguments that part b gives to the profiler. It does not run the command.
NCU = """#!/usr/bin/python3
import sys
words = sys.argv[1:]
command = words[words.index("bench"):]
assert words[words.index("--clock-control") + 1] == "none", words
assert words[words.index("-k") + 1] in {kernels}, words
assert command[:4] == ["bench", "apply", "--on", "gpu:0"], words
print("DRAM Throughput  %  88.5")
"""
# It records its arguments beside itself.
SANITIZER = """#!/usr/bin/python3
import json, sys
with open(sys.argv[0] + ".calls", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
print("[==========] 1 test from 1 test suite ran.")
"""
# It ends when the part ends it.
NVIDIA_SMI = """#!/usr/bin/python3
import os, sys, time
assert sys.argv[1:7] == ["dmon", "-s", "pc", "-d", "5", "-f"], sys.argv
with open(sys.argv[7] + ".new", "w") as file:
    print("# gpu pwr of process", os.getpid(), file=file)
os.rename(file.name, sys.argv[7])
time.sleep(600)
"""


def write_program(path, text):
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def write_tools(folder):
    """Returns a folder with programs in the place of NVIDIA's."""
    tools = folder / "tools"
    tools.mkdir()
    write_program(tools / "ncu", NCU.format(kernels=KERNELS))
    write_program(tools / "compute-sanitizer", SANITIZER)
    write_program(tools / "nvidia-smi", NVIDIA_SMI)
    return tools


def make_bundle(output):
    build = pathlib.Path(cluster.binary()).parents[1]
    made = subprocess.run([sys.executable, ROOT / "tools/dev/device_bundle", "--build", build, "--output", output],
                          capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


class Rehearsal(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tools = write_tools(self.folder)
        self.bundle = self.folder / "device-bundle"

    def part(self, name, *flags, code=0, **environment):
        """Runs the script of the bundle, from its folder, with nothing else of this tree in its environment: on a host of
        another name, and without a network."""
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        elsewhere = ["unshare", "-run", "sh", "-c", 'hostname elsewhere && ip link set lo up && exec "$@"', "-"]
        tried = subprocess.run([*elsewhere, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:  # some containers forbid it: the rest of the test remains
            print(f"on this host as it is: unshare -run: {tried.stderr.strip()}")
            elsewhere = []
        done = subprocess.run([*elsewhere, sys.executable, self.bundle / "first_contact", name, "--out", out, "--rehearse", DRIVER,
                               *flags], capture_output=True, text=True, check=False, cwd="/",
                              env={"PATH": f"{self.tools}:/usr/bin:/bin", **environment})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertLessEqual(len(list(out.iterdir())), 8)
        self.assertIn("pwr", (out / f"{name}-clocks.txt").read_text())
        return done.stdout, json.loads((out / f"{name}.json").read_text())

    def figures(self, *flags):
        """Part b. Returns its rows."""
        _, record = self.part("b", *flags)
        rows = record["rows"]
        self.assertEqual([row["step"] for row in rows], [
            "GPU", "apply", "staged, pieces of 1 MiB", "staged, pieces of 256 KiB", "staged, pieces of 4 MiB", "exchange, push fp32",
            "exchange, push bf16", "paths", *(f"ncu gradrail_update_{rule}" for rule in (
                "sgd_fp32", "sgd_bf16", "momentum_fp32", "adam_fp32", "adam_bf16"))])
        self.assertRegex(rows[1]["note"], r"sgd, 1 gradient fp32, 0 targets: \d+ % of copy \(goal 90\), \d+ GB/s")
        self.assertRegex(rows[5]["note"], r"^shm gpu-direct\(ipc\): \d+ GB/s \(goal 300\)")
        return rows


class Archive(Rehearsal):
    """The file for the machine with the GPU, unpacked in another folder."""

    @cluster.long("test_a_step_with_the_sizes_of_a_gpu; the part starts the driver 45 times, a second each")
    def test_the_time_of_the_figures(self):
        """The sizes of a GPU, and a driver that computes nothing: the time of the script itself."""
        if cluster.instrumented():
            cluster.skip("with a sanitizer the programs are larger than the archive may be")
        archive = self.folder / "device-bundle.tar.xz"
        make_bundle(archive)
        self.assertLessEqual(archive.stat().st_size, 40 << 20)
        self.bundle = self.folder / "elsewhere/device-bundle"
        self.bundle.parent.mkdir()
        # Some machines with a GPU take commands of at most 2,000 characters.
        self.assertLessEqual(max(map(len, (ROOT / "tests/README.md").read_text().splitlines())), 2000)
        subprocess.run(["tar", "xf", archive], cwd=self.bundle.parent, check=True)
        # A start of the real ncu takes seconds: its whole limit counts.
        rows = [{**row, "seconds": row["limit"]} if row["step"].startswith("ncu ") else row for row in self.figures("--null")]
        self.assertLess(sum(row["seconds"] for row in rows), MOST_SECONDS)
        for row in rows:
            self.assertLessEqual(row["seconds"], row["limit"], row)


class FirstContact(Rehearsal):
    def setUp(self):
        super().setUp()
        make_bundle(self.bundle)
        # MNIST takes minutes on the simulated driver.
        shutil.rmtree(self.bundle / "mnist")
        (self.bundle / "mnist").mkdir()
        digits.write(self.bundle / "mnist")

    @cluster.long("simulated_gpu.* are the same programs; the other tests of this file start the script")
    def test_facts(self):
        said, record = self.part("a")
        version = subprocess.run([cluster.binary(), "--version"], capture_output=True, text=True, check=True).stdout
        self.assertIn(f"commit {record['commit']},", version)
        steps = [row["step"] for row in record["rows"]]
        for step in ("ldd bin/gradrail", "info", "doctor", "compute_test", "gpu_real_test", "worker_model_test",
                     "fact: copy_ms", "fact: step_one_by_one_us", "fact: step_recorded_us"):
            self.assertIn(step, steps)
        self.assertRegex(said, r"part a: \d+ steps, 0 failed, \d+ s, simulated driver")

    @cluster.long("system.bench.*_on_a_simulated_gpu run the same suites; the other tests of this file start the script")
    def test_figures(self):
        self.figures()

    @cluster.long("gpu_parameters_test and gpu_direct_test have the same paths of gradients")
    def test_training(self):
        _, record = self.part("c")
        steps = [row["step"] for row in record["rows"]]
        for step in ("mlp, cost as on CPUs", "mlp, equal sync hashes", "mlp, push and return bf16, equal sync hashes",
                     "cnn, equal sync hashes", "restored, equal hashes", "kill -9 of a worker", "kill -9 of the ps",
                     "kill -9 of a worker, parameters on gpu:0, ipc", "kill -9 of the ps, parameters on gpu:0, ipc"):
            self.assertIn(step, steps)

    def test_a_missing_library_is_a_failure(self):
        manifest = json.loads((self.bundle / "bundle.json").read_text())
        program = self.bundle / "tests/compute_test"
        content = program.read_bytes()
        name = next(path.name.encode() for path in (self.bundle / "lib").iterdir() if path.name.encode() in content)
        # A name of a library that no folder of this host has.
        program.write_bytes(content.replace(name, b"libnone" + name[7:]))
        manifest["tests"] = [test for test in manifest["tests"] if test["program"] == "tests/compute_test"]
        (self.bundle / "bundle.json").write_text(json.dumps(manifest))
        said, record = self.part("a", code=1)
        found = next(row for row in record["rows"] if row["step"] == "ldd tests/compute_test")
        self.assertFalse(found["good"], said)
        self.assertIn("libnone", found["note"])

    @cluster.long("doctor_test.a_driver_without_cublas; a_missing_library_is_a_failure has a step that fails")
    def test_a_gpu_without_cublas_is_a_failure(self):
        alone = self.folder / "alone"
        alone.mkdir()
        for library in pathlib.Path(DRIVER).iterdir():
            if "cublas" not in library.name:
                (alone / library.name).symlink_to(library)
        for version in (11, 12, 13):  # in front of that of this host
            (alone / f"libcublas.so.{version}").write_text("no library")
        _, record = self.part("a", "--rehearse", alone, code=1, GRADRAIL_CUDA_LIBRARIES=str(alone))
        found = next(row for row in record["rows"] if row["step"] == "info")
        self.assertFalse(found["good"], found)
        self.assertIn("cuBLAS NOT usable", found["note"])

    @unittest.skipUnless(os.geteuid() == 0, "chroot needs root")
    def test_the_bundle_needs_the_c_library_alone(self):
        if cluster.instrumented():
            cluster.skip("a sanitizer needs /proc, which the root folder lacks")
        root = self.folder / "root"
        shutil.copytree(self.bundle, root / "bundle")
        needed = subprocess.run(["ldd", root / "bundle/bin/gradrail"], capture_output=True, text=True, check=True,
                                env={"LD_LIBRARY_PATH": str(root / "bundle/lib")}).stdout
        for name, path in re.findall(r"(\S+) => (/\S+)", needed):
            if OF_THE_HOST.match(name):
                shutil.copy(path, root / "bundle/lib" / name)
        loader = re.search(r"(/\S*ld-linux\S+)", needed)[1]
        target = root / loader.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(loader, target)
        done = subprocess.run([shutil.which("chroot", path="/usr/sbin:/usr/bin"), root, "/bundle/bin/gradrail", "--version"], capture_output=True, text=True,
                              check=False, env={"LD_LIBRARY_PATH": "/bundle/lib"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("gradrail", done.stdout)


STUB = """#!/bin/sh
# In the place of the program: its first call is the step that tries the GPU.
test -e {folder}/started || {{ touch {folder}/started; exec true; }}
sleep 300 &
echo $! > {folder}/child.new && mv {folder}/child.new {folder}/child
wait
"""

# In the place of the program: the results of a GPU that moves {rate} GB/s and reaches {share} % of each bound. {steps} is
# what it prints about the steps of a worker over ipc.
RESULTS = """#!/usr/bin/python3
import json, os, pathlib, sys, time
clocks, limit = pathlib.Path("{clocks}"), time.monotonic() + 30
while not clocks.exists() and time.monotonic() < limit:
    time.sleep(0.02)
os.kill(int(clocks.read_text().split()[-1]), 0)  # nvidia-smi runs: the driver stays initialised
words = sys.argv[1:]
def value(flag):
    return words[words.index(flag) + 1]
if "-J" in words:
    paths = ["sgd, 1 gradient fp32, 0 targets", "sgd, 4 gradients fp32, 0 targets", "to the host, bucket by bucket",
             "to the GPU, bucket by bucket", "shm gpu-direct(ipc)", "shm staged", "tcp staged"]
    with open(value("-J"), "w") as file:
        print('{{"machine": "stub"}}', file=file)
        for path in paths:
            print(json.dumps({{"path": path, "size": int(value("-e")), "failed": "", "alg_bw": {rate}, "bus_bw": {rate},
                              "more": {{"%bound": {share}, "%plain": {share}}}}}), file=file)
elif words[0] == "train":
    print("Towers: 0 on GPU 0 (stub)\\nFinal Cost: 0.5\\nParameter-Hash: 1\\nTest-Accuracy: 0.9\\nrestored global step 1")
    print("worker/1 (stub) was killed by signal 9\\nps/0 is started again")
    print("Steps:", "{steps}" if "ipc" in words else "one by one: towers wait for each other")
"""


class Script(unittest.TestCase):
    """The script in a bundle without tests. The program is that of this build, or one that sleeps."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bundle, self.out = self.folder / "bundle", self.folder / "out"
        for name in ("bin", "mnist"):
            (self.bundle / name).mkdir(parents=True)
        digits.write(self.bundle / "mnist")
        (self.bundle / "bundle.json").write_text(json.dumps({"commit": "0", "kernels": KERNELS, "tests": []}))
        shutil.copy(ROOT / "tools/dev/first_contact", self.bundle)
        self.program = self.bundle / "bin/gradrail"
        self.program.symlink_to(cluster.binary())
        sanitizer = {name: os.environ[name] for name in ("TSAN_OPTIONS", "UCX_MEM_MMAP_HOOK_MODE") if name in os.environ}
        self.environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(self.folder), **sanitizer}
        self.with_tools = {**self.environment, "PATH": f"{write_tools(self.folder)}:/usr/bin:/bin"}

    def module(self):
        loader = importlib.machinery.SourceFileLoader("first_contact", str(self.bundle / "first_contact"))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("first_contact", loader))
        sys.modules["first_contact"] = module  # dataclasses look there
        loader.exec_module(module)
        return module

    def command(self, part, *flags, out=None):
        return [sys.executable, self.bundle / "first_contact", part, "--out", self.out if out is None else out,
                "--rehearse", DRIVER, *flags]

    def ends(self, code, words, *arguments, **options):
        """Starts a part that ends with this code. Returns the lines of its standard error."""
        done = subprocess.run(self.command(*arguments, **options), capture_output=True, text=True, check=False, cwd=self.folder,
                              env=self.environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertRegex(done.stdout + done.stderr, words)
        return done.stderr.splitlines()

    def test_what_cannot_start_is_refused_in_one_line(self):
        (self.folder / "file").write_text("")
        (self.folder / "empty").mkdir()
        (self.folder / "full").mkdir()
        (self.folder / "full/figures.json").write_text("of another run")
        for words, arguments, options in (
                ("--out: the name is empty: name a folder", ["a"], {"out": ""}),
                ("--out .*/file: File exists: name a folder", ["a"], {"out": self.folder / "file"}),
                ("--out .*/file/x: Not a directory: name a folder", ["a"], {"out": self.folder / "file/x"}),
                ("--out /proc/x: No such file or directory: name a folder", ["a"], {"out": "/proc/x"}),
                ("/full/figures.json exists: name another folder with --out", ["b"], {"out": self.folder / "full"}),
                ("/empty has no libcuda.so.1: name the folder of the simulated driver", ["a", "--rehearse", self.folder / "empty"],
                 {}),
                ("--null: part a verifies results", ["a", "--null"], {})):
            with self.subTest(words=words):
                self.assertEqual(len(self.ends(2, words, *arguments, **options)), 1)
        self.assertEqual((self.folder / "full/figures.json").read_text(), "of another run")
        self.assertFalse(self.out.exists())

    def test_a_missing_prerequisite_stops_the_part(self):
        for words, on in (("no GPU 0: the driver reports none", "devices=0"), (r"supports CUDA 11\.2", "driver=11020")):
            with self.subTest(words=words):
                self.environment["GRADRAIL_SIMULATED_GPU"] = on
                self.ends(1, rf"part b: .*{words}", "b", out=self.folder / on)
                rows = json.loads((self.folder / on / "b.json").read_text())["rows"]
                self.assertEqual([(row["step"], row["good"]) for row in rows], [("clocks", True), ("GPU", False)])
        self.environment["GRADRAIL_SIMULATED_GPU"] = "devices=0"
        self.ends(1, "part a: .*no GPU 0", "a", out=self.folder / "facts")
        rows = json.loads((self.folder / "facts/a.json").read_text())["rows"]
        self.assertEqual([row["step"] for row in rows][-3:], ["info", "doctor", "GPU"])
        self.assertFalse(rows[-2]["good"], rows)

    def test_a_damaged_archive_is_named(self):
        (self.bundle / "mnist/t10k-labels-idx1-ubyte").unlink()
        self.ends(1, "part c: .*/t10k-labels-idx1-ubyte: No such file or directory: copy and unpack the archive again", "c")
        (self.bundle / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(1000))[:20])
        self.ends(1, "part c: .*/t10k-labels-idx1-ubyte.gz: .*: copy and unpack the archive again", "c", out=self.folder / "cut")
        write_program(self.program, "#!/bin/sh\nkill -SEGV $$\n")
        self.ends(1, "part b: killed by SIGSEGV", "b", out=self.folder / "crash")
        (self.bundle / "bundle.json").write_text("{")
        self.ends(2, "/bundle.json: .*: copy and unpack the archive again", "a", out=self.folder / "manifest")

    def test_clocks_are_not_needed(self):
        write_program(self.folder / "tools/nvidia-smi", "no program")
        self.environment = {**self.with_tools, "GRADRAIL_SIMULATED_GPU": "devices=0"}
        self.ends(1, "clocks +ok .*not recorded: nvidia-smi: Exec format error", "b")

    def test_a_signal_stops_the_children_and_leaves_the_table(self):
        write_program(self.program, STUB.format(folder=self.folder))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=number.name):
                for name in ("started", "child"):
                    (self.folder / name).unlink(missing_ok=True)
                out = self.folder / number.name
                process = subprocess.Popen(self.command("c", out=out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                           env=self.environment)
                cluster.wait_until((self.folder / "child").exists, cluster.START, lambda: "no child of the program")
                process.send_signal(number)
                said, _ = process.communicate(timeout=cluster.FINISH)
                self.assertEqual(process.returncode, 128 + number, said)
                self.assertNotIn("Traceback", said)
                words = f"interrupted by {number.name} in the step mlp, no ps, CPUs, few steps"
                self.assertIn(f"part c: {words}", said)
                self.assertIn(words, (out / "c.txt").read_text())
                self.assertEqual(json.loads((out / "c.json").read_text())["stopped"], words)
                child = pathlib.Path("/proc", (self.folder / "child").read_text().strip(), "stat")
                cluster.wait_until(lambda: not child.exists() or child.read_text().split()[2] == "Z", cluster.START,
                                   lambda: "the child of the program runs")
                self.assertEqual(list(self.folder.glob("tmp*")), [])

    def test_a_full_disk(self):
        # A file system of this test alone, with four pages.
        alone = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=16k none "$0" && cd "$0" && exec "$@"', self.out]
        self.out.mkdir()
        if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
            cluster.skip("this host does not let a process mount a file system")
        write_program(self.program, "#!/bin/sh\nyes | head -c 30000\n")
        for code, before in ((1, ""), (2, "head -c 16000 /dev/zero > filled; ")):
            with self.subTest(code=code):
                done = subprocess.run([*alone, "sh", "-c", f'{before}"$@"; echo "exit code $?"; ls', "-", *self.command("b", out=".")],
                                      capture_output=True, text=True, check=False, env=self.environment)
                self.assertEqual(done.stderr, "first_contact: --out .: No space left on device: name a folder on a disk with space "
                                 "that you can write\n")
                self.assertTrue(done.stdout.endswith(f"exit code {code}\n" + ("filled\n" if before else "")), done.stdout)

    def test_a_rehearsal_trains_few_steps(self):
        write_program(self.program, "#!/bin/sh\n")
        self.ends(1, "mlp, equal sync hashes +FAIL .* not compared: no run ended", "c")
        self.assertNotIn(str(self.bundle / "mnist"), (self.out / "c.txt").read_text())

    def judged(self, part, code, rate=300, share=90, steps="recorded, 1 launch"):
        """Runs a part as on a real GPU with these results. Returns the record of the rows that fail."""
        out = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        clocks = out / f"{part}-clocks.txt"
        write_program(self.program, RESULTS.format(rate=rate, share=share, steps=steps, clocks=clocks))
        done = subprocess.run([sys.executable, self.bundle / "first_contact", part, "--out", out], capture_output=True, text=True,
                              check=False, env=self.with_tools)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertFalse(pathlib.Path("/proc", clocks.read_text().split()[-1]).exists(), "nvidia-smi runs")
        return [row for row in json.loads((out / f"{part}.json").read_text())["rows"] if not row["good"]]

    def test_a_figure_below_its_goal_fails(self):
        for rate, share, failed in ((300, 90, []), (299, 90, ["exchange, push fp32"]), (300, 89, ["apply"]),
                                    (300, 84, ["apply", "staged, pieces of 1 MiB"])):
            with self.subTest(rate=rate, share=share):
                rows = self.judged("b", 1 if failed else 0, rate=rate, share=share)
                self.assertEqual([row["step"] for row in rows], failed)
                if rate == 299:
                    self.assertIn("shm gpu-direct(ipc): 299 GB/s (goal 300)", rows[0]["note"])

    def test_steps_that_are_not_recorded_fail(self):
        self.assertEqual(self.judged("c", 0), [])
        rows = self.judged("c", 1, steps="one by one: no writes of a stream into host memory")
        self.assertEqual([row["step"] for row in rows], [
            f"{model}, parameters on gpu:0, ipc" for model in ("mlp", "mlp, push and return bf16", "cnn")])
        self.assertEqual({row["note"] for row in rows}, {"the output lacks ^Steps: recorded"})

    def test_the_sanitizer_runs_tests_that_exist(self):
        """A test with a new name must not leave the filter without a match."""
        self.environment = self.with_tools
        program = self.bundle / "tests/compute_test"
        program.parent.symlink_to(pathlib.Path(cluster.binary()).parents[1] / "tests")
        self.ends(0, "0 failed", "a")
        calls = [json.loads(line) for line in (self.folder / "tools/compute-sanitizer.calls").read_text().splitlines()]
        filters = {call.pop() for call in calls}
        self.assertEqual(calls, [["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "99", str(program)],
                                 ["--tool", "initcheck", "--error-exitcode", "99", str(program)]])
        self.assertEqual(len(filters), 1)
        chosen, left_out = filters.pop().removeprefix("--gtest_filter=").split(":-")

        def listed(pattern):
            listing = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={pattern}"], capture_output=True, text=True,
                                     check=True).stdout
            return set(re.findall(r"^  (\S+)", listing, re.M))

        for pattern in left_out.split(":"):
            self.assertTrue(listed(chosen) & listed(pattern), f"{pattern} matches no test of {chosen}")
        self.assertTrue(listed(f"{chosen}:-{left_out}"), "the filter leaves no test")

    def test_judgements(self):
        """Judgements of results that no simulated driver gives."""
        module = self.module()
        self.assertEqual(module.equality(["1"] * 5), (True, "5 of 5 equal"))
        self.assertEqual(module.equality(["1", "2", "1"]), (False, "2 of 3 equal"))
        self.assertEqual(module.equality(["1", None]), (False, "1 of 2 equal"))
        self.assertEqual(module.equality([None, None]), (False, "not compared: no run ended"))
        rows = [{"path": "gpu:0 ipc", "size": 4, "failed": "no GPU 0", "alg_bw": 0, "bus_bw": 0}]
        goals = [("shm staged", lambda row: row["alg_bw"], 0, "GB/s")]
        self.assertEqual(module.judge_figures(rows, goals, 4, False), (False, "shm staged: not measured: no row"))
        rows.append({"path": "shm staged, gpu:0", "size": 4, "failed": "", "alg_bw": 3, "bus_bw": 6})
        self.assertEqual(module.judge_figures(rows, goals, 4, False), (True, "shm staged: 3 GB/s, 6 GB/s"))

    def test_a_step_with_the_sizes_of_a_gpu(self):
        module = self.module()
        self.out.mkdir()
        flags = argparse.Namespace(part="b", out=self.out, rehearse=pathlib.Path(DRIVER), null=True)
        part = module.Part(flags, self.bundle)
        part.scratch = self.folder
        run = part.step
        part.step = lambda name, *words: run(name, *words) if name == "staged, pieces of 1 MiB" else ""
        module.figures(part)
        self.assertEqual([row.good for row in part.rows], [True], part.rows)
        self.assertLessEqual(part.rows[0].seconds, part.rows[0].limit)
        rows = json.loads((self.out / "figures.json").read_text())["staged, pieces of 1 MiB"]["results"]
        self.assertEqual({row["size"] for row in rows}, {16 << 20, 128 << 20})

    def test_the_profiled_kernels_exist(self):
        self.assertLessEqual(set(self.module().PROFILED), set(KERNELS))

    def test_the_part_ends_at_its_limit(self):
        module = self.module()
        module.PART_SECONDS = 0.5
        self.out.mkdir()
        flags = argparse.Namespace(part="c", out=self.out, rehearse=None, null=False)
        part = module.Part(flags, self.bundle)
        part.step("long", ["sleep", "60"], 60)
        part.step("next", ["true"], 60)
        self.assertEqual(part.end(), 1)
        rows = json.loads((self.out / "c.json").read_text())["rows"]
        self.assertEqual([row["note"] for row in rows], ["stopped: time is over; last line: ", "not run: time is over"])
        flags.null = True
        part.compare("equal", False, "0 of 2 equal")
        self.assertEqual((part.rows[-1].good, part.rows[-1].note), (True, "not judged: the null driver computes nothing"))


if __name__ == "__main__":
    unittest.main()
