"""Tests runs with etcd: no list of hosts, workers that join and leave, a ps with a new address, failures of etcd."""
import signal
import time
import unittest

import cluster
import digits
import etcd

NOTICED = 5 * cluster.PATIENCE + 3
EXPIRED = 2 * etcd.LEASE + 5 * cluster.PATIENCE


class Small(etcd.EtcdTest):
    flags = ("--model", "linear", "--epochs", "2", "--mode", "sync", "--join-timeout", "60")

    def test_a_cluster_without_a_list(self):
        tasks = self.start_all(ps=2, workers=3)
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)
        for task in tasks[2:]:
            self.assert_says(task, r"w = 2\.0000, b = 10\.0000")
        self.assertEqual(sum(task.has("Parameter-Hash: ") for task in tasks), 1)
        self.assertEqual(self.etcd.registered(), {}, "an ended task has left its key")

    def test_jobs_do_not_see_each_other(self):
        for task in [task for job in ("one", "one.more") for task in self.start_all(url=self.etcd.url(job))]:
            self.assert_ends(task, cluster.GOOD)

    def test_bind_names_the_address_of_a_ps(self):
        port, = cluster.free_ports(1)
        self.task("ps/0", "--bind", f"127.0.0.3:{port}")
        self.wait_for_registered("ps/0")
        self.assertEqual(self.etcd.registered()["ps/0"], f"127.0.0.3:{port}")
        for worker in [self.task(f"worker/{i}") for i in range(2)]:
            self.assert_ends(worker, cluster.GOOD)

    def test_with_the_secret_of_the_job(self):
        for name in ("ours", "theirs"):
            (self.folder / name).write_text(name * 10)
            (self.folder / name).chmod(0o600)
        tasks = [self.task("ps/0", "--secret-file", self.folder / "ours")]
        # This task starts before the workers: the run may end before a later task connects.
        foreign = self.task("worker/7", "--secret-file", self.folder / "theirs")
        self.assert_ends(foreign, lambda code: code != 0, says=["secret"])
        tasks += [self.task(f"worker/{i}", "--secret-file", self.folder / "ours") for i in range(2)]
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)


class Encrypted(etcd.EtcdTest):
    flags = ("--model", "linear", "--epochs", "2", "--join-timeout", "5")

    def setUp(self):
        cluster.ClusterTest.setUp(self)
        self.certificates = etcd.certified(self.folder)
        files = self.certificates
        self.etcd = etcd.Etcd(self.folder, ["--cert-file", files["ETCDCTL_CERT"], "--key-file", files["ETCDCTL_KEY"],
                                            "--client-cert-auth", "--trusted-ca-file", files["ETCDCTL_CACERT"]])
        self.addCleanup(self.etcd.kill)
        self.url = f"etcds://127.0.0.1:{self.etcd.port}/job"

    def test_with_certificates_of_both_sides(self):
        for task in self.start_all("--join-timeout", "60", url=self.url, environment=self.certificates):
            self.assert_ends(task, cluster.GOOD)

    @cluster.long("EtcdClientTest.AWrongFileIsNamedByItsVariable; its etcd in one process has no TLS")
    def test_without_them(self):
        foreign = etcd.certified(self.folder / "others")
        mixed = {**self.certificates, "ETCDCTL_CACERT": foreign["ETCDCTL_CACERT"]}
        self.assert_ends(self.task("ps/0", url=self.url, environment=mixed), cluster.CONFIGURATION,
                         says=["certificate.*ETCDCTL_CACERT"])
        for environment in ({"ETCDCTL_CACERT": mixed["ETCDCTL_CACERT"] + ".not"},
                            {"ETCDCTL_CACERT": self.certificates["ETCDCTL_CACERT"]}):
            with self.subTest(environment=environment):
                self.assert_ends(self.task("ps/0", url=self.url, environment=environment), lambda code: code != 0,
                                 says=[rf"etcd at https://127.0.0.1:{self.etcd.port}: .*\S"])
        self.assert_ends(self.task("ps/0", url=self.etcd.url()), lambda code: code != 0,
                         says=["etcd at http://.*does it require TLS"])


