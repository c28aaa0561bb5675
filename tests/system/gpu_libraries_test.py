"""Tests GPU memory with libfabric, UCX and a peer-memory module in real processes. The GPUs are simulated: a preloaded
library makes the network libraries accept their memory. A folder in a private /sys/module replaces the module."""
import os
import pathlib
import re
import subprocess
import sys
import unittest

import cluster
import digits

SIMULATED_GPU = pathlib.Path(os.environ["GRADRAIL_SIMULATED_GPU_DIR"])
TESTS = SIMULATED_GPU.parent
HMEM = TESTS / "simulated_hmem"
PROGRAM = os.environ.get("GRADRAIL_BINARY", "")


def private_modules():
    """Returns the reason why a private /sys/module is not possible, or ''."""
    tried = subprocess.run(["unshare", "-rm", "mount", "--bind", "/tmp", "/sys/module"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else f"unshare -rm: {tried.stderr.decode().strip()}"


class GpuLibraries(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        self.data = ["--data_dir", digits.write(self.folder / "data"), "--batch_size", 20, "--log_every", 10,
                     "--model", "mlp", "--workers", 2, "--towers", 1, "--mode", "sync", "--bucket_kib", 64,
                     "--epochs", 1]
        module = self.folder / "modules" / "nvidia_peermem"
        module.mkdir(parents=True)
        (module / "initstate").write_text("live\n")
        os.environ["GRADRAIL_BINARY"] = PROGRAM
        self.addCleanup(os.environ.__setitem__, "GRADRAIL_BINARY", PROGRAM)

    def run_through(self, preload="", module=False):
        """Starts the program with this preloaded library and module from now on."""
        start = self.folder / "start"
        preloaded = f"env LD_PRELOAD={preload}" if preload else ""
        inside = f'exec {preloaded} "{PROGRAM}" "$@"'
        if module:
            inside = f"mount --bind {self.folder}/modules /sys/module && {inside}"
        first = "unshare -rm" if module else ""
        start.write_text(f"#!/bin/sh\nexec {first} sh -c '{inside}' gradrail \"$@\"\n")
        start.chmod(0o755)
        os.environ["GRADRAIL_BINARY"] = str(start)

    def finished(self, *flags, **more):
        on = {"LD_LIBRARY_PATH": str(SIMULATED_GPU), "GRADRAIL_SIMULATED_GPU": "devices=3", **more}
        task = self.train(*self.data, *flags, environment=on)
        self.assert_ends(task, cluster.GOOD, 4 * cluster.FINISH)
        return task

    def staged(self):
        os.environ["GRADRAIL_BINARY"] = PROGRAM
        return cluster.hash_of(self.finished("--transport", "shm"))

    def assert_direct(self, way, *flags, **more):
        for device in ("host", "gpu:2"):
            with self.subTest(way=way, device=device, flags=flags):
                task = self.finished(*flags, "--gpu-direct", way, "--ps_device", device, **more)
                into = " into GPU memory" if device != "host" else ""
                for pattern in (rf"^GPU-Direct: {way} \(", rf"^Path: .* gpu-direct\({way}\)",
                                rf"^\[ps/0\] path .* gpu-direct\({way}\){into}: \d+ bytes in"):
                    self.assertTrue(task.has(pattern), f"/{pattern}/\n{task.transcript()}")
                yield cluster.hash_of(task)

    def assert_all(self, hashes):
        self.assertEqual({self.staged(), *hashes}, {next(iter(hashes))})

    @cluster.long("gpu_conformance with the same libraries")
    def test_libfabric_by_dma_buf(self):
        self.run_through(preload=HMEM / "libsimulated_hmem_ofi.so")
        self.assert_all(list(self.assert_direct(
            "dmabuf", "--transport", "ofi", "--ofi_provider", "tcp", "--plugin_dir", TESTS / "plugins_1_20",
            GRADRAIL_SIMULATED_LIBFABRIC="1.20")))

    @cluster.long("gpu_conformance with the same libraries")
    def test_libfabric_by_peer_memory(self):
        self.run_through(preload=HMEM / "libsimulated_hmem_ofi.so", module=True)
        self.assert_all(list(self.assert_direct("peermem", "--transport", "ofi", "--ofi_provider", "tcp")))

    @cluster.long("gpu_conformance with the same libraries")
    def test_ucx_by_peer_memory(self):
        self.run_through(preload=HMEM / "libsimulated_hmem_ucx.so", module=True)
        self.assert_all(list(self.assert_direct("peermem", "--transport", "ucx", UCX_TLS="tcp")))

    @cluster.long("gpu_conformance with the same libraries")
    def test_a_network_device_by_peer_memory(self):
        self.run_through(module=True)
        self.assert_all(list(self.assert_direct("peermem", "--transport", "simnic", "--plugin_dir",
                                                TESTS / "simulated_nic")))


if __name__ == "__main__":
    name = sys.argv[-1]
    missing = private_modules() if name.endswith("peer_memory") else ""
    for library in ("libfabric", "ucx"):
        short = library.removeprefix("lib").replace("fabric", "ofi")
        if re.search(library, name) and not (HMEM / f"libsimulated_hmem_{short}.so").exists():
            missing = f"no simulated_hmem_{short} in {HMEM}: built without {library}"
    if re.search("libfabric|ucx", name) and cluster.INSTRUMENTED_PATIENCE > 1:
        missing = "a sanitizer's runtime wants to be the first library itself"
    if missing:
        print(f"skipped: {missing}")
        sys.exit(77)
    unittest.main()
