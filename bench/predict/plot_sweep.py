#!/usr/bin/env python3
"""Draws sweeps of `gradrail predict --json`: one line for each file, over the values of its sweep.

plot_sweep.py -o PICTURE.svg [--field share_of_line_rate] [--x "buckets of a shard"] LABEL=FILE.json ...

The x axis has the values of the sweep, or the buckets of a shard. Equal input gives equal bytes.
"""
import sys

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

import argparse
import json
import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/plot"))
from matplotlib.figure import Figure
import style

BUCKETS = "buckets of a shard"


def place(point, axis):
    if axis != BUCKETS:
        return float(point["point"][axis])
    return point["load"]["buckets"] / (point["cluster"]["ps"] * point["cluster"]["shards"])


def value(point, field):
    for name in field.split("."):
        point = point[name]
    return point


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="picture", required=True)
    parser.add_argument("--field", default="share_of_line_rate", help="field of the rows, such as step_time_s.median")
    parser.add_argument("--x", default=BUCKETS, help=f"flag of the sweep, or '{BUCKETS}' (default)")
    parser.add_argument("--title", default="")
    parser.add_argument("series", nargs="+", metavar="LABEL=FILE")
    flags = parser.parse_args()
    style.set_up()
    figure = Figure(figsize=(style.WIDTH, 4.4), dpi=style.DPI, facecolor="white")
    axes = figure.add_axes([0.08, 0.13, 0.6, 0.74])
    for i, series in enumerate(flags.series):
        label, _, file = series.rpartition("=")
        points = json.loads(pathlib.Path(file).read_text())["points"]
        drawn = sorted((place(point, flags.x), value(point, flags.field)) for point in points)
        axes.plot(*zip(*drawn), label=label, color=style.COLOURS[i % len(style.COLOURS)], gid=style.gid("series", label),
                  marker=style.MARKERS[i % len(style.MARKERS)], linewidth=1.6)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if flags.field == "share_of_line_rate":
        axes.set_ylim(0, 1)
        axes.axhline(0.9, color=style.BOUND_COLOUR, linestyle=style.BOUND_DASHES[0], linewidth=1.2)
    axes.set_xlabel(flags.x)
    axes.set_ylabel(flags.field)
    style.legend(axes, *axes.get_legend_handles_labels())
    figure.text(0.01, 0.96, flags.title, va="top", fontsize=10.5)
    figure.savefig(flags.picture, format="svg", metadata={"Date": None, "Creator": "gradrail bench/predict"}, facecolor="white")


if __name__ == "__main__":
    main()
