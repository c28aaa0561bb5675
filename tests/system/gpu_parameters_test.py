"""Tests parameters in GPU memory, and mapped GPU memory of the workers, with the GPUs of a simulated driver."""
import json
import os
import signal
import statistics
import unittest

import cluster
import digits

LONG = ["--epochs", 100000]
MAPPED = r"^GPU-Direct: ipc \("


def gpus(words="devices=2"):
    return {"LD_LIBRARY_PATH": os.environ["GRADRAIL_SIMULATED_GPU_DIR"], "GRADRAIL_SIMULATED_GPU": words}


class ParametersOnGpus(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        self.data = ["--data_dir", digits.write(self.folder / "data"), "--batch_size", 100, "--log_every", 10,
                     "--model", "mlp", "--towers", 1]

    def finished(self, *flags, on=None):
        task = self.train(*self.data, "--epochs", 1, *cluster.ALL_STAY, *flags, environment=on or gpus())
        self.assert_ends(task, cluster.GOOD, 4 * cluster.FINISH)
        return task

    @cluster.long("ClientGpuFaults.FirstBucketsLeaveBeforeTheTensorIsOnTheHost; here in the real time of a recorded step")
    def test_gradients_leave_during_the_backward_pass(self):
        """The timeline shows it: the host waits for no whole pass. An operation of the simulated GPU takes 5 ms."""
        self.data[self.data.index("--batch_size") + 1] = 220  # few steps: each has 311 updates
        for words in ("devices=1,delay=5000", "devices=1,delay=5000,stream_writes=0"):
            with self.subTest(words=words):
                file = self.folder / "steps.json"
                # Some buckets contain the second layer alone. Its gradient is complete first.
                self.finished("--workers", 1, "--ps_device", "gpu:0", "--bucket_kib", 1, "--timeline_filename", file,
                              on=gpus(words))
                posts = {}
                for event in json.loads(file.read_text())["traceEvents"]:
                    if event["name"] == "post":
                        posts.setdefault(event["args"]["step"], []).append(event["ts"])
                self.assertGreater(len(posts), 3)
                spans = [(max(times) - min(times)) / 1e3 for times in posts.values()]
                # Two operations at least are between the two gradients: those that compute the first layer's.
                self.assertGreater(statistics.median(spans), 10, spans)

    def test_two_workers_and_the_server_share_one_gpu(self):
        task = self.finished("--workers", 2, "--mode", "sync", "--gpu", "0,0", "--ps_device", "gpu:0",
                             "--log_device_placement", on=gpus("devices=1"))
        self.assert_says(task, MAPPED, r"^\[worker/1\] GPU-Direct: ipc \(", r"2 towers share it", "^Steps: recorded, 1 launch$")
        apart = self.finished("--workers", 2, "--mode", "sync", on=gpus("devices=2"))
        self.assertEqual(cluster.hash_of(task), cluster.hash_of(apart))

    def test_a_worker_without_a_gpu_trains_at_a_server_with_one(self):
        task = self.finished("--workers", 1, "--ps_device", "gpu:0", "--checksums", "--gpu-direct", "staged")
        self.assertFalse(task.has(MAPPED))
        flags = [*self.addresses(1), *self.data, "--epochs", 1]
        ps = self.train(*flags, "--job_name", "ps", "--task_index", 0, "--ps_device", "gpu:0", environment=gpus())
        worker = self.train(*flags, "--job_name", "worker", "--task_index", 0)
        self.assert_ends(worker, cluster.GOOD)
        self.assert_ends(ps, cluster.GOOD)
        cluster.hash_of(worker)

    def test_why_gradients_are_not_mapped(self):
        task = self.finished("--workers", 1)
        self.assert_says(task, r"^GPU-Direct: staged .*keeps its parameters in host memory \(--ps_device\)")
        for words, flags in ((r"keeps its parameters in host memory", ["--gpu-direct", "ipc"]),
                             (r"--gpu-direct ipc: several towers", ["--gpu-direct", "ipc", "--towers", 2,
                                                                   "--reduce", "host", "--ps_device", "gpu:0"])):
            with self.subTest(words=words):
                self.refused(cluster.CONFIGURATION, [words], *self.data, "--workers", 1, *flags, environment=gpus())

    def start_two(self, on, *flags):
        flags = [*self.addresses(2), *self.data, *LONG, *flags]
        ps = self.train(*flags, "--job_name", "ps", "--task_index", 0, "--ps_device", "gpu:0", name="ps/0",
                        environment=on)
        workers = [self.train(*flags, "--job_name", "worker", "--task_index", i, name=f"worker/{i}",
                              environment=gpus()) for i in range(2)]
        return ps, workers

    def test_a_lost_gpu_of_the_server_ends_the_run(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                ps, workers = self.start_two(gpus("devices=2,lose=0@300"), "--transport", transport)
                for task in workers:
                    self.assert_ends(task, cluster.retry_worthy, cluster.START, says=[r"GPU 0 .*the GPU was lost"])
                self.assert_ends(ps, cluster.retry_worthy, says=[r"shard 0: GPU 0 .*the GPU was lost"])

    def test_async_goes_on_without_a_killed_worker(self):
        ps, workers = self.start_two(gpus(), "--gpu-direct", "ipc")
        for task in workers:
            task.wait_for(r"Step: \d+")
        workers[1].signal(signal.SIGKILL)
        workers[1].code()
        self.assert_goes_on(workers[0])
        workers[0].signal(signal.SIGTERM)
        self.assert_ends(workers[0], cluster.GOOD)
        self.assert_ends(ps, cluster.GOOD)
        self.assert_says(ps, r"path shm gpu-direct\(ipc\)")


if __name__ == "__main__":
    unittest.main()