class Refusals(etcd.EtcdTest):
    flags = ("--model", "linear", "--epochs", "2", "--join-timeout", "3")

    def refuses(self, code, says, place, *flags, **options):
        task = self.task(place, *flags, **options)
        self.assert_ends(task, code, says=says)
        return task

    def test_flags_that_do_not_fit(self):
        for says, task in (
                (["--job_name 'chief': each task is a ps or a worker"], ["chief/0"]),
                (["--task_index 1: --rendezvous needs the index of this task in its job, 0 to 0"], ["ps/1"]),
                (["--mode quorum:3: "], ["worker/0", "--mode", "quorum:3"])):
            with self.subTest(task=task):
                self.refuses(cluster.CONFIGURATION, says, *task)
        self.refuses(cluster.CONFIGURATION, ["give each task --ps and --workers"], "ps/0", ps=0)
        for missing in (["--task_index", "0", "--ps", "1"], ["--task_index", "0", "--workers", "1"],
                        ["--ps", "1", "--workers", "1"]):
            with self.subTest(missing=missing):
                self.refused(cluster.CONFIGURATION, ["--rendezvous"], "--rendezvous", self.etcd.url(), "--job_name", "ps",
                             *missing)
        for says, flags in ((["leave out --cluster, --ps_hosts"], ["--ps_hosts", "a:1"]), (["--bind: ''?x y"], ["--bind", "x y"])):
            with self.subTest(flags=flags):
                self.refuses(cluster.USAGE, says, "ps/0", *flags)
        for url in ("etcd://", "etcd:///job", "etcd://h", "etcd://h/", "h:2379/job", "etcd://h:x/job", "etcd://h/a b",
                    "etcd://,/job", "zk://h/job"):
            with self.subTest(url=url):
                self.refuses(cluster.USAGE, ["right is etcd://HOST:2379/JOB"], "ps/0", url=url)

    @cluster.long("RegistrationTest.TheErrorNamesTheTaskThatHoldsTheKey; three leases of a real etcd last 15 s")
    def test_a_place_that_is_taken(self):
        self.task("ps/0")
        self.wait_for_registered("ps/0")
        twice = self.task("ps/0", "--join-timeout", "60", name="twice")
        held = "another task holds the key /gradrail/job/ps/0 of this task, at 127"
        self.assert_ends(twice, cluster.CONFIGURATION, 3 * etcd.LEASE + cluster.START,
                         says=[f"waiting for {held}", f"gradrail: {held}.*started twice"])

    def test_a_ps_that_does_not_come(self):
        self.refuses(cluster.retry_worthy, [r"parameter server 0 .its address is not known yet. did not come up in time .*: "
                                            r"ps/0 is not registered at etcd://127"], "worker/0")
        self.assertEqual(self.etcd.registered(), {})

    def test_etcd_that_comes_late(self):
        self.etcd.kill()
        ps = self.task("ps/0", "--join-timeout", "60")
        ps.wait_for("# waiting for etcd at")
        self.etcd.start()
        self.wait_for_registered("ps/0")

    def test_what_is_no_etcd(self):
        impostor = etcd.Impostor()
        self.addCleanup(impostor.close)
        for words in (etcd.http(200, b"<html>welcome</html>"), etcd.http(404, b"404 page not found"), etcd.http(503, b""),
                      etcd.http(500, b"\0\xff\x1b[2J"), etcd.http(200, b"x" * (5 << 20))):
            with self.subTest(words=words[:60]):
                impostor.say(words)
                task = self.refuses(cluster.CONFIGURATION, [rf"etcd at http://{impostor.url[7:-4]}: the server is not etcd"],
                                    "ps/0", url=impostor.url)
                self.assertNotIn(b"\x1b", task.raw())

    @cluster.long("what_is_no_etcd and EtcdClientTest have servers that speak HTTP")
    def test_what_does_not_even_speak_http(self):
        impostor = etcd.Impostor()
        self.addCleanup(impostor.close)
        for words in (b"SSH-2.0-OpenSSH_9.2\r\n", b"", b"\0" * 1000, b"\x1b[2J" * 100, etcd.HTTP2 + b"\xff" * 1000):
            with self.subTest(words=words[:10]):
                impostor.say(words)
                task = self.refuses(cluster.retry_worthy, [rf"etcd at http://{impostor.url[7:-4]}: \S"], "ps/0",
                                    url=impostor.url)
                self.assertNotIn(b"\x1b", task.raw())

    def test_unknown_keys_are_ignored(self):
        for key in ("ps/x", "boss/1", "ps/99999999999999999999", "", "ps/1/2"):
            self.etcd.put(key, "what is this")
        self.etcd.put("ps/0", "not an address")
        self.refuses(cluster.retry_worthy, ["ps/0 is not registered at .* with its port"], "worker/0")
        self.etcd.remove("ps/0")
        for task in self.start_all("--join-timeout", "60"):
            self.assert_ends(task, cluster.GOOD)


