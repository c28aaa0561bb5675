"""`gradrail run`: programs as the workers of a cluster on this host, here with the Python package."""
import json
import os
import shutil
import signal
import time
import unittest

import cluster

# A linear regression: y = 3 x + 1. `early`, `each` and `late` are statements of a test.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import gradrail
{early}
rng = np.random.default_rng(int(os.environ["GRADRAIL_TASK_INDEX"]))
with gradrail.join({{"w": (1,), "b": (1,)}}, learning_rate=0.1, mode="{mode}") as c:
    c.start()
    while c.position < {steps}:
        x = rng.uniform(-1, 1, 64).astype(np.float32)
        error = c.parameters["w"] * x + c.parameters["b"] - (3 * x + 1)
        c.gradients["w"][:], c.gradients["b"][:] = (2 * error * x).mean(), (2 * error).mean()
        c.exchange()
        c.wait()
        {each}
    {late}
    print(f"task {{c.task_index}} step {{c.global_step}} w {{c.parameters['w'][0]:.3f}} b {{c.parameters['b'][0]:.3f}}",
          flush=True)
"""

BEGUN = "if c.position == 1: print('begun', flush=True)"  # for `each`

# Each step of sync moves each element of w by -1. `pause` is the longest time between two steps of this worker.
COUNT = """
import time
import numpy as np
import gradrail
with gradrail.join({{"w": (300000,)}}, learning_rate=1.0, mode="sync") as c:
    c.start()
    pause, last = 0.0, time.monotonic()
    while c.position < 5000:
        c.gradients["w"][:] = 1
        c.exchange()
        c.wait()
        now = time.monotonic()
        pause, last = max(pause, now - last), now
        if c.position == 600:
            print("begun", flush=True)
        if c.is_chief and {saves} and c.position % 500 == 0:
            try:
                c.save_checkpoint()
            except gradrail.Unavailable:  # the killed server: the next wait() joins it again
                pass
    print(f"step {{c.position}} w {{c.parameters['w'].min():.0f}} {{c.parameters['w'].max():.0f}} pause {{pause:.3f}} s", flush=True)
"""


# Prints the bytes of the memory in which the server receives the gradients of this worker.
SLOTS = """
import gradrail
with gradrail.join({"w": (4 << 20,)}, transports="shm") as c:
    c.start()
    ranges = [line.split()[0].split("-") for line in open("/proc/self/maps") if "gradrail-slots" in line]
    print("slots", sum(int(end, 16) - int(begin, 16) for begin, end in ranges), flush=True)
