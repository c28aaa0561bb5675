"""Tests tasks that are started separately: in any order, with each description of a cluster that tutorials use."""
import itertools
import json
import signal
import unittest

import cluster

RUN = ["--model", "linear", "--epochs", "1", "--log_every", "50"]


class ByHand(cluster.ClusterTest):
    def spec(self, workers=3):
        ps, *names = (f"127.0.0.1:{port}" for port in cluster.free_ports(1 + workers))
        return {"ps": [ps], "worker": names}

    def run_tasks(self, order, flags, environment=lambda job, index: None, naming=lambda job, index: [
            "--job_name", job, "--task_index", index]):
        """Starts the tasks in this order, and checks that all end with exit code 0."""
        started = []
        for job, index in order:
            started.append(self.train(*RUN, *flags, *naming(job, index), name=f"{job}/{index}",
                                      environment=environment(job, index)))
        for task in started:
            self.assert_ends(task, cluster.GOOD)
        return started

    def test_cluster_file_in_every_order(self):
        tasks = [("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)]
        orders = list(itertools.permutations(tasks))
        for order in orders[::5] + [tuple(reversed(tasks))]:  # each task is once the first and once the last
            with self.subTest(order=order):
                self.run_tasks(order, ["--cluster", self.write_json(self.spec())])

    def test_workers_wait_for_a_ps_that_comes_last(self):
        flags = ["--cluster", self.write_json({"cluster": self.spec()})]
        workers = [self.train(*RUN, *flags, "--job_name", "worker", "--task_index", i, name=f"worker/{i}")
                   for i in range(3)]
        for worker in workers:
            worker.wait_for(r"worker/\d .* waiting for parameter server 0 \(127\.0\.0\.1:\d+\)", 12 + cluster.START)
        ps = self.train(*RUN, *flags, "--job_name", "ps", "--task_index", 0, name="ps/0")
        for worker in workers:  # workers retry several times a second, in any state of their channels
            worker.wait_for("^Step:", 10 * cluster.PATIENCE)
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD)

    def test_a_ps_says_for_which_worker_it_waits(self):
        flags = ["--cluster", self.write_json(self.spec(2))]
        ps = self.train(*RUN, *flags, "--job_name", "ps", "--task_index", 0, name="ps/0")
        worker = self.train(*RUN, *flags, "--job_name", "worker", "--task_index", 0, name="worker/0")
        self.assert_ends(worker, cluster.GOOD)  # async: no task waits for a worker that has not joined
        ps.wait_for(r"ps/0 .* waiting for worker 1 \(127\.0\.0\.1:\d+\)", 12 + cluster.START)
        self.assertTrue(ps.running())
        self.assert_ends(self.train(*RUN, *flags, "--job_name", "worker", "--task_index", 1, name="worker/1"),
                         cluster.GOOD)
        self.assert_ends(ps, cluster.GOOD)

    def test_host_lists_with_underscores_and_with_dashes(self):
        spec = self.spec(2)
        order = [("worker", 1), ("ps", 0), ("worker", 0)]
        lists = ",".join(spec["ps"]), ",".join(spec["worker"])
        self.run_tasks(order, ["--ps_hosts", lists[0], "--worker_hosts", lists[1]])
        self.run_tasks(order, [f"--ps-hosts={lists[0]}", f"--worker-hosts={lists[1]}"],
                       naming=lambda job, index: [f"--job-name={job}", f"--task-index={index}"])

    def test_tf_config(self):
        spec = self.spec(2)
        self.run_tasks([("worker", 0), ("worker", 1), ("ps", 0)], [], naming=lambda job, index: [],
                       environment=lambda job, index: {"TF_CONFIG": json.dumps(
                           {"cluster": spec, "task": {"type": job, "index": index}})})

    def test_sparse_tf_config(self):
        spec = self.spec(2)
        def config(job, index):
            known = {"ps": spec["ps"], "worker": {str(index): spec["worker"][index]} if job == "worker" else spec["worker"]}
            return {"TF_CONFIG": json.dumps({"cluster": known, "task": {"type": job, "index": str(index)}})}
        self.run_tasks([("worker", 0), ("worker", 1), ("ps", 0)], [], naming=lambda job, index: [], environment=config)
        # The description of worker 0 has one worker. The flag is for the ps, and its description has both.
        self.run_tasks([("worker", 0), ("worker", 1), ("ps", 0)], ["--min_workers", 2],
                       naming=lambda job, index: [], environment=config)

    def test_tf_config_without_a_cluster(self):
        for config in ({}, {"cluster": {}}, {"cluster": {}, "task": {"type": "worker", "index": 0}}):
            with self.subTest(config=config):
                task = self.train("--model", "linear", "--epochs", 1, "--workers", 1,
                                  environment={"TF_CONFIG": json.dumps(config)})
                self.assert_ends(task, cluster.GOOD, says=[r"(?m)^Parameter-Hash"])

    def test_evaluator_ends_at_once(self):
        config = json.dumps({"cluster": self.spec(1), "task": {"type": "evaluator", "index": 0}})
        for flags, environment in (([], {"TF_CONFIG": config}),
                                   (["--cluster", self.write_json(self.spec(1)), "--job_name", "evaluator"], {})):
            with self.subTest(flags=flags):
                task = self.train(*flags, environment=environment)
                self.assert_ends(task, cluster.GOOD, says=[r"^# evaluator: no evaluation job is needed"])


class Stop(cluster.ClusterTest):
    def test_sigterm_while_waiting_for_the_ps(self):
        worker = self.train(*RUN, *self.addresses(1), "--job_name", "worker", "--task_index", 0, name="worker/0",
                            environment={"GRADRAIL_LOG": "info"})
        worker.wait_for(r"waiting for parameter server 0 \(127\.0\.0\.1:\d+\): Connection refused$", 12 + cluster.START)
        worker.signal(signal.SIGTERM)
        self.assert_ends(worker, cluster.GOOD, 5 * cluster.PATIENCE,
                         says=["Stopped before the first step: nothing was trained"])

    def test_a_ps_that_ends_reports_no_member_as_unknown(self):
        for transport in ("tcp", "shm"):
            with self.subTest(transport=transport):
                (ps,), workers = self.start_cluster(2, "--epochs", 100000, "--transport", transport)
                for worker in workers:
                    worker.wait_for(r"Step: [1-9]\d+")
                ps.signal(signal.SIGTERM)
                self.assert_ends(ps, cluster.GOOD, 10 * cluster.PATIENCE)
                self.assertFalse(ps.has("not a member|refused"), ps.transcript())
                for worker in workers:
                    worker.signal(signal.SIGKILL)

    def test_an_async_worker_leaves_on_sigterm(self):
        (ps,), workers = self.start_cluster(3, "--epochs", 100000)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        workers[1].signal(signal.SIGTERM)
        self.assert_ends(workers[1], cluster.GOOD, 10 * cluster.PATIENCE, says=[r"Total Time: ", r"Final Cost: "])
        self.assert_goes_on(workers[0])
        self.assert_goes_on(workers[2])
        self.assertFalse(ps.has("lost"), ps.transcript())


if __name__ == "__main__":
    unittest.main()
