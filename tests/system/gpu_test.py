"""Tests training on the GPUs of a simulated driver. The program is the same as on a host with a real driver."""
import os
import signal
import unittest

import cluster
import digits

LONG = ["--epochs", 100000]
NOTICED = 5 * cluster.PATIENCE + 3


def gpus(faults="devices=1", **more):
    """Returns the environment of a task on a host with these GPUs. tests/gpu/simulated describes the words."""
    return {"LD_LIBRARY_PATH": os.environ["GRADRAIL_SIMULATED_GPU_DIR"], "GRADRAIL_SIMULATED_GPU": faults, **more}


class Gpu(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        # 11 steps in an epoch: the simulated GPU is slow.
        self.data = ["--data_dir", digits.write(self.folder), "--batch_size", 100, "--log_every", 10]

    def finished(self, *flags, on=None, code=cluster.GOOD):
        task = self.train(*self.data, *flags, environment=on)
        self.assert_ends(task, code, 4 * cluster.FINISH)
        return task

    def number(self, task, what):
        return float(task.wait_for(rf"^{what}: (-?\d+\.\d+)$").group(1))

    def test_each_worker_has_its_gpu(self):
        task = self.finished("--model", "mlp", "--workers", 2, "--epochs", 1, "--log_device_placement",
                             on=gpus("devices=2"))
        self.assert_says(task, r"^Towers: 0 on GPU 0 ", r"^\[worker/1\] Towers: 0 on GPU 1 ",
                         r"GPU: cuda0: GPUs are dealt to the workers in order", r"GPU: cuda1: ")

    def test_towers_average_by_nccl_or_the_host(self):
        flags = ["--model", "mlp", "--ps", 0, "--epochs", 1, "--optimizer", "momentum"]
        by_nccl = self.finished(*flags, on=gpus("devices=2"))  # a tower for each GPU
        self.assert_says(by_nccl, r"^Towers: 0 on GPU 0 .*, 1 on GPU 1 .*, averaged by NCCL \d+\.\d+")
        by_host = self.finished(*flags, "--towers", 2, "--reduce", "host", on=gpus("devices=2"))
        self.assert_says(by_host, r"^Towers: .*, averaged by host$")
        self.assertEqual(cluster.hash_of(by_nccl), cluster.hash_of(by_host), "NCCL and the host differ")
        on_cpus = self.finished(*flags, "--towers", 2)
        self.assertAlmostEqual(self.number(by_nccl, "Final Cost"), self.number(on_cpus, "Final Cost"), delta=0.01)

    def test_more_towers_than_gpus_go_on_cpus(self):
        flags = ["--model", "mlp", "--ps", 0, "--towers", 2, "--epochs", 1]
        task = self.finished(*flags, on=gpus())
        self.assert_says(task, "1 of 2 towers have GPUs; the other towers compute on CPUs",
                         r"^Towers: 0 on GPU 0 .*, 1 on CPUs \(no GPU remains for it\), averaged by host$")
        self.refused(cluster.CONFIGURATION, ["2 towers were to be on GPUs, and 1 can be used"], *flags,
                     "--no-soft-placement", environment=gpus())
        self.refused(cluster.CONFIGURATION, ["--reduce nccl: tower 1 computes on CPUs: leave --reduce out"], *flags, "--reduce", "nccl",
                     environment=gpus())

    def test_without_a_gpu_towers_go_on_cpus(self):
        flags = ["--model", "mlp", "--ps", 0]
        for on, why in ((None, "no NVIDIA driver"), (gpus("driver=11020"), r"supports CUDA 11\.2, gradrail requires 12\.0"),
                        (gpus("devices=0"), "the NVIDIA driver shows no GPU"),
                        (gpus("init=999"), r"does not start: CUDA_ERROR_UNKNOWN.*nvidia-smi")):
            with self.subTest(why=why):
                task = self.finished(*flags, "--epochs", 1, "--log_device_placement", on=on)
                self.assert_says(task, rf"GPU: none: .*{why}")
                # A driver that does not work gives a warning. A host without a driver gives none.
                failed = "supports" in why or "start" in why
                self.assertEqual(task.has(f"W .*towers compute on CPUs: .*{why}"), failed, task.transcript())
                self.refused(cluster.CONFIGURATION, [f"--no-soft-placement: no GPU can be used: .*{why}"], *flags,
                             "--no-soft-placement", environment=on)
                self.refused(cluster.CONFIGURATION, [f"--gpu 0: no GPU can be used: .*{why}"], *flags, "--gpu", 0,
                             environment=on)

    def test_a_driver_crash_does_not_end_the_task(self):
        for how, why in (("crash", r"the probe of the NVIDIA driver failed: signal 6 \(Aborted\) ended the child process"),
                         ("exit", "the probe of the NVIDIA driver failed: .*child process")):
            with self.subTest(how=how):
                on = {"LD_LIBRARY_PATH": os.environ["GRADRAIL_BROKEN_DRIVER_DIR"], "GRADRAIL_BROKEN_DRIVER": how}
                task = self.finished("--model", "mlp", "--ps", 0, "--epochs", 1, "--log_device_placement", on=on)
                self.assert_says(task, f"GPU: none: {why}", "^Test-Accuracy: ")

    def test_a_gpu_that_cannot_be_opened_is_replaced(self):
        flags = ["--model", "mlp", "--ps", 0]
        task = self.finished(*flags, "--epochs", 1, on=gpus("image=refuse"))
        self.assert_says(task, r"tower 0 computes on CPUs: GPU 0 .*NO_BINARY_FOR_GPU.*(update the driver|built without nvcc)",
                         r"^Towers: 0 on CPUs \(GPU 0 ")
        for demand in (["--no-soft-placement"], ["--gpu", 0]):
            self.refused(cluster.CONFIGURATION, [rf"{' '.join(map(str, demand))}: tower 0: GPU 0 .*NO_BINARY_FOR_GPU"],
                         *flags, *demand, environment=gpus("image=refuse"))

    def test_a_variable_that_changes_products_is_named(self):
        variables = {"CUBLAS_EMULATE_SINGLE_PRECISION": "1", "CUBLAS_EMULATION_STRATEGY": "performant", "NVIDIA_TF32_OVERRIDE": "1"}
        task = self.finished("--model", "mlp", "--ps", 0, "--epochs", 1, on=gpus(**variables))
        for name, value in variables.items():
            self.assert_says(task, f"{name}={value}: cuBLAS may compute products of fp32 in another precision")

    def test_refusals(self):
        for code, words, flags, on in (
                (cluster.CONFIGURATION, "--gpu 7: this machine has one GPU, 0", ["--gpu", 7], gpus()),
                (cluster.CONFIGURATION, "--gpu-direct requires: dmabuf: tcp moves host memory only",
                 ["--gpu-direct", "dmabuf", "--ps", 1, "--workers", 1, "--transport", "tcp"], gpus()),
                (cluster.CONFIGURATION, "--gpu-direct ipc: with --ps 0 no gradient leaves", ["--gpu-direct", "ipc"], gpus()),
                (cluster.CONFIGURATION, "--ps_device gpu:0: parameter servers keep", ["--ps_device", "gpu:0"], gpus()),
                (cluster.CONFIGURATION, "model linear computes on CPUs only", ["--model", "linear", "--no-soft-placement"],
                 gpus()),
                (cluster.CONFIGURATION, "model cnn with batches of 100 needs [0-9]+ MiB: GPU 0 .*OUT_OF_MEMORY.*smaller batch",
                 ["--model", "cnn"], gpus("memory=16M"))):
            with self.subTest(words=words):
                self.refused(code, [words], *self.data, "--ps", 0, "--model", "mlp", *flags, environment=on)
        self.refused(cluster.CONFIGURATION, ["--ps_device gpu:7: no GPU 7: there is GPU 0"], *self.data, "--model", "mlp",
                     "--ps_device", "gpu:7", environment=gpus())

    def test_refusals_are_those_of_info(self):
        info = self.launch("info", [cluster.binary(), "info"], environment=gpus("driver=12040"))
        self.assert_ends(info, cluster.GOOD)
        needs_13 = info.has("^  kernels .*for drivers of CUDA 13")  # those of nvcc 12 run
        self.assertEqual(info.has("NOT usable: the kernels of this build require .*supports CUDA 12.4: update the driver"), needs_13,
                         info.transcript())

    def test_info_states_whether_steps_can_be_recorded(self):
        for faults, words in (("devices=1", "stream writes, graphs"), ("stream_writes=0", "no stream writes, graphs")):
            with self.subTest(faults=faults):
                info = self.launch("info", [cluster.binary(), "info"], environment=gpus(faults))
                self.assert_ends(info, cluster.GOOD)
                self.assert_says(info, rf"^  GPU 0 +Simulated GPU, .*, {words}$")

    def start_workers(self, on, *flags):
        """Starts a ps and two workers, each on its own GPU. One of the GPUs fails later."""
        flags = [*self.addresses(2), *self.data, "--model", "mlp", *flags]
        ps = self.train(*flags, "--job_name", "ps", "--task_index", 0, name="ps/0", environment=on)
        workers = [self.train(*flags, "--job_name", "worker", "--task_index", i, name=f"worker/{i}", environment=on)
                   for i in range(2)]
        return ps, workers

    def test_visible_devices_are_the_tasks_own(self):
        """Two workers share a host with one GPU. By default the first has the GPU. With CUDA_VISIBLE_DEVICES both have it."""
        for visible, where in ({"CUDA_VISIBLE_DEVICES": "0"}, "0 on GPU 0 "), ({}, None):
            with self.subTest(visible=visible):
                ps, workers = self.start_workers(gpus(**visible), "--epochs", 1, "--log_device_placement")
                for task in (*workers, ps):
                    self.assert_ends(task, cluster.GOOD)
                self.assert_says(workers[0], "^Towers: 0 on GPU 0 ")
                if where is None:
                    self.assert_says(workers[1], "GPU: none: every GPU has its tower already")
                    self.assertFalse(workers[1].has("^Towers:"), workers[1].transcript())
                else:
                    self.assert_says(workers[1], f"^Towers: {where}", "CUDA_VISIBLE_DEVICES assigns it to this task")

    def test_async_goes_on_without_a_lost_gpu(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport=transport):
                ps, workers = self.start_workers(gpus("devices=2,lose=1@600"), "--transport", transport, *LONG)
                self.assert_ends(workers[1], cluster.retry_worthy, cluster.START, says=[
                    r"the model failed after \d+ steps of this worker: GPU 1 \(.*\): .*CUDA_ERROR_\w+ \(the GPU was lost"])
                ps.wait_for(r"worker 1 \(.*\) was lost: GPU 1 .*CUDA_ERROR", NOTICED)
                self.assert_goes_on(workers[0])
                workers[0].signal(signal.SIGTERM)
                self.assert_ends(workers[0], cluster.GOOD)
                self.assert_ends(ps, cluster.GOOD)

    def test_ends_naming_the_lost_gpu_where_no_worker_can_be_spared(self):
        ps, workers = self.start_workers(gpus("devices=2,lose=1@600"), "--mode", "sync", "--min_workers", 2, *LONG)
        self.assert_ends(workers[1], cluster.retry_worthy, cluster.START, says=["GPU 1 .*the GPU was lost"])
        for task in (workers[0], ps):
            self.assert_ends(task, cluster.retry_worthy, NOTICED,
                             says=[r"worker 1 \(.*\) was lost: GPU 1 .*CUDA_ERROR", "--min_workers"])

    def test_local_cluster_goes_on_without_a_lost_gpu(self):
        task = self.train(*self.data, "--model", "mlp", "--workers", 2, "--epochs", 20,
                          environment=gpus("devices=2,lose=1@600"))
        self.assert_ends(task, cluster.RETRY, 4 * cluster.FINISH, says=[r"worker/1: the model failed after"])
        cluster.hash_of(task)  # the chief trained until the end

    def test_a_lost_gpu_of_two_towers_ends_both(self):
        for reduce in ("nccl", "host"):
            with self.subTest(reduce=reduce):
                task = self.train(*self.data, "--model", "mlp", "--ps", 0, "--reduce", reduce, *LONG,
                                  environment=gpus("devices=2,lose=1@600"))
                self.assert_ends(task, cluster.RETRY, cluster.START, says=[r"tower [01]: GPU 1 .*the GPU was lost"])

    def test_sigterm(self):
        task = self.train(*self.data, "--model", "mlp", "--ps", 0, *LONG, environment=gpus("devices=2"))
        task.wait_for(r"Step: \d+")
        task.signal(signal.SIGTERM)
        self.assert_ends(task, cluster.GOOD, 10 * cluster.PATIENCE, says=[r"Stopped after \d+ steps", r"^Towers: |\nTowers: "])


if __name__ == "__main__":
    unittest.main()
