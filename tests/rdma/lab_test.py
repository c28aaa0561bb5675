"""Tests the parts of the lab that need no guest: the readers of results, the switch, the initial RAM disk."""
import socket
import time
import types
import unittest

import kernel
import lab
import results
import suites
import switch
from cable import Cable


def frame(udp_port, payload=b"x", target=2, source=1):
    mac = bytes([2, 0, 0, 0, 0, target]) + bytes([2, 0, 0, 0, 0, source]) + b"\x08\x00"
    ip = bytearray(20)
    ip[9] = 17
    return mac + bytes(ip) + b"\x12\x34" + udp_port.to_bytes(2, "big") + b"\0\0\0\0" + payload


class SwitchTest(unittest.TestCase):
    def setUp(self):
        self.switch = switch.Switch(2)
        self.left, self.right = self.switch.guest_sockets
        self.right.settimeout(5)
        self.switch.start()
        self.addCleanup(self.switch.stop)

    def send(self, data):
        self.left.sendall(len(data).to_bytes(4, "big") + data)

    def receive(self):
        data = b""
        while True:
            data += self.right.recv(65536)
            frames, rest = switch.split_frames(data)
            if frames and not rest:
                return frames

    def drops(self, data):
        """Returns whether the switch drops a frame and delivers the next frame, which is sent after restore()."""
        before = self.switch.dropped_frames
        self.send(data)
        deadline = time.monotonic() + 5
        while self.switch.dropped_frames == before and time.monotonic() < deadline:
            time.sleep(0.001)
        self.switch.restore()
        self.send(frame(7, b"after"))
        return self.receive() == [frame(7, b"after")]

    def test_frames_arrive_whole_and_in_order(self):
        sent = [frame(4791, bytes([n % 256]) * (n * 41)) for n in range(100)]
        for data in sent:
            self.send(data)
        got = []
        while len(got) < len(sent):
            got += self.receive()
        self.assertEqual(got, sent)
        self.assertEqual(self.switch.roce_bytes, sum(map(len, sent)))

    def test_cut_cable_loses_everything(self):
        self.switch.cut()
        self.assertTrue(self.drops(frame(1)))

    def test_one_udp_port_alone_can_be_dropped(self):
        self.switch.drop_udp(4791)
        self.send(frame(4792))
        self.assertEqual(self.receive(), [frame(4792)])
        self.assertTrue(self.drops(frame(4791)))

    def test_a_guest_that_goes_away_does_not_stop_the_others(self):
        self.right.close()
        for _ in range(100):
            self.send(frame(1, b"x" * 4000))
        self.assertTrue(self.switch._thread.is_alive())

    def test_tcp_is_not_udp(self):
        data = bytearray(frame(4791))
        data[23] = 6
        self.assertFalse(switch.is_udp_to(bytes(data), (4791).to_bytes(2, "big")))


class CableTest(unittest.TestCase):
    def test_answers_stand_before_the_question_goes(self):
        import pathlib
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            state = types.SimpleNamespace(cut=lambda: None, carried_bytes=3, roce_bytes=2, dropped_frames=1)
            pulled = []
            cable = Cable(state, folder, [pulled.append])
            for question, answer in (("cut", "ok"), ("bytes", "3 2 1"), ("pull 0", "ok"), ("pull 1", "error: "),
                                     ("tear", "error: "), ("drop-udp 70000", "error: ")):
                (folder / "0.1.ask").write_text(question)
                cable.serve()
                self.assertFalse((folder / "0.1.ask").exists())
                self.assertTrue((folder / "0.1.answer").read_text().startswith(answer), question)
            self.assertEqual(pulled, [False])


GTEST = """[ RUN      ] A.good
[       OK ] A.good (3 ms)
[ RUN      ] A.bad
x_test.cc:3: Failure
Value of: x
  Actual: 1
[  FAILED  ] A.bad, where GetParam() = tcp (4 ms)
[ RUN      ] A.none
x_test.cc:9: Skipped
no device

[  SKIPPED ] A.none (0 ms)
"""


class ResultsTest(unittest.TestCase):
    def test_gtest(self):
        result = results.read_gtest(GTEST, 1)
        self.assertEqual((result.passed, result.skipped), (1, [("A.none", "no device")]))
        self.assertEqual(result.failed, [("A.bad", "Value of: x Actual: 1")])

    def test_gtest_that_crashed_names_the_test(self):
        result = results.read_gtest(GTEST + "[ RUN      ] A.last\n", 139)
        self.assertEqual(result.failed[-1], ("A.last", "did not end: killed by signal 11"))

    def test_crash_in_the_first_of_two_logs(self):
        result = results.read_gtest("[ RUN      ] A.lost\n[ RUN      ] A.good\n[       OK ] A.good (3 ms)\n", 139)
        self.assertEqual((result.passed, [name for name, _ in result.failed]), (1, ["A.lost"]))

    def test_a_bad_status_alone_is_a_failure(self):
        self.assertTrue(results.read_gtest("[ RUN      ] A.good\n[       OK ] A.good (3 ms)\n", 1).failed)
        self.assertTrue(results.read_steps("PASS a: b\n", 1).failed)

    def test_silence_is_a_failure(self):
        self.assertTrue(results.read_gtest("", 0).failed)
        self.assertTrue(results.read_steps("", 0).failed)

    def test_steps(self):
        result = results.read_steps("noise\nPASS a: 3 us\nFAIL b: why: so\nSKIP c: no tool\n", 1)
        self.assertEqual((result.passed, result.failed, result.skipped), (1, [("b", "why: so")], [("c", "no tool")]))


class SuitesTest(unittest.TestCase):
    def test_names_are_unique_and_fit_a_folder(self):
        names = [suite.name for suite in suites.SUITES]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertRegex(name, r"^[a-z0-9-]+$")


class ChoiceTest(unittest.TestCase):
    def test_what_takes_long_runs_only_when_asked_for(self):
        def names(patterns, full):
            return {suite.name for suite in lab.chosen(patterns, full)}
        self.assertIn("train-ofi", names([], False))
        self.assertNotIn("train-ofi-loss", names([], False))
        self.assertIn("train-ofi-loss", names([], True))
        self.assertNotIn("bench-put", names([], True))
        self.assertEqual(names(["bench-*"], False), {"bench-put"})
        with self.assertRaises(SystemExit):
            lab.chosen(["pigeons"], False)

    def test_each_suite_is_in_one_part(self):
        suites_of_run = lab.chosen([], False)
        for count in (1, 2, 3, len(suites_of_run) + 5):
            parts = [lab.of_part(suites_of_run, index, count) for index in range(1, count + 1)]
            self.assertEqual([suite for part in parts for suite in part], suites_of_run)
        halves = [sum(suite.seconds for suite in lab.of_part(suites_of_run, index, 2)) for index in (1, 2)]
        self.assertLess(max(halves), 1.5 * min(halves))
        for wrong in ("0/2", "3/2", "x", "1"):
            with self.assertRaises(ValueError):
                lab.part(wrong)


class FirstRootTest(unittest.TestCase):
    def test_cpio_entries_are_aligned(self):
        for length in range(5):
            entry = kernel._cpio_entry(1, "n" * 3, 0o100644, b"x" * length)
            self.assertEqual(len(entry) % 4, 0)
            self.assertEqual(entry[:6], b"070701")


if __name__ == "__main__":
    unittest.main()
