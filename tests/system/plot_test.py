"""Tests `gradrail-report plot`: the content of its pictures, read from the SVG, and its errors for files that it cannot draw."""
import copy
import json
import math
import os
import re
import struct
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

import cluster
from report import PROGRAM, report, row, run_of
from plot import load_drawing  # of the program, whose folder is on the path behind `report`

SVG = "{http://www.w3.org/2000/svg}"
NO_MATPLOTLIB = 4
SKIPPED = 77
STAGES = (("pack or copy", 0.0), ("post", 1.0), ("wire", 5.0), ("visible", 2.0), ("arrival seen", 0.01))


def plot(*arguments, environment=None):
    """Draws in this process, or with an environment in one of its own."""
    if environment is None:
        return report("plot", *arguments)
    return subprocess.run([sys.executable, "-B", PROGRAM, "plot", *map(str, arguments)], capture_output=True, text=True,
                          timeout=cluster.FINISH, env=environment)


def peers():
    rows = []
    for size in (64, 4096, 1 << 20):
        rows += [row("bound: memcpy", size, 0.02 + size / 2e4), row("gradrail shm", size, 1 + size / 1e4, stages=STAGES),
                 row("raw socket", size, 9 + size / 2e3)]
    rows.append(row("Gloo allreduce tcp", 64, 0, failed="connect: refused"))
    return run_of(rows)


