"""Faults of tasks on several hosts (four_hosts.py). Tasks are killed, stopped or slowed down. Links are cut or slow.
Unauthenticated connections arrive, and clocks jump. Each fault returns its description when it ends."""
import os
import random
import re
import signal
import struct
import subprocess
import sys
import time

import cluster
import four_hosts

# The limit for the recovery from a fault. A ps without a link takes longest.
RECOVERY = 45 * cluster.PATIENCE
GARBAGE = """
import random, socket, sys
BEGINS = (b"", b"GET / HTTP/1.1\\r\\n", b"CONNECT x HTTP/1.1\\r\\n", b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", b"\\x16\\x03\\x01")
for where in sys.argv[1:]:
    host, port = where.rsplit(":", 1)
    for number in range(20):
        try:
            with socket.create_connection((host, int(port)), 1) as connection:
                connection.sendall(BEGINS[number % len(BEGINS)] + random.randbytes(random.randrange(1, 9000)))
        except OSError:
            pass
"""


def shaped(rate):
    """Returns the options of tc for a link of this rate, with a short queue."""
    return ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "100ms"]


class Faults(four_hosts.FourHosts):
    """A task on each host. Derived classes choose the hosts, and the lengths of stops and cuts."""

    MODEL = "linear"
    LASTS = [0.5, 2, 5, 7]  # seconds; --heartbeat-timeout is 4
    SLOW = "4mbit"  # of a slow link
    JUMPS = [-86400, -3600, -30, 30, 3600, 86400]  # seconds of a jump of the clock

    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("GRADRAIL_SOAK_SEED", random.randrange(2 ** 32)))
        print(f"GRADRAIL_SOAK_SEED={self.seed}", flush=True)
        self.chance = random.Random(self.seed)

    def task_on(self, host):
        """Returns the job and the index of the task on this host."""
        return ("ps", self.PS.index(host)) if host in self.PS else ("worker", self.WORKERS.index(host))

    def name_of(self, host):
        return "{}/{}".format(*self.task_on(host))

    def start(self, host):
        cores = sorted(os.sched_getaffinity(0))  # without a flag, each host would use all of them
        # This is the process of the task, not that of ip: the faults signal it.
        flags = [*self.flags, "--cores", cores[host % len(cores)]]
        task = self.train_on(host, *self.task_on(host), *flags, binary_flags=("--model", self.MODEL),
                             environment=self.environment_of(host))
        self.now[host] = task
        self.every[host].append(task)
        return task

    def environment_of(self, host):
        clock = self.clock_of(host)
        if clock is None:
            return {}
        library = os.environ["GRADRAIL_JUMPING_CLOCK"]
        return {"LD_PRELOAD": f"{cluster.sanitizer_runtime(cluster.binary())} {library}".strip(),
                "GRADRAIL_CLOCK_OFFSET_FILE": str(clock)}

    def clock_of(self, host):
        """Returns the file with the offset of the clock of this host, or None: the clock does not jump."""
        return None

    def start_all_hosts(self, *flags):
        self.flags = flags
        self.now, self.every = {}, {host: [] for host in range(self.HOSTS)}
        for host in range(self.HOSTS):
            self.start(host)
        for host in self.WORKERS:
            self.now[host].wait_for(r"Step: \d+")

    def mended(self, host):
        """Restarts a task that ended with a code that asks for a restart, like a service manager."""
        task = self.now[host]
        if task.running():
            return
        code = task.code(5)
        self.assertTrue(code == -signal.SIGKILL or cluster.retry_worthy(code), task.transcript())
        self.start(host)

    def kill_at(self, host):
        self.now[host].signal(signal.SIGKILL)
        self.now[host].code(10)

    def stop_at(self, host, seconds):
        self.now[host].signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.now[host].signal(signal.SIGCONT)
        return f"stop of {self.name_of(host)} for {seconds} s"

    def cut_at(self, host, seconds):
        four_hosts.ip("-n", self.switch, "link", "set", f"port{host}", "down")
        time.sleep(seconds)
        four_hosts.ip("-n", self.switch, "link", "set", f"port{host}", "up")
        return f"link of {self.name_of(host)} down for {seconds} s"

    def slow_at(self, host):
        for _ in range(20):
            self.now[host].signal(signal.SIGSTOP)
            time.sleep(0.09)
            self.now[host].signal(signal.SIGCONT)
            time.sleep(0.01)
        return f"{self.name_of(host)} slowed ten times for 2 s"

    def slow_link_at(self, host, seconds):
        tc = ["ip", "netns", "exec", self.switch, "tc", "qdisc"]
        subprocess.run([*tc, "replace", "dev", f"port{host}", *shaped(self.SLOW)], check=True)
        time.sleep(seconds)
        subprocess.run([*tc, "del", "dev", f"port{host}", "root"], check=True)
        return f"link of {self.name_of(host)} with {self.SLOW}/s for {seconds} s"

    def kill(self):
        host = self.chance.choice(self.WORKERS)
        self.kill_at(host)
        return f"kill of {self.name_of(host)}"

    def kill_ps(self):
        host = self.chance.choice(self.PS)
        self.kill_at(host)
        return f"kill of {self.name_of(host)}"

    def stop(self):
        return self.stop_at(self.chance.randrange(self.HOSTS), self.chance.choice(self.LASTS))

    def link_down(self):
        return self.cut_at(self.chance.randrange(self.HOSTS), self.chance.choice(self.LASTS))

    def slow(self):
        return self.slow_at(self.chance.randrange(self.HOSTS))

    def slow_link(self):
        return self.slow_link_at(self.chance.randrange(self.HOSTS), 3)

    def garbage(self):
        """Sends random bytes to all ports on which the hosts of the ps tasks listen."""
        found = set()
        for host in self.PS:
            listeners = subprocess.run(["ip", "netns", "exec", self.hosts[host], "ss", "-Htln"], capture_output=True,
                                       text=True, check=True).stdout
            address = four_hosts.address_of(host)
            found |= {f"{address}:{port}" for port in re.findall(rf"{re.escape(address)}:(\d+)\s", listeners)}
        sender = self.hosts[self.chance.choice(self.WORKERS)]
        subprocess.run(["ip", "netns", "exec", sender, sys.executable, "-c", GARBAGE, *sorted(found)], check=False,
                       timeout=120)
        return f"garbage at {len(found)} ports of the ps tasks"

    def clock_jump(self):
        """The clock of a host jumps; it then continues from there. The monotonic clock is not changed."""
        host = self.chance.randrange(self.HOSTS)
        seconds = self.chance.choice(self.JUMPS)
        file = self.clock_of(host)
        before, = struct.unpack("<q", file.read_bytes())
        with file.open("r+b") as out:  # in place: the tasks have mapped the file
            out.write(struct.pack("<q", before + seconds * 10 ** 9))
        return f"clock of {self.name_of(host)} jumps by {seconds} s"
