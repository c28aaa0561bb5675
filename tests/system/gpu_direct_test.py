"""Tests the transfer of GPU memory in real processes, with simulated GPUs and a network device that accesses their
memory."""
import os
import pathlib
import signal
import unittest

import cluster
import digits

LONG = ["--epochs", 100000]
SIMULATED_GPU = pathlib.Path(os.environ["GRADRAIL_SIMULATED_GPU_DIR"])
NIC = ["--plugin_dir", SIMULATED_GPU.parent / "simulated_nic"]


def gpus(words="devices=2", nic=""):
    return {"LD_LIBRARY_PATH": str(SIMULATED_GPU), "GRADRAIL_SIMULATED_GPU": words, "GRADRAIL_SIMULATED_NIC": nic}


class NicGpuTransfer(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        self.data = ["--data_dir", digits.write(self.folder / "data"), "--batch_size", 20, "--log_every", 10,
                     "--model", "mlp", *NIC]

    def finished(self, *flags, on=None):
        task = self.train(*self.data, "--epochs", 1, *cluster.ALL_STAY, *flags, environment=on or gpus())
        self.assert_ends(task, cluster.GOOD, 4 * cluster.FINISH)
        return task

    def test_towers_that_average_by_nccl_are_as_one(self):
        """The first tower sends the mean and receives the parameters. The other towers copy them from its memory."""
        ways = ((["--transport", "tcp", "--reduce", "host"], "staged"), (["--transport", "tcp"], "staged"),
                (["--transport", "simnic"], "dmabuf"), (["--transport", "tcp", "--ps_device", "gpu:1"], "ipc"))
        for push in ("fp32", "bf16"):
            hashes = set()
            for flags, way in ways:
                with self.subTest(push=push, flags=flags):
                    task = self.finished("--workers", 1, "--towers", 2, "--mode", "sync", "--bucket_kib", 64,
                                         "--optimizer", "momentum", "--push", push, *flags)
                    self.assert_says(task, rf"^GPU-Direct: {way} ",
                                     r"averaged by host$" if "--reduce" in flags else r"averaged by NCCL")
                    hashes.add(cluster.hash_of(task))
            self.assertEqual(len(hashes), 1)

    @cluster.long("ClientGpu.WhatCannotBeReachedIsStagedWithTheReason; gpu_test.refusals; --checksums is refused here alone")
    def test_what_is_forced_and_cannot_be_had_is_refused(self):
        for words, flags, on in (
                (r"gradients cannot leave the GPU as --gpu-direct requires: dmabuf: tcp moves host memory only",
                 ["--gpu-direct", "dmabuf", "--transport", "tcp"], gpus()),
                (r"peermem: no peer-memory module: modprobe nvidia_peermem",
                 ["--gpu-direct", "peermem", "--transport", "simnic"], gpus()),
                (r"ipc: .*keeps its parameters in host memory", ["--gpu-direct", "ipc", "--transport", "tcp"], gpus()),
                (r"dmabuf: GPU 0 .*does not support dma-buf", ["--gpu-direct", "dmabuf", "--transport", "simnic"],
                 gpus("devices=1,dma_buf=0")),
                (r"dmabuf: .*the checked transfer arrived damaged", ["--gpu-direct", "dmabuf", "--transport", "simnic"],
                 gpus(nic="damage")),
                (r"--gpu-direct dmabuf: --checksums are of bytes that pass through the host",
                 ["--gpu-direct", "dmabuf", "--transport", "simnic", "--checksums"], gpus())):
            with self.subTest(words=words):
                self.refused(cluster.CONFIGURATION, [words], *self.data, "--workers", 1, "--towers", 1, *flags,
                             environment=on)

    def test_devices_that_must_be_flushed_are(self):
        ordered = self.finished("--workers", 1, "--towers", 1, "--transport", "simnic")
        task = self.finished("--workers", 1, "--towers", 1, "--transport", "simnic", on=gpus("devices=1,ordering=0"))
        self.assert_says(task, r"^GPU-Direct: dmabuf ", r"^Flushes: [1-9]\d+ ")
        self.assertFalse(ordered.has("^Flushes:"), ordered.transcript())
        self.assertEqual(cluster.hash_of(task), cluster.hash_of(ordered))

    def start_two(self, *flags, ps_on=None):
        flags = [*self.addresses(2), *self.data, *LONG, "--towers", 1, "--transport", "simnic", *flags]
        ps = self.train(*flags, "--job_name", "ps", "--task_index", 0, name="ps/0", environment=ps_on or gpus())
        workers = [self.train(*flags, "--job_name", "worker", "--task_index", i, name=f"worker/{i}",
                              environment=gpus()) for i in range(2)]
        return ps, workers

    def test_async_goes_on_without_a_worker_that_is_killed(self):
        ps, workers = self.start_two()
        for task in workers:
            task.wait_for(r"Step: \d+")
        workers[1].signal(signal.SIGKILL)  # a write of parameters to its memory may be in progress
        workers[1].code()
        self.assert_goes_on(workers[0])
        workers[0].signal(signal.SIGTERM)
        self.assert_ends(workers[0], cluster.GOOD)
        self.assert_ends(ps, cluster.GOOD)

    def test_a_lost_gpu_of_the_server_ends_the_run(self):
        ps, workers = self.start_two("--ps_device", "gpu:0", "--gpu-direct", "dmabuf",
                                     ps_on=gpus("devices=2,lose=0@300,ordering=0"))
        for task in workers:
            self.assert_ends(task, cluster.retry_worthy, cluster.START, says=[r"GPU 0 .*the GPU was lost"])
        self.assert_ends(ps, cluster.retry_worthy, says=[r"shard 0: GPU 0 .*the GPU was lost"])


if __name__ == "__main__":
    unittest.main()
