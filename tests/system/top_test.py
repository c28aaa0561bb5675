"""Tests `gradrail top`: the state of the tasks of a running cluster, on a terminal and for scripts."""
import os
import pty
import re
import signal
import subprocess
import time
import unittest

import cluster

ENDLESS = ["--epochs", 100000]


class Top(cluster.ClusterTest):
    def top(self, *flags, code=cluster.GOOD):
        task = self.launch("top", [cluster.binary(), "top", *map(str, flags)])
        self.assert_ends(task, code)
        return task.text().splitlines()

    def rows_until(self, condition, *flags):
        """Returns {task: row} of the first table for which the condition holds."""
        deadline = time.monotonic() + cluster.START
        while True:
            rows = {line.split()[0]: line for line in self.top("--ps_hosts", ",".join(self.ps_addresses), "--once", *flags)}
            if condition(rows):
                return rows
            self.assertLess(time.monotonic(), deadline, rows)

    def test_one_table_has_all_tasks_and_why_one_does_not_answer(self):
        self.start_cluster(2, *ENDLESS)
        paced = lambda rows: all(re.search(r"\d{2,}/s", rows.get(task, "")) for task in ("ps/0", "worker/0", "worker/1"))
        self.ps_addresses.append("127.0.0.1:1")
        rows = self.rows_until(paced)
        self.assertRegex(rows["TASK"], r"STEP +RATE +P50 +P99 +STALENESS +PATH +NOTE")
        self.assertRegex(rows["ps/0"], rf"ps/0 +[1-9]\d* .* {self.ps_addresses[0]} +2 live, 1 shards")
        self.assertRegex(rows["ps/1"], rf"ps/1 +- .* {self.ps_addresses[1]} +.*Connection refused")
        file = self.write_json({"ps": self.ps_addresses, "worker": ["localhost:3000", "localhost:3001"]})
        self.assertRegex("\n".join(self.top(file, "--once")), r"(?s)ps/0 .*\nps/1 .*\nworker/0 .*\nworker/1 ")
        for task in ("worker/0", "worker/1"):
            self.assertRegex(rows[task], rf"{task} +[1-9]\d* +\S+/s +[\d.]+ [um]s +[\d.]+ [um]?s +\d+\.\d  shm mapped")

    def test_it_shows_awaited_and_silent_workers(self):
        _, (_, second) = self.start_cluster(2, "--mode", "sync", "--heartbeat-timeout", 600, *ENDLESS)
        second.wait_for(r"Step: \d+")
        second.signal(signal.SIGSTOP)
        rows = self.rows_until(lambda rows: "silent" in rows.get("worker/1", "") and "exchange for" in rows["worker/0"])
        self.assertRegex(rows["ps/0"], "waits for .*worker 1")
        self.assertRegex(rows["worker/1"], r"silent for \d+ s, awaited")
        self.assertRegex(rows["worker/0"], r"in an exchange for \d+\.\d s")

    def test_it_shows_workers_that_left_or_were_lost(self):
        _, (_, second, third) = self.start_cluster(3, *ENDLESS)
        self.rows_until(lambda rows: {"worker/1", "worker/2"} <= rows.keys())  # a worker without a report has no row
        for worker, end in ((second, signal.SIGTERM), (third, signal.SIGKILL)):
            worker.signal(end)
        self.rows_until(lambda rows: rows.get("worker/1", "").endswith("left") and "lost: " in rows.get("worker/2", ""))

    def test_on_a_terminal_until_q_and_the_terminal_is_as_before(self):
        self.start_cluster(1, *ENDLESS)
        for end in (b"q", signal.SIGINT):
            master, slave = pty.openpty()
            self.addCleanup(os.close, master)
            before = subprocess.run(["stty", "-g"], stdin=slave, capture_output=True, check=True).stdout
            top = subprocess.Popen([cluster.binary(), "top", "--ps_hosts", self.ps_addresses[0]], stdin=slave,
                                   stdout=slave, stderr=slave, start_new_session=True)
            self.addCleanup(top.kill)
            seen, deadline = b"", time.monotonic() + cluster.START
            while seen.count(b"worker/0") < 2:  # top has drawn the table twice
                self.assertLess(time.monotonic(), deadline, seen)
                seen += os.read(master, 65536)
            os.write(master, end) if isinstance(end, bytes) else top.send_signal(end)
            self.assertEqual(top.wait(cluster.START), cluster.GOOD)
            seen += os.read(master, 65536)
            self.assertTrue(seen.endswith(b"\033[?25h\033[?1049l"), seen[-60:])
            self.assertEqual(subprocess.run(["stty", "-g"], stdin=slave, capture_output=True).stdout, before)
            os.close(slave)

    def test_top_refusals(self):
        for flags, words in (((), "name the cluster: "), (("cluster.json", "--ps_hosts", "127.0.0.1:1"), "name the cluster once"),
                             (("--ps_hosts", "127.0.0.1:1"), "not a terminal .--once")):
            self.assertRegex("\n".join(self.top(*flags, code=cluster.CONFIGURATION)), words)
        self.assertRegex("\n".join(self.top("--ps_hosts", "127.0.0.1:1", "--once", code=cluster.RETRY)),
                         "not one parameter server answered")


if __name__ == "__main__":
    unittest.main()