class Running(etcd.EtcdTest):
    """Tests faults and changes during long runs."""
    flags = ()

    def setUp(self):
        super().setUp()
        (self.folder / "data").mkdir()
        self.flags = ("--model", "mlp", "--data_dir", digits.write(self.folder / "data"), "--epochs", "100000")

    def start(self, *flags, ps=1):
        tasks = self.start_all(*flags, ps=ps)
        for worker in tasks[ps:]:
            worker.wait_for(r"Step: \d+")
        return tasks[:ps], tasks[ps:]

    def stop(self, workers, servers=()):
        for worker in workers:
            worker.signal(signal.SIGTERM)
        for task in (*workers, *servers):
            self.assert_ends(task, cluster.GOOD)

    @cluster.long("ClientRejoin.AServerThatComesBackElsewhereIsFound and RegistrationTest; here with a killed ps and its lease")
    def test_a_ps_that_moves(self):
        for ps in (1, 2):
            with self.subTest(ps=ps):
                flags = ("--mode", "sync", "--checkpoint_dir", self.folder / f"saved {ps}", "--save_steps", 50)
                servers, workers = self.start(*flags, ps=ps)
                cluster.wait_until(lambda: list((self.folder / f"saved {ps}").glob("*.ckpt")), cluster.START,
                                   lambda: "no checkpoint")
                before = self.etcd.registered()[f"ps/{ps - 1}"]
                servers[-1].signal(signal.SIGKILL)
                servers[-1].code()
                servers[-1] = self.task(f"ps/{ps - 1}", *flags, "--bind", "127.0.0.2", ps=ps, name="moved")
                for worker in workers:
                    worker.wait_for(rf"parameter server {ps - 1} \({before}\) was lost: .*; waiting up to 60 s", NOTICED)
                    worker.wait_for(r"all parameter servers are back: global step \d+", EXPIRED + cluster.START)
                    self.assert_goes_on(worker)
                self.assertRegex(self.etcd.registered()[f"ps/{ps - 1}"], r"^127\.0\.0\.2:\d+$")
                self.stop(workers, servers)
                self.assert_says(workers[0], r"Path: shard \d at 127\.0\.0\.2:", r"Rejoined: 1 times")

    @cluster.long("RegistrationTest.ALeaseThatHasEndedIsReplaced; only here a real etcd restarts, with and without its data")
    def test_etcd_goes_away_and_comes_back(self):
        (ps,), workers = self.start("--mode", "sync")
        was = self.etcd.registered()
        for fresh in (False, True):
            with self.subTest(fresh=fresh):
                self.etcd.kill()
                lines = len(ps.lines())
                ps.wait_for(r"etcd at .*the run continues", NOTICED, after=lines)
                time.sleep(etcd.LEASE + 2)  # longer than any lease
                for worker in workers:
                    self.assert_goes_on(worker)
                self.etcd.start(fresh)
                ps.wait_for(r"this task is registered again in etcd, as /gradrail/job/ps/0", EXPIRED, after=lines)
                self.assertEqual(self.etcd.registered(), was, "the ps has its former entry")
                self.assertLess(len([line for line in ps.lines()[lines:] if "etcd" in line.text]), 4, ps.transcript())
        added = self.task("worker/2", "--mode", "sync")
        self.assert_goes_on(added)
        self.stop((*workers, added), (ps,))

    def test_top_finds_them_too(self):
        servers, workers = self.start("--mode", "sync", ps=2)
        top = self.launch("top", [cluster.binary(), "top", self.etcd.url(), "--once"])
        self.assert_ends(top, cluster.GOOD, says=["ps/0", "ps/1", "worker/0", "worker/1"])
        for url, says in ((self.etcd.url("nothing"), "ps/0 is not registered at etcd://"), ("etcd://x", "right is etcd://")):
            top = self.launch("top", [cluster.binary(), "top", url, "--once"])
            self.assert_ends(top, cluster.CONFIGURATION, says=[says])
        self.stop(workers, servers)

    def test_etcd_is_not_needed_for_the_end(self):
        servers, workers = self.start("--mode", "sync")
        self.etcd.kill()
        self.stop(workers, servers)

    def test_a_removed_key_comes_back(self):
        servers, workers = self.start()
        was = self.etcd.registered()
        for key in was:
            self.etcd.remove(key)
        cluster.wait_until(lambda: self.etcd.registered() == was, NOTICED, self.etcd.registered)
        self.stop(workers, servers)


