"""Tests the placement of threads and memory, from /proc during training and from the summaries of the tasks."""
import os
import pathlib
import platform
import re
import sys
import unittest

import cluster

ALLOWED = sorted(os.sched_getaffinity(0))
# A local cluster of a worker and a shard binds its threads only with a third CPU for the other threads.
ROOM = len(ALLOWED) >= 3
# This run does not end before the test has examined it. Each test ends it.
LONG = ["--model", "mlp", "--epochs", 100000, "--log_every", 20]
SHORT = ["--model", "linear", "--epochs", 1]

# A program that may not bind threads and memory. The seccomp profile of a container may forbid it, for example.
FORBID = r"""
import ctypes, os, struct, sys
numbers = [int(n) for n in sys.argv[1].split(",")]
EPERM = 1
filter = [(0x20, 0, 0, 0)]  # load the number of the system call
for i, number in enumerate(numbers):
    filter.append((0x15, len(numbers) - i, 0, number))  # equal: jump to the last line
filter += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x00050000 | EPERM)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in filter))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(filter), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program) == 0, ctypes.get_errno()  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
os.execv(sys.argv[2], sys.argv[2:])
"""
SYSTEM_CALLS = {"x86_64": {"sched_setaffinity": 203, "mbind": 237}, "aarch64": {"sched_setaffinity": 122, "mbind": 235}}


def parse_cpus(text):
    cpus = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus


