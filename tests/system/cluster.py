"""Starts and ends the processes of the system tests, such as tasks of `gradrail train`, and reads their output.

Each wait has a deadline and ends as soon as its condition holds. $GRADRAIL_BINARY is the program under test.
$GRADRAIL_PATIENCE multiplies all deadlines, for busy machines; tools/dev/run_tests measures it.
$GRADRAIL_INSTRUMENTED_PATIENCE also does, for sanitizers; CMake sets it.
"""
import collections
import functools
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

INSTRUMENTED_PATIENCE = float(os.environ.get("GRADRAIL_INSTRUMENTED_PATIENCE", "1"))
PATIENCE = float(os.environ.get("GRADRAIL_PATIENCE", "1")) * INSTRUMENTED_PATIENCE
START = 30 * PATIENCE  # until a task on a busy machine has printed something
FINISH = 45 * PATIENCE  # until a small run has ended
# A busy machine must not lose a worker: a step without its gradient has other bits, and no loss may be reported.
ALL_STAY = ("--heartbeat-timeout", 600, "--path_timeout", 600)

GOOD, FAILED, USAGE, CONFIGURATION, RETRY = 0, 1, 2, 4, 200

# The output of a run must not contain these texts.
CRASHES = re.compile(r"terminate called|Sanitizer|runtime error:|check failed|Segmentation|core dumped", re.I)

Line = collections.namedtuple("Line", "time text")


def binary():
    path = os.environ.get("GRADRAIL_BINARY")
    if not path:
        raise SystemExit("GRADRAIL_BINARY is not set: run these tests with ctest")
    return path


@functools.lru_cache(None)  # the binary is large, and each program of a test asks
def instrumented():
    """Returns whether the binary contains a sanitizer. Its shadow and quarantine count as memory of the process."""
    code = pathlib.Path(binary()).read_bytes()
    return b"__asan_init" in code or b"__tsan_init" in code


def sanitizer_runtime(path):
    """Returns the runtime of the sanitizer in a program or library, or "". It must be the first library of a process."""
    if not instrumented():
        return ""
    loaded = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    # With libstdc++: the runtime looks at its start for the function that throws, which Python does not have then.
    return " ".join(re.search(rf"{name}\.so\S* => (\S+)", loaded).group(1) for name in ("lib[at]san", r"libstdc\+\+"))


PORTS = range(10000, 32000)  # below the range of source ports, so that they stay free for a while
BLOCK = 50
reserved = {}  # first port of a block, and the socket whose name reserves it


