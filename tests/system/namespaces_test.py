"""Tests four tasks on four hosts: network namespaces behind one bridge, each with its own address. It needs root."""
import os
import re
import shutil
import signal
import time
import unittest

import cluster
import four_hosts

SETTLED = 1.0  # s


class Tasks(four_hosts.FourHosts):
    def test_four_terminals(self):
        ps, workers = self.start_all("--epochs", 2, "--mode", "sync")
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD)
        for worker in workers:
            self.assertTrue(worker.has(rf"^Path: shard 0 at {four_hosts.NETWORK}\.1:2222: tcp \(shm refused: not on the same host"),
                            worker.transcript())
        self.assertTrue(ps.has(r"path tcp: \d+ bytes in"), ps.transcript())

    def test_same_numbers_as_on_one_host(self):
        _, workers = self.start_all("--epochs", 1, "--mode", "sync")
        local = self.train("--model", "linear", "--epochs", 1, "--mode", "sync")
        self.assertEqual(cluster.hash_of(workers[0]), cluster.hash_of(local))

    def test_listens_on_its_own_address_alone(self):
        ps, workers = self.start_all("--epochs", 100000)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        listeners = cluster.tcp_listeners(ps.pid)
        self.assertIn((f"{four_hosts.NETWORK}.1", 2222), listeners)
        self.assertEqual({address for address, _ in listeners}, {f"{four_hosts.NETWORK}.1"}, listeners)
        for worker in workers:
            self.assertEqual(cluster.tcp_listeners(worker.pid), [], "a worker must not listen")

    def test_shm_without_fallback_is_refused(self):
        self.train_on(0, "ps", 0)
        worker = self.train_on(1, "worker", 0, "--transport", "shm,tcp", "--no-fallback")
        self.assert_ends(worker, cluster.CONFIGURATION,
                         says=[r"transport shm refused: not on the same host", "fallback is forbidden"])

    def test_cut_cable(self):
        ps, workers = self.start_all("--epochs", 100000, "--heartbeat-timeout", 3, "--rejoin-timeout", 0)
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        four_hosts.ip("-n", self.switch, "link", "set", "port2", "down")  # the port of worker 1
        ps.wait_for(rf"worker 1 \({four_hosts.NETWORK}\.3:2222\) was lost: no heartbeat for 3 s", 15 * cluster.PATIENCE)
        self.assert_goes_on(workers[0])
        self.assert_goes_on(workers[2])
        self.assert_ends(workers[1], cluster.retry_worthy, 15 * cluster.PATIENCE,
                         says=[rf"parameter server 0 \({four_hosts.NETWORK}\.1:2222\) was lost"])

    def test_a_disconnected_worker_makes_its_last_steps(self):
        """The others had finished, so that the ps ended: the worker found no server and its steps were lost."""
        ps, workers = self.start_all("--epochs", 20, "--heartbeat-timeout", 3)
        workers[1].wait_for(r"Step: \d+")
        four_hosts.ip("-n", self.switch, "link", "set", "port2", "down")
        ps.wait_for(r"worker 1 .* was lost: no heartbeat for 3 s", 15 * cluster.PATIENCE)
        for worker in (workers[0], workers[2]):
            self.assert_ends(worker, cluster.GOOD, 60 * cluster.PATIENCE)
        self.assertTrue(ps.running(), ps.transcript())
        four_hosts.ip("-n", self.switch, "link", "set", "port2", "up")
        self.assert_ends(workers[1], cluster.GOOD, 60 * cluster.PATIENCE,
                         says=[r"all parameter servers are back|this worker has joined again"])
        # The gradient that was under way at the cut may not have arrived. It is not sent again: it could count twice.
        self.assert_ends(ps, cluster.GOOD, says=[r"global step (5999|6000), "])

    @cluster.long("cut_cable sees the loss; the descriptors of the ps are counted here alone")
    def test_a_host_that_vanishes_leaves_nothing_open(self):
        flags = ["--epochs", 100000, "--heartbeat-timeout", 3, "--rejoin-timeout", 0]
        ps, first = (self.train_on(0, "ps", 0, *flags), self.train_on(1, "worker", 0, *flags))
        first.wait_for(r"Step: \d+")

        def files():
            return len(os.listdir(f"/proc/{ps.pid}/fd"))

        time.sleep(SETTLED)
        before = files()
        for lost in (1, 2, 3):
            worker = self.train_on(2, "worker", 1, *flags)
            worker.wait_for(r"Step: \d+")
            self.assertGreater(files(), before)
            four_hosts.ip("-n", self.switch, "link", "set", "port2", "down")
            worker.signal(signal.SIGKILL)
            cluster.wait_until(lambda: ps.text().count("was lost: no heartbeat") == lost, 15 * cluster.PATIENCE, ps.transcript)
            cluster.wait_until(lambda: files() <= before, 30 * cluster.PATIENCE,
                               lambda: f"no more than {before} files open: {files()}")
            four_hosts.ip("-n", self.switch, "link", "set", "port2", "up")

    def test_unreachable_ps_is_named(self):
        worker = self.train_on(1, "worker", 0, "--join-timeout", 2, "--ps_hosts", f"{four_hosts.NETWORK}.99:2222")
        self.assert_ends(worker, cluster.RETRY, 15 * cluster.PATIENCE,
                         says=[rf"parameter server 0 \({four_hosts.NETWORK}\.99:2222\) did not come up in time"])


