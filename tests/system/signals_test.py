"""Tests signals: no handler runs in a thread that computes, and no signal loses the last checkpoint of a local cluster.

$GRADRAIL_STOP_REPEATS: how often the random test starts, trains and stops a run (default 4)."""
import itertools
import os
import pty
import pathlib
import random
import re
import signal
import subprocess
import time
import unittest

import cluster
import digits

ENDLESS = ["--epochs", 100000, "--log_every", 100]


def state(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def has_open(pid, path):
    descriptors = pathlib.Path(f"/proc/{pid}/fd")
    return any(os.path.realpath(each) == os.path.realpath(path) for each in descriptors.iterdir())


def takes_signals(task):
    """Returns whether the task handles signals. Before, the program is being loaded."""
    found = re.search(r"^SigBlk:\s*(\w+)$", pathlib.Path(f"/proc/{task.pid}/status").read_text(), re.M)
    return bool(int(found.group(1), 16) >> (signal.SIGTERM - 1) & 1) or task.has("# ps/0: pid")


class Flood(cluster.ClusterTest):
    """oneDNN 2.6.3 sets the stack pointer to a heap workspace. If the page below is unmapped, a signal is fatal."""

    def flood(self, model, seconds):
        guard = os.environ.get("GRADRAIL_GUARDED_WORKSPACES", "")
        if cluster.instrumented() or not guard:
            cluster.skip("a sanitizer has an allocator of its own")
        (self.folder / "data").mkdir()
        data = digits.write(self.folder / "data")  # dense: oneDNN does not multiply sparse images
        # AVX2: all newer processors can run this kernel, and it has the fault.
        task = self.train("--model", model, "--data_dir", data, "--ps", 0, *ENDLESS, "--log_every", 1,
                          environment={"LD_PRELOAD": guard, "DNNL_MAX_CPU_ISA": "AVX2"})
        task.wait_for("[Ss]tep:? 2")
        end = time.monotonic() + seconds * cluster.PATIENCE
        count = 0
        while time.monotonic() < end and state(task.pid) not in ("Z", "gone"):
            task.signal(signal.SIGUSR1)
            count += 1
            time.sleep(0.0005)
        task.signal(signal.SIGTERM)
        self.assert_ends(task, cluster.GOOD, says=["Stopped after"])
        self.assertGreater(count, 100)

    @cluster.long("no other test floods a thread within oneDNN with signals")
    def test_cnn_computes_through_a_flood_of_signals(self):
        self.flood("cnn", 5)

    @cluster.long("no other test floods a thread within oneDNN with signals")
    def test_mlp_computes_through_a_flood_of_signals(self):
        self.flood("mlp", 5)


def verify(saved):
    """Returns the exit code of the command that reads each byte of the checkpoints."""
    return subprocess.run([cluster.binary(), "checkpoint", "verify", saved], timeout=cluster.START, capture_output=True,
                          check=False).returncode


class StoppedRun(cluster.ClusterTest):
    """Stops a local cluster with signals to its processes, in several ways."""

    def begin(self, *flags, model="linear", environment=None, within=()):
        self.saved = self.folder / f"checkpoints-{len(self.tasks)}"
        command = [*within, cluster.binary(), "train", "--model", model, "--checkpoint_dir", self.saved, *ENDLESS, *flags]
        return self.launch("train", [str(word) for word in command], {"TMPDIR": str(self.folder), **(environment or {})})

    def assert_stopped(self, task, ps=1, trained=True, within=20 * cluster.PATIENCE):
        """Checks the exit code 0, the end of all processes, and the complete last step in the checkpoint folder."""
        self.assert_ends(task, cluster.GOOD, within)
        # A path that was refused to a worker that slept may name a lost peer.
        self.assertFalse(task.has(r"^(?!.*\bPath: ).*(\blost\b|killed)"), task.transcript())
        for pid in re.findall(r"^# \S+: pid (\d+)$", task.text(), re.M):
            self.assertIn(state(pid), ("Z", "gone"), task.transcript())
        found = re.findall(r"^Global-Step: (\d+)$", task.text(), re.M)
        if trained:
            self.assertTrue(found, task.transcript())
        if not found:
            return
        whole = cluster.whole_saves(self.saved, ps)
        self.assertTrue(whole, task.transcript())
        self.assertGreaterEqual(whole[-1], int(found[-1]), task.transcript())
        self.assertEqual(list(self.saved.glob("*.tmp")), [])
        self.assertEqual(verify(self.saved), cluster.GOOD)


class StoppedTasks(cluster.ClusterTest):
    """Stops the tasks of a cluster one after the other, as a launcher or an operator does."""

    def assert_last_step_is_saved(self, saved, servers, workers):
        for task in [*workers, *servers]:
            self.assert_ends(task, cluster.GOOD, 20 * cluster.PATIENCE)
        step = int(servers[0].wait_for(r"^global step (\d+)", cluster.FINISH).group(1))
        steps = [int(re.match(r"gradrail-(\d{12})-", path.name).group(1)) for path in saved.glob("*.ckpt")]
        texts = "\n".join(task.transcript() for task in workers)
        self.assertEqual(max(steps, default=0), step, f"{steps}\n{texts}")
        self.assertEqual(verify(saved), cluster.GOOD)

    def test_the_last_worker_saves_what_the_chief_has_not(self):
        for mode, pause in (("sync", 0), ("sync", 0.05), ("async", 0.3), ("quorum:1,late=drop", 0)):
            with self.subTest(mode=mode, pause=pause):
                saved = self.folder / f"saved-{mode.partition(':')[0]}-{pause}"
                servers, workers = self.start_cluster(2, "--checkpoint_dir", saved, "--mode", mode, *ENDLESS, ps=2)
                for worker in workers:
                    worker.wait_for(r"Step: [1-9]\d{2}", cluster.START)
                workers[0].signal(signal.SIGTERM)
                if not pause:  # at the moment of the save
                    cluster.wait_until(lambda: any(saved.glob("*.ckpt")), cluster.FINISH, workers[0].transcript)
                time.sleep(pause)
                workers[1].signal(signal.SIGTERM)
                self.assert_last_step_is_saved(saved, servers, workers)


def to_group(task):
    os.killpg(task.pid, signal.SIGTERM)


def to_supervisor(task):
    os.kill(task.pid, signal.SIGTERM)


def to_both(task):
    to_supervisor(task)
    to_group(task)


def to_group_twice(task):
    to_group(task)
    time.sleep(0.08)
    try:
        to_group(task)
    except ProcessLookupError:  # the process has ended
        pass


def to_supervisor_twice(task):
    to_supervisor(task)
    time.sleep(0.08)
    if task.running():
        to_supervisor(task)


def ctrl_c(task):
    os.killpg(task.pid, signal.SIGINT)


WAYS = (to_group, to_supervisor, to_both, to_group_twice, to_supervisor_twice, ctrl_c)


class Stop(StoppedRun):
    def test_while_it_trains(self):
        for way, flags in zip(WAYS, itertools.cycle((["--ps", 1], ["--ps", 2, "--mode", "sync"]))):
            with self.subTest(way=way.__name__, flags=flags):
                task = self.begin(*flags, *cluster.ALL_STAY)
                task.wait_for("Step: [1-9]\\d{2}")
                way(task)
                self.assert_stopped(task, ps=flags[1])

    def test_while_it_starts(self):
        """start_train_stop_at_random_moments has more ways and moments."""
        moments = (None, "# ps/0: pid", "# ps/1: pid", "# worker/0: pid", "# worker/2: pid")
        for moment, way in zip(moments, itertools.cycle((to_group_twice, to_group, to_both))):
            with self.subTest(way=way.__name__, moment=moment):
                task = self.begin("--ps", 2, *cluster.ALL_STAY)
                if moment:
                    task.wait_for(moment)
                cluster.wait_until(lambda: takes_signals(task), cluster.START, task.transcript)
                way(task)
                self.assert_stopped(task, ps=2, trained=False)

    def begin_with_a_stopped_worker(self):
        """A short run whose worker/1 is stopped. A starved test may be later than the end of the run: it tries again."""
        for _ in range(10):
            task = self.begin("--workers", 2, "--epochs", 1, "--log_every", 10, "--heartbeat-timeout", 600)
            slow = int(task.wait_for(r"# worker/1: pid (\d+)").group(1))
            try:
                os.kill(slow, signal.SIGSTOP)
                return task
            except ProcessLookupError:
                task.code()
        self.fail("each run ended before worker/1 was stopped")

    def test_while_the_chief_waits_for_the_last_worker(self):
        # The request also continues the stopped worker.
        for way in (to_group, to_supervisor):
            with self.subTest(way=way.__name__):
                task = self.begin_with_a_stopped_worker()
                task.wait_for(r"Step: .* Batch: +(\d+) of +\1\b")
                time.sleep(0.5 * cluster.PATIENCE)  # no event exists: no task reports that it waits in a barrier
                way(task)
                self.assert_stopped(task)

    def test_while_the_chief_waits_for_a_gradient(self):
        for way in (to_group, to_supervisor):
            with self.subTest(way=way.__name__):
                task = self.begin("--workers", 2, "--mode", "sync", "--heartbeat-timeout", 600)
                slow = int(task.wait_for(r"# worker/1: pid (\d+)").group(1))
                task.wait_for(r"Step: \d+")
                os.kill(slow, signal.SIGSTOP)
                ps = int(task.wait_for(r"# ps/0: pid (\d+)").group(1))
                self.wait_until_awaited("worker/1", [f"{host}:{port}" for host, port in cluster.tcp_listeners(ps)])
                way(task)
                self.assert_stopped(task)

    def test_a_closed_terminal_stops_and_nohup_goes_on(self):
        for end in ("default", "ignore"):
            with self.subTest(end=end):
                task = self.begin("--workers", 2, within=["env", f"--{end}-signal=HUP"])
                task.wait_for("Step: [1-9]\\d{2}")
                os.killpg(task.pid, signal.SIGHUP)
                if end == "ignore":
                    self.assert_goes_on(task)
                    to_group(task)
                self.assert_stopped(task)

    def test_a_terminal_that_closes_takes_no_output_and_no_checkpoint(self):
        for flags in ((), ("--ps", 1, "--workers", 1)):
            with self.subTest(flags=flags):
                saved = self.folder / f"terminal-{len(flags)}"
                command = [cluster.binary(), "train", "--model", "linear", "--checkpoint_dir", saved, *ENDLESS, *flags]
                pid, terminal = pty.fork()
                if pid == 0:
                    signal.signal(signal.SIGHUP, signal.SIG_DFL)
                    # Each task has lines on both outputs, also after the request to stop.
                    os.execve(cluster.binary(), [str(word) for word in command], {**os.environ, "GRADRAIL_LOG": "debug"})
                shown = b""
                while b"Cost" not in shown:
                    shown += os.read(terminal, 65536)
                os.close(terminal)
                _, status = os.waitpid(pid, 0)
                self.assertEqual(os.waitstatus_to_exitcode(status), cluster.GOOD, shown)
                self.assertEqual(verify(saved), cluster.GOOD)
                self.assertTrue(list(saved.glob("*.ckpt")))

    def test_ctrl_z_stops_all_and_fg_goes_on(self):
        task = self.begin()
        task.wait_for(r"Step: \d+")
        pids = [task.pid, *map(int, cluster.children(task.pid))]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)  # SIGTSTP needs a controlling terminal, which signals the group
        self.assertEqual({os.getpgid(pid) for pid in pids}, {task.pid})
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        self.assert_goes_on(task)
        to_group(task)
        self.assert_stopped(task)

    def test_while_it_reads_a_pipe_without_a_writer(self):
        for name in ("cert", "key"):
            os.mkfifo(self.folder / name)
        task = self.launch("ps", [cluster.binary(), "train", "--ps_hosts", "127.0.0.1:1", "--worker_hosts", "127.0.0.1:2", "--job_name",
                                  "ps", "--task_index", "0", "--cert-file", str(self.folder / "cert"), "--key-file",
                                  str(self.folder / "key")])
        cluster.wait_until(lambda: has_open(task.pid, self.folder / "cert"), cluster.START, task.transcript)
        task.signal(signal.SIGTERM)
        self.assert_ends(task, 1, 5 * cluster.PATIENCE, says=["cert: stopped while waiting for its data"])

    def test_a_second_request_kills(self):
        # The program can neither leave nor handle the signal.
        stuck = "trap '' TERM INT; echo ready; while :; do sleep 1; done"
        task = self.launch("run", [cluster.binary(), "run", "--", "sh", "-c", stuck])
        task.wait_for("ready")
        pids = cluster.children(task.pid)
        to_group(task)
        time.sleep(1.3)  # no event exists: two signals within one second count as one
        self.assertTrue(task.running(), task.transcript())
        to_group(task)
        self.assertEqual(task.code(5 * cluster.PATIENCE), -signal.SIGTERM, task.transcript())
        cluster.wait_until(lambda: all(state(pid) in ("Z", "gone") for pid in pids), 5 * cluster.PATIENCE,
                           lambda: f"{[(pid, state(pid)) for pid in pids]}")

    def test_a_task_of_its_own_takes_two_within_a_second_for_one(self):
        for _ in range(20):
            (_,), (first, second) = self.start_cluster(2, "--mode", "sync", "--heartbeat-timeout", 600, *ENDLESS)
            first.wait_for(r"Step: \d+")
            second.signal(signal.SIGSTOP)
            self.wait_until_awaited("worker/1", self.ps_addresses)  # only a second signal ends this step within 2 s
            began = time.monotonic()
            first.signal(signal.SIGTERM)
            time.sleep(0.05)  # no event exists here and below: the distance of the signals is under test
            first.signal(signal.SIGTERM)
            time.sleep(0.3)
            alive = first.running()
            time.sleep(0.9)
            if first.running():
                first.signal(signal.SIGTERM)
            late = time.monotonic() - began > 1.7
            code = first.code(5 * cluster.PATIENCE)
            # On a busy machine the worker ends the step itself before it takes the last signal.
            late = late or code == cluster.GOOD
            if not late:
                break
        self.assertFalse(late, "the machine was too slow in twenty attempts")
        self.assertTrue(alive, first.transcript())
        self.assertEqual(code, -signal.SIGTERM, first.transcript())