def free_ports(count):
    """Returns ports without a listener. No other test program of this network namespace gets them."""
    held = []
    first = os.getpid() * 37 % (len(PORTS) // BLOCK)
    blocks = list(PORTS[::BLOCK])
    for block in [*reserved, *blocks[first:], *blocks[:first]]:
        if block not in reserved:
            name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                name.bind(f"\0gradrail-test-ports-{block}")
            except OSError:
                name.close()
                continue
            reserved[block] = name
        for port in range(block, block + BLOCK):
            probe = socket.socket()
            try:
                probe.bind(("127.0.0.1", port))
                held.append(probe)
            except OSError:
                probe.close()
            if len(held) == count:
                ports = [probe.getsockname()[1] for probe in held]
                for probe in held:
                    probe.close()
                return ports
    raise AssertionError(f"no {count} free ports from {PORTS.start} to {PORTS.stop}")


class Task:
    """One process. A thread reads its output, stdout and stderr together, all the time."""

    all = []  # those of this test program, for skip()

    def __init__(self, name, command, environment=None, output=None):
        self.name = name
        self._changed = threading.Condition()
        self._lines = []
        self._done = False
        self._raw = b""
        variables = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "GRADRAIL_LOG")}
        variables.update(environment or {})
        self.started = time.monotonic()
        if output is None:
            source, sink = os.pipe()
        else:
            source, sink = output
        # The process has its own group: the tests handle Ctrl-C, and they can end the group at once.
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=variables,
                                        start_new_session=True)
        os.close(sink)
        self.all.append(self)
        self.pid = self.process.pid
        self._reader = threading.Thread(target=self._read, args=(source,), daemon=True)
        self._reader.start()

    def _read(self, source):
        partial = b""
        while True:
            try:
                data = os.read(source, 65536)
            except OSError:  # the other end of the terminal was closed
                data = b""
            with self._changed:
                self._raw += data
                *whole, partial = (partial + data).split(b"\n")
                if not data and partial:
                    whole.append(partial)
                now = time.monotonic()
                self._lines += [Line(now, line.decode(errors="replace")) for line in whole]
                self._done = not data
                self._changed.notify_all()
            if not data:
                os.close(source)
                return

    def lines(self):
        with self._changed:
            return list(self._lines)

    def text(self):
        return "\n".join(line.text for line in self.lines())

    def raw(self):
        with self._changed:
            return self._raw

    def forget(self):
        """Drops the output so far. Runs with thousands of faults need this."""
        with self._changed:
            self._lines, self._raw = [], b""

    def transcript(self):
        lines = self.lines()
        # A long output is shown by its begin, its warnings and its end.
        shown = lines if len(lines) <= 60 else (
            lines[:20] + [line for line in lines[20:-40] if re.search(r" W \d\d:", line.text)][-60:] + lines[-40:])
        said = "\n".join(f"    {line.time - self.started:7.2f} s  {line.text}" for line in shown)
        return f"--- {self.name} (pid {self.pid}, code {self.process.poll()})\n{said}"

    def has(self, pattern):
        return re.search(pattern, self.text(), re.M) is not None

    def wait_for(self, pattern, within=START, after=0):
        """Returns the match of `pattern` in a line after the first `after` lines. It fails if the output ends first."""
        deadline = time.monotonic() + within
        with self._changed:
            while True:
                for line in self._lines[after:]:
                    found = re.search(pattern, line.text)
                    if found:
                        return found
                left = deadline - time.monotonic()
                if self._done or left <= 0:
                    break
                self._changed.wait(left)
        why = "its output ended" if self._done else f"{within:.0f} s passed"
        raise AssertionError(f"{self.name}: {why} without /{pattern}/\n{self.transcript()}")

    def code(self, within=FINISH):
        """Returns the exit code as a shell shows it. It fails if the process does not end in time."""
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {within:.0f} s\n{self.transcript()}") from None
        self._reader.join(5)
        return code

    def running(self):
        return self.process.poll() is None

    def signal(self, number):
        os.kill(self.pid, number)

    def end(self):
        for number in (signal.SIGKILL, signal.SIGCONT):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
        self.process.wait()
        self._reader.join(5)


ROOT = pathlib.Path(__file__).resolve().parents[2]


# Prints a module that Python does not find, without an import: that of torch takes a second. find_spec() imports the
# packages around a module, and PathFinder does not.
ABSENT = """
import importlib.machinery, importlib.util, sys
for module in sys.argv[1:]:
    top, *parts = module.split(".")
    found = importlib.util.find_spec(top)
    for part in parts:
        top += "." + part
        found = found and importlib.machinery.PathFinder.find_spec(top, found.submodule_search_locations or [])
    if found is None:
        sys.exit(module)
"""


@functools.lru_cache(None)
def python_with(*modules):
    """Returns the Python that has these modules: $GRADRAIL_TEST_PYTHON, or else that of Debian. Skips without them. A
    module that is there and cannot be imported fails the test."""
    python = os.environ.get("GRADRAIL_TEST_PYTHON") or "/usr/bin/python3"
    try:
        asked = subprocess.run([python, "-c", ABSENT, *modules], capture_output=True, text=True, check=False)
    except OSError as error:
        skip(f"{python}: {error.strerror}; GRADRAIL_TEST_PYTHON names another Python")
    if asked.returncode != 0:
        why = (asked.stderr.strip().splitlines() or ["no message"])[-1]
        skip(f"{python} has no {why}; GRADRAIL_TEST_PYTHON names another Python")
    return python


