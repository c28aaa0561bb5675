"""Draws the stages of one operation: one bar per path, one panel per size. Each panel has its own scale."""
from matplotlib.patches import Patch

import style
from runs import size_text, title_of

MOST_PANELS = 4
DARK = {"#0072B2", "#D55E00", "#009E73", "#8C564B"}  # white text on these
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442", "#8C564B", "#D9D9D9")
BAR, CHARACTER = 0.36, 0.069  # inches


def _chosen(sizes, options):
    """Returns the sizes that have a panel: those of --size, else the smallest, the largest and some between them."""
    if options.sizes:
        return [size for size in sizes if size in options.sizes]
    if len(sizes) <= MOST_PANELS:
        return sizes
    return [sizes[index * (len(sizes) - 1) // (MOST_PANELS - 1)] for index in range(MOST_PANELS)]


def stages(runs, options):
    rows = [row for run in runs for row in run.rows if not row.trouble and sum(us for _, us in row.stages) > 0]
    if not rows:
        return None, "no row has stages (`gradrail bench exchange` records them)"
    every = sorted({row.size for row in rows})
    sizes = _chosen(every, options)
    if not sizes:
        return None, f"no row of {', '.join(map(size_text, options.sizes))} has stages"
    rows = [row for row in rows if row.size in sizes]
    names = list(dict.fromkeys(name for row in rows for name, _ in row.stages))
    notes = ["each stage is a separate median; the number beside a bar is their sum; the mark is the median of the "
             "whole. Each size has its own scale"]
    if len(sizes) < len(every):
        others = [size_text(size) for size in every if size not in sizes]
        notes.append(f"also recorded: {', '.join(others)} (--size draws them)")
    groups = [[row for row in rows if row.size == size] for size in sizes]
    heights = [BAR * len(group) + 0.16 for group in groups]
    figure, panels = style.sheet(runs, title_of(runs, options), notes,
                                 max(sum(heights), 0.22 * len(names) + 0.4 - 0.6 * (len(sizes) - 1)),
                                 style.legend_width([*names, "median of the whole"]), len(sizes), heights,
                                 style.beside_width(rows), gap=0.6)
    width = figure.get_figwidth() * panels[0].get_position().width
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    for axis, group, size in zip(panels, groups, sizes):
        _panel(axis, group, size, colours, width)
    panels[-1].set_xlabel("microseconds of one operation")
    handles = [Patch(facecolor=colours[name]) for name in names]
    handles.append(panels[0].plot([], [], color="black", marker="|", markersize=11, markeredgewidth=2, linestyle="")[0])
    style.legend(panels[0], handles, [*names, "median of the whole"])
    return figure, None


def _panel(axis, rows, size, colours, width):
    longest = 1.12 * max(max(sum(us for _, us in row.stages), row.p50_us) for row in rows)
    for index, row in enumerate(rows):
        start = 0.0
        for name, us in row.stages:
            bar, = axis.barh(index, us, left=start, height=0.72, color=colours[name], edgecolor="white", linewidth=0.5)
            bar.set_gid(style.gid("stage", row.label, size, name))
            text = number(us)
            if us / longest * width > CHARACTER * (len(text) + 0.8):
                axis.text(start + us / 2, index, text, ha="center", va="center", fontsize=7.8,
                          color="white" if colours[name] in DARK else "black")
            start += us
        axis.annotate(f"{number(start)} µs", (max(start, row.p50_us), index), xytext=(5, 0), textcoords="offset points",
                      va="center", fontsize=8)
        axis.plot([row.p50_us], [index], marker="|", markersize=17, markeredgewidth=2, color="black",
                  gid=style.gid("whole", row.label, size))
    axis.set_xlim(0, longest)
    axis.set_ylim(len(rows) - 0.45, -0.55)
    style.beside(axis, rows)
    axis.grid(axis="y", visible=False)
    axis.set_title(size_text(size), loc="left", fontsize=9.5, fontweight="bold", pad=3)


def number(us):
    return f"{us:,.0f}" if us >= 100 else f"{us:.3g}"
