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

    def part(self, name, *flags, code=0, bundle=None):
        out = self.folder / f"out-{name}"
        environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
        done = subprocess.run([sys.executable, ROOT / "tools/dev/first_contact", name, "--bundle", bundle or self.bundle,
                               "--out", out, "--rehearse", DRIVER, *flags], capture_output=True, text=True, check=False,
                              env=environment)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout, json.loads((out / f"{name}.json").read_text())

    def test_facts(self):
        said, record = self.part("a")
        steps = [row["step"] for row in record["rows"]]
        for step in ("ldd bin/gradrail", "info", "doctor", "compute_test", "gpu_real_test", "worker_model_test"):
            self.assertIn(step, steps)
        self.assertRegex(said, r"part a: \d+ steps, 0 failed, \d+ s, simulated driver")

    def test_figures(self):
        _, record = self.part("b")
        self.assertEqual([row["step"] for row in record["rows"]], ["apply", "staged, pieces of 1 MiB", "staged, pieces of 256 KiB",
                                                                  "staged, pieces of 4 MiB", "exchange, push fp32",
                                                                  "exchange, push bf16", "paths"])
        self.assertRegex(record["rows"][0]["note"], r"sgd, 1 gradient fp32, 0 targets: [\d.]+ % \(goal 90\)")

    def test_training(self):
        _, record = self.part("c", "--data", digits.write(self.folder))
        steps = [row["step"] for row in record["rows"]]
        for step in ("mlp, equal sync hashes", "mlp, push and return bf16, equal sync hashes", "cnn, equal sync hashes",
                     "kill -9 of a worker", "kill -9 of the ps"):
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