def python_environment():
    """Returns the variables with which a Python program finds the package and the library of this build."""
    library = pathlib.Path(binary()).resolve().parents[1] / "lib" / "libgradrail.so.1"
    runtime = sanitizer_runtime(library)
    # The interpreter has no sanitizer, and keeps memory at its end. An interrupted program does not free its client.
    sanitizer = {"LD_PRELOAD": runtime, "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0",
                 "TSAN_OPTIONS": f"{os.environ.get('TSAN_OPTIONS', '')}:report_thread_leaks=0"} if runtime else {}
    # One thread for each worker: pools of threads of several workers on few cores wait for one another.
    return {"PYTHONPATH": str(ROOT / "worker" / "python"), "GRADRAIL_LIBRARY": str(library), "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1", **sanitizer}


def skip(reason):
    """Ends this test as skipped. Each test has its own process, and unittest reports sys.exit() as an error."""
    print(f"skipped: {reason}", flush=True)
    for task in Task.all:
        task.end()
    os._exit(77)


def long(sees):
    """Marks a test of `make test-all` alone. `sees`: the tests of `make test` that see the same faults, or why none can."""
    assert sees
    return lambda test: test  # tests/system/CMakeLists.txt reads the line and gives the test the label "long"


def wait_until(condition, within, what):
    """Waits until `condition` holds. `what()` describes the state for the error message."""
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {within:.1f} s: {what()}")
        time.sleep(0.02)