def threads(pid):
    """Returns (thread id, name, CPUs) of the threads of a process, without the threads of the thread sanitizer."""
    found = []
    folders = sorted(pathlib.Path(f"/proc/{pid}/task").iterdir(), key=lambda folder: int(folder.name))
    for folder in folders:
        try:
            status = (folder / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        name = re.search(r"^Name:\s*(.*)$", status, re.M).group(1)
        cpus = re.search(r"^Cpus_allowed_list:\s*(.*)$", status, re.M).group(1)
        found.append((int(folder.name), name, parse_cpus(cpus)))
    if "TSAN_OPTIONS" in os.environ:  # its threads are older than all of gradrail, and a process may have two
        while not found[1][1].startswith("gradrail-"):
            del found[1]
    return found


def shard_cpus(pid):
    return [cpus for _, name, cpus in threads(pid) if name == "gradrail-shard"]


def owner_cpus(pid):
    """Returns the CPUs of the main thread of a worker, which computes and exchanges."""
    return next(cpus for thread, _, cpus in threads(pid) if thread == pid)


def policies(pid, memory):
    """Returns the NUMA policies of the shared memory of that name: "prefer:0", "default", …"""
    lines = pathlib.Path(f"/proc/{pid}/numa_maps").read_text().splitlines()
    return {line.split()[1] for line in lines if f"memfd:{memory}" in line}


class Placement(cluster.ClusterTest):
    def train_until_seen(self, *flags, taskset=None, environment=None):
        """Starts a local cluster and waits until it trains. Returns it with the process ids of ps 0 and the workers."""
        command = [cluster.binary(), "train", *map(str, [*LONG, *flags])]
        if taskset:
            command = ["taskset", "-c", ",".join(map(str, taskset)), *command]
        task = self.launch("train", command, environment)
        task.wait_for(r"^Step: \d+")
        pids = [int(pid) for pid in re.findall(r"^# \S+: pid (\d+)$", task.text(), re.M)]
        return task, pids[0], pids[1:]

    def assert_everywhere(self, pid, cpus):
        for thread, name, found in threads(pid):
            self.assertEqual(found, set(cpus), f"thread {thread} ({name}) of {pid}")

    def assert_apart(self, ps, worker):
        """Checks that the shard has its own core, and that the threads of the control plane may use all cores."""
        (shard,) = shard_cpus(ps)
        owner = owner_cpus(worker)
        self.assertEqual(len(shard), 1)
        self.assertLessEqual(shard | owner, set(ALLOWED))
        # Threads of the control plane that were bound to the core of the shard would delay it.
        others = [cpus for _, name, cpus in threads(ps) if name != "gradrail-shard"]
        others += [cpus for thread, _, cpus in threads(worker) if thread != worker]
        self.assertGreater(len(others), 2)
        self.assertTrue(all(cpus == set(ALLOWED) for cpus in others), others)
        return shard, owner

    def test_worker_and_shard_have_cores_of_their_own(self):
        _, ps, (worker,) = self.train_until_seen("--workers", 1)
        if ROOM:
            self.assertFalse(set.intersection(*self.assert_apart(ps, worker)))
        else:
            self.assert_everywhere(ps, ALLOWED)
            self.assert_everywhere(worker, ALLOWED)

    def test_tasks_of_other_hosts_leave_all_cores_to_ours(self):
        # The name of the worker is that of another host: the ps plans only for itself, which needs two CPUs.
        common = [*self.addresses(1)[:2], "--worker_hosts", "elsewhere:3000", *LONG]
        ps = self.train(*common, "--job_name", "ps", "--task_index", 0, name="ps/0")
        worker = self.train(*common, "--job_name", "worker", "--task_index", 0, name="worker/0")
        worker.wait_for(r"^Step: \d+")
        self.assert_apart(ps.pid, worker.pid)

    def test_memory_is_bound_to_its_node(self):
        _, ps, (worker,) = self.train_until_seen("--workers", 1)
        for pid, names in ((ps, ("gradrail-parameters", "gradrail-slots", "gradrail-returns")),
                           (worker, ("gradrail-parameters", "gradrail-gradients", "gradrail-headers"))):
            for name in names:
                found = policies(pid, name)
                self.assertTrue(found, f"{name} of {pid}")
                self.assertTrue(all(policy.startswith(("prefer", "bind")) for policy in found), (name, found))

    def test_no_pin_leaves_all_of_them_free(self):
        task, ps, (worker,) = self.train_until_seen("--workers", 1, "--no_pin")
        self.assert_everywhere(ps, ALLOWED)
        self.assert_everywhere(worker, ALLOWED)
        self.assertEqual(policies(ps, "gradrail-parameters"), {"default"})
        task.end()
        short = self.train(*SHORT, "--workers", 1, "--no-pin")
        self.assert_ends(short, cluster.GOOD, says=[r"Placed: worker/0 not bound \(--no-pin\)",
                                                    r"\[ps/0\] Placed: ps/0 not bound \(--no-pin\)"])

    def test_cores_hold_whole_tasks(self):
        cpu = ALLOWED[-1]
        _, ps, (worker,) = self.train_until_seen("--workers", 1, "--cores", cpu)
        self.assert_everywhere(ps, [cpu])
        self.assert_everywhere(worker, [cpu])

    def test_reserved_cpus_stay_free(self):
        _, ps, workers = self.train_until_seen("--workers", 2, "--reserve", ALLOWED[0])
        for pid in (ps, *workers):
            for thread, name, cpus in threads(pid):
                self.assertNotIn(ALLOWED[0], cpus, f"thread {thread} ({name}) of {pid}")

    def test_taskset_is_respected(self):
        cpu = ALLOWED[-1]
        task, ps, (worker,) = self.train_until_seen("--workers", 1, taskset=[cpu])
        self.assert_everywhere(ps, [cpu])
        self.assert_everywhere(worker, [cpu])
        self.assertNotRegex(task.text(), "warning|not bound")

    @cluster.long("PlanCores has the plan; the line with the way of waiting is seen here alone")
    def test_crowded_tasks_share_and_adapt(self):
        two = ALLOWED[:2]
        task, ps, workers = self.train_until_seen("--workers", 3, "--log_device_placement", taskset=two)
        for pid in (ps, *workers):
            self.assert_everywhere(pid, two)
        self.assertRegex(task.text(), r"(?m)^waiting: adapt: 4 busy threads")
        task, _, _ = self.train_until_seen("--workers", 3, "--log_device_placement", "--wait", "spin", taskset=two)
        self.assertRegex(task.text(), r"(?m)^waiting: spin: --wait$")

    def test_summary_says_where_everything_was(self):
        task = self.train(*SHORT, "--workers", 1)
        self.assert_ends(task, cluster.GOOD)
        placed = r"Placed: {} (?:on|sharing) cpus? ([0-9,-]+) \(NUMA node \d+, memory there\)"
        worker = re.search("^" + placed.format("worker/0"), task.text(), re.M)
        shard = re.search(r"^\[ps/0\] " + placed.format("ps/0"), task.text(), re.M)
        self.assertTrue(worker and shard, task.transcript())
        both = parse_cpus(worker[1]) & parse_cpus(shard[1])
        self.assertEqual(both, set() if ROOM else set(ALLOWED), task.transcript())
        crowded = self.launch("crowded", ["taskset", "-c", str(ALLOWED[0]), cluster.binary(), "train",
                                          *map(str, [*SHORT, "--workers", 2, "--shards", 2])])
        self.assert_ends(crowded, cluster.GOOD, says=[rf"Placed: worker/0 sharing cpu {ALLOWED[0]} ",
                                                      rf"Placed: worker/1 sharing cpu {ALLOWED[0]} ",
                                                      r"Placed: ps/0 shard 0 sharing .*; ps/0 shard 1 sharing "])

    def test_why_table_is_printed_once(self):
        task = self.train(*SHORT, "--workers", 2, "--log_device_placement")
        self.assert_ends(task, cluster.GOOD)
        for line in (r"worker/0 tower 0", r"worker/1 tower 0", r"ps/0 shard 0"):
            self.assertEqual(len(re.findall(rf"(?m)^{line}$", task.text())), 1, task.transcript())

    def test_tasks_by_hand_agree_without_asking(self):
        (ps,), (worker,) = self.start_cluster(1, "--epochs", 100000, "--log_every", 20, model="mlp")
        worker.wait_for(r"^Step: \d+")
        (shard,) = shard_cpus(ps.pid)
        both = shard & owner_cpus(worker.pid)
        self.assertEqual(both, set() if ROOM else set(ALLOWED))

    def test_worker_beyond_the_list_is_in_nobodys_way(self):
        (ps,), (worker,) = self.start_cluster(1, "--epochs", 100000, "--log_every", 20, model="mlp")
        worker.wait_for(r"^Step: \d+")
        late = self.start_worker(5)
        late.wait_for(r"^Step: \d+")
        self.assertEqual(owner_cpus(late.pid), set(ALLOWED))

    @cluster.long("no other test compares the bits of bound and unbound runs")
    def test_sync_results_do_not_depend_on_it(self):
        flags = ["--model", "mlp", "--epochs", 1, "--mode", "sync"]
        for workers in (1, 2):
            hashes = [cluster.hash_of(self.train(*flags, "--workers", workers, *more))
                      for more in ([], ["--no-pin"], ["--cores", ALLOWED[0]])]
            self.assertEqual(len(set(hashes)), 1, hashes)

    def test_bad_flags(self):
        missing = max(ALLOWED) + 40000
        for flags, words in (
                (["--cores", missing], f"--cores {missing}: .*no cpu"),
                (["--reserve", ",".join(map(str, ALLOWED))], "--reserve .* leaves none of the cpus"),
                (["--nic", "nope"], "--nic nope: this machine has"),
                (["--no-pin", "--cores", 0], "--no-pin binds nothing.*--cores")):
            with self.subTest(flags=flags):
                self.refused(cluster.CONFIGURATION, [words], *SHORT, *flags)
        self.refused(cluster.USAGE, ["--nic: ',' names no device"], *SHORT, "--nic", ",")
        self.refused(cluster.USAGE, ["--cores: 'x' is not a list of cpus"], *SHORT, "--cores", "x")
        self.refused(cluster.USAGE, ["--reserve: '1-'"], *SHORT, "--reserve", "1-")
        by_hand = [*self.addresses(1), "--job_name", "worker", "--task_index", 0]
        self.refused(cluster.CONFIGURATION, [f"--cores {missing}"], *by_hand, "--cores", missing)

    def test_another_machines_description_is_no_plan_for_this_one(self):
        task = self.train(*SHORT, "--workers", 1, environment={"HWLOC_SYNTHETIC": "pack:2 core:4 pu:1"})
        self.assert_ends(task, cluster.GOOD, says=["warning: .*HWLOC_SYNTHETIC", r"Placed: worker/0 not bound \(see"])
        self.assertEqual(task.text().count("warning:"), 1, task.transcript())
        self.refused(cluster.CONFIGURATION, ["--cores.*need the topology of this machine"], *SHORT, "--cores", ALLOWED[0],
                     environment={"HWLOC_SYNTHETIC": "pack:2 core:4 pu:1"})

    def test_refused_bindings_are_one_warning(self):
        calls = SYSTEM_CALLS.get(platform.machine())
        if calls is None:
            print(f"skipped: the numbers of the system calls of {platform.machine()} are not known", flush=True)
            os._exit(77)
        numbers = ",".join(str(number) for number in calls.values())
        command = [sys.executable, "-c", FORBID, numbers, cluster.binary(), "train",
                   *map(str, [*SHORT, "--workers", 1, "--cores", ALLOWED[0]])]
        task = self.launch("train", command)
        self.assert_ends(task, cluster.GOOD, says=[r"Placed: worker/0 not bound \(see the warning\)",
                                                   r"not everything is bound as planned: .*CAP_SYS_NICE.*--no-pin"])
        for name in ("worker/0", "ps/0"):
            self.assertEqual(len(re.findall(rf"(?m)^{name} W ", task.text())), 1, task.transcript())


if __name__ == "__main__":
    if len(ALLOWED) < 2:
        print("skipped: two threads on different CPUs need two CPUs")
        sys.exit(77)
    unittest.main()
