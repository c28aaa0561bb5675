"""Tests `gradrail train` with launchers: mpirun of Open MPI, srun of Slurm, the variables of torchrun and ps-lite."""
import configparser
import json
import os
import pathlib
import re
import shutil
import signal
import time
import unittest

import cluster
import slurm

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
SMALL = ("--model", "linear", "--epochs", "2", "--mode", "sync")
SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "launch" / "scripts"
LONG = ("--model", "mlp", "--epochs", "1000")


class LaunchTest(cluster.ClusterTest):
    def whole(self, said, ps, workers):
        """Checks that each task has its rank, and that all workers ended with the same parameters."""
        for index in range(ps):
            self.assertRegex(said, rf"# ps/{index} of {ps}, with {workers} worker")
        for index in range(workers):
            self.assertRegex(said, rf"# worker/{index} of {workers}, with {ps} ps")
        self.assertEqual(len(re.findall(r"w = 2\.0000, b = 10\.0000", said)), workers, said)
        self.assertEqual(said.count("Parameter-Hash: "), 1, said)

    def under_mpirun(self, count, *flags, name="mpirun", options=()):
        if shutil.which("mpirun") is None:
            cluster.skip("no mpirun (openmpi-bin)")
        return self.launch(name, ["mpirun", "-n", str(count), "--oversubscribe", *options, cluster.binary(), "train", *SMALL,
                                  *flags], AS_ROOT)

    def ranks(self, count, *flags, port):
        """Starts tasks with the environment of torchrun."""
        common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [self.train(*SMALL, *flags, name=f"rank {rank}", environment={**common, "RANK": str(rank)})
                for rank in range(count)]

    def all_good(self, tasks):
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)
        return "\n".join(task.text() for task in tasks)


class Launchers(LaunchTest):
    def test_under_mpirun(self):
        task = self.under_mpirun(4, "--ps", "1")
        self.assert_ends(task, cluster.GOOD)
        self.whole(task.text(), ps=1, workers=3)
        self.assertRegex(task.text(), r"worker/2 of 3, with 1 ps: rank 3 of 4 of mpirun job \w+")

    def test_a_launcher_that_serves_pmix_alone(self):
        if shutil.which("mpirun") is None:
            cluster.skip("no mpirun (openmpi-bin)")
        task = self.launch("mpirun", ["mpirun", "-n", "4", "--oversubscribe", "env", "-u", "OMPI_COMM_WORLD_RANK",
                                      "-u", "OMPI_COMM_WORLD_SIZE", cluster.binary(), "train", *SMALL, "--ps", "1"], AS_ROOT)
        self.assert_ends(task, cluster.GOOD)
        self.whole(task.text(), ps=1, workers=3)
        self.assertRegex(task.text(), r"worker/2 of 3, with 1 ps: rank 3 of 4 of PMIx job \w+")

    def test_one_process_under_mpirun_is_a_local_cluster(self):
        task = self.under_mpirun(1, "--workers", "2")
        self.assert_ends(task, cluster.GOOD)
        self.assert_says(task, r"# worker/1: pid")

    def test_ranks_as_torchrun_gives_them(self):
        [port] = cluster.free_ports(1)
        said = self.all_good(self.ranks(5, "--ps", "2", port=port))
        self.whole(said, ps=2, workers=3)

    def test_a_stop_signal_to_all_tasks_saves_a_checkpoint(self):
        """Slurm signals all tasks before the end of the allocation. The ps tasks receive the signal first."""
        [port] = cluster.free_ports(1)
        saved = self.folder / "saved"
        flags = ("--model", "mlp", "--epochs", 1000, "--log_every", 10, "--checkpoint_dir", saved, "--save_secs", 600)
        tasks = self.ranks(3, *flags, port=port)
        tasks[1].wait_for(r"Step: [1-9]\d+", cluster.START)
        for task in tasks:
            task.signal(signal.SIGTERM)
            time.sleep(0.1)
        said = self.all_good(tasks)
        step = int(re.search(r"^Global-Step: (\d+)", said, re.M).group(1))
        listed = self.launch("ls", [cluster.binary(), "checkpoint", "ls", saved])
        self.assert_ends(listed, cluster.GOOD, says=[rf"(?m)^ *{step} "])

    def test_metrics_of_tasks_on_one_host_have_ports_of_their_own(self):
        [port] = cluster.free_ports(1)
        tasks = self.ranks(3, "--metrics_port", cluster.free_ports(4)[-1], port=port)
        self.whole(self.all_good(tasks), 1, 2)

    def test_local_ignores_what_is_left_over(self):
        for environment in ({"RANK": "1"}, {"RANK": "1", "WORLD_SIZE": "4"}, {"DMLC_ROLE": "boss"}):
            with self.subTest(environment=environment):
                task = self.train(*SMALL, "--local", "--workers", "1", environment=environment)
                self.assert_ends(task, cluster.GOOD)
                self.assert_says(task, r"# worker/0: pid")

    def test_what_does_not_fit_is_refused(self):
        two = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        for says, flags, environment in (
                (r"WORLD_SIZE is not set.*--local", (), {"RANK": "1"}),
                (r"--ps 2: torchrun has started 2 tasks", ("--ps", "2"), two),
                (r"--workers 3: torchrun .* leaves 1 workers", ("--workers", "3"), two),
                (r"name it with --rendezvous tcp://", (), {**two, "MASTER_ADDR": ""}),
                (r"DMLC_ROLE=worker is of a launcher that is not known here", (), {"DMLC_ROLE": "worker"}),
                (r"--rendezvous tcp://n1:5: neither srun", ("--rendezvous", "tcp://n1:5"), {}),
                (r"--rendezvous tcp://n1:5: --local and", ("--rendezvous", "tcp://n1:5", "--local"), two)):
            with self.subTest(says=says):
                self.refused(cluster.CONFIGURATION, [says], *SMALL, *flags, environment=environment)
        self.refused(cluster.USAGE, [r"--rendezvous tcp://n1:5: the cluster has the addresses"], *SMALL, "--rendezvous",
                     "tcp://n1:5", "--ps_hosts", "n1:1", "--worker_hosts", "n1:2", environment=two)
        self.refused(cluster.USAGE, [r"--rendezvous: tcp://:5: .*the correct form is tcp://HOST:PORT"], *SMALL,
                     "--rendezvous", "tcp://:5", environment=two)

    def test_a_timeout_names_the_missing_task(self):
        [port] = cluster.free_ports(1)
        address = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        first = self.train(*SMALL, "--join-timeout", "1", environment={**address, "RANK": "0"})
        self.assert_ends(first, cluster.retry_worthy, says=[r"worker/0, worker/1 of torchrun .* did not join within 1 s"])
        other = self.train(*SMALL, "--join-timeout", "1", environment={**address, "RANK": "2"})
        self.assert_ends(other, cluster.retry_worthy, says=[r"the first task of .* did not admit this task in time: .*Connection refused"])
        self.assertLess(len(other.lines()), 4, other.transcript())


