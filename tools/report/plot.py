"""Draws pictures of recorded runs.

latency    time by size, one line per path, from the fastest to the 99th percentile; bounds are dashed
bandwidth  bandwidth by size, one line per path; bounds are dashed
stages     time of each stage: one stacked bar per path, one panel per size
cdf        distribution of the times at one size

All runs are drawn in the same picture. If several runs have the same path, its label has the name of the file. Puts of
`gradrail bench peers` have separate pictures, one for each group of contenders. The command writes PREFIX-KIND.png and
PREFIX-KIND.svg. The same run always gives the same bytes. It needs the package python3-matplotlib.
"""
import argparse
import os
import pathlib
import sys

import runs

KINDS = ("latency", "bandwidth", "stages", "cdf")
FORMATS = ("png", "svg")
NO_MATPLOTLIB = 4
DEBIAN_PYTHON = "/usr/bin/python3"


def words(known):
    def parse(text):
        for word in text.split(","):
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(known)}")
        return text.split(",")
    return parse


def add_flags(parser):
    parser.add_argument("files", nargs="+", metavar="RUN.json")
    parser.add_argument("-o", dest="prefix",
                        help="prefix of the names of the pictures (default: the first file without its ending)")
    parser.add_argument("--kind", type=words((*KINDS, "all")), default=["all"], metavar="KIND[,KIND]",
                        help=f"{', '.join(KINDS)} or all (default: all kinds for which the run has data)")
    parser.add_argument("--format", type=words(FORMATS), default=list(FORMATS), help="png, svg (default: both)")
    parser.add_argument("--size", action="append", default=[], metavar="BYTES",
                        help="cdf, stages: draw this size (suffixes K, M, G); repeatable")
    parser.add_argument("--paths", action="append", default=[], metavar="GLOB", help="draw these paths; repeatable")
    parser.add_argument("--bandwidth", choices=("bus", "alg"), default="bus",
                        help="kind of bandwidth (default: %(default)s)")
    parser.add_argument("--title", default="", help="title of the pictures (default: the title of the run)")


def load_drawing():
    """Imports the modules that need matplotlib. The first Python in PATH may not find the matplotlib package of Debian;
    the Python of Debian then runs the script."""
    try:
        import style
    except ImportError as error:
        if sys.executable != DEBIAN_PYTHON and os.access(DEBIAN_PYTHON, os.X_OK):
            os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])
        print(f"gradrail-report plot: no matplotlib ({error}): install the package python3-matplotlib; "
              "tools/setup --for bench installs it", file=sys.stderr)
        sys.exit(NO_MATPLOTLIB)
    import distribution, stages, sweeps
    style.set_up()
    return style, {"latency": sweeps.latency, "bandwidth": sweeps.bandwidth, "stages": stages.stages,
                   "cdf": distribution.cdf}


def wanted_sizes(texts, all_runs):
    known = sorted({row.size for run in all_runs for row in run.rows})
    sizes = [runs.parse_size(text) for text in texts]
    for text, size in zip(texts, sizes):
        if size not in known:
            raise runs.Problem(f"--size {text}: not in the run, which has {', '.join(map(runs.size_text, known)) or 'none'}")
    return sizes


def run(options):
    all_runs = runs.read_runs(options.files, options.paths)
    options.sizes = wanted_sizes(options.size, all_runs)
    style, drawers = load_drawing()
    asked = "all" not in options.kind
    prefix = options.prefix or str(pathlib.Path(options.files[0]).with_suffix(""))
    drawn, left_out = [], []
    for kind in options.kind if asked else KINDS:
        pictures, reasons = [], []
        for part, part_runs in runs.parts_of(all_runs).items():
            figure, why_not = drawers[kind](part_runs, options)
            if figure is None:
                reasons.append(why_not)
            else:
                pictures += style.save(figure, prefix, f"{part}-{kind}".strip("-"), options.format)
        drawn += pictures
        if not pictures:
            left_out.append(f"{kind}: {reasons[0]}")
    for name in drawn:
        print(name)
    if left_out and drawn and not asked:
        print("left out: " + "; ".join(left_out))
    elif left_out:
        missing = [text for run in all_runs for text in runs.not_measured(run.rows)]
        raise runs.Problem(f"{', '.join(options.files)}: nothing to draw: {'; '.join(left_out)}"
                           + (f" (not measured: {'; '.join(missing)})" if missing else ""))
    return 0
