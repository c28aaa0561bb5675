"""Wrong arguments and files give the right exit code, and a message with the argument, the error and the valid form. None
of them may cause a hang or a crash, or be detected only after training."""
import json
import re
import socket
import unittest

import cluster
import digits


class Flags(cluster.ClusterTest):
    def test_usage(self):
        for arguments, words in ((["train", "--no_such_flag"], "no_such_flag"), (["train", "--epochs"], "--epochs"),
                                 (["train", "--epochs", "many"], "--epochs.*many|many.*--epochs"),
                                 (["train", "--ps", "-1"], "--ps"), (["train", "--epochs", "99999999999"], "--epochs"),
                                 (["train", "--seed", "-1"], "--seed"), (["train", "--save_steps=-1"], "--save_steps"),
                                 (["train", "--keep", "-1"], "--keep"), (["train", "--save_secs", "x"], "--save_secs"),
                                 (["train", "--seed", "18446744073709551616"], "--seed"),
                                 (["no_such_command"], "no_such_command|subcommand"), ([], "subcommand")):
            with self.subTest(arguments=arguments):
                task = self.launch("gradrail", [cluster.binary(), *arguments])
                self.assert_ends(task, cluster.USAGE, says=[words])

    def test_values_that_a_flag_does_not_permit(self):
        for flag, value, permitted in (
                ("--ps", 65, "whole number from 0 to 64"), ("--workers", 0, "whole number from 1 to 4096"),
                ("--workers", 100000, "from 1 to 4096"), ("--shards", 0, "from 1 to 256"),
                ("--epochs", 0, "from 1 to 4294967295"), ("--epochs", 99999999999, "from 1 to 4294967295"),
                ("--epochs", "0x10", "from 1 to 4294967295"), ("--epochs", -18446744073709551615, "from 1 to 4294967295"),
                ("--batch_size", 0, "from 1 to 4294967295"), ("--log_every", 0, "from 1 to 4294967295"),
                ("--bucket_kib", 1048577, "from 0 to 1048576"), ("--learning_rate", "-1", "number from 0 to 1000000"),
                ("--learning_rate", "1e30", "number from 0 to"), ("--learning_rate", "nan", "number from 0 to"),
                ("--momentum", "nan", "number from 0 to 0.99999994"), ("--momentum", "1", "number from 0 to 0.99999994"),
                ("--join-timeout", 0, "from 1 to"), ("--heartbeat-timeout", 0, "from 1 to"),
                ("--failback_secs", "inf", "number from 0 to 86400"), ("--backup-ps", 2, "from 0 to 1"),
                ("--save_secs", "-1", "number from 0 to 1000000000"), ("--save_secs", "nan", "number from 0 to"),
                ("--save_secs", "1e10", "number from 0 to"), ("--save_secs", "1e999", "number from 0 to"),
                ("--flight_records", 16777217, "from 0 to 16777216"), ("--metrics_port", 65536, "from 0 to 65535"),
                ("--towers", 17, "from 0 to 16"), ("--seed", "18446744073709551616", "from 0 to 18446744073709551615")):
            with self.subTest(flag=flag, value=value):
                self.refused(cluster.USAGE, [f"{flag}: '{re.escape(str(value))}' is not a .*{permitted}"], f"{flag}={value}")
        for flag, value, permitted in (
                ("--optimizer", "magic", "auto,sgd,momentum,nesterov,adam,adamw,torch_adam,delayed_nesterov"), ("--model", "gpt", "mlp,cnn,linear"),
                ("--wait", "nap", "auto,spin,adapt,block"), ("--require", "tcp", "rdma"), ("--reduce", "mpi", "auto,host,nccl"),
                ("--gpu_direct", "fast", "auto,dmabuf,peermem,ipc,staged")):
            with self.subTest(flag=flag, value=value):
                self.refused(cluster.USAGE, [f"{flag}: {value} not in {{{permitted}}}"], flag, value)

    def test_bad_values(self):
        for flags, words in (
                (["--transport", "pigeon"], "--transport:.*pigeon.*shm.*tcp"),
                (["--save_secs", 5], " --save_secs: not every ps task was started with --checkpoint_dir"),
                (["--save_secs", 0, "--save_steps", 5], " --save_steps, --save_secs: not every ps task"),
                (["--momentum_every", 2], "--momentum_every 2: the optimizer is sgd, and only delayed_nesterov has it"),
                (["--task_index", 0], "need a cluster: --cluster FILE"),
                (["--job_name", "ps"], "need a cluster: --cluster FILE")):
            with self.subTest(flags=flags):
                self.refused(cluster.CONFIGURATION, [words], "--epochs", 1, "--model", "linear", *flags)

    def test_flags_that_contradict_the_cluster(self):
        spec = self.addresses(2)
        task = ["--job_name", "ps", "--task_index", 0]
        file = self.write_json({"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]})
        for flags, words in (
                (["--cluster", file, "--ps", 1, *task], r"--ps 1 has no effect with --cluster .*cluster\.json"),
                (["--cluster", file, "--workers", 3, *task], r"--workers 3 has no effect with --cluster"),
                ([*spec, "--workers", 2, *task], "--workers 2 has no effect with --ps_hosts and --worker_hosts"),
                ([*spec, "--cluster", file, *task], "either --cluster or --ps_hosts"),
                (["--local", "--cluster", file], "--local starts a separate cluster: omit --cluster"),
                (["--cluster", file, "--rendezvous", "tcp://127.0.0.1:1", *task],
                 "--rendezvous tcp://127.0.0.1:1: the cluster has the addresses"),
                (["--plugin_dir", "plugins"], "--plugin_dir: plug-in folder 'plugins': give the absolute path"),
                ([*spec, "--min_workers", 3, *task], "--min_workers 3: the run has 2 workers.*give at most 2"),
                (["--cluster", file, "--min_workers", 2, *task], "--min_workers 2: the run has 1 worker,"),
                (["--workers", 2, "--min_workers", 3], "--min_workers 3: the run has 2 workers"),
                ([*spec, *task, "--rails", "10.0.0.1,10.1.0.1", "--streams", 33],
                 "--rails 10.0.0.1,10.1.0.1 --streams 33: 2 rails of 33 streams are 66 lanes, and 64 is the limit"),
                ([*spec, *task, "--rails", "10.0.0.1,10.1.0.1", "--transport", "ucx,ofi"],
                 "--rails 10.0.0.1,10.1.0.1 --transport ucx,ofi: only tcp has rails; .* UCX_NET_DEVICES"),
                (["--bind", "127.0.0.2"], "--bind 127.0.0.2: the ps of a local cluster listen on"),
                (["--bind", "127.0.0.1:2222"], "--bind 127.0.0.1:2222: the ps of a local cluster listen on .* free ports; omit --bind"),
                (["--bind", "[::1]:2222"], r"--bind \[::1\]:2222: the ps of a local cluster listen on")):
            with self.subTest(flags=flags):
                self.refused(cluster.USAGE, [words], *flags)

    def test_what_this_host_lacks_is_found_before_the_run(self):
        """--join-timeout is half an hour: an error after it would be late."""
        worker = [*self.addresses(1), "--job_name", "worker", "--task_index", 0, "--model", "linear"]
        none = self.folder / "none"
        for flags, words in (
                ([*worker, "--data_dir", none], f"--data_dir {none}: No such file or directory"),
                (["--model", "linear", "--data_dir", none], f"--data_dir {none}: No such file or directory"),
                (["--model", "linear", "--ps", 0, "--data_dir", none], f"--data_dir {none}: No such file or directory"),
                (["--plugin_dir", none], f"--plugin_dir: plug-in folder {none}: there is no such folder"),
                ([*worker, "--bind", "203.0.113.9"], r"--bind 203\.0\.113\.9: not an address of this host"),
                ([*worker, "--logs_path", "/proc/none"], "--logs_path: /proc/none: ")):
            with self.subTest(flags=flags):
                task = self.refused(cluster.CONFIGURATION, [words], *flags, within=10 * cluster.PATIENCE)
                self.assertEqual(len(task.lines()), 1, task.transcript())

    def test_bad_tasks(self):
        spec = self.addresses(2)
        for flags, words in (
                ([*spec, "--job_name", "ps", "--task_index", 1], "task_index 1: job 'ps' has tasks 0 to 0"),
                ([*spec, "--job_name", "worker", "--task_index", 99999], "task_index 99999: job 'worker' has tasks 0 to 1 .* late workers up to 4095"),
                ([*spec, "--job_name", "chief", "--task_index", 0], "'chief': no such job.*ps, worker"),
                (["--ps_hosts", "a:1", "--job_name", "ps", "--task_index", 0], "job 'worker' has no task"),
                (["--worker_hosts", "a:1", "--job_name", "ps", "--task_index", 0], "job 'ps' has no task"),
                (["--cluster", self.folder / "none.json", "--job_name", "ps", "--task_index", 0],
                 "none.json: cannot be read")):
            with self.subTest(flags=flags):
                self.refused(cluster.CONFIGURATION, [words], *flags)
        self.refused(cluster.USAGE, ["--job_name and --task_index are missing"], *spec)
        self.refused(cluster.USAGE, ["--task_index is missing"], *spec, "--job_name", "ps")

    def test_malformed_tf_config(self):
        good = {"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]}
        for content, words in (
                ("{", "TF_CONFIG: not JSON"), ({"cluster": good}, "TF_CONFIG has no \"task\""),
                ({"cluster": good, "task": 1}, "\"task\" must be"),
                ({"cluster": good, "task": {"type": "worker"}}, "\"task\" must be"),
                ({"cluster": good, "task": {"type": "ps", "index": 3}}, "TF_CONFIG: task_index 3"),
                ({"cluster": good, "task": {"type": "worker", "index": 2 ** 63 - 1}}, "task_index"),
                ({"task": {"type": "ps", "index": 0}}, "TF_CONFIG: task ps 0 needs \"cluster\""),
                ({"cluster": {**good, "worker": {"1": "127.0.0.1:2223"}}, "task": {"type": "worker", "index": 0}},
                 "leaves out this task")):
            with self.subTest(content=content):
                text = content if isinstance(content, str) else json.dumps(content)
                self.refused(cluster.CONFIGURATION, [words], environment={"TF_CONFIG": text})

    def test_sizes_that_contradict_tf_config(self):
        config = {"cluster": {"ps": ["127.0.0.1:2222"], "worker": ["127.0.0.1:2223"]}, "task": {"type": "worker", "index": 0}}
        for command in (["train"], ["run"]):
            for flags, words in ((["--ps", "2"], "--ps 2: TF_CONFIG has 1 ps and 1 workers: leave out the flag"),
                                 (["--ps", "1", "--workers", "3"], "--workers 3: TF_CONFIG has 1 ps and 1 workers")):
                with self.subTest(command=command, flags=flags):
                    program = ["--", "true"] if command == ["run"] else []
                    task = self.launch("gradrail", [cluster.binary(), *command, *flags, *program], {"TF_CONFIG": json.dumps(config)})
                    self.assert_ends(task, cluster.USAGE, says=[words])
        task = self.launch("gradrail", [cluster.binary(), "run", "--ps", "1", "--workers", "1", "--", "true"],
                           {"TF_CONFIG": json.dumps(config)})
        self.assert_ends(task, cluster.GOOD)

    def test_sparse_clusters_need_async(self):
        config = {"cluster": {"ps": ["127.0.0.1:2222"], "worker": {"1": "127.0.0.1:2223"}},
                  "task": {"type": "worker", "index": 1}}
        self.refused(cluster.CONFIGURATION, ["--mode sync: it waits for every worker"], "--mode", "sync",
                     environment={"TF_CONFIG": json.dumps(config)})


class Addresses(cluster.ClusterTest):
    def test_port_in_use(self):
        flags = self.addresses(1)
        host, port = self.ps_addresses[0].split(":")
        with socket.create_server((host, int(port))):
            self.refused(cluster.CONFIGURATION, [rf"cannot listen on {self.ps_addresses[0]}: the port is in use", "--bind"],
                         *flags, "--job_name", "ps", "--task_index", 0)

    def test_wrong_port_ends_after_the_join_timeout(self):
        flags = ["--model", "linear", *self.addresses(1), "--job_name", "worker", "--task_index", 0]
        self.refused(cluster.RETRY, [rf"parameter server 0 \({self.ps_addresses[0]}\) did not come up in time",
                                     "is it started, and is the address right"], *flags, "--join-timeout", 2,
                     within=10 * cluster.PATIENCE)


class Agreement(cluster.ClusterTest):
    """Tests settings that all workers must share: a worker with another setting is refused, the others continue."""

    def second_worker(self, *flags, says):
        (ps,), (first,) = self.start_cluster(1, "--epochs", 100000)
        first.wait_for(r"Step: \d+")
        self.assert_ends(self.start_worker(1, *flags), cluster.CONFIGURATION, says=[*says, "parameter server 0"])
        self.assert_goes_on(first)
        ps.wait_for("not admitted", cluster.FINISH)
        self.assertEqual(len([line for line in ps.lines() if "not admitted" in line.text]), 1, ps.transcript())

    def test_another_learning_rate(self):
        self.second_worker("--learning_rate", 0.5, says=[r"options differ: learning_rate 0\.1 in the run, 0\.5 at worker 1: start all"])


class Data(cluster.ClusterTest):
    """Tests a data set that is damaged or too small."""

    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"
        self.data.mkdir()

    def test_a_batch_larger_than_the_data(self):
        digits.write(self.data)
        self.refused(cluster.CONFIGURATION, [r"batch of 5000, but .* holds only 1100 training examples"], "--data_dir",
                     self.data, "--batch_size", 5000, *self.addresses(1), "--job_name", "worker", "--task_index", 0)

    def test_a_local_cluster_ends_at_once_and_says_it_once_a_worker(self):
        digits.write(self.data)
        (self.data / "train-labels-idx1-ubyte").write_bytes(b"not labels")
        task = self.train("--data_dir", self.data)
        self.assert_ends(task, cluster.CONFIGURATION, 10 * cluster.PATIENCE, says=[r"train-labels-idx1-ubyte"])
        self.assertLessEqual(len([line for line in task.lines() if "train-labels" in line.text]), 3)


if __name__ == "__main__":
    unittest.main()
