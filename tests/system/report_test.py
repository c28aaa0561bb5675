"""Tests `gradrail-report` with written runs: comparison, limits. plot_test has the pictures."""
import copy
import json
import pathlib
import tempfile
import unittest

from report import report, row, run_of
import compare  # of the program, whose folder is on the path behind `report`

GOOD, FAILED, USAGE, WRONG_RESULTS = 0, 1, 2, 3


class ReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, content, name="run.json"):
        file = self.folder / name
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    def report(self, *arguments, code=GOOD):
        ran = report(*arguments, together=True)
        self.assertEqual(ran.returncode, code, ran.stdout)
        self.assertNotIn("Traceback", ran.stdout)
        return ran.stdout

    def assert_refused(self, words, *arguments):
        self.assertRegex(self.report(*arguments, code=USAGE), words)


def puts(*rounds):
    """A run with two rows."""
    rows = [row("shm", 8, 10.0, what=what) for what in ("latency", "bandwidth")]
    for each in rows:
        each["rounds_us"] = list(rounds)
    return run_of(rows, "put", workers=0, rounds=len(rounds))


class Compare(ReportTest):
    def compared(self, first, second, *flags, code=GOOD):
        return self.report("compare", self.write(first, "first.json"), self.write(second, "second.json"), *flags, code=code)

    def test_equal_runs_do_not_differ(self):
        run = puts(10.0, 10.1, 10.2, 9.9, 10.0)
        self.assertIn("# 0 of 2 rows differ; 2 were compared", self.compared(run, run))

    def test_a_run_is_in_lines_or_a_document(self):
        run = puts(10.0, 10.1, 10.2)
        lines = "".join(json.dumps(each) + "\n" for each in ({name: run[name] for name in run if name != "results"}, *run["results"]))
        for first in (lines, run, json.dumps(run, indent=2)):
            self.assertIn("# 0 of 2 rows differ; 2 were compared", self.compared(first, lines))
        self.assertRegex(self.compared(run, lines[:-20], code=USAGE), "second.json: not JSON")
        self.assertIn("# 2 of 2 rows differ; 0 were", self.compared(run, lines.splitlines()[0], code=FAILED))

    def test_a_slower_run_differs(self):
        fast, slow = puts(10.0, 10.1, 10.2, 9.9, 10.0), puts(15.0, 15.1, 15.2, 14.9, 15.0)
        text = self.compared(fast, slow, code=FAILED)
        self.assertRegex(text, r" 10\.04 +15\.04 +1\.498 +\[1\.4\d+, 1\.5\d+\] slower\n")
        self.assertIn("# 2 of 2 rows differ", text)
        self.assertIn("] faster", self.compared(slow, fast, code=FAILED))

    def test_the_noise_of_rounds_is_no_difference(self):
        text = self.compared(puts(10.0, 14.0, 9.0), puts(11.0, 10.0, 15.0))
        self.assertRegex(text, r"\[0\.\d+, [1-9]\.\d+\]\n")
        self.assertIn("too few rounds for an interval", self.compared(puts(10.0), puts(90.0)))

    def test_rows_without_a_figure(self):
        run = puts(10.0, 10.1, 10.2)
        other = copy.deepcopy(run)
        other["results"][0]["nwrong"] = 5
        other["results"][1]["rounds_us"] = []
        other["results"].append(row("tcp", 8, 9.0, what="latency"))
        text = self.compared(run, other, code=FAILED)
        for words in ("wrong results in the second run\n", "not measured in the second run\n", "only in the second run\n", "# 3 of 3"):
            self.assertIn(words, text)
        for each in (run, other):
            each["results"] = [row("tcp", 8, 0.0, failed="no route")]
        self.assertIn("measured in neither\n", self.compared(run, other))

    def test_runs_that_are_not_alike_are_refused(self):
        run = puts(10.0, 10.1, 10.2)
        for name, value in (("no_sum", True), ("push", "bf16"), ("workers", 4), ("bidirectional", True)):
            other = copy.deepcopy(run)
            other["config"][name] = value
            with self.subTest(name=name):  # the first run lacks most of these settings
                for pair in ((run, other), (other, run)):
                    self.assertRegex(self.compared(*pair, code=USAGE), f"{name}: ")
        other = dict(run, machine="a better one")
        self.assertRegex(self.compared(run, other, code=USAGE), "not alike .*a better one.*--unlike")
        self.assertIn("# NOT alike: machine: ", self.compared(run, other, "--unlike"))

    def test_settings_of_other_versions(self):
        run = puts(10.0, 10.1, 10.2)
        other = copy.deepcopy(run)
        other["config"].update(no_sum=False, push="fp32", seed=7, matrix="", line_gbit=0)
        for each in other["results"]:
            each["stages"] = {}
        self.compared(run, other)

    def test_files_that_are_no_runs_are_refused(self):
        good = self.write(puts(10.0, 10.1), "good.json")
        run = puts(1.0)
        for text, words in (("", "empty"), ("{", "not JSON"), ("[]", "the fields .* are required"), ("{}", "are required"),
                            ({**run, "results": [{"path": 1}]}, "damaged"), ({**run, "results": {}}, "are required"),
                            ({**run, "results": [row("shm", 8, 1.0, rounds_us=[-1])]}, "rounds_us is -1")):
            with self.subTest(text=text):
                self.assert_refused(f"bad.json: .*{words}", "compare", good, self.write(text, "bad.json"))
        self.assert_refused("none: No such file", "compare", good, self.folder / "none")

    def test_quantiles_of_the_distribution_of_student(self):
        for freedom, tails, expected in ((1, 0.05, 12.7062), (2, 0.01, 9.92484), (10, 0.05, 2.22814), (300, 0.05, 1.96790)):
            self.assertAlmostEqual(compare.student_quantile(freedom, tails), expected, places=4)