class Backups(etcd.EtcdTest):
    """Tests --backup-ps 1: a primary and its backup find each other, and the workers find both, wherever they are."""

    def setUp(self):
        super().setUp()
        self.epochs = 8 if cluster.instrumented() else 30  # longer than the losses, also with fast steps
        self.flags = ("--backup-ps", 1, "--model", "mlp", "--epochs", self.epochs, "--mode", "sync", "--optimizer", "adam",
                      "--log_every", 10)

    def start(self):
        servers = [self.task(f"ps/{i}", ps=2) for i in range(2)]
        self.wait_for_registered("ps/0", "ps/1")
        workers = [self.task(f"worker/{i}", ps=2) for i in range(2)]
        self.wait_until_level(servers[0])
        workers[0].wait_for(r"Step: [1-9]\d+", cluster.START)
        return servers, workers

    def wait_until_level(self, primary):
        primary.wait_for("the backup at 127.* has everything", cluster.START)

    def kill(self, ps, workers):
        said = [len(worker.lines()) for worker in workers]
        ps.signal(signal.SIGKILL)
        ps.code()
        for worker, lines in zip(workers, said):
            worker.wait_for(r"its backup \(127\.\d.*\) has taken over at step \d+, no step of this worker lost", NOTICED, after=lines)

    def assert_complete(self, workers, servers):
        for task in (*workers, *servers):
            self.assert_ends(task, cluster.GOOD, 4 * cluster.FINISH)
        self.assert_says(workers[0], rf"^Global-Step: {self.epochs * 550}$")

    @cluster.long("Built/ClientBackup and RegistrationTest; no test of `make test` has a pair with etcd")
    def test_a_replacement_on_another_host_takes_the_place_of_the_lost_ps(self):
        (primary, backup), workers = self.start()
        self.kill(primary, workers)
        back = self.task("ps/0", "--bind", "127.0.0.2", ps=2, name="back")
        back.wait_for("ps/1 has taken over; this one is its backup", EXPIRED)
        self.wait_until_level(backup)
        self.kill(backup, workers)
        self.assert_says(workers[0], r"its backup \(127\.0\.0\.2:\d+\) has taken over")
        self.assert_complete(workers, [back])

    @cluster.long("RegistrationTest.ALookupKnowsTheLastAddressWhileEtcdIsAway; here the address of a backup that was not asked for")
    def test_a_takeover_needs_no_etcd(self):
        (primary, backup), workers = self.start()
        self.etcd.kill()
        self.kill(primary, workers)
        self.assert_complete(workers, [backup])

    def test_halves_that_are_none_are_refused(self):
        self.assert_ends(self.task("ps/0", ps=1), cluster.CONFIGURATION,
                         says=["--backup-ps 1: .* even number of them; there is 1"])


if __name__ == "__main__":
    unittest.main()
