"""Tests `gradrail doctor`: its reports of this machine, and its exit codes."""
import json
import os
import pathlib
import socket
import unittest

import cluster

STATES = {"ok", "warning", "missing", "broken", "unknown", "not applicable"}


class Doctor(cluster.ClusterTest):
    def doctor(self, *flags, code=cluster.GOOD, says=(), environment=None):
        task = self.launch("doctor", [cluster.binary(), "doctor", *map(str, flags)], environment)
        self.assert_ends(task, code, within=2 * cluster.FINISH, says=["(?m)" + words for words in says])
        return task.text()

    def report(self, *flags, **more):
        return json.loads(self.doctor("--json", *flags, **more))

    def test_this_machine_and_what_moves_on_it(self):
        whole = self.report("--require", "shm,tcp")
        self.assertGreater(len(whole["checks"]), 15)
        for check in whole["checks"]:
            self.assertIn(check["state"], STATES)
            if check["state"] in ("warning", "missing", "broken"):
                self.assertTrue(check["evidence"] and check["consequence"] and check["remedy"], check)
        moved = {proof["transport"] for proof in whole["proofs"] if proof["moved"]}
        self.assertLessEqual({"shm", "tcp"}, moved)
        for proof in whole["proofs"]:
            self.assertTrue(proof["path"] if proof["moved"] else proof["why_not"], proof)

    def test_what_is_required_decides_the_exit_code(self):
        text = self.doctor("--no-proof", "--require", "tasks", code=cluster.CONFIGURATION,
                           says=[r"^  does not hold +tasks +tasks is not applicable"])
        self.assertNotIn("\033", text)
        self.doctor("--no-proof")  # a call without further flags succeeds
        self.doctor("--require", "rdma,speed", code=cluster.CONFIGURATION, says=[r"--require 'speed': there are rdma, "])

    def test_tasks_that_do_not_listen_are_named(self):
        with socket.socket() as listens:
            listens.bind(("127.0.0.1", 0))
            listens.listen()
            there = f"127.0.0.1:{listens.getsockname()[1]}"
            self.doctor("--no-proof", "--ps_hosts", there, "--require", "tasks", says=[there + ": connected"])
        self.doctor("--no-proof", "--ps_hosts", there, "--require", "tasks", code=cluster.CONFIGURATION,
                    says=[there + ": Connection refused"])

    def test_a_gpu_that_only_the_driver_reports(self):
        environment = {"LD_LIBRARY_PATH": os.environ["GRADRAIL_SIMULATED_GPU_DIR"], "GRADRAIL_SIMULATED_GPU": "devices=2"}
        whole = self.report("--no-proof", environment=environment)
        checks = {check["name"]: check for check in whole["checks"]}
        self.assertEqual(whole["machine"]["gpus"], "2")
        self.assertEqual(checks["gpu-driver"]["state"], "ok")
        self.assertIn("libcuda.so.1", " ".join(checks["gpu-nic-access"]["evidence"]))
        self.assertEqual(checks["gpu-cublas"]["state"], "ok", checks["gpu-cublas"])
        self.assertRegex(checks["gpu-cublas"]["evidence"][0], r"^libcublas\.so\.\d+$")

    def test_a_driver_without_cublas(self):
        alone = pathlib.Path(os.environ["GRADRAIL_SIMULATED_GPU_DIR"]).parent / "simulated_gpu_alone"
        environment = {"LD_LIBRARY_PATH": str(alone), "GRADRAIL_SIMULATED_GPU": "devices=1",
                       "GRADRAIL_CUDA_LIBRARIES": "/nowhere"}
        whole = self.report("--no-proof", environment=environment)
        cublas = next(check for check in whole["checks"] if check["name"] == "gpu-cublas")
        self.assertEqual(cublas["state"], "missing", cublas)
        self.assertRegex(cublas["evidence"][0], r"no cuBLAS \(.*libcublas\.so\.13: .*; searched /nowhere\)")

    def gpu_proofs(self, fault):
        """Returns the proofs of both simulated GPUs with the simulated network device."""
        simulated = pathlib.Path(os.environ["GRADRAIL_SIMULATED_GPU_DIR"])
        environment = {"LD_LIBRARY_PATH": str(simulated), "GRADRAIL_SIMULATED_GPU": "devices=2",
                       "GRADRAIL_SIMULATED_NIC": fault}
        whole = self.report("--plugin_dir", simulated.parent / "simulated_nic", environment=environment)
        return [proof for proof in whole["proofs"] if proof["transport"] == "simnic" and "GPU" in proof["memory"]]

    def test_each_gpu_is_tried_with_each_network_device(self):
        good = self.gpu_proofs("")
        self.assertEqual([(proof["moved"], proof["memory"][-6:]) for proof in good], [(True, "dmabuf")] * 2)
        damaged = self.gpu_proofs("damage")
        self.assertEqual(len({proof["memory"].split()[3] for proof in damaged}), 2)
        self.assertFalse(any(proof["moved"] for proof in damaged))
        self.assertRegex(damaged[0]["why_not"], r"byte \d+ of \d+ arrived wrong")
        host_only = self.gpu_proofs("host")
        self.assertEqual([proof["why_not"] for proof in host_only], ["simnic moves host memory only"] * 2)

    def test_a_driver_that_takes_its_process_down_is_only_reported(self):
        for how in ("crash", "exit"):
            environment = {"LD_LIBRARY_PATH": os.environ["GRADRAIL_BROKEN_DRIVER_DIR"], "GRADRAIL_BROKEN_DRIVER": how}
            whole = self.report("--no-proof", environment=environment)
            self.assertGreater(len(whole["checks"]), 15)


if __name__ == "__main__":
    unittest.main()
