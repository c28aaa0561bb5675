"""Draws the distribution of the times. The axis of shares is stretched at both ends to show the slow operations."""
from matplotlib.ticker import FixedLocator, NullLocator

import style
from runs import lines_of, size_text, title_of
from sweeps import latency_rows, latency_words

SHARES = (0.0001, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999)


def _middle_size(rows):
    """Returns the median of the sizes that the most paths have."""
    paths = {}
    for row in rows:
        paths.setdefault(row.size, set()).add(row.label)
    most = max(len(labels) for labels in paths.values())
    sizes = sorted(size for size, labels in paths.items() if len(labels) == most)
    return sizes[(len(sizes) - 1) // 2]


def points_of(row):
    """Returns the pairs (share, microseconds) that the samples support: 100 samples have no 99.9th percentile."""
    count = row.samples_a_round
    points = row.distribution
    if not points:  # earlier versions recorded no distribution
        points = [(0.5, row.p50_us), (0.99, row.p99_us), (0.999, row.p999_us)]
    return [(share, us) for share, us in points
            if us > 0 and 0 < share < 1 and (1 - share) * count >= 1 and share * count >= 1]


def cdf(runs, options):
    rows = [row for row in latency_rows(runs) if not row.is_bound]
    if options.sizes:
        rows = [row for row in rows if row.size in options.sizes]
    elif rows:
        size = _middle_size(rows)
        rows = [row for row in rows if row.size == size]
    rows = [row for row in rows if len(points_of(row)) > 1]
    if not rows:
        return None, f"no path has enough samples for a distribution{' at that size' if options.sizes else ''}"
    sizes = sorted({row.size for row in rows})
    many = len(sizes) > 1
    looks = style.styles([row for run in runs for row in run.rows])
    names = {id(row): f"{row.label}{', ' + size_text(row.size) if many else ''} (n\u00a0=\u00a0{row.samples:,})"
             for row in rows}
    notes = ["each share: median over the rounds; a curve ends where a round has too few samples"]
    if any(not row.distribution for row in rows):
        notes.append("dotted: only these percentiles were recorded")
    figure, (axis,) = style.sheet(runs, title_of(runs, options), notes, 4.1, style.legend_width(names.values()))
    handles = []
    for label, line in lines_of(rows).items():
        for index, row in enumerate(line):
            handles.append((row, _curve(axis, row, looks[label], index, many)))
    axis.set_xscale("log")
    axis.set_yscale("logit")
    shown = [share for row in rows for share, _ in points_of(row)]
    axis.set_ylim(min(shown) * 0.8, 1 - (1 - max(shown)) * 0.8)
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(FixedLocator([share for share in SHARES if low <= share <= high]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    style.log_ticks(axis.xaxis, *axis.get_xlim())
    axis.set_xlabel(f"{latency_words(runs)} (µs), {', '.join(map(size_text, sizes))}")
    axis.set_ylabel("share of operations within this time")
    handles.sort(key=lambda pair: -pair[0].p50_us)
    style.legend(axis, [handle for _, handle in handles], [names[id(row)] for row, _ in handles])
    return figure, None


def _curve(axis, row, look, index, many):
    look = dict(look, markersize=4, markevery=5)
    if not row.distribution:
        look.update(linestyle=":", markersize=6, markevery=1)
    elif many:
        look["linestyle"] = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1.5, 1.5)))[index % 4]
    shares, times = zip(*points_of(row))
    name = style.gid("series", row.label, row.size) if many else style.gid("series", row.label)
    return axis.plot(times, shares, gid=name, **look)[0]