class ManyMembers(four_hosts.FourHosts):
    HOSTS = 2
    MEMBERS = 1200  # a ping each 6 s: silence alone is noticed after 9.5 s
    INTERVAL = 6  # s

    @cluster.long("Gate.TheKernelLooksForAVanishedHost has the options; what the kernel does is seen here alone")
    def test_a_host_that_vanishes_is_lost_before_its_next_heartbeat(self):
        workers = ",".join(f"10.78.{i // 250}.{i % 250 + 1}" for i in range(self.MEMBERS))
        address = f"{four_hosts.address_of(0)}:2222"
        ps = self.launch("ps", ["ip", "netns", "exec", self.hosts[0], cluster.binary(), "train", "--ps_hosts", address,
                                "--worker_hosts", workers, "--insecure", "--job_name", "ps", "--task_index", "0"])
        ps.wait_for("listens on")
        program = os.path.join(os.path.dirname(cluster.binary()), "..", "bench", "members")
        members = self.launch("members", ["ip", "netns", "exec", self.hosts[1], program, "--ps_hosts", address,
                                          "--workers", str(self.MEMBERS), "--seconds", "600"])
        members.wait_for(rf"{self.MEMBERS} members joined", 60 * cluster.PATIENCE)
        time.sleep(self.INTERVAL + 1)  # the first members had shorter intervals
        self.assertFalse(ps.has("was lost"), ps.transcript())
        four_hosts.ip("-n", self.switch, "link", "set", "port1", "down")
        ps.wait_for(r"was lost: .*; 0 workers remain", 12 * cluster.PATIENCE)
        # Silence is noticed first where the next ping was due soon.
        self.assertTrue(ps.has("was lost: its control connection ended"), "the kernel must find the cut")