def limited(path, size, p50, what="", **more):
    """A row with 1000 bytes in `p50` microseconds: 1 GB/s in 1 us."""
    each = row(path, size, p50, what=what, alg_bw=1 / p50, **more)
    each["percentiles"]["p99_us"] = 3 * p50
    return each


def limited_rows():
    return [limited("tcp", 4096, 2), limited("tcp", 65536, 4), limited("shm mapped", 65536, 1)]


class Limits(ReportTest):
    def check(self, limits, *flags, rows=None, code=GOOD, config=None):
        """Returns the lines of the violations."""
        file = self.write(run_of(rows or limited_rows(), "exchange", **(config or {})))
        said = self.report("limits", file, self.write(limits, "limits.json"), *flags, code=code)
        self.violated = [line.removeprefix("gradrail-report limits: ") for line in said.splitlines()[:-1]]
        self.assertRegex(said, rf"\d+ limits, {len(self.violated)} violations\n$")
        return self.violated

    def test_a_row_that_keeps_its_bounds_is_no_violation(self):
        self.check([{"path": "tcp", "size": "64K", "min_GB/s": 0.25, "max_us": 4, "max_99_us": 12}])

    def test_a_violation_names_row_figure_and_limit(self):
        self.assertEqual(self.check([{"path": "shm*", "max_us": 5},
                                     {"path": "tcp", "size": 65536, "min_GB/s": 0.5, "max_us": 3, "max_99_us": 11}], code=FAILED),
                         ["tcp at 65536 B: 0.250 GB/s, less than 0.5 (limits.json, limit 2)",
                          "tcp at 65536 B: 4.000 us, more than 3 (limits.json, limit 2)",
                          "tcp at 65536 B: 12.000 us (99 %), more than 11 (limits.json, limit 2)"])

    def test_without_a_size_each_size_is_bound(self):
        for path, count in (("*", 3), ("tcp", 2), ("shm*", 1)):
            self.assertEqual(len(self.check([{"path": path, "max_us": 0.5}], code=FAILED)), count)

    def test_a_limit_without_a_row_is_a_violation(self):
        for selection in ({"path": "tcp", "size": 8}, {"path": "ofi*"}, {"path": "shm"}, {"path": "tcp", "what": "latency"}):
            with self.subTest(selection=selection):
                (line,) = self.check([{**selection, "max_us": 1e9}], code=FAILED)
                self.assertIn("no measured row for max_us 1e+09 (limits.json, limit 1); measured: shm", line)

    def test_a_path_that_failed_is_named_with_its_reason(self):
        rows = [*limited_rows(), row("ofi", 65536, 0.0, failed="no device")]
        self.assertEqual(self.check([{"path": "ofi verbs rxe0", "max_us": 5}], rows=rows, code=FAILED),
                         ["ofi verbs rxe0: no measured row for max_us 5 (limits.json, limit 1); ofi was not measured: no device"])

    def test_a_latency_has_no_bandwidth_and_a_foreign_program_no_tail(self):
        rows = [limited("tcp", 8, 2, "latency"), limited("tcp", 8, 2, "bandwidth")]
        self.assertEqual(self.check([{"path": "tcp", "min_GB/s": 0.6}], rows=rows, code=FAILED),
                         ["tcp bandwidth at 8 B: 0.500 GB/s, less than 0.6 (limits.json, limit 1)"])
        for each in rows:
            each["percentiles"]["p99_us"] = 0
        self.assertEqual(len(self.check([{"path": "tcp", "max_99_us": 1e9}], rows=rows, code=FAILED)), 1)

    def test_wrong_results_have_their_own_code(self):
        rows = limited_rows()
        rows[0]["nwrong"] = 3
        run, file = self.write(run_of(rows, "exchange")), self.write([{"path": "shm*", "max_us": 5}], "limits.json")
        self.assertEqual(self.report("limits", run, file, code=WRONG_RESULTS),
                         "gradrail-report limits: 1 rows have wrong results\n1 limits, 0 violations\n")

    def good_run(self):
        return run_of([*limited_rows(), row("ucx", 65536, 0.0, failed="no device")], "exchange", seed=7, rounds=50)

    def test_a_recorded_run_bounds_each_of_its_times(self):
        good = self.good_run()
        self.check(good, "--tolerance", 25)
        slower = limited_rows()
        slower[0]["percentiles"]["p50_us"], slower[1]["percentiles"]["p50_us"] = 2.5, 5.1
        self.assertEqual(self.check(good, "--tolerance", "25%", rows=slower, code=FAILED),
                         ["tcp at 65536 B: 5.100 us, more than 5 (limits.json: 4.00 us and 25 %)"])
        self.assertEqual(len(self.check(good, "--tolerance", 25, rows=slower[1:], code=FAILED)), 2)

    def test_a_recorded_run_has_the_settings_of_this_run(self):
        good, run = self.write(self.good_run(), "good.json"), self.write(run_of(limited_rows(), "exchange", workers=4))
        self.assert_refused(r"good.json: it was recorded with other settings than .*\(workers null / 4\); use the same flags",
                            "limits", run, good, "--tolerance", 25)
        run = self.write(run_of(limited_rows(), "apply"))
        self.assert_refused(r'\(suite "exchange" / "apply"\)', "limits", run, good, "--tolerance", 25)

    def test_files_that_are_no_limits_are_refused(self):
        run = self.write(run_of(limited_rows(), "exchange"))
        damaged, wrong = self.good_run(), self.good_run()
        del damaged["results"][1]["path"]
        wrong["results"][1]["nwrong"] = 5
        for content, words, *flags in (
                ("[", "not JSON"), ([], "has no limit"), ({}, "not of `gradrail bench"), ([3], "limit 1: must be an object with path"),
                ([{"max_us": 1}], 'limit 1: "path" is missing'), ([{"path": "tcp"}], "limit 1: has no bound"),
                ([{"path": "", "max_us": 1}], '"path" must be a text'), ([{"path": "tcp", "what": 1, "max_us": 1}], '"what" must be a text'),
                ([{"path": "tcp", "max_us": 1}, {"path": "tcp", "max_uss": 1}], 'limit 2: no field is called "max_uss"'),
                ([{"path": "tcp", "max_us": "1"}], '"max_us" must be a number above 0, and is "1"'),
                ([{"path": "tcp", "min_GB/s": 0}], '"min_GB/s" must be a number above 0'),
                ([{"path": "tcp", "max_99_us": -1}], '"max_99_us" must be a number above 0'),
                ('[{"path": "tcp", "max_us": 1e999}]', '"max_us" must be a number above 0'),
                *(([{"path": "tcp", "size": size, "max_us": 1}], '"size" must be a number of bytes') for size in ("4Q", -4, 0, True, None)),
                (self.good_run(), "needs --tolerance PERCENT"),
                ([{"path": "tcp", "max_us": 1}], "--tolerance is for a recorded run", "--tolerance", 5),
                (damaged, r"results\[1\]: damaged: path", "--tolerance", 5), (wrong, "has wrong results", "--tolerance", 5),
                (dict(damaged, results=[]), "has no limit", "--tolerance", 5)):
            with self.subTest(content=content):
                self.assert_refused(f"limits.json: .*{words}", "limits", run, self.write(content, "limits.json"), *flags)
        self.assert_refused("/none: No such file", "limits", run, "/none")
        for value in ("-1%", "%", "5%%", "nan%", "1e7"):
            self.assert_refused(f"'{value}' is no percentage from 0 to 1000000, such as 30 or 30%",
                                "limits", run, run, f"--tolerance={value}")


if __name__ == "__main__":
    unittest.main()