class Plot(cluster.ClusterTest):
    def recorded(self, run, name="run.json"):
        file = self.folder / name
        file.write_text(json.dumps(run))
        return file

    def drawn(self, *arguments, prefix="out", code=cluster.GOOD):
        """Returns the output, and the pictures by kind."""
        ran = plot(*arguments, "-o", self.folder / prefix)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        self.assertEqual(ran.stderr, "", ran.stdout)
        files = self.folder.glob(f"{prefix}-*.svg")
        return ran.stdout, {file.stem.removeprefix(f"{prefix}-"): Picture(file) for file in files}

    def assert_refused(self, words, *arguments, code=cluster.USAGE, environment=None):
        ran = plot(*arguments, environment=environment)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        self.assertRegex(ran.stderr, words)
        self.assertNotIn("Traceback", ran.stderr)

    def test_a_line_for_each_path_and_the_bound(self):
        said, pictures = self.drawn(self.recorded(peers()))
        self.assertEqual(set(pictures), {"latency", "bandwidth", "stages", "cdf"})
        for kind in ("latency", "bandwidth"):
            picture = pictures[kind]
            self.assertEqual(picture.ids("series-"), ["series-gradrail-shm", "series-raw-socket"])
            self.assertEqual(picture.ids("bound"), ["bound-bound-memcpy"])
            self.assertEqual(picture.points("series-raw-socket"), 3)
            for text in ("64 B", "4 KiB", "1 MiB", "gradrail shm", "raw socket", "bound: memcpy"):
                self.assertIn(text, picture.texts)
            self.assertIn("gradrail bench peers: it", picture.texts)
        self.assertIn("time of one exchange (µs)", pictures["latency"].texts)
        self.assertIn("bus bandwidth (10⁹ bytes/s)", pictures["bandwidth"].texts)
        self.assertIn("bus bandwidth: gradient and parameters, 2 × size / time", pictures["bandwidth"].texts)
        self.assertEqual(pictures["latency"].ids("spread-"), ["spread-gradrail-shm", "spread-raw-socket"])
        for kind in pictures:
            self.assertIn(f"{self.folder}/out-{kind}.png\n", said)

    def test_lines_lie_where_the_figures_are(self):
        _, pictures = self.drawn(self.recorded(peers()), "--kind", "latency")
        shm, socket, bound = (pictures["latency"].path(name) for name in
                              ("series-gradrail-shm", "series-raw-socket", "bound-bound-memcpy"))
        for own, other, least in zip(shm, socket, bound):
            self.assertLess(other[1], own[1])  # y decreases towards the top of the page
            self.assertLess(own[1], least[1])
        self.assertLess(socket[2][1], socket[0][1])
        self.assertAlmostEqual(shm[1][0] - shm[0][0], 6 / 8 * (shm[2][0] - shm[1][0]), delta=0.5)  # 2^6, then 2^8

    def test_lines_are_medians(self):
        rows = [row(path, size, us) for path, us in (("ten", 10.0), ("two", 2.0), ("one", 1.0)) for size in (64, 4096)]
        for each in rows[2:4]:
            each["percentiles"].update(min_us=0.1, mean_us=50, p99_us=80, max_us=90)
        _, pictures = self.drawn(self.recorded(run_of(rows, "exchange")), "--kind", "latency")
        ten, two, one = (pictures["latency"].path(f"series-{name}")[0][1] for name in ("ten", "two", "one"))
        self.assertAlmostEqual((one - two) / (one - ten), math.log10(2), delta=0.01)

    def test_bandwidth_is_the_one_asked_for(self):
        rows = [row(path, size, 1.0, bus_bw=bus, alg_bw=alg)
                for path, bus, alg in (("ten", 10, 1), ("two", 2, 1), ("one", 1, 100)) for size in (64, 4096)]
        for bandwidth, expected in (("bus", math.log10(2)), ("alg", 1.0)):
            _, pictures = self.drawn(self.recorded(run_of(rows, "exchange")), "--kind", "bandwidth", "--bandwidth", bandwidth)
            ten, two, one = (pictures["bandwidth"].path(f"series-{name}")[0][1] for name in ("ten", "two", "one"))
            self.assertAlmostEqual((one - two) / (one - ten), expected, delta=0.01)
            self.assertIn(f"{bandwidth} bandwidth (10⁹ bytes/s)", pictures["bandwidth"].texts)

    def test_pictures_name_where_they_come_from(self):
        _, pictures = self.drawn(self.recorded(peers()))
        for picture in pictures.values():
            self.assertIn("gradrail 0.1.0 abcdef0 | a machine, 2 cores | bench peers", picture.texts)
            self.assertTrue(any("not measured: Gloo allreduce tcp: connect: refused" in text for text in picture.texts))
            self.assertEqual(picture.ids("series-Gloo"), [])

    def test_wrong_results_and_sizes_that_failed_are_reported(self):
        run = peers()
        run["results"][1]["nwrong"] = 7
        _, pictures = self.drawn(self.recorded(run), "--kind", "latency")
        text = " ".join(pictures["latency"].texts)
        self.assertIn("gradrail shm at 64 B: 7 wrong results", text)
        self.assertEqual(pictures["latency"].points("series-gradrail-shm"), 2)

    def test_nothing_of_a_file_breaks_a_picture(self):
        run = peers()
        run["machine"] = "a $machine_{of}$ & <mine>\x01\ud800"
        for each in run["results"]:
            each["path"] += " $x_1$ <&> \x07" + "ü" * 150
        run["results"].append(row("nothing", 0, 1.0))
        _, pictures = self.drawn(self.recorded(run))
        for picture in pictures.values():
            self.assertIn("gradrail 0.1.0 abcdef0 | a $machine_{of}$ & <mine>   | bench peers", picture.texts)
            self.assertIn("nothing: a size of 0", " ".join(picture.texts))

    def test_stages_stand_in_their_order(self):
        _, pictures = self.drawn(self.recorded(peers()), "--size", "4K", "--kind", "stages")
        picture = pictures["stages"]
        self.assertEqual(picture.ids("stage-"), [f"stage-gradrail-shm-4096-{name.replace(' ', '-')}" for name, _ in STAGES])
        widths = {name: picture.width(f"stage-gradrail-shm-4096-{name}") for name in ("post", "wire", "visible")}
        self.assertAlmostEqual(widths["wire"] / widths["post"], 5, delta=0.05)
        self.assertAlmostEqual(widths["visible"] / widths["post"], 2, delta=0.05)
        for text in ("5", "8.01 µs", "pack or copy", "arrival seen", "4 KiB"):
            self.assertIn(text, picture.texts)
        self.assertNotIn("0.01", picture.texts)  # the bar is too narrow for its number
        self.assertNotIn("1 MiB", picture.texts)
        self.assertEqual(picture.ids("whole-"), ["whole-gradrail-shm-4096"])

    def test_stages_may_be_an_object(self):
        run = peers()
        for each in run["results"]:
            each["stages"] = dict(each["stages"])
        _, pictures = self.drawn(self.recorded(run), "--size", "64", "--kind", "stages")
        self.assertEqual(len(pictures["stages"].ids("stage-gradrail-shm")), len(STAGES))

    def test_distribution_ends_where_the_samples_do(self):
        run = peers()
        run["config"]["workers"] = 2
        run["results"][4]["percentiles"]["iterations"] = 600  # two workers, three rounds, 100 each
        _, pictures = self.drawn(self.recorded(run), "--kind", "cdf")
        picture = pictures["cdf"]
        self.assertEqual(picture.ids("series-"), ["series-gradrail-shm", "series-raw-socket"])
        self.assertEqual(picture.points("series-gradrail-shm"), 7)  # 1 % to 99 %
        self.assertEqual(picture.points("series-raw-socket"), 11)  # 1000 each: 0.1 % to 99.9 %
        self.assertIn("gradrail shm (n\u00a0=\u00a0600)", picture.texts)
        self.assertIn("time of one exchange (µs), 4 KiB", picture.texts)  # the median of the sizes that all paths have
        self.assertIn("99.9 %", picture.texts)
        rising = picture.path("series-raw-socket")
        self.assertEqual(rising, sorted(rising))

    def test_runs_without_distributions_show_their_percentiles(self):
        run = peers()
        for each in run["results"]:
            del each["distribution_us"]
        _, pictures = self.drawn(self.recorded(run), "--kind", "cdf")
        self.assertEqual(pictures["cdf"].points("series-raw-socket"), 3)
        self.assertIn("dotted: only these percentiles were recorded", pictures["cdf"].texts)

    def test_the_speed_of_memory_bounds_updates(self):
        rows = [row("sgd", size, size / 1e4, more={"%bound": 90.0, "bound_GB/s": bound})
                for size, bound in ((65536, 100.0), (1 << 20, 50.0))]
        said, pictures = self.drawn(self.recorded(run_of(rows, "apply")))
        self.assertEqual(pictures["bandwidth"].points("bound-memory"), 2)
        self.assertIn("bound: speed of memory", pictures["bandwidth"].texts)
        self.assertRegex(said, r"left out: stages: no row has stages")
        _, pictures = self.drawn(self.recorded(run_of(rows[:1], "apply")), prefix="one")
        self.assertEqual(pictures["bandwidth"].ids("bound-"), ["bound-memory-sgd"])
        self.assertEqual(pictures["latency"].ids("series-"), ["series-sgd"])

    def test_latency_and_bandwidth_of_puts_are_kept_apart(self):
        rows = [row("shm", size, us, what=what) for what, us in (("latency", 1.0), ("bandwidth", 30.0)) for size in (8, 64)]
        _, pictures = self.drawn(self.recorded(run_of(rows, "put")))
        for kind in ("latency", "bandwidth"):
            self.assertEqual(pictures[kind].points("series-shm"), 2)
        self.assertIn("time of one put, half of a round trip (µs)", pictures["latency"].texts)

    def test_puts_beside_exchanges_have_pictures_by_group(self):
        run = peers()
        for what in ("latency", "bandwidth"):
            for size in (8, 512):
                run["results"] += [row("ucx-posix: gradrail ucx", size, 0.5, what=what),
                                   row("ucx-posix: ucx_perftest tag", size, 0.5, what=what),
                                   row("ofi-tcp: fi_pingpong", size, 5.0, what=what),
                                   row("ofi-tcp: gradrail ofi", size, 0, what=what, failed="no provider")]
        said, pictures = self.drawn(self.recorded(run))
        self.assertEqual(set(pictures), {"latency", "bandwidth", "stages", "cdf", *(
            f"{group}-{kind}" for group in ("ucx-posix", "ofi-tcp") for kind in ("latency", "bandwidth", "cdf"))}, said)
        self.assertEqual(pictures["latency"].ids("series-"), ["series-gradrail-shm", "series-raw-socket"])
        self.assertEqual(pictures["ucx-posix-latency"].ids("series-"), ["series-gradrail-ucx", "series-ucx-perftest-tag"])
        self.assertIn("time of one put, half of a round trip (µs)", pictures["ucx-posix-latency"].texts)
        self.assertIn("gradrail bench peers: it (puts, ofi-tcp)", pictures["ofi-tcp-latency"].texts)
        self.assertIn("not measured: gradrail ofi: no provider", pictures["ofi-tcp-latency"].texts)
        self.assertNotIn("no provider", " ".join(pictures["latency"].texts))

    def test_several_runs_in_one_picture(self):
        first, second = self.recorded(peers(), "old.json"), self.recorded(dict(peers(), title="another"), "new.json")
        _, pictures = self.drawn(first, second, "--kind", "latency", "--paths", "gradrail*")
        self.assertEqual(pictures["latency"].ids("series-"), ["series-gradrail-shm-new", "series-gradrail-shm-old"])
        self.assertEqual(pictures["latency"].ids("bound"), [])
        self.assertIn("gradrail shm [old]", pictures["latency"].texts)
        self.assertIn("gradrail bench peers: it / another", pictures["latency"].texts)

    def test_the_same_run_makes_the_same_bytes(self):
        file = self.recorded(peers())
        taste = self.folder / "matplotlibrc"
        taste.write_text("axes.facecolor: red\nfont.size: 30\nsvg.fonttype: path\n")
        environment = dict(os.environ, PYTHONHASHSEED="1", MPLBACKEND="TkAgg", LC_ALL="C", SOURCE_DATE_EPOCH="1",
                           MATPLOTLIBRC=str(taste))
        self.drawn(file, prefix="one")
        self.assertEqual(plot(file, "-o", self.folder / "two", environment=environment).returncode, cluster.GOOD)
        for kind in ("latency", "bandwidth", "stages", "cdf"):
            for form in ("svg", "png"):
                one, two = ((self.folder / f"{name}-{kind}.{form}").read_bytes() for name in ("one", "two"))
                self.assertEqual(one, two, f"{kind}.{form}")
        self.assertNotIn(b"<dc:date>", (self.folder / "one-latency.svg").read_bytes())

    def test_pictures_are_as_wide_as_a_readme(self):
        self.drawn(self.recorded(peers()), "--format", "png")
        for kind in ("latency", "bandwidth", "stages", "cdf"):
            data = (self.folder / f"out-{kind}.png").read_bytes()
            self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
            width, height = struct.unpack(">II", data[16:24])
            self.assertEqual(width, 1023)
            self.assertLess(height, width)
        self.assertEqual(list(self.folder.glob("*.svg")), [])

    def test_files_that_cannot_be_drawn(self):
        good = self.recorded(peers())
        self.assert_refused(r"none\.json: No such file", self.folder / "none.json")
        self.assert_refused("Is a directory", self.folder)
        for text, words in (("", "empty: the run .* did not finish"), ("{", "not JSON"), ("[" * 100000, "not JSON"), ("\xff", "not JSON|not of"),
                            ("[]", "not of `gradrail bench"), ('{"results": []}', "not of `gradrail bench"),
                            (json.dumps(run_of([])), "nothing to draw: latency: ")):
            with self.subTest(text=text[:40]):
                bad = self.folder / "bad.json"
                bad.write_bytes(text.encode("latin-1"))
                self.assert_refused(words, bad)
                if "nothing" not in words:  # a valid file does not hide the error
                    self.assert_refused(words, good, bad)
        failed = self.recorded(run_of([row("tcp", 64, 0, failed="connect: refused")]), "failed.json")
        self.assert_refused(r"nothing to draw: .*\(not measured: tcp: connect: refused\)", failed)
        self.assertEqual([file.name for file in self.folder.glob("*.[ps][nv]g")], [])

    def test_damaged_rows_and_other_versions(self):
        for change, words in ((lambda run: run.update(version="gradrail 9.1 x"), "written by 'gradrail 9.1 x'"),
                              (lambda run: run.update(version="nccl-tests 2"), "written by 'nccl-tests 2'"),
                              (lambda run: run["results"].append(7), r"results\[10\]: damaged: not an object"),
                              (lambda run: run["results"][1].pop("percentiles"), r"results\[1\].percentiles: damaged"),
                              (lambda run: run["results"][1].update(size="64"), r"results\[1\]: damaged: size is \"64\""),
                              (lambda run: run["results"][2].update(bus_bw=None), r"results\[2\]: damaged: bus_bw is null"),
                              (lambda run: run["results"][2].update(alg_bw=float("nan")), "alg_bw is NaN"),
                              (lambda run: run["results"][0]["percentiles"].update(p50_us=-1), "p50_us is -1"),
                              (lambda run: run["results"][0]["percentiles"].update(p50_us=10 ** 400), "p50_us is 10+"),
                              (lambda run: run["results"][0].update(stages=[["wire"]]), "stages is neither"),
                              (lambda run: run["results"][0].update(distribution_us={"x": 1}), "damaged: distribution_us")):
            run = copy.deepcopy(peers())
            change(run)
            with self.subTest(words=words):
                self.assert_refused(words, self.recorded(run))

    def test_flags(self):
        file = self.recorded(peers())
        self.assert_refused("'pie' is none of latency", file, "--kind", "pie")
        self.assert_refused("'gif' is none of png", file, "--format", "gif")
        self.assert_refused("--size 4X: must be bytes", file, "--size", "4X")
        self.assert_refused("--size 128: not in the run, which has 64 B, 4 KiB, 1 MiB", file, "--size", "128")
        self.assert_refused(r"--paths pigeon\*: matches none of: Gloo.*, raw socket", file, "--paths", "pigeon*")
        bare = self.recorded(run_of([row("tcp", 64, 9.0)]), "bare.json")
        self.assert_refused("nothing to draw: stages: no row has stages", bare, "--kind", "stages,latency")
        self.assert_refused("No such file", file, "-o", self.folder / "none" / "x", code=cluster.FAILED)
        _, pictures = self.drawn(file, "--title", "Costs $5 & <more>", "--kind", "latency", "--bandwidth", "alg")
        self.assertIn("Costs $5 & <more>", pictures["latency"].texts)

    def test_without_matplotlib_its_package_is_named(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError('broken for a test')\n")
        self.assert_refused("no matplotlib.*package python3-matplotlib; tools/setup", self.recorded(peers()),
                            code=NO_MATPLOTLIB, environment=dict(os.environ, PYTHONPATH=str(self.folder)))

    @cluster.long("the other tests draw written runs; bench_test compares a recorded one")
    def test_real_runs_are_drawn(self):
        for question, kinds in (("put", {"latency", "bandwidth", "cdf"}), ("exchange", {"latency", "bandwidth", "cdf"})):
            file = self.folder / f"{question}.json"
            ran = subprocess.run([cluster.binary(), "bench", question, "-b", "4K", "-e", "64K", "-f", "16", "--rounds", "2",
                                  "-n", "300", "--transport", "shm,tcp", "-J", file], capture_output=True, text=True,
                                 timeout=4 * cluster.FINISH)
            self.assertEqual(ran.returncode, cluster.GOOD, ran.stdout + ran.stderr)
            for each in cluster.recorded_run(file)["results"]:
                times = [us for _, us in sorted(each["distribution_us"].items(), key=lambda pair: float(pair[0]))]
                self.assertEqual(times, sorted(times), each)
                self.assertGreater(len(times), 30, each)
                self.assertEqual(each["distribution_us"]["0.5"], each["percentiles"]["p50_us"])
            _, pictures = self.drawn(file, prefix=question)
            self.assertLessEqual(kinds, set(pictures))
            for kind in kinds:
                self.assertEqual(len(pictures[kind].ids("series-")), 2, kind)


class Picture:
    """Reads the texts and the lines of a picture."""

    def __init__(self, file):
        self.root = xml.parse(file).getroot()
        self.texts = ["".join(node.itertext()) for node in self.root.iter(f"{SVG}text")]

    def ids(self, prefix):
        names = [node.get("id") for node in self.root.iter(f"{SVG}g") if (node.get("id") or "").startswith(prefix)]
        return names if prefix.startswith("stage") else sorted(names)

    def path(self, name):
        """Returns the corners of the line or the bar with that id."""
        group, = (node for node in self.root.iter(f"{SVG}g") if node.get("id") == name)
        line = group.find(f"{SVG}path")
        return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", line.get("d"))]

    def points(self, name):
        return len(self.path(name))

    def width(self, name):
        across = [x for x, _ in self.path(name)]
        return max(across) - min(across)


if __name__ == "__main__":
    try:
        load_drawing()  # continues with another Python if this one lacks matplotlib
    except SystemExit:
        print("skipped: no python3-matplotlib (tools/setup --for test installs it)")
        sys.exit(SKIPPED)
    unittest.main()
