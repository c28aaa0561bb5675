"""`gradrail run` and `gradrail train` on a terminal: who reads it, and how a run ends whose tasks are suspended."""
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import termios
import time
import unittest

import cluster

JOIN = """
import gradrail
with gradrail.join({"w": (4,)}, mode="async") as c:
    c.start()
    c.step()
    print("joined", flush=True)
    while c.position < 10 ** 9: c.step()
"""


class Console:
    """A process that has a terminal of its own, and leads its session."""

    def __init__(self, command, environment=None):
        self.output = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, "PS1": "$ ", **(environment or {})})

    def read(self, within):
        if not select.select([self.terminal], [], [], within)[0]:
            return False
        try:
            data = os.read(self.terminal, 65536)
        except OSError:  # the last process has closed its terminal
            data = b""
        self.output += data
        return bool(data)

    def wait_for(self, pattern, within=cluster.START, after=0):
        deadline = time.monotonic() + within
        while True:
            found = re.search(pattern, self.output[after:])
            if found:
                return found
            left = deadline - time.monotonic()
            if left <= 0 or not self.read(left):
                raise AssertionError(f"no /{pattern}/ within {within:.0f} s:\n{self.output.decode(errors='replace')}")

    def type(self, keys):
        os.write(self.terminal, keys)

    def hang_up(self):
        os.close(self.terminal)
        self.terminal = -1

    def code(self, within=cluster.FINISH):
        """Reads to the end. Returns the exit code as a shell shows it."""
        deadline = time.monotonic() + within
        while self.terminal >= 0 and time.monotonic() < deadline and self.read(deadline - time.monotonic()):
            pass
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        raise AssertionError(f"no end within {within:.0f} s:\n{self.output.decode(errors='replace')}")

    def end(self):
        if self.pid:
            for group in cluster.children(self.pid) if pathlib.Path(f"/proc/{self.pid}").exists() else []:
                os.kill(int(group), signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.terminal >= 0:
            self.hang_up()


class TerminalTest(cluster.ClusterTest):
    def console(self, command, environment=None):
        console = Console([str(part) for part in command], environment)
        self.addCleanup(console.end)
        return console

    def run_on_terminal(self, program, *flags):
        return self.console([cluster.binary(), "run", *flags, "--", cluster.python_with("numpy"), "-c", program],
                            cluster.python_environment())

    def shell(self):
        if shutil.which("bash") is None:
            cluster.skip("no bash")
        console = self.console(["bash", "--norc", "--noprofile", "-i"], cluster.python_environment())
        console.wait_for(rb"\$ ")
        return console

    def command(self, program, *flags):
        path = self.folder / "program.py"
        path.write_text(program, encoding="ascii")
        return " ".join([cluster.binary(), "run", *flags, "--", cluster.python_with("numpy"), str(path)]).encode()


class Input(TerminalTest):
    def test_the_input_of_a_program_is_empty(self):
        for program, says in (("input('name? ')", rb"\[worker/0\] EOFError"), ("breakpoint()", rb"\[worker/0\] bdb.BdbQuit"),
                              ("import readline; print('imported')", rb"\[worker/0\] imported"),
                              ("open('/dev/tty').read(1)", rb"\[worker/0\] OSError: .*Input/output error"),
                              ("import termios, os; fd = os.open('/dev/tty', os.O_RDWR); os.write(fd, b'written'); "
                               "termios.tcsetattr(fd, termios.TCSADRAIN, termios.tcgetattr(fd))", rb"written")):
            with self.subTest(program=program):
                console = self.run_on_terminal(program)
                console.wait_for(says)
                console.code()

    def test_one_worker_reads_the_terminal(self):
        program = "import os\nindex = os.environ['GRADRAIL_TASK_INDEX']\nprint('read', index, repr(input('name? ') if index == '1' else ''))"
        console = self.run_on_terminal(program, "--workers", "2", "--interactive", "1")
        console.wait_for(rb"\[worker/1\] name\? ")
        console.type(b"Ada\n")
        console.wait_for(rb"read 1 'Ada'")
        self.assertEqual(console.code(), cluster.GOOD, console.output)

    def test_a_pipe_reaches_one_worker(self):
        task = self.launch("run", ["sh", "-c", f"echo Ada | {cluster.binary()} run --workers 2 --interactive 0 -- "
                                   "sh -c 'read name; echo read $name; true'"])
        self.assert_ends(task, cluster.GOOD, says=[r"\[worker/0\] read Ada"])

    def test_ctrl_c_reaches_the_interactive_worker_alone(self):
        program = ("try:\n    input('first? ')\nexcept KeyboardInterrupt:\n    print('interrupted')\nprint('read', input('second? '))")
        console = self.run_on_terminal(program, "--interactive", "0")
        console.wait_for(rb"first\? ")
        console.type(b"\x03")
        console.wait_for(rb"interrupted")
        console.wait_for(rb"second\? ")
        console.type(b"x\n")
        console.wait_for(rb"read x")
        self.assertEqual(console.code(), cluster.GOOD, console.output)

    def test_ctrl_c_that_ends_the_interactive_worker_ends_the_run(self):
        program = ("import os, time\nif os.environ['GRADRAIL_TASK_INDEX'] == '0': input('name? ')\n"
                   "while True: time.sleep(1)")
        console = self.run_on_terminal(program, "--workers", "2", "--interactive", "0")
        console.wait_for(rb"name\? ")
        console.type(b"\x03")
        self.assertNotEqual(console.code(), cluster.GOOD, console.output)

    def test_the_shell_has_its_terminal_back(self):
        shell = self.shell()
        modes = termios.tcgetattr(shell.terminal)
        # The program leaves other modes behind.
        shell.type(self.command("import termios, tty\ntty.setraw(0)\nprint('raw')", "--interactive", "0") + b"; echo code=$?\n")
        shell.wait_for(rb"raw")
        shell.wait_for(rb"code=0")
        shell.type(b"read line; echo got=$line\n")
        shell.type(b"words\n")
        shell.wait_for(rb"got=words")
        self.assertEqual(termios.tcgetattr(shell.terminal)[3] & termios.ISIG, modes[3] & termios.ISIG)

    def test_ctrl_z_stops_the_run_for_the_shell(self):
        shell = self.shell()
        shell.type(self.command("print('read', input('name? '))", "--interactive", "0") + b"; echo code=$?\n")
        shell.wait_for(rb"name\? ")
        shell.type(b"\x1a")
        shell.wait_for(rb"Stopped")
        shell.type(b"fg\n")
        shell.wait_for(rb"fg\r\n.*run ")
        shell.type(b"Ada\n")
        shell.wait_for(rb"read Ada")

    def test_a_run_in_the_background_has_no_interactive_worker(self):
        shell = self.shell()
        shell.type(self.command("print(1)", "--interactive", "0") + b" & wait $!; echo code=$?\n")
        shell.wait_for(rb"--interactive: this run is in the background")
        shell.wait_for(rb"code=4")

    def test_a_run_in_the_background_ends(self):
        shell = self.shell()
        shell.type(self.command("print(repr(open(0).read()))") + b" & wait $!; echo code=$?\n")
        shell.wait_for(rb"\[worker/0\] ''")
        shell.wait_for(rb"code=0")

    def test_a_closed_input(self):
        task = self.launch("run", ["sh", "-c", f"exec {cluster.binary()} run -- sh -c 'wc -c' <&-"])
        self.assert_ends(task, cluster.GOOD, says=[r"(?m)\[worker/0\] 0$"])

    def test_wrong_indices(self):
        for flags, says in ((["--interactive", "1"], "--interactive 1: the workers are 0 to 0"),
                            (["--interactive", "-1"], "from 0 to"), (["--interactive", "x"], "from 0 to")):
            task = self.launch("run", [cluster.binary(), "run", *flags, "--", "true"])
            self.assert_ends(task, cluster.USAGE, says=[says])
        task = self.launch("run", [cluster.binary(), "run", "--interactive", "0", "--", "true"],
                           {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"})
        self.assert_ends(task, cluster.USAGE, says=["--interactive 0: this is one task of a cluster"])


class Stop(TerminalTest):
    """The limit for a save is 60 s: each run here ends before, although a task does not end by itself."""

    WITHIN = 40 if cluster.PATIENCE <= 1 else 50

    def test_ctrl_c_names_the_tasks_that_remain_and_ends_them(self):
        program = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('ready')\nwhile True: time.sleep(1)"
        console = self.run_on_terminal(program)
        console.wait_for(rb"ready")
        console.type(b"\x03")
        console.wait_for(rb"the stop waits for worker/0 \(pid \d+\)", self.WITHIN)
        self.assertNotEqual(console.code(self.WITHIN), cluster.GOOD)
        self.assertRegex(console.output, rb"worker/0 \(pid \d+\) did not exit on request, and was killed")
        self.assertNotRegex(console.output, rb"ps/0 \(pid \d+\) did not exit")

    def test_the_end_of_a_terminal_ends_the_run(self):
        console = self.run_on_terminal(JOIN)
        console.wait_for(rb"joined")
        program = int(console.wait_for(rb"# worker/0: pid (\d+)").group(1))
        console.hang_up()
        self.assertNotEqual(console.code(self.WITHIN), cluster.GOOD)
        self.assertFalse(pathlib.Path(f"/proc/{program}").exists())

    def suspended(self, task, patterns, number):
        pids = [int(task.wait_for(pattern).group(1)) for pattern in patterns]
        for pid in pids:
            os.kill(pid, number)
            cluster.wait_until(lambda pid=pid: pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T",
                               cluster.START, lambda: "not suspended")

    def test_a_suspended_program_ends_on_request(self):
        for number, stop in ((signal.SIGSTOP, signal.SIGTERM), (signal.SIGTSTP, signal.SIGTERM), (signal.SIGSTOP, signal.SIGINT)):
            with self.subTest(number=number, stop=stop):
                task = self.launch("run", [cluster.binary(), "run", "--workers", "2", "--", cluster.python_with("numpy"), "-c", JOIN],
                                   cluster.python_environment())
                for worker in range(2):
                    task.wait_for(rf"\[worker/{worker}\] joined")
                names = ["worker/0", "worker/1"]
                if number == signal.SIGSTOP:  # the group of the ps has no shell, so that it ignores SIGTSTP
                    names.append("ps/0")
                self.suspended(task, [rf"# {name}: pid (\d+)" for name in names], number)
                task.signal(stop)
                self.assertNotEqual(task.code(self.WITHIN), cluster.GOOD)

    def test_suspended_tasks_of_train_save_on_request(self):
        for tasks in (["worker/0"], ["worker/1"], ["ps/0"], ["ps/0", "worker/0", "worker/1"]):
            with self.subTest(tasks=tasks):
                task = self.train("--model", "linear", "--workers", 2, "--epochs", 1000000)
                task.wait_for(r"Step: \d+")
                self.suspended(task, [rf"# {name}: pid (\d+)" for name in tasks], signal.SIGSTOP)
                task.signal(signal.SIGTERM)
                self.assert_ends(task, cluster.GOOD, self.WITHIN, says=[r"Parameter-Hash"])


if __name__ == "__main__":
    unittest.main()
