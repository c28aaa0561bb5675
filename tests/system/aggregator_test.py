"""Tests --aggregators: equal bits with and without them, less traffic into the ps, and lost aggregators."""
import re
import signal
import unittest

import cluster
import digits

WORKERS = 4
FLAT = ("--sum_group", 2)


class AggregatorRuns(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.data = digits.write(self.folder)

    def aggregator(self, *flags, name="aggregator"):
        task = self.launch(name, [cluster.binary(), "aggregator", "--bind", "127.0.0.1:0", *map(str, flags)])
        return task, task.wait_for(r"aggregator listens on (\S+)").group(1)

    def two(self, *flags):
        started = [self.aggregator(*flags, name=f"aggregator/{i}") for i in range(2)]
        return [task for task, _ in started], ["--aggregators", ",".join(address for _, address in started)]

    def start_run(self, *flags, epochs=2, ps=1):
        return self.start_cluster(WORKERS, "--mode", "sync", "--data_dir", self.data, "--epochs", epochs, "--shards", 2,
                                  "--transport", "tcp", "--log_every", 1, *flags, ps=ps, model="mlp")

    def stop(self, workers, server):
        """SIGTERM to the workers. All tasks end well."""
        for worker in workers:
            worker.signal(signal.SIGTERM)
        for worker in workers:
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(server, cluster.GOOD)

    def whole_run(self, *flags, **options):
        """Runs to the end. Returns the hash of the parameters and the bytes that the ps has received by path."""
        servers, workers = self.start_run(*flags, **options)
        for worker in workers:
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(servers[0], cluster.GOOD)
        paths = dict(re.findall(r"^path (tcp.*?): (\d+) bytes in", servers[0].text(), re.M))
        self.servers, self.workers = servers, workers
        return cluster.hash_of(workers[0]), {path: int(count) for path, count in paths.items()}

    def test_a_tree_ends_in_the_bits_of_a_flat_run_with_fewer_bytes(self):
        expected, flat = self.whole_run(*FLAT)
        _, flags = self.two()
        found, tree = self.whole_run(*flags)
        self.assertEqual(found, expected)
        self.assertEqual(list(tree), ["tcp from aggregator"])
        fan_in = flat["tcp"] / tree["tcp from aggregator"]
        self.assertAlmostEqual(fan_in, 2, delta=0.2)
        self.assert_says(self.workers[0], r"^Path: shard 0 at \S+: tcp through aggregator 127\.0\.0\.1:\d+")
        self.assertNotEqual(self.whole_run()[0], "")

    def test_packed_gradients_and_parameters_go_both_ways(self):
        for flags, factor in ((("--push", "bf16", "--return", "bf16"), 2), (("--push", "int8", "--return", "delta"), 1)):
            with self.subTest(flags=flags):
                expected, flat = self.whole_run(*FLAT, *flags)
                aggregators, through = self.two()
                found, tree = self.whole_run(*through, *flags)
                self.assertEqual(found, expected)
                self.assertEqual(list(tree), ["tcp from aggregator"])
                self.assertAlmostEqual(flat["tcp"] / tree["tcp from aggregator"], factor, delta=0.2)
                aggregators[0].signal(signal.SIGKILL)

    def test_a_worker_may_have_several_streams_to_its_aggregator(self):
        expected, _ = self.whole_run(*FLAT)
        _, flags = self.two()
        found, tree = self.whole_run(*flags, "--streams", 2)
        self.assertEqual(found, expected)
        self.assertEqual(list(tree), ["tcp from aggregator"])
        self.assert_says(self.workers[0], r"^Path: shard 0 at \S+: tcp.* 2 streams.* through aggregator")

    def test_the_cluster_description_has_the_aggregators(self):
        expected, _ = self.whole_run(*FLAT)
        ports = cluster.free_ports(3)
        jobs = {"ps": [f"127.0.0.1:{ports[0]}"], "worker": [f"localhost:{3000 + i}" for i in range(WORKERS)],
                "aggregator": [f"127.0.0.1:{port}" for port in ports[1:]]}
        file = self.write_json(jobs)
        for index in range(2):
            task = self.launch(f"aggregator/{index}", [cluster.binary(), "aggregator", "--cluster", file, "--task_index",
                                                       str(index)])
            task.wait_for(f"aggregator listens on {jobs['aggregator'][index]}")
        found = {}
        for mode in ("sync", "async"):
            common = ["--cluster", file, "--model", "mlp", "--mode", mode, "--data_dir", self.data, "--epochs", 2,
                      "--transport", "tcp", "--log_every", 1]
            tasks = [("ps", 0), *(("worker", i) for i in range(WORKERS))]
            ps, *workers = [self.train(*common, "--job_name", job, "--task_index", index, "--shards", 2, name=f"{job}/{index}")
                            for job, index in tasks]
            for task in (*workers, ps):
                self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)
            found[mode] = workers
        for i, address in ((0, jobs["aggregator"][0]), (3, jobs["aggregator"][1])):
            self.assert_says(found["sync"][i], rf"^Path: shard 0 at \S+: tcp through aggregator {address}")
        self.assertEqual(cluster.hash_of(found["sync"][0]), expected)
        self.assertFalse(found["async"][0].has("through aggregator"), found["async"][0].transcript())

    def test_an_aggregator_without_an_address(self):
        file = self.write_json({"ps": ["a"], "worker": ["b"], "aggregator": ["127.0.0.1:2300"]})
        either = "give either --bind HOST:PORT, or --cluster FILE and --task_index INDEX"
        for flags, words, code in (
                ([], either, cluster.USAGE), (["--bind", "127.0.0.1:0", "--cluster", file], either, cluster.USAGE),
                (["--bind", "127.0.0.1"], "--bind: 127.0.0.1 has no port", cluster.USAGE),
                (["--bind", "*:2300"], r"0\.0\.0\.0 and \[::\] stand for all addresses of a host", cluster.USAGE),
                (["--bind", "127.0.0.1:0", "--encrypt-data"], "--encrypt-data: needs --secret-file FILE or TLS", cluster.USAGE),
                (["--bind", "[::1]"], r"--bind: \[::1\] has no port: .* such as \[::1\]:2300", cluster.USAGE),
                (["--bind", "127.0.0.1:0", "--task_index", 0], "--task_index 0: has no effect with --bind", cluster.USAGE),
                (["--cluster", file], "--task_index is missing", cluster.USAGE),
                (["--cluster", file, "--task_index", 1], r"--task_index 1: .*cluster\.json has 1 task of job 'aggregator'",
                 cluster.CONFIGURATION)):
            with self.subTest(flags=flags):
                task = self.launch("aggregator", [cluster.binary(), "aggregator", *map(str, flags)])
                self.assert_ends(task, code, says=[words])

    def kill_an_aggregator(self, *flags):
        """Another aggregator takes the workers of a killed one, and the run ends in the bits of a flat run."""
        expected, _ = self.whole_run(*FLAT, epochs=4)
        aggregators, two = self.two()
        servers, workers = self.start_run(*two, *flags, epochs=4)
        workers[0].wait_for(r"Step: 10\b")
        aggregators[0].signal(signal.SIGKILL)
        for worker in workers:
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(servers[0], cluster.GOOD)
        self.assert_says(workers[0], r"through aggregator \S+ was lost .*; continues over tcp .* through aggregator")
        self.assertEqual(cluster.hash_of(workers[0]), expected)

    def test_a_killed_aggregator_moves_its_workers(self):
        self.kill_an_aggregator("--failback_secs", 0)

    def test_without_fallback_another_aggregator_replaces_a_killed_one(self):
        self.kill_an_aggregator("--no-fallback")

    def stop_and_continue(self, transport, *flags, epochs):
        """SIGSTOP to the aggregator of workers 0 and 1, and SIGCONT when they have left it."""
        aggregators, two = self.two("--transport", transport)
        servers, workers = self.start_run(*two, *flags, epochs=epochs)
        workers[0].wait_for(r"Step: 10\b")
        aggregators[0].signal(signal.SIGSTOP)
        for worker in workers[:2]:
            lost = worker.wait_for(r"through aggregator (\S+) was lost \(it has not answered for \d+\.\d s\); continues over "
                                   rf"{transport} .* through aggregator (\S+)", 15 * cluster.PATIENCE)
            self.assertNotEqual(lost[1], lost[2])
        aggregators[0].signal(signal.SIGCONT)
        return lost[1], servers[0], workers

    def stopped_aggregator(self, transport):
        flags = ("--transport", transport, "--path_timeout", 4)
        expected, _ = self.whole_run(*FLAT, *flags, epochs=40)
        _, server, workers = self.stop_and_continue(transport, *flags, "--failback_secs", 0, epochs=40)
        for worker in workers:
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(server, cluster.GOOD)
        self.assertEqual(cluster.hash_of(workers[0]), expected)
        self.assertFalse(server.has("was lost"), server.transcript())

    @cluster.long("All/Aggregators.ALostAggregatorMovesItsWorkers; a_killed_aggregator_moves_its_workers")
    def test_a_stopped_aggregator_moves_its_workers_over_tcp(self):
        self.stopped_aggregator("tcp")

    @cluster.long("All/Aggregators.ALostAggregatorMovesItsWorkers; a_killed_aggregator_moves_its_workers")
    def test_a_stopped_aggregator_moves_its_workers_over_shm(self):
        self.stopped_aggregator("shm")

    @cluster.long("All/Aggregators.ALostAggregatorMovesItsWorkers; a_killed_aggregator_moves_its_workers")
    def test_workers_return_to_an_aggregator_that_continues(self):
        address, server, workers = self.stop_and_continue("shm", "--transport", "shm", "--path_timeout", 4, "--failback_secs",
                                                          0.5, epochs=3000)
        for worker in workers[:2]:
            worker.wait_for(rf"back on shm .* through aggregator {address}")
        self.assert_goes_on(workers[0])
        self.stop(workers, server)

    @cluster.long("GroupOfThree in one process")
    def test_workers_that_wait_for_each_other_keep_their_aggregator(self):
        """A worker that computes for longer than --path_timeout is no fault of the aggregator."""
        _, flags = self.two()
        servers, workers = self.start_run(*flags, "--path_timeout", 1, "--heartbeat-timeout", 60, epochs=3)
        workers[0].wait_for(r"Step: 5\b")
        workers[1].signal(signal.SIGSTOP)
        workers[0].wait_for(r"waiting for .*worker 1", 30 * cluster.PATIENCE)
        workers[1].signal(signal.SIGCONT)
        for worker in workers:
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
            self.assertFalse(worker.has("was lost"), worker.transcript())
        self.assert_ends(servers[0], cluster.GOOD)

    @cluster.long("All/Aggregators.ALostAggregatorMovesItsWorkers; a_killed_aggregator_moves_its_workers")
    def test_a_ps_that_ends_is_not_tried_without_a_pause(self):
        _, flags = self.two("--transport", "shm,tcp")
        servers, workers = self.start_run(*flags, "--transport", "shm,tcp", "--rejoin-timeout", 4, epochs=300)
        workers[0].wait_for(r"Step: 10\b")
        servers[0].signal(signal.SIGTERM)
        servers[0].code(2 * cluster.FINISH)
        for worker in workers:
            worker.code(2 * cluster.FINISH)
            moves = [line.time for line in worker.lines() if re.search(r"was lost \(.*; continues over", line.text)]
            for first, third in zip(moves, moves[2:]):
                self.assertGreater(third - first, 1, worker.transcript())

    def test_a_run_without_its_aggregators_says_so_once(self):
        first, address = self.aggregator()
        first.end()
        servers, workers = self.start_run("--aggregators", address, "--sum_group", 4, "--failback_secs", 0.2, epochs=3000)
        around = rf"gradients go around the aggregators.*tries them again every 0.2 s.*{address} refused: \S+"
        for worker in workers:
            worker.wait_for(around)
        self.aggregator("--bind", address, name="aggregator again")
        for worker in workers:
            worker.wait_for("all gradients pass through aggregators again")
        self.stop(workers, servers[0])
        for worker in workers:
            self.assertEqual(len(re.findall("gradients go around", worker.text())), 1, worker.transcript())
            self.assert_says(worker, r"^Moves: \d+ paths were lost and replaced, [1-9]\d* times back to a better one")

    def test_an_aggregator_that_cannot_reach_the_ps_takes_no_worker(self):
        aggregator, address = self.aggregator("--transport", "shm")
        common = [*self.addresses(WORKERS, 1), "--model", "mlp", "--mode", "sync", "--data_dir", self.data, "--epochs", 20,
                  "--log_every", 1, "--aggregators", address, "--sum_group", 4, "--failback_secs", 0.3]
        jobs = [("ps", 0, "tcp"), *(("worker", i, "shm,tcp") for i in range(WORKERS))]
        ps, *workers = [self.train(*common, "--job_name", job, "--task_index", index, "--transport", transport,
                                   name=f"{job}/{index}") for job, index, transport in jobs]
        for task in (*workers, ps):
            self.assert_ends(task, cluster.GOOD, 2 * cluster.FINISH)
        for worker in workers:
            self.assert_says(worker, "gradients go around the aggregators",
                             rf"^Path: shard 0 at \S+: tcp .*\(aggregator {address} refused: it does not reach parameter server 0")
            self.assertFalse(worker.has("pass through aggregators again|was lost"), worker.transcript())
        # One of the lines in 10 s: the others would be alike.
        self.assertTrue(aggregator.has(r"worker \d was not attached: it does not reach parameter server 0"), aggregator.transcript())

    def test_a_joining_worker_is_no_warning_at_the_ps(self):
        aggregators, flags = self.two()
        servers, workers = self.start_run(*flags, epochs=300)
        workers[3].wait_for(r"Step: 5\b")
        workers[3].signal(signal.SIGTERM)
        workers[3].code()
        again = self.start_worker(3)
        again.wait_for(r"Step: \d+")
        for worker in (*workers[:3], again):
            worker.signal(signal.SIGTERM)
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(servers[0], cluster.GOOD)
        self.assertFalse(servers[0].has("lost .* to an aggregator"), servers[0].transcript())
        self.assertFalse(any(task.has(" W ") for task in aggregators), aggregators[0].transcript())
        self.assert_says(aggregators[0], r"^workers 0 to 1 at shard 0 of parameter server 0 \(\S+\): started$",
                         r"^workers 0 to 1 at shard 0 of \S.*: 2 of them over tcp \S+ > \S+")
        for task in aggregators:
            for shard in range(2):
                task.wait_for(rf"^workers \d to \d at shard {shard} of \S.*: 0 of them; the session ends after a minute")

    def test_an_address_of_another_kind_of_process_is_named(self):
        _, flags = self.two()
        servers, workers = self.start_run("--aggregators", "127.0.0.1:1", "--no-fallback", "--sum_group", 4)
        self.assert_ends(workers[0], cluster.CONFIGURATION,
                         says=[r"transport tcp through aggregator 127\.0\.0\.1:1 refused: .*refused.*fallback is forbidden"])
        for task in (*servers, *workers):
            task.end()
        aggregator = flags[1].split(",")[0]
        self.refused(cluster.CONFIGURATION, [rf"{aggregator}\): this is an aggregator, not a parameter server"], "--ps_hosts",
                     aggregator, "--worker_hosts", "127.0.0.1:1", "--job_name", "worker", "--task_index", 0, "--model", "linear")
        watch = self.launch("top", [cluster.binary(), "top", "--once", "--ps_hosts", aggregator])
        watch.wait_for("this is an aggregator, not a parameter server")
        common = self.addresses(1)
        self.train(*common, "--model", "linear", "--mode", "sync", "--job_name", "ps", "--task_index", 0)
        worker = self.train(*common, "--model", "linear", "--mode", "sync", "--aggregators", self.ps_addresses[0],
                            "--job_name", "worker", "--task_index", 0)
        worker.wait_for(rf"aggregator {self.ps_addresses[0]} refused: this is a parameter server, not an aggregator")

    def test_without_aggregators_the_workers_use_the_ps(self):
        expected, _ = self.whole_run(*FLAT)
        aggregators, flags = self.two()
        servers, workers = self.start_run(*flags, epochs=2)
        workers[0].wait_for(r"Step: 5\b")
        for task in aggregators:
            task.signal(signal.SIGKILL)
        for worker in workers:
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(servers[0], cluster.GOOD)
        self.assertEqual(cluster.hash_of(workers[0]), expected)

    def test_a_lost_worker_does_not_stop_its_group(self):
        _, flags = self.two()
        servers, workers = self.start_run(*flags, "--heartbeat-timeout", 2, epochs=4)
        workers[0].wait_for(r"Step: 5\b")
        workers[1].signal(signal.SIGKILL)
        for worker in (workers[0], *workers[2:]):
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(servers[0], cluster.GOOD)

    def test_a_ps_that_starts_again_has_a_session_of_its_own(self):
        aggregator, address = self.aggregator()
        servers, workers = self.start_run("--aggregators", address, "--sum_group", WORKERS, "--rejoin-timeout", 60,
                                          "--checkpoint_dir", self.folder / "saved", "--save_steps", 5, epochs=3000)
        workers[0].wait_for(r"Step: 10\b")
        servers[0].signal(signal.SIGKILL)
        servers[0].code()
        again = self.train(*self.common_flags, "--job_name", "ps", "--task_index", 0, name="ps again")
        session = r"^workers 0 to 3 at shard 0 of parameter server 0 \(\S+\): started"
        aggregator.wait_for(session + " for another process or run of this server; the former session ends without workers$")
        self.assert_says(aggregator, session + "$")
        self.assert_goes_on(workers[0])
        self.stop(workers, again)

    def test_a_spare_aggregator_is_named_and_a_stopped_one_reports_its_bytes(self):
        started = [self.aggregator(name=f"aggregator/{i}") for i in range(3)]
        self.whole_run("--aggregators", ",".join(address for _, address in started))
        spare = rf"spare aggregator .*: {started[2][1]} \(4 workers, groups of 2\)"
        self.assert_says(self.workers[0], spare)
        self.assertFalse(self.workers[1].has("spare aggregator"), self.workers[1].transcript())
        for (task, _), sessions in ((started[0], 2), (started[2], 0)):
            task.signal(signal.SIGTERM)
            self.assert_ends(task, cluster.GOOD)
            self.assert_says(task, rf"^stopped on request, with {sessions} sessions and 0 attached workers ")
            self.assertEqual(task.has(r"^path tcp: [1-9]\d* bytes in, [1-9]\d* bytes out$"), sessions > 0, task.transcript())

    def test_workers_return_to_an_aggregator_that_has_started_again(self):
        (port,) = cluster.free_ports(1)
        command = ["--bind", f"127.0.0.1:{port}"]
        first, _ = self.aggregator(*command)
        servers, workers = self.start_run("--aggregators", f"127.0.0.1:{port}", "--sum_group", 4, "--failback_secs", 0.2,
                                          epochs=300)
        workers[0].wait_for(r"Step: 10\b")
        first.signal(signal.SIGKILL)
        first.code()
        workers[0].wait_for(r"through aggregator \S+ was lost .*; continues over tcp")
        self.aggregator(*command, name="aggregator again")
        for worker in workers:
            worker.wait_for(r"back on tcp .* through aggregator")
        self.assert_goes_on(workers[0])
        self.stop(workers, servers[0])

    def test_a_backup_takes_over_behind_aggregators(self):
        expected, _ = self.whole_run(*FLAT, epochs=6)
        _, flags = self.two()
        (ps, backup), workers = self.start_run(*flags, "--backup-ps", 1, epochs=6, ps=2)
        ps.wait_for("the backup at .* has everything")
        workers[0].wait_for(r"Step: 12\b")
        ps.signal(signal.SIGKILL)
        for worker in workers:
            self.assert_ends(worker, cluster.GOOD, 2 * cluster.FINISH)
        self.assert_ends(backup, cluster.GOOD)
        self.assertEqual(cluster.hash_of(workers[0]), expected)
        self.assert_says(workers[0], r"^Path: shard 0 at \S+: tcp through aggregator")

    def test_a_secret_is_required_on_all_ways(self):
        expected, _ = self.whole_run(*FLAT)
        secret = ("--secret-file", self.secret_file())
        _, flags = self.two(*secret, "--encrypt-data")
        found, tree = self.whole_run(*flags, *secret, "--encrypt-data")
        self.assertEqual(found, expected)
        self.assertTrue(all("from aggregator" in path for path in tree), tree)
        self.assertFalse(self.servers[0].has("not from a peer"), self.servers[0].transcript())
        # An aggregator with another secret gets no connection: the workers use the ps.
        other = self.folder / "other"
        other.write_text("fedcba9876543210" * 4)
        other.chmod(0o600)
        _, flags = self.two("--secret-file", other)
        found, flat = self.whole_run(*flags, *secret)
        self.assertEqual(found, expected)
        self.assertTrue(all("from aggregator" not in path for path in flat), flat)
        self.assert_says(self.workers[0], "aggregator .* refused: .*secret")

    def test_flags_that_do_not_fit_are_refused(self):
        aggregators = ("--aggregators", "127.0.0.1:1")
        self.refused(cluster.USAGE, ["--aggregators needs --mode sync, not async"], *aggregators)
        self.refused(cluster.USAGE, ["--sum_group needs --ps_device host, not gpu:0"], "--sum_group", 2, "--mode",
                     "sync", "--ps_device", "gpu:0")
        self.refused(cluster.USAGE, ["a group has at most 64 workers"], *aggregators, "--mode", "sync", "--workers", 65)
        self.refused(cluster.USAGE, ["--aggregators --ps 0"], *aggregators, "--ps", 0)
        self.refused(cluster.USAGE, ["no process listens at port 0"], "--aggregators", "127.0.0.1:0", "--mode", "sync")
        self.refused(cluster.USAGE, ["127.0.0.1:1 is in the list twice"], "--aggregators", "127.0.0.1:1,127.0.0.1:1",
                     "--mode", "sync")
        self.refused(cluster.USAGE, ["127.0.0.1 has no port"], "--aggregators", "127.0.0.1:1,127.0.0.1", "--mode", "sync")
        self.refused(cluster.USAGE, ["--aggregators: 2 aggregators for 1 worker: "], "--aggregators", "127.0.0.1:1,127.0.0.1:2",
                     "--mode", "sync", "--workers", 1)
        words = ["aggregator no-such-host.invalid:1: its host name does not resolve on this host: cannot find host .*; "
                 "correct the address, or enter the name in DNS or /etc/hosts\n"]
        self.refused(cluster.CONFIGURATION, words, "--aggregators", "no-such-host.invalid:1", "--mode", "sync", "--model", "linear")

    def test_mistakes_of_the_cluster_description_name_its_job(self):
        file = self.write_json({"ps": ["a"], "worker": ["b", "c"], "aggregator": ["d:1", "e:1", "f:1"]})
        job = "job 'aggregator' of the cluster description"
        for more, words in (((), ": 3 aggregators for 2 workers: "), (("--ps_device", "gpu:0"), " needs --ps_device host")):
            worker = self.train("--cluster", file, "--job_name", "worker", "--task_index", 0, "--mode", "sync", *more)
            self.assert_ends(worker, cluster.USAGE, says=[job + words])

    def test_an_address_that_others_can_reach_needs_a_secret(self):
        task = self.launch("aggregator", [cluster.binary(), "aggregator", "--bind", "0.0.0.0:0"])
        self.assert_ends(task, cluster.CONFIGURATION, says=["--secret-file"])
        task = self.launch("aggregator", [cluster.binary(), "aggregator", "--bind", "0.0.0.0:0", "--insecure"])
        self.assert_ends(task, cluster.CONFIGURATION, says=["name one of this host that they can reach"])


if __name__ == "__main__":
    unittest.main()
