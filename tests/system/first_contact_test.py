"""Rehearses tools/dev/first_contact on the simulated driver, with the bundle that tools/dev/device_bundle makes of this
build. The bundle also runs in a root folder that has the C library alone."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import cluster
import digits

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = os.environ["GRADRAIL_SIMULATED_GPU_DIR"]
OF_THE_HOST = re.compile(r"lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s)\.so")
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


class FirstContact(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.bundle = cls.folder / "device-bundle"
        build = pathlib.Path(cluster.binary()).parents[1]
        made = subprocess.run([sys.executable, ROOT / "tools/dev/device_bundle", "--build", build, "--output", cls.bundle],
                              capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        # MNIST takes minutes on the simulated driver.
        shutil.rmtree(cls.bundle / "mnist")
        (cls.bundle / "mnist").mkdir()
        digits.write(cls.bundle / "mnist")
        kernels = [line.split("(")[1].split(",")[0] for line in (ROOT / "gpu/kernels/list.inc").read_text().splitlines()
                   if line.startswith("GRADRAIL_KERNEL(")]
        (cls.folder / "tools").mkdir()
        ncu = cls.folder / "tools/ncu"
        ncu.write_text(NCU.format(kernels=set(kernels)))
        ncu.chmod(0o755)

    def part(self, name, *flags, code=0, bundle=None, **environment):
        """The script of the bundle, from its folder, with nothing else of this tree in its environment: on a host of
        another name, and without a network."""
        out = self.folder / f"out-{name}"
        elsewhere = ["unshare", "-run", "sh", "-c", 'hostname elsewhere && ip link set lo up && exec "$@"', "-"]
        tried = subprocess.run([*elsewhere, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:  # some containers forbid it: the rest of the test remains
            print(f"on this host as it is: unshare -run: {tried.stderr.strip()}")
            elsewhere = []
        done = subprocess.run([*elsewhere, sys.executable, (bundle or self.bundle) / "first_contact", name, "--out", out, "--rehearse", DRIVER,
                               *flags], capture_output=True, text=True, check=False, cwd="/",
                              env={"PATH": f"{self.folder}/tools:/usr/bin:/bin", **environment})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertLessEqual(len(list(out.iterdir())), 8)
        return done.stdout, json.loads((out / f"{name}.json").read_text())

    def test_facts(self):
        said, record = self.part("a")
        steps = [row["step"] for row in record["rows"]]
        for step in ("ldd bin/gradrail", "info", "doctor", "compute_test", "gpu_real_test", "worker_model_test"):
            self.assertIn(step, steps)
        self.assertTrue(any(step.startswith("fact: ") for step in steps), steps)
        self.assertRegex(said, r"part a: \d+ steps, 0 failed, \d+ s, simulated driver")

    @cluster.long("facts; gpu_parameters_test and gpu_direct_test run the same programs")
    def test_figures(self):
        # The second time with the sizes of a GPU, and a driver that computes nothing: the time of the script itself.
        for flags in ((), ("--null",)):
            _, record = self.part("b", *flags)
            steps = [row["step"] for row in record["rows"]]
            self.assertEqual(steps[:7], ["apply", "staged, pieces of 1 MiB", "staged, pieces of 256 KiB", "staged, pieces of 4 MiB",
                                         "exchange, push fp32", "exchange, push bf16", "paths"])
            self.assertEqual(len([step for step in steps if step.startswith("ncu gradrail_update_")]), 5)
            self.assertRegex(record["rows"][0]["note"], r"sgd, 1 gradient fp32, 0 targets: \d+ % of copy \(goal 90\), \d+ GB/s")
            self.assertRegex(record["rows"][4]["note"], r"^shm gpu-direct\(ipc\): \d+ GB/s \(goal 300\)")
            self.assertLess(record["seconds"], MOST_SECONDS * cluster.PATIENCE)

    @cluster.long("facts; gpu_parameters_test and gpu_direct_test run the same programs")
    def test_training(self):
        _, record = self.part("c")
        steps = [row["step"] for row in record["rows"]]
        for step in ("mlp, cost as on CPUs", "mlp, equal sync hashes", "mlp, push and return bf16, equal sync hashes",
                     "cnn, equal sync hashes", "restored, equal hashes", "kill -9 of a worker", "kill -9 of the ps",
                     "kill -9 of a worker, parameters on gpu:0, ipc", "kill -9 of the ps, parameters on gpu:0, ipc"):
            self.assertIn(step, steps)

    def test_a_missing_library_is_a_failure(self):
        broken = self.folder / "broken"
        shutil.copytree(self.bundle, broken)
        manifest = json.loads((broken / "bundle.json").read_text())
        program = broken / "bin/gradrail"
        content = program.read_bytes()
        name = next(path.name.encode() for path in (broken / "lib").iterdir() if path.name.encode() in content)
        # A name of a library that no folder of this host has.
        program.write_bytes(content.replace(name, b"libnone" + name[7:]))
        manifest["tests"] = []
        (broken / "bundle.json").write_text(json.dumps(manifest))
        said, record = self.part("a", bundle=broken, code=1)
        self.assertFalse(record["rows"][0]["good"], said)
        self.assertIn("libnone", record["rows"][0]["note"])

    @cluster.long("facts; gpu_parameters_test and gpu_direct_test run the same programs")
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


if __name__ == "__main__":
    unittest.main()