class Backups(LaunchTest):
    """Tests --backup-ps 1 under launchers. They do not start a lost task again: the backup serves until the end."""
    flags = ("--backup-ps", "1", "--model", "mlp", "--log_every", "10", "--optimizer", "adam")

    def pid_of_rank(self, mpirun, rank):
        variable = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        [pid] = [pid for pid in cluster.children(mpirun.pid)
                 if variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
        return int(pid)

    def wait_for_replication(self, *primaries, worker):
        for primary in primaries:
            primary.wait_for("the backup at .* has everything", cluster.START)
        worker.wait_for(r"Step: [1-9]\d+", cluster.START)

    def assert_takes_over(self, worker, ps=0):
        worker.wait_for(rf"parameter server {ps} .* its backup .* has taken over at step \d+, no step of this worker lost", cluster.START)

    @cluster.long("each_of_two_ps_has_its_backup; here Open MPI goes on after the loss of a task")
    def test_a_backup_replaces_the_ps_that_is_killed_under_mpirun(self):
        undisturbed = self.under_mpirun(4, "--ps", "2", *self.flags)
        self.assert_ends(undisturbed, cluster.GOOD)
        # Without the option, Open MPI ends the job with the first task that is killed.
        job = self.under_mpirun(4, "--ps", "2", *self.flags, options=["--enable-recovery"], name="mpirun with a loss")
        self.wait_for_replication(job, worker=job)
        os.kill(self.pid_of_rank(job, 0), signal.SIGKILL)
        self.assert_takes_over(job)
        job.code()
        self.assertEqual(cluster.hash_of(job), cluster.hash_of(undisturbed), job.transcript())

    def test_each_of_two_ps_has_its_backup(self):
        [port] = cluster.free_ports(1)
        tasks = self.ranks(6, "--ps", "4", *self.flags, port=port)
        self.wait_for_replication(*tasks[:2], worker=tasks[4])
        for index in (1, 0):
            tasks[index].signal(signal.SIGKILL)
            self.assert_takes_over(tasks[4], ps=index)
        said = self.all_good(tasks[2:])
        self.assertEqual(said.count("Parameter-Hash: "), 1, said)

    def test_a_stop_signal_to_all_tasks_with_a_backup_saves_a_checkpoint(self):
        [port] = cluster.free_ports(1)
        saved = self.folder / "saved"
        tasks = self.ranks(4, "--ps", "2", *self.flags, "--epochs", 1000, "--checkpoint_dir", saved, "--save_secs", 600,
                           port=port)
        self.wait_for_replication(tasks[0], worker=tasks[2])
        for task in tasks:
            task.signal(signal.SIGTERM)
            time.sleep(0.1)
        step = int(re.search(r"^Global-Step: (\d+)", self.all_good(tasks), re.M).group(1))
        listed = self.launch("ls", [cluster.binary(), "checkpoint", "ls", saved])
        self.assert_ends(listed, cluster.GOOD, says=[rf"(?m)^ *{step} "])

    def test_a_task_without_the_flag_and_halves_that_are_none_are_refused(self):
        [port] = cluster.free_ports(1)
        address = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        first = self.train(*SMALL, "--ps", "2", "--backup-ps", "1", environment={**address, "RANK": "0"})
        self.refused(cluster.CONFIGURATION, ["--backup-ps 0 there, --backup-ps 1 here"], *SMALL, "--ps", "2",
                     environment={**address, "RANK": "2"})
        self.assert_ends(first, cluster.CONFIGURATION, says=["rank 2: --backup-ps 0 there, --backup-ps 1 here"])
        self.refused(cluster.CONFIGURATION, ["--backup-ps 1: .* even number of them; there is 1"], *SMALL, "--ps", "1",
                     "--backup-ps", "1", environment={**address, "RANK": "0"})


class Manifests(LaunchTest):
    """Tests the files of launch/scripts for service managers, without a service manager."""

    def with_program(self):
        (self.folder / "gradrail").symlink_to(cluster.binary())
        return {"PATH": f"{self.folder}:{os.environ['PATH']}"}

    def make_secret(self):
        path = self.folder / "secret"
        path.write_text("0123456789abcdef" * 4)
        path.chmod(0o400)
        return path

    def test_the_systemd_unit(self):
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str
        unit.read(SCRIPTS / "gradrail-ps@.service")
        service = unit["Service"]
        self.assertEqual(service["Restart"], "on-failure")
        self.assertIn(str(cluster.CONFIGURATION), service["RestartPreventExitStatus"].split())
        port, = cluster.free_ports(1)
        cluster_file = self.write_json({"ps": [f"127.0.0.1:{port}"], "worker": ["localhost"]})
        command = (service["ExecStart"].replace("%i", "0").replace("/etc/gradrail/cluster.json", cluster_file)
                   .replace("/var/lib/gradrail", str(self.folder / "state"))
                   .replace("${CREDENTIALS_DIRECTORY}", str(self.folder)))
        self.assertEqual(service["LoadCredential"].split(":")[0], "secret")
        secret = self.make_secret()
        (self.folder / "state").mkdir()
        ps = self.launch("ps", command.split(), self.with_program())
        worker = self.train(*SMALL, "--cluster", cluster_file, "--secret-file", secret, "--job_name", "worker",
                            "--task_index", 0)
        self.assert_ends(worker, cluster.GOOD)
        self.assert_ends(ps, cluster.GOOD)

    def test_kubernetes(self):
        try:
            import yaml
        except ImportError:
            cluster.skip("no module yaml (python3-yaml)")
        config, service, servers, workers = yaml.safe_load_all((SCRIPTS / "kubernetes.yaml").read_text())
        self.assertEqual([each["kind"] for each in (config, service, servers, workers)],
                         ["ConfigMap", "Service", "StatefulSet", "Job"])
        hosts = json.loads(config["data"]["cluster.json"])
        domain = service["metadata"]["name"]
        self.assertEqual((servers["spec"]["serviceName"], workers["spec"]["template"]["spec"]["subdomain"]), (domain,) * 2)
        for each, key, count in ((servers, "ps", servers["spec"]["replicas"]), (workers, "worker", workers["spec"]["completions"])):
            name = each["metadata"]["name"]
            self.assertEqual([host.split(":")[0] for host in hosts[key]], [f"{name}-{i}.{domain}" for i in range(count)])
            self.assertLessEqual(service["spec"]["selector"].items(), each["spec"]["template"]["metadata"]["labels"].items())
        here = [f"127.0.0.1:{port}" for port in cluster.free_ports(len(hosts["ps"]))]
        path = self.write_json({"ps": here, "worker": hosts["worker"]})
        secret = str(self.make_secret())

        def pod(kind, index):
            [container] = kind["spec"]["template"]["spec"]["containers"]
            command = [word.replace("/etc/gradrail/cluster.json", path).replace("/etc/gradrail/secret", secret)
                       for word in container["command"]]
            pod_name = f"{kind['metadata']['name']}-{index}"
            return self.launch(pod_name, command,
                               {**self.program, "HOSTNAME": pod_name, "JOB_COMPLETION_INDEX": str(index)})

        self.program = self.with_program()
        tasks = [pod(servers, i) for i in range(len(here))] + [pod(workers, i) for i in range(len(hosts["worker"]))]
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)