class Stress(StoppedRun):
    @cluster.long("while_it_trains and while_it_starts")
    def test_start_train_stop_at_random_moments(self):
        seed = int(os.environ.get("GRADRAIL_SEED", random.SystemRandom().randrange(2**32)))
        print(f"GRADRAIL_SEED={seed}", flush=True)
        dice = random.Random(seed)
        repeats = int(os.environ.get("GRADRAIL_STOP_REPEATS", "4"))
        trained = 0
        for turn in range(repeats):
            ps, workers = dice.choice((1, 2)), dice.choice((1, 2, 3))
            flags = ["--ps", ps, "--workers", workers, "--mode", dice.choice(("async", "sync"))]
            model, way, after = dice.choice(("linear", "mlp")), dice.choice(WAYS), dice.uniform(0, 3) * cluster.PATIENCE
            with self.subTest(turn=turn, seed=seed, flags=flags, model=model, way=way.__name__, after=after):
                if turn % 10 == 0:
                    print(f"{turn} runs stopped, {trained} of them after their first step", flush=True)
                task = self.begin(*flags, model=model, environment={"MALLOC_PERTURB_": str(dice.randrange(1, 256))})
                cluster.wait_until(lambda: takes_signals(task), cluster.START, task.transcript)
                time.sleep(after)
                way(task)
                self.assert_stopped(task, ps=ps, trained=False)
                trained += task.has("^Stopped after")
        print(f"{repeats} runs stopped, {trained} of them after their first step", flush=True)


if __name__ == "__main__":
    unittest.main()