class Backups(four_hosts.FourHosts):
    PS = (0, 1)
    WORKERS = (2, 3)

    @cluster.long("Pair refuses takeovers in one process; no other test isolates a primary that runs on")
    def test_a_primary_that_was_isolated_asks_its_backup(self):
        """It took a worker back while its backup served the other one: the steps of this worker were lost later."""
        flags = ("--epochs", 100000, "--heartbeat-timeout", 3, "--backup-ps", 1, "--log_every", 1000)
        primary, _ = [self.train_on(host, "ps", host, *flags) for host in self.PS]
        workers = [self.train_on(host, "worker", index, *flags) for index, host in enumerate(self.WORKERS)]
        for worker in workers:
            worker.wait_for(r"Step: \d+")
        primary.wait_for(r"has everything")
        four_hosts.ip("-n", self.switch, "link", "set", "port0", "down")
        workers[1].signal(signal.SIGSTOP)
        workers[0].wait_for(r"has taken over", 30 * cluster.PATIENCE)
        primary.wait_for(r"worker 1 .* was lost: no heartbeat", 15 * cluster.PATIENCE)
        primary.wait_for(r"the backup at .* was lost \(", 15 * cluster.PATIENCE)
        # The messages of the workers reach the primary before those of its backup.
        four_hosts.ip("-n", self.hosts[0], "route", "add", "blackhole", four_hosts.address_of(1))
        four_hosts.ip("-n", self.switch, "link", "set", "port0", "up")
        workers[1].signal(signal.SIGCONT)
        workers[1].wait_for(r"has taken over", 30 * cluster.PATIENCE)
        for worker in workers:
            self.assert_goes_on(worker)
        self.assertFalse(workers[1].has("has joined again"), workers[1].transcript())

    def positions(self, text):
        """Returns the steps of a worker that the lines of its log name."""
        found = re.findall(r"Epoch: +(\d+), +Batch: +(\d+) of (\d+)", text)
        return [(int(epoch) - 1) * int(batches) + int(batch) for epoch, batch, batches in found]

    def step_of(self, worker):
        """Returns the global step in the last line."""
        return int(re.findall(r"Step: (\d+)", worker.text())[-1])

    def assert_split_repeats_steps(self, slow):
        """Splits the network into two halves with a ps task and a worker each. `slow` makes few steps in its half."""
        flags = ("--epochs", 100000, "--heartbeat-timeout", 3, "--backup-ps", 1, "--log_every", 100)
        primary, backup = [self.train_on(host, "ps", host, *flags) for host in self.PS]
        workers = [self.train_on(host, "worker", index, *flags) for index, host in enumerate(self.WORKERS)]
        for worker in workers:
            worker.wait_for(r"Step: \d{4}")
        primary.wait_for(r"has everything")
        ip = four_hosts.ip
        ip("-n", self.switch, "link", "add", "bridge1", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge1", "up")
        for port in ("port1", "port3"):
            ip("-n", self.switch, "link", "set", port, "master", "bridge1")
        workers[1].wait_for(r"has taken over at step \d+, no step of this worker lost", 30 * cluster.PATIENCE)
        primary.wait_for(r"the backup at .* was lost \(", 15 * cluster.PATIENCE)
        before = [self.step_of(worker) for worker in workers]
        cluster.wait_until(lambda: self.step_of(workers[slow]) > before[slow] + 200, cluster.START, workers[slow].transcript)
        workers[slow].signal(signal.SIGSTOP)
        fast = 1 - slow
        goal = self.step_of(workers[fast]) + 3 * (self.step_of(workers[slow]) - before[slow])
        cluster.wait_until(lambda: self.step_of(workers[fast]) > goal, cluster.START, workers[fast].transcript)
        for port in ("port1", "port3"):
            ip("-n", self.switch, "link", "set", port, "master", "bridge0")
        workers[slow].signal(signal.SIGCONT)
        back = workers[0].wait_for(r"global step \d+ where it was \d+; (\d+) steps of this worker are done once more: a backup "
                                   r"had taken over without them", 40 * cluster.PATIENCE)
        repeated = int(back.group(1))
        self.assert_goes_on(workers[0])
        before, after = workers[0].text().split(back.group(0))
        # A line follows each 100 steps of a worker: the last one before the return is older, the next one is later.
        went_back = self.positions(before)[-1] - self.positions(after)[0]
        self.assertGreater(repeated, 100, workers[0].transcript())
        self.assertLess(abs(repeated - went_back), 250, workers[0].transcript())
        self.assert_ends(primary, lambda code: code != 0, 20 * cluster.PATIENCE,
                         says=[r"the updates that this task has made alone are lost"])
        for worker in workers:
            self.assert_goes_on(worker)

    @cluster.long("Pair refuses takeovers in one process; no other test has workers in both halves of a split")
    def test_async_repeats_the_steps_that_a_split_has_lost(self):
        """They were lost, and the log had 0 repeated steps."""
        self.assert_split_repeats_steps(slow=1)

    @cluster.long("Pair refuses takeovers in one process; no other test has workers in both halves of a split")
    def test_async_repeats_them_also_if_the_backup_has_more_updates(self):
        """The version of the backup was newer: the worker went on there, and was then refused for its step."""
        self.assert_split_repeats_steps(slow=0)


class Ranks(four_hosts.FourHosts):
    """Tests one rank on each host. The rendezvous finds the addresses of the hosts."""

    def ranks(self, *arguments):
        address = {"WORLD_SIZE": "3", "MASTER_ADDR": f"{four_hosts.NETWORK}.1", "MASTER_PORT": "29400"}
        return [self.launch(f"rank {rank}", ["ip", "netns", "exec", self.hosts[rank], cluster.binary(), *arguments],
                            {**address, "RANK": str(rank), "TMPDIR": str(self.folder)})
                for rank in range(3)]

    def test_ranks_of_a_launcher(self):
        tasks = self.ranks("train", "--model", "linear", "--epochs", "2", "--mode", "sync", "--ps", "2", "--insecure")
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)
        for index in range(2):
            self.assert_says(tasks[index], rf"# ps/{index} listens on {four_hosts.NETWORK}\.{index + 1}:\d+")
        self.assert_says(tasks[2], rf"Path: shard 0 at {four_hosts.NETWORK}\.1:\d+: tcp")

    def test_mpirun_on_several_hosts(self):
        """PMIx names the host of rank 0."""
        if shutil.which("mpirun") is None:
            cluster.skip("no mpirun (openmpi-bin)")
        agent = self.folder / "agent"  # in the place of ssh
        agent.write_text("#!/bin/sh\nhost=$1; shift\n"
                         f"exec ip netns exec {self.prefix}$((${{host##*.}} - 1)) unshare --uts "
                         "sh -c 'hostname $0; exec sh -c \"$*\"' $host \"$@\"\n", encoding="ascii")
        agent.chmod(0o755)
        hosts = ",".join(four_hosts.address_of(host) for host in range(4))
        task = self.launch("mpirun", ["ip", "netns", "exec", self.hosts[0], "unshare", "--uts", "sh", "-c",
                                      'hostname $0; exec "$@"', four_hosts.address_of(0),
                                      "mpirun", "-n", "4", "-H", hosts, "--mca", "plm_rsh_agent", str(agent),
                                      "--mca", "orte_keep_fqdn_hostnames", "1", cluster.binary(), "train", "--model",
                                      "linear", "--epochs", "2", "--mode", "sync", "--ps", "2", "--insecure"],
                           {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.assert_ends(task, cluster.GOOD)
        for index in range(2):
            self.assert_says(task, rf"# ps/{index} listens on {four_hosts.NETWORK}\.{index + 1}:\d+")
        self.assert_says(task, rf"Path: shard 0 at {four_hosts.NETWORK}\.1:\d+: tcp")

    def test_ranks_of_a_benchmark(self):
        tasks = self.ranks("bench", "exchange", "--ps", "2", "--rounds", "1", "--seconds", "0.05", "-b", "4K", "-e", "4K",
                           "--transport", "tcp")
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)
        self.assert_says(tasks[0], r"Out of bounds values : 0 OK")


if __name__ == "__main__":
    four_hosts.run_or_skip(unittest.main)