class UnderSlurm(LaunchTest):
    def setUp(self):
        why = slurm.why_not()
        if why:
            cluster.skip(why)
        super().setUp()
        self.slurm = slurm.Slurm(self.folder, self.launch)

    def srun(self, count, *flags, name="srun", what=SMALL):
        return self.slurm.start(name, "srun", "-n", count, "-N", min(count, 4), "--kill-on-bad-exit=1", "--chdir=/",
                                cluster.binary(), "train", *what, *flags)

    def test_slurm_one_ps_and_three_workers_on_four_nodes(self):
        job = self.srun(4, "--ps", 1)
        self.assert_ends(job, cluster.GOOD)
        self.whole(job.text(), ps=1, workers=3)
        for rank, node in enumerate(self.slurm.names[1:], 1):
            self.assertRegex(job.text(), rf"# worker/{rank - 1} of 3, with 1 ps: rank {rank} of 4 of Slurm job \d+ step 0, "
                                         rf"node {node}")

    def test_slurm_with_pmix(self):
        known = self.slurm.ask("srun", "--mpi=list")
        if "pmix" not in known.stdout + known.stderr:
            cluster.skip("this Slurm has no plug-in for PMIx")
        job = self.slurm.start("srun", "srun", "--mpi=pmix", "-n", 4, "-N", 4, "--kill-on-bad-exit=1", "--chdir=/",
                               cluster.binary(), "train", *SMALL, "--ps", 1)
        self.assert_ends(job, cluster.GOOD)
        self.whole(job.text(), ps=1, workers=3)

    def test_slurm_two_ps_and_more_tasks_than_nodes(self):
        job = self.srun(6, "--ps", 2)
        self.assert_ends(job, cluster.GOOD)
        self.whole(job.text(), ps=2, workers=4)

    def test_slurm_batch_script(self):
        said = self.folder / "batch.txt"
        job = self.slurm.start("sbatch", "sbatch", "--wait", f"--output={said}", "--chdir=/",
                               f"--export=ALL,GRADRAIL={cluster.binary()},PS=2,GRADRAIL_SECRETS={self.folder}", SCRIPTS / "gradrail.sbatch", *SMALL)
        self.assert_ends(job, cluster.GOOD)
        self.whole(said.read_text(), ps=2, workers=2)
        self.assertEqual(list(self.folder.glob(".gradrail.*")), [], "the file of the secret was not removed")

    def test_slurm_job_that_is_cancelled(self):
        job = self.srun(4, "--ps", 1, what=LONG)
        number = job.wait_for(r"of Slurm job (\d+) step").group(1)
        self.assert_goes_on(job)
        self.assertEqual(self.slurm.ask("scancel", number).returncode, 0)
        job.code(30 * cluster.PATIENCE)
        cluster.wait_until(lambda: not tasks_of(self.folder), cluster.START, lambda: f"left: {tasks_of(self.folder)}")


def tasks_of(folder):
    """Returns the processes that a slurmd of this folder has started. Their environment contains its path."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "environ").read_bytes() and b"\0train\0" in (entry / "cmdline").read_bytes():
                command = (entry / "cmdline").read_bytes().split(b"\0")[0]
                if command.endswith(b"gradrail"):
                    found.append(int(entry.name))
        except OSError:  # the process has ended
            continue
    return found


if __name__ == "__main__":
    unittest.main()