"""


# All workers meet by the variables of the launcher, without an argument.
GROUP = """
import os
import gradrail
import torch, torch.distributed
torch.distributed.init_process_group("gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
total = torch.tensor([10.0 ** rank])
torch.distributed.all_reduce(total)
assert rank == int(os.environ["GRADRAIL_TASK_INDEX"])
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE")
# One write: the workers share the output of torchrun.
os.write(1, f"of {size} sum {int(total)} {' '.join(os.environ[name] for name in names)}\\n".encode())
with gradrail.join({"w": (1,)}) as client:  # the servers end after their workers have left
    client.start()
"""


class Run(cluster.ClusterTest):
    def run_program(self, *flags, early="", each="pass", late="pass", mode="sync", steps=300, launcher=(), variables=None):
        program = PROGRAM.format(early=early, each=each, late=late, mode=mode, steps=steps)
        command = [*launcher, cluster.binary(), "run", *map(str, flags), "--", cluster.python_with("numpy"), "-c", program]
        return self.launch("run", command, {**cluster.python_environment(), **(variables or {})})

    def after_the_run(self, statement):
        """Returns statements for `late`: they leave, wait for let_go_after_the_run(), and execute `statement`."""
        return f"c.leave()\n    while not os.path.exists({str(self.folder / 'go-on')!r}): time.sleep(0.01)\n    {statement}"

    def let_go_after_the_run(self, task):
        """Waits until the supervisor of `task` has seen the end of its server."""
        server = task.wait_for(r"^# ps/0: pid (\d+)").group(1)
        cluster.wait_until(lambda: not os.path.exists(f"/proc/{server}"), cluster.START, task.transcript)
        (self.folder / "go-on").touch()

    def test_workers_find_their_cluster(self):
        task = self.run_program("--ps", 2, "--workers", 2)
        self.assert_ends(task, cluster.GOOD)
        self.assert_says(task, r"\[worker/0\] task 0 step 300 w 3\.000 b 1\.000",
                         r"\[worker/1\] task 1 step 300 w 3\.000 b 1\.000")

    def test_the_memory_for_gradients_has_the_given_limit(self):
        found = {}
        for mib in (0, 4):
            task = self.launch("run", [cluster.binary(), "run", "--slot_mib", str(mib), "--", cluster.python_with("numpy"), "-c",
                                       SLOTS], cluster.python_environment())
            self.assert_ends(task, cluster.GOOD)
            found[mib] = int(task.wait_for(r"slots (\d+)").group(1))
        self.assertGreaterEqual(found[0], 16 << 20)
        self.assertTrue(4 << 20 <= found[4] < 6 << 20, found)

    def test_ranks_of_torchrun_with_a_secret(self):
        secret = self.secret_file()
        common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(cluster.free_ports(1)[0])}
        tasks = [self.run_program("--secret-file", secret, variables={**common, "RANK": str(rank)}) for rank in range(3)]
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)
        for worker in range(2):
            self.assert_says(tasks[1 + worker], rf"task {worker} step 300 w 3\.000 b 1\.000")

    def test_a_worker_of_tf_config(self):
        [port] = cluster.free_ports(1)
        description = {"ps": [f"127.0.0.1:{port}"], "worker": ["localhost:1", "localhost:2"]}
        places = [("ps", 0), ("worker", 0), ("worker", 1)]
        tasks = [self.run_program(variables={"TF_CONFIG": json.dumps({"cluster": description,
                                                                      "task": {"type": job, "index": index}})})
                 for job, index in places]
        for task in tasks:
            self.assert_ends(task, cluster.GOOD)
        self.assert_says(tasks[2], r"task 1 step 300 w 3\.000 b 1\.000")

    def test_the_evaluator_of_tf_config_ends_at_once(self):
        description = {"cluster": {"ps": ["127.0.0.1:1"], "worker": ["localhost:1"]},
                       "task": {"type": "evaluator", "index": 0}}
        task = self.launch("run", [cluster.binary(), "run", "echo", "it runs"], {"TF_CONFIG": json.dumps(description)})
        self.assert_ends(task, cluster.GOOD, says=[r"evaluator: the program is not started"])
        self.assertFalse(task.has("it runs"), task.transcript())

    def test_a_task_of_tf_config_without_its_index(self):
        description = {"cluster": {"ps": ["127.0.0.1:1"], "worker": ["localhost:1"]}}
        task = self.launch("run", [cluster.binary(), "run", "true"], {"TF_CONFIG": json.dumps(description)})
        self.assert_ends(task, cluster.CONFIGURATION, says=[r'TF_CONFIG has no "task": add the job and the index'])
        self.assertFalse(task.has("--job_name"), task.transcript())

    def test_a_worker_that_is_suspended_after_its_last_step_is_killed(self):
        task = self.run_program("--workers", 2, late="if c.task_index == 1: c.leave(); os.kill(os.getpid(), signal.SIGSTOP)")
        self.assert_ends(task, 137, says=[r"worker/1 \(pid \d+\) is suspended, and all servers have ended: killed",
                                          r"worker/1 failed with exit code 137, after all servers have ended"])

    def test_programs_that_never_join(self):
        task = self.launch("run", [cluster.binary(), "run", "--workers", "2", "true"])
        self.assert_ends(task, cluster.GOOD, says=[r"no worker has joined this run"])

    def test_a_limit_of_the_size_of_files(self):
        """A path without shared memory is slower, and a worker without any memory must not wait for its network."""
        limited = ('ulimit -f $KILOBYTES; exec %s run --workers 1 -- %s -c "$PROGRAM"' %
                   (cluster.binary(), cluster.python_with("numpy")))
        program = "import gradrail; c = gradrail.join({'w': (1000,)}, learning_rate=0.1); c.start(); c.step(); c.leave()"
        for kilobytes, code, says in ((200, cluster.GOOD, r"tcp is used, because shm was refused: .*raise `ulimit -f`"),
                                      (8, cluster.FAILED, r"File too large \(raise `ulimit -f`")):
            with self.subTest(kilobytes=kilobytes):
                task = self.launch("run", ["bash", "-c", limited],
                                   {**cluster.python_environment(), "KILOBYTES": str(kilobytes), "PROGRAM": program})
                self.assert_ends(task, code, 15 * cluster.PATIENCE, says=[says])  # attempts to connect take 20 s

    def test_the_first_failure_ends_the_run(self):
        task = self.run_program("--workers", 2, each="if c.task_index == 1 and c.position == 10: sys.exit(7)",
                                steps=10 ** 9)
        self.assert_ends(task, 7, says=[r"worker/1 failed with exit code 7: the run ends"])

    def test_a_killed_worker_is_started_again(self):
        flag = self.folder / "was-killed"
        early = f"again = os.path.exists({str(flag)!r})"
        kill = f"if c.task_index == 1 and c.position == 20 and not again: open({str(flag)!r}, 'w'); os.kill(os.getpid(), 9)"
        task = self.run_program("--workers", 2, "--restarts", 1, early=early, each=kill, mode="async", steps=20000)
        self.assert_ends(task, cluster.GOOD, says=[r"worker/1 is started again \(1 of 1 restarts\)"])
        self.assert_says(task, r"\[worker/1\] task 1 step")

    @cluster.long("TasksOfARun has the end of the servers; the supervisor stops a late worker here alone")
    def test_a_worker_that_is_started_again_too_late_is_stopped(self):
        for death, code in (("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)):
            with self.subTest(code=code):
                flag, back = self.folder / f"died-{code}", self.folder / f"is-back-{code}"
                early = f"again = os.path.exists({str(flag)!r})\nif again: open({str(back)!r}, 'w'); time.sleep(1000)"
                # The pause: the server would detect the loss of a worker without a heartbeat seconds later.
                each = ("if c.task_index == 1 and c.position == 20 and not again:"
                        f" time.sleep({cluster.PATIENCE}); open({str(flag)!r}, 'w'); {death}")
                # The other worker finishes while the replacement sleeps, not before the loss: else that would train.
                each += f"\n        while c.task_index == 0 and not os.path.exists({str(back)!r}): time.sleep(0.01)"
                # It has left: its program is not ended by the failure of another one.
                late = "c.leave()\n    time.sleep(1)"
                task = self.run_program("--workers", 2, "--restarts", 1, early=early, each=each, late=late, mode="async", steps=300)
                self.assert_ends(task, code, says=[
                    f"worker/1 failed with exit code {code}, after all servers have ended", r"task 0 step"])

    def test_a_program_that_fails_after_the_run_is_not_started_again(self):
        for death, code in (("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)):
            for ended in (True, False):  # its servers may still run
                with self.subTest(code=code, ended=ended):
                    task = self.run_program("--restarts", 3, late=self.after_the_run(death) if ended else f"c.leave()\n    {death}")
                    if ended:
                        self.let_go_after_the_run(task)
                    self.assert_ends(task, code, within=20 * cluster.PATIENCE)
                    self.assertFalse(task.has("Traceback"), task.transcript())
                    if ended:
                        self.assertFalse(task.has("is started again"), task.transcript())
                        (self.folder / "go-on").unlink()

    def test_a_worker_whose_output_ends_late_is_started_again(self):
        flag = self.folder / "was-killed"
        # The supervisor reads the output for another second, and no worker runs meanwhile.
        kill = (f"if c.position == 20 and not os.path.exists({str(flag)!r}): open({str(flag)!r}, 'w');"
                " subprocess.Popen(['sleep', '2'], start_new_session=True); os.kill(os.getpid(), 9)")
        task = self.run_program("--restarts", 1, early="import subprocess", each=kill + "\n        time.sleep(0.01)", steps=150)
        self.assert_ends(task, cluster.GOOD, says=["keeps its output open", r"task 0 step 150"])

    def test_a_replacement_that_fails_after_the_run_is_a_failure(self):
        flag = self.folder / "was-killed"
        kill = f"if c.position == 20 and not os.path.exists({str(flag)!r}): open({str(flag)!r}, 'w'); os.kill(os.getpid(), 9)"
        task = self.run_program("--restarts", 3, mode="async", each=kill, late=self.after_the_run("os._exit(7)"))
        self.let_go_after_the_run(task)
        self.assert_ends(task, 7, says=[r"worker/0 is started again \(1 of 3 restarts\)", "worker/0 failed with exit code 7"])

    def kill_a_server(self, *flags, saves=False, replaced, end="-5000 -5000", restarts=1):
        command = [cluster.binary(), "run", "--workers", 2, "--restarts", restarts, *flags, "--", cluster.python_with("numpy"), "-c",
                   COUNT.format(saves=saves)]
        task = self.launch("run", list(map(str, command)), cluster.python_environment())
        pid = int(task.wait_for(r"^# ps/0: pid (\d+)", cluster.START).group(1))
        task.wait_for(r"\[worker/0\] begun", cluster.START)
        os.kill(pid, signal.SIGKILL)
        self.assert_ends(task, cluster.GOOD, says=[replaced, *(rf"\[worker/{i}\] step 5000 w {end} pause" for i in range(2))])
        pauses = [line.text.split()[-2] for line in task.lines() if " pause " in line.text]
        print(f"a killed server{' '.join(['', *map(str, flags)])}: longest pause {max(pauses)} s", flush=True)

    def test_a_killed_server_is_started_again(self):
        # The step of the loss can be missing in the parameters of the other server.
        self.kill_a_server("--ps", 2, replaced=r"ps/0 is started again \(1 of 1 restarts\)", end="-5000 -(5000|4999)")

    def test_a_killed_server_restores_its_checkpoint(self):
        self.kill_a_server("--checkpoint_dir", self.folder / "saved", saves=True, replaced=r"restored global step \d+ from")

    def test_a_killed_server_is_replaced_by_its_backup(self):
        self.kill_a_server("--ps", 2, "--backup-ps", 1, replaced=r"\[ps/1\] the backup at .* has everything")

    def test_a_run_that_a_backup_has_saved_is_good(self):
        self.kill_a_server("--ps", 2, "--backup-ps", 1, replaced=r"ps/0 is not started again", restarts=0)

    def test_a_server_that_is_not_started_again_asks_for_a_restart(self):
        # The exit code of the ps counts, not those of the programs, which fail as a consequence.
        task = self.run_program("--workers", 2, steps=10 ** 9, each=BEGUN)
        pid = int(task.wait_for(r"^# ps/0: pid (\d+)", cluster.START).group(1))
        task.wait_for(r"\[worker/1\] begun", cluster.START)
        os.kill(pid, signal.SIGKILL)
        self.assert_ends(task, cluster.RETRY, says=[r"ps/0 is not started again: 0 of 0 restarts are used \(--restarts\)"])

    @cluster.long("no other test loses both tasks of a pair of a local cluster")
    def test_a_lost_pair_of_servers_asks_for_a_restart(self):
        task = self.run_program("--workers", 2, "--ps", 2, "--backup-ps", 1, steps=10 ** 9, each=BEGUN)
        pids = [int(task.wait_for(rf"^# ps/{i}: pid (\d+)", cluster.START).group(1)) for i in range(2)]
        task.wait_for(r"\[worker/1\] begun", cluster.START)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.assert_ends(task, cluster.RETRY)

    def test_a_second_join_fails_soon_after_the_end_of_the_run(self):
        task = self.run_program("--join-timeout", 1, late=self.after_the_run("gradrail.join({'w': (1,)})"))
        self.let_go_after_the_run(task)
        self.assert_ends(task, cluster.FAILED, says=[r"DeadlineExceeded: parameter server 0 .* did not come up in time"])
        task = self.run_program(late="print('limit', os.environ['GRADRAIL_JOIN_TIMEOUT'])")
        self.assert_ends(task, cluster.GOOD, says=[r"\[worker/0\] limit 120"])

    def test_ctrl_c_ends_a_blocked_worker(self):
        blocks = BEGUN + "\n        if c.task_index == 1: time.sleep(1000)"
        task = self.run_program("--workers", 2, each=blocks, steps=10 ** 9)
        for worker in range(2):
            task.wait_for(rf"\[worker/{worker}\] begun", cluster.START)
        time.sleep(0.3)  # no event exists: worker/0 blocks meanwhile, and an interrupt before it ends the program too
        task.signal(signal.SIGINT)
        self.assertNotEqual(task.code(20 * cluster.PATIENCE), cluster.GOOD)
        self.assert_says(task, r"\[worker/0\] KeyboardInterrupt")

    def test_flags_without_a_value_stand_before_the_program(self):
        task = self.launch("run", [cluster.binary(), "run", "--local", "--insecure", "echo", "the program", "--ps"])
        self.assert_ends(task, cluster.GOOD, says=[r"\[worker/0\] the program --ps"])

    def test_a_program_that_ends_before_it_joins_ends_the_run(self):
        # Also if the others join later, and if the absent worker is the chief.
        for absent, wait in ((1, 0), (0, 0), (1, 1)):
            with self.subTest(absent=absent, wait=wait):
                early = f"index = int(os.environ['GRADRAIL_TASK_INDEX'])\nif index == {absent}: sys.exit(0)\ntime.sleep({wait})"
                task = self.run_program("--workers", 2, early=early)
                self.assert_ends(task, cluster.FAILED, says=[rf"worker/{absent} ended before it joined, and other workers wait"])

    def test_a_process_that_a_program_leaves_behind_does_not_delay_the_end(self):
        task = self.launch("run", [cluster.binary(), "run", "--", "sh", "-c",
                                   "setsid sleep 200 & echo left $!; sleep 1; printf 'no end of line'; exit 3"])
        self.assertEqual(task.code(min(cluster.FINISH, 150)), 3, task.transcript())
        os.kill(int(task.wait_for(r"\[worker/0\] left (\d+)").group(1)), signal.SIGKILL)
        self.assert_says(task, r"\[worker/0\] no end of line", "worker/0 has ended, and a process that it started keeps its output open")

    def test_programs_that_do_not_join_are_no_failure(self):
        task = self.launch("run", [cluster.binary(), "run", "--workers", "2", "--", "sh", "-c", "sleep $GRADRAIL_TASK_INDEX"])
        self.assert_ends(task, cluster.GOOD)

    def test_a_line_without_an_end_is_passed_on(self):
        go_on = self.folder / "go-on"
        for stream in ("stdout", "stderr"):
            with self.subTest(stream=stream):
                program = ("import os, sys, time\n"
                           f"sys.{stream}.write('\\r 50%')\nsys.{stream}.flush()\n"
                           f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
                           f"sys.{stream}.write('\\r100%\\n')")
                task = self.launch("run", [cluster.binary(), "run", "--", cluster.python_with("numpy"), "-c", program])
                cluster.wait_until(lambda: b"[worker/0] \r 50%" in task.raw(), cluster.START, task.transcript)
                go_on.touch()
                self.assert_ends(task, cluster.GOOD)
                self.assertIn(b"[worker/0] \r 50%\r100%\n", task.raw())
                go_on.unlink()

    def test_the_bytes_of_a_program_are_not_changed(self):
        program = "import sys\nsys.stdout.buffer.write(bytes(set(range(256)) - {10}) * 10000 + b'\\n\\xff\\n\\xe2\\x82')"
        task = self.launch("run", [cluster.binary(), "run", "--", cluster.python_with("numpy"), "-c", program])
        self.assert_ends(task, cluster.GOOD)
        lines = bytes(set(range(256)) - {10}) * 10000, b"\xff", b"\xe2\x82"
        self.assertIn(b"".join(b"[worker/0] " + line + b"\n" for line in lines), task.raw())

    def test_python_does_not_keep_its_output_back(self):
        go_on = self.folder / "go-on"
        program = f"import os, time\nprint('begun')\nwhile not os.path.exists({str(go_on)!r}): time.sleep(0.01)"
        command = [cluster.binary(), "run", "--", cluster.python_with("numpy"), "-c"]
        task = self.launch("run", ["env", "-u", "PYTHONUNBUFFERED", *command, program])
        task.wait_for(r"\[worker/0\] begun")
        go_on.touch()
        self.assert_ends(task, cluster.GOOD)
        show = "import os; print('set to', repr(os.environ['PYTHONUNBUFFERED']))"
        self.assert_ends(self.launch("run", [*command, show], {"PYTHONUNBUFFERED": ""}), cluster.GOOD, says=["set to ''"])

    def test_a_process_group_under_torchrun_is_that_of_the_workers(self):
        self.check_process_groups((1, 2, []))

    @cluster.long("the test above has one ps and one kind of rendezvous")
    def test_process_groups_of_several_ps_and_another_rendezvous(self):
        self.check_process_groups((2, 2, []), (1, 2, ["--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]))

    def check_process_groups(self, *cases):
        python = cluster.python_with("torch.distributed.run")
        for ps, workers, rendezvous in cases:
            with self.subTest(ps=ps, workers=workers, rendezvous=rendezvous):
                port = ["--master_port", cluster.free_ports(1)[0]] if not rendezvous else rendezvous
                # Rank 9 does not exist. The default of torch 1.13 fails with Python 3.11.
                no_files = ["--redirects", "9:1", "--tee", "9:1"]
                command = [python, "-m", "torch.distributed.run", *no_files, "--nproc_per_node", ps + workers, *port, "--no_python",
                           cluster.binary(), "run", "--ps", ps, "--", python, "-c", GROUP]
                task = self.launch("torchrun", list(map(str, command)), cluster.python_environment())
                for rank in range(workers):
                    task.wait_for(rf"^of {workers} sum 11 {rank} {workers} {rank} {workers} 0 1 {rank} {workers}$", 2 * cluster.START)
                self.assert_ends(task, cluster.GOOD)

    def test_the_variables_of_mpirun_count_the_workers(self):
        if shutil.which("mpirun") is None:
            cluster.skip("no mpirun (openmpi-bin)")
        names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
        # One write: mpirun passes on what the two workers write at the same time.
        show = f"os.write(1, ' '.join(['variables', str(c.task_index), *[os.environ[name] for name in {names}]]).encode() + b'\\n')"
        task = self.run_program("--ps", 1, launcher=["mpirun", "-n", "3", "--oversubscribe"], late=show,
                                variables={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        self.assert_ends(task, cluster.GOOD, says=[r"variables 0 0 2 0 2", r"variables 1 1 2 1 2"])

    def test_wrong_command_lines(self):
        script = self.folder / "train.py"
        script.write_text("print('a script')\n", encoding="ascii")
        for flags, code, says in ((["--workers", "2"], 2, "no program is given"),
                                  (["--worker", "2", "true"], 2, "--worker"),
                                  (["--workers", "0", "true"], 2, "from 1 to"),
                                  (["--slot_mib", "many", "true"], 2, "from 0 to 1048576"),
                                  (["--rendezvous", "etcd://h:1/j", "true"], 2, "etcd has no ranks for programs"),
                                  (["gradrail-no-such-program"], 127, "no such program in PATH; check its name"),
                                  (["/tmp"], 127, "cannot run /tmp: is a directory; name a program in it"),
                                  ([str(script)], 127, "Permission denied; to run this file, give its interpreter")):
            with self.subTest(flags=flags):
                task = self.launch("run", [cluster.binary(), "run", *flags])
                self.assert_ends(task, code, says=[says])


if __name__ == "__main__":
    unittest.main()
