"""The style of all pictures: colours, axes, footer. The same input gives the same bytes."""
import re
import textwrap

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from runs import OURS, not_measured, size_text

WIDTH = 9.3  # inches: 1023 pixels, the width of a displayed README
DPI = 110
LEFT, RIGHT_MARGIN, TOP, XLABEL = 0.98, 0.15, 0.62, 0.56
FOOTER_LINE = 0.155
LEGEND_CHARACTERS, BESIDE_CHARACTERS = 32, 46
# Okabe and Ito, Color Universal Design (2008), without yellow, which has too little contrast on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX*<>"
BOUND_COLOUR = "#777777"
BOUND_DASHES = ((0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))


def set_up():
    """Resets matplotlib: the matplotlibrc of the user must not change a picture."""
    matplotlib.rcdefaults()
    matplotlib.rcParams.update({
        "svg.fonttype": "none",  # text stays text: smaller, and readable in a diff
        "svg.hashsalt": "gradrail",
        "text.parse_math": False,  # a path may hold a $
        "font.family": ["DejaVu Sans"], "font.size": 9.5, "axes.titlesize": 11, "axes.labelsize": 10,
        "legend.fontsize": 8.5, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#dddddd", "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.markersize": 4.5,
    })


def gid(*words):
    """An id that XML and CSS accept: "series-gradrail-shm"."""
    return re.sub(r"[^A-Za-z0-9]+", "-", " ".join(map(str, words))).strip("-")


def styles(rows):
    """Returns {label: keywords of a line} for all rows of the run, so that all pictures use the same styles."""
    labels = list(dict.fromkeys(row.label for row in rows if not row.trouble))
    bounds = {row.label for row in rows if row.is_bound}
    has_ours = any(label.startswith(OURS) for label in labels)
    result, own, bound = {}, 0, 0
    for label in labels:
        if label in bounds:
            result[label] = {"color": BOUND_COLOUR, "linestyle": BOUND_DASHES[bound % 3], "linewidth": 1.4}
            bound += 1
            continue
        ours = label.startswith(OURS) or not has_ours
        result[label] = {"color": COLOURS[own % len(COLOURS)], "marker": MARKERS[own % len(MARKERS)],
                         "linestyle": "-" if own < len(COLOURS) else (0, (4, 1.2)), "linewidth": 2.2 if ours else 1.3}
        own += 1
    return result


def footer_lines(runs, notes):
    lines = [f"{run.version} | {run.machine} | {run.arguments or run.question}" for run in runs]
    lines += notes
    missing = [text for run in runs for text in not_measured(run.rows)]
    if missing:
        lines.append("not measured: " + "; ".join(missing))
    return [part for line in lines for part in textwrap.wrap(line, 165, subsequent_indent="   ")]


def sheet(runs, title, notes, plot_height, legend_width, panels=1, heights=None, left=LEFT, gap=0.45):
    """Returns a figure and its axes, one below the other. Legends are to the right of the axes, the footer is below."""
    footer = footer_lines(runs, notes)
    gaps = gap * (panels - 1)
    height = TOP + plot_height + gaps + XLABEL + FOOTER_LINE * (len(footer) + 0.8)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    heights = heights or [plot_height]
    width = WIDTH - left - legend_width - RIGHT_MARGIN
    axes, top = [], height - TOP
    for each in heights:
        axes.append(figure.add_axes([left / WIDTH, (top - each) / height, width / WIDTH, each / height]))
        top -= each + gap
    heading = "\n".join(textwrap.wrap(title, 108)[:2])
    figure.text(0.12 / WIDTH, 1 - 0.1 / height, heading, va="top", fontsize=10.5, gid="title")
    for index, line in enumerate(footer):
        figure.text(0.12 / WIDTH, FOOTER_LINE * (len(footer) - index - 0.4) / height, line, fontsize=7.2, color="#555555",
                    va="center", gid=f"footer-{index}")
    return figure, axes


def legend_width(labels):
    return 0.65 + 0.068 * max(len(line) for label in labels for line in wrapped(label).split("\n"))


def beside(axis, rows):
    """Writes the names of the rows to the left of the axis."""
    names = [row.label if len(row.label) <= BESIDE_CHARACTERS else row.label[:BESIDE_CHARACTERS - 1] + "…" for row in rows]
    axis.set_yticks(range(len(rows)), names)


def beside_width(rows):
    return 0.3 + 0.075 * min(max(len(row.label) for row in rows), BESIDE_CHARACTERS)


def wrapped(label):
    return "\n".join(textwrap.wrap(label, LEGEND_CHARACTERS)) or label


def legend(axes, handles, labels):
    axes.legend(handles, [wrapped(label) for label in labels], loc="upper left", bbox_to_anchor=(1.01, 1.01),
                frameon=False, borderaxespad=0, handlelength=2.6, labelspacing=0.6)


def size_axis(axis, sizes):
    sizes = sorted(sizes)
    axis.set_xscale("log", base=2)
    step = -(-len(sizes) // 11)  # the axis has room for 11 labels
    axis.xaxis.set_major_locator(FixedLocator(sizes[::step]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(int(size))))


def plain(value, _=None):
    return f"{value:,.0f}" if value >= 1 else f"{value:.12g}"


def log_ticks(axis, low, high):
    """Sets the ticks of an axis from low to high: powers of ten, and their multiples of 2 and 5 if there are few."""
    decades = high / max(low, 1e-12)
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if decades < 500 else (1,), numticks=15))
    axis.set_major_formatter(FuncFormatter(plain))
    axis.set_minor_formatter(NullFormatter())


def save(figure, prefix, kind, formats):
    names = []
    for form in formats:
        name = f"{prefix}-{kind}.{form}"
        # The metadata has no date and no version of a library, so that a picture changes only with its content.
        metadata = {"Date": None, "Creator": "gradrail-report"} if form == "svg" else {"Software": "gradrail-report"}
        figure.savefig(name, format=form, metadata=metadata, facecolor="white")
        names.append(name)
    return names