class ClusterTest(unittest.TestCase):
    """Starts tasks, and ends the remaining tasks after the test."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gradrail-system-"))
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", self.folder], check=False))
        self.tasks = []

    def run(self, result=None):
        """Prints the transcripts of all tasks after a failure, because its cause is often in another task."""
        failed_before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > failed_before:
            for task in self.tasks:
                print(task.transcript(), file=sys.stderr, flush=True)
        return result

    def tearDown(self):
        for task in self.tasks:
            task.end()
        for task in self.tasks:
            self.assertIsNone(CRASHES.search(task.text()), task.transcript())

    def secret_file(self):
        secret = self.folder / "secret"
        secret.write_text("0123456789abcdef" * 4)
        secret.chmod(0o600)
        return secret

    def launch(self, name, command, environment=None, output=None):
        task = Task(name, command, environment, output)
        self.tasks.append(task)
        return task

    def train(self, *flags, name="train", environment=None, output=None):
        # A run that fails writes a file with the data of its flight recorder.
        environment = {"TMPDIR": str(self.folder), **(environment or {})}
        return self.launch(name, [binary(), "train", *map(str, flags)], environment, output)

    def refused(self, code, says, *flags, environment=None, within=START):
        """Checks that a run does not start: its exit code, and words that its message must contain."""
        task = self.train(*flags, environment=environment)
        self.assertEqual(task.code(within), code, task.transcript())
        for words in says:
            self.assertRegex(task.text(), words)
        return task

    def addresses(self, workers, ps=1):
        """Returns the flags of a cluster on this host."""
        self.ps_addresses = [f"127.0.0.1:{port}" for port in free_ports(ps)]
        self.worker_names = [f"127.0.0.1/{i}" for i in range(workers)]
        return ["--ps_hosts", ",".join(self.ps_addresses), "--worker_hosts",
                ",".join(f"localhost:{3000 + i}" for i in range(workers))]

    def start_cluster(self, workers, *flags, ps=1, model="linear"):
        """Starts the ps tasks and the workers as separate processes. Returns (ps tasks, workers)."""
        common = [*self.addresses(workers, ps), "--model", model, *flags]
        self.common_flags = common
        servers = [self.train(*common, "--job_name", "ps", "--task_index", i, name=f"ps/{i}") for i in range(ps)]
        return servers, [self.start_worker(i) for i in range(workers)]

    def start_worker(self, index, *flags):
        return self.train(*self.common_flags, "--job_name", "worker", "--task_index", index, *flags,
                          name=f"worker/{index}")

    def assert_says(self, task, *patterns):
        for pattern in patterns:
            self.assertTrue(task.has(pattern), f"/{pattern}/\n{task.transcript()}")

    def assert_ends(self, task, code, within=FINISH, says=()):
        """Checks the exit code of a task. `code` is a number or a predicate."""
        found = task.code(within)
        good = code(found) if callable(code) else found == code
        self.assertTrue(good, f"unexpected exit code {found}\n{task.transcript()}")
        for words in says:
            self.assertRegex(task.text(), words, task.transcript())

    def wait_until_shown(self, pattern, addresses):
        """Waits until `gradrail top` of the ps tasks at `addresses` shows a line that matches `pattern`."""
        wait_until(lambda: re.search(pattern, self.table_of(addresses), re.M), START, lambda: self.table_of(addresses))

    def table_of(self, addresses):
        """Returns the table of `gradrail top` of the ps tasks at `addresses`."""
        return subprocess.run([binary(), "top", "--once", "--ps_hosts", ",".join(addresses)], timeout=START,
                              capture_output=True, text=True, check=False).stdout

    def wait_until_awaited(self, worker, addresses):
        """Waits until `gradrail top` of the ps tasks at `addresses` shows that a sync step waits for `worker`."""
        self.wait_until_shown(rf"^{worker} .*\bawaited", addresses)

    def assert_goes_on(self, task, steps=2, within=START):
        """Checks that a task reports new progress."""
        for _ in range(steps):
            task.wait_for(r"Step: \d+", within, after=len(task.lines()))

    def write_json(self, content, name="cluster.json"):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)


def run_from(text):
    """Returns a run that `gradrail bench` has recorded in lines: its settings, and its rows as "results"."""
    first, *rows = map(json.loads, text.splitlines())
    return {**first, "results": rows}


def recorded_run(file):
    return run_from(pathlib.Path(file).read_text())


def assert_measured(test, rows, paths, rounds):
    """Asserts that rows of a recorded run have these paths, and that each row without a failure has good figures."""
    measured = [row for row in rows if not row["failed"]]
    for path in paths:
        test.assertTrue(any(row["path"].startswith(path) for row in measured), f"{path}: {rows}")
    for row in measured:
        times = row["percentiles"]
        test.assertGreater(times["iterations"], 0, row)
        test.assertLessEqual(times["min_us"], times["p50_us"], row)
        test.assertLessEqual(times["p50_us"], times["p999_us"], row)
        test.assertEqual((row["nwrong"], len(row["rounds_us"])), (0, rounds), row)


def retry_worthy(code):
    return code >= 128


def hash_of(task):
    return task.wait_for(r"^Parameter-Hash: ([0-9a-f]{64})$", FINISH).group(1)


def whole_saves(folder, shards):
    """Returns the global steps of the saves with all their shards, in their order. Two saves of a step differ in time."""
    saves = [path.name.rsplit("-", 3)[0] for path in folder.glob(f"gradrail-*-of-{shards}.ckpt")]
    return [int(save.split("-")[1]) for save in sorted(set(saves)) if saves.count(save) == shards]


def children(pid):
    """Returns the names and process ids of the tasks of a local cluster, from its output."""
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def socket_inodes(pid):
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(entry)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    return inodes


def tcp_listeners(pid):
    """Returns (IPv4 or IPv6 address, port) of each TCP socket on which `pid` listens, in its network namespace."""
    inodes, found = socket_inodes(pid), []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = pathlib.Path(f"/proc/{pid}/net/{table}")
        for row in path.read_text().splitlines()[1:] if path.exists() else []:
            fields = row.split()
            if fields[3] != "0A" or fields[9] not in inodes:
                continue
            address, port = fields[1].split(":")
            # The kernel prints each 32-bit word in the byte order of the host.
            words = [bytes.fromhex(address[i:i + 8])[::-1] for i in range(0, len(address), 8)]
            # gRPC listens on IPv4 addresses with IPv6 sockets.
            found.append((socket.inet_ntop(family, b"".join(words)).removeprefix("::ffff:"), int(port, 16)))
    return found


def abstract_listeners(pid):
    """Returns the names of the abstract Unix sockets on which `pid` listens, without the leading NUL."""
    inodes, found = socket_inodes(pid), []
    for row in pathlib.Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = row.split()
        listens = int(fields[3], 16) & 0x10000 != 0  # __SO_ACCEPTCON
        if listens and fields[6] in inodes and len(fields) > 7 and fields[7].startswith("@"):
            found.append(fields[7][1:])
    return found
