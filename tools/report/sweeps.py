"""Draws latency and bandwidth by size: one line per path, with its bound. A single size gives a chart of the paths."""
import statistics

import style
from runs import lines_of, size_text, title_of

MOST_BANDS = 3  # more bands would overlap; whiskers do not
FEW_SAMPLES = 100  # number of samples below which the 99th percentile of a round is its maximum
WHAT = {"put": "put", "apply": "update", "replay": "step of a model",
        "staged": "copy between GPU and host"}
SIZE = {"put": "bytes of a put", "apply": "bytes of the parameters",
        "replay": "bytes of the model", "staged": "bytes in one direction"}
BUS = {"put": "size / time", "apply": "bytes read and written / time",
       "staged": "bytes moved / time"}


def words_of(runs, table, other):
    """Returns the label of an axis, or "" if the runs need different labels."""
    words = {table.get(run.question, other) for run in runs}
    return words.pop() if len(words) == 1 else ""


def latency_rows(runs):
    return [row for run in runs for row in run.rows if row.what != "bandwidth" and not row.trouble]


def latency_words(runs):
    what = words_of(runs, WHAT, "exchange")
    return f"time of one {what or 'operation'}" + (", half of a round trip" if what == "put" else "")


def latency(runs, options):
    rows = latency_rows(runs)
    if not any(not row.is_bound for row in rows):
        return None, "no path has a time (in `put`, only the latency rows have times)" if runs else "no rows"
    few = any(row.samples_a_round < FEW_SAMPLES for row in rows)
    notes = ["line: median of the medians of the rounds; spread: from the minimum to the 99th percentile"
             + (" (the maximum, if a round has fewer than 100 samples)" if few else "")]
    title = title_of(runs, options)
    if len({row.size for row in rows}) == 1:
        return _range_chart(runs, rows, title, notes, f"{latency_words(runs)} (µs)"), None
    return _latency_lines(runs, rows, title, notes), None


def _latency_lines(runs, rows, title, notes):
    lines = lines_of(rows)
    figure, (axis,) = style.sheet(runs, title, notes, 4.1, style.legend_width(lines))
    looks = style.styles([row for run in runs for row in run.rows])
    paths = [label for label, line in lines.items() if not line[0].is_bound]
    bands = len(paths) <= MOST_BANDS
    handles = {}
    for label, line in lines.items():
        bound = line[0].is_bound
        # Whiskers at the same size would overlap.
        shift = 1 if bound or bands else 1.035 ** (paths.index(label) - (len(paths) - 1) / 2)
        xs, ys = [row.size * shift for row in line], [row.p50_us for row in line]
        handles[label], = axis.plot(xs, ys, gid=style.gid("bound" if bound else "series", label), zorder=2 if bound else 3,
                                    **looks[label])
        if not bound:
            _spread(axis, label, line, xs, looks[label]["color"], bands)
    axis.set_yscale("log")
    style.size_axis(axis, {row.size for row in rows})
    style.log_ticks(axis.yaxis, *axis.get_ylim())
    axis.set_xlabel(words_of(runs, SIZE, "bytes of one worker's gradient") or "bytes")
    axis.set_ylabel(f"{latency_words(runs)} (µs)")
    order = sorted(handles, key=lambda label: -lines[label][-1].p50_us)  # the order at the right, from the top
    style.legend(axis, [handles[label] for label in order], order)
    return figure


def _spread(axis, label, line, xs, colour, bands):
    low = [row.min_us or row.p50_us for row in line]  # a logarithmic axis has no 0
    high = [max(row.p99_us, row.p50_us) for row in line]
    if bands:
        axis.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0, gid=style.gid("spread", label))
    else:
        axis.vlines(xs, low, high, color=colour, linewidth=0.8, alpha=0.55, gid=style.gid("spread", label))


def _range_chart(runs, rows, title, notes, words):
    """Draws one size: one line per path, from its minimum to its 99th percentile, with a dot at the median."""
    looks = style.styles([row for run in runs for row in run.rows])
    figure, (axis,) = style.sheet(runs, title, notes, 0.5 + 0.34 * len(rows), 0.7, left=style.beside_width(rows))
    for index, row in enumerate(rows):
        colour = looks[row.label]["color"]
        kind = "bound" if row.is_bound else "series"
        axis.hlines(index, row.min_us or row.p50_us, max(row.p99_us, row.p50_us), color=colour, linewidth=3, alpha=0.35,
                    gid=style.gid("spread", row.label))
        axis.plot([row.p50_us], [index], marker="|" if row.is_bound else "o", markersize=9 if row.is_bound else 6,
                  color=colour, gid=style.gid(kind, row.label))
        axis.annotate(f"{row.p50_us:,.4g}", (row.p50_us, index), xytext=(0, 5), textcoords="offset points", ha="center",
                      fontsize=7.5)
    axis.set_xscale("log")
    style.beside(axis, rows)
    axis.set_ylim(len(rows) - 0.4, -0.7)
    style.log_ticks(axis.xaxis, *axis.get_xlim())
    axis.set_xlabel(f"{words}, {size_text(rows[0].size)}")
    return figure


def bandwidth(runs, options):
    rows = [row for run in runs for row in run.rows
            if row.what != "latency" and not row.trouble and _bandwidth_of(row, options) > 0]
    if not any(not row.is_bound for row in rows):
        return None, "no path has a bandwidth (in `put`, only the bandwidth rows have one)"
    bus = options.bandwidth == "bus"
    derived = words_of(runs, BUS, "gradient and parameters, 2 × size / time") if bus else "size / time"
    words = f"{options.bandwidth} bandwidth (10⁹ bytes/s)"
    title = title_of(runs, options)
    note = [f"{options.bandwidth} bandwidth: {derived or 'as defined by each suite'}"]
    if len({row.size for row in rows}) == 1:
        return _bars(runs, rows, title, note, words, options), None
    return _bandwidth_lines(runs, rows, title, note, words, options), None


def _bandwidth_of(row, options):
    return row.bus_bw if options.bandwidth == "bus" else row.alg_bw


def _bandwidth_lines(runs, rows, title, note, words, options):
    lines = lines_of(rows)
    memory = _memory_bound(rows) if options.bandwidth == "bus" else {}
    name = "bound: speed of memory"
    figure, (axis,) = style.sheet(runs, title, note + _memory_note(memory), 4.1, style.legend_width([*lines, name]))
    looks = style.styles([row for run in runs for row in run.rows])
    handles = {}
    for label, line in lines.items():
        kind = "bound" if line[0].is_bound else "series"
        handles[label], = axis.plot([row.size for row in line], [_bandwidth_of(row, options) for row in line],
                                    gid=style.gid(kind, label), **looks[label])
    last = {label: _bandwidth_of(line[-1], options) for label, line in lines.items()}
    if memory:
        sizes = sorted(memory)
        axis.fill_between(sizes, [min(memory[s]) for s in sizes], [max(memory[s]) for s in sizes], linewidth=0,
                          color=style.BOUND_COLOUR, alpha=0.18, gid="bound-memory-range")
        handles[name], = axis.plot(sizes, [statistics.median(memory[s]) for s in sizes], color=style.BOUND_COLOUR,
                                   linestyle=style.BOUND_DASHES[0], linewidth=1.4, gid="bound-memory")
        last[name] = statistics.median(memory[sizes[-1]])
    axis.set_yscale("log")
    style.size_axis(axis, {row.size for row in rows})
    style.log_ticks(axis.yaxis, *axis.get_ylim())
    axis.set_xlabel(words_of(runs, SIZE, "bytes of one worker's gradient") or "bytes")
    axis.set_ylabel(words)
    order = sorted(handles, key=lambda label: -last[label])
    style.legend(axis, [handles[label] for label in order], order)
    return figure


def _memory_bound(rows):
    """Returns {size: bandwidths of memory}, one for each path, measured over the bytes that the path touches."""
    bound = {}
    for row in rows:
        if row.bound_bw > 0:
            bound.setdefault(row.size, []).append(row.bound_bw)
    return bound


def _memory_note(memory):
    return ["bound: speed of memory, measured with each path over the bytes that the path touches; "
            "range and median over the paths"] if memory else []


def _bars(runs, rows, title, note, words, options):
    looks = style.styles([row for run in runs for row in run.rows])
    memory = options.bandwidth == "bus" and any(row.bound_bw > 0 for row in rows)
    if memory:
        note = note + ["dashes: speed of memory, measured with each path over the bytes that the path touches"]
    figure, (axis,) = style.sheet(runs, title, note, 0.5 + 0.34 * len(rows), 0.7, left=style.beside_width(rows))
    for index, row in enumerate(rows):
        value = _bandwidth_of(row, options)
        bar, = axis.barh(index, value, height=0.62, color=looks[row.label]["color"], alpha=0.45 if row.is_bound else 0.9)
        bar.set_gid(style.gid("bound" if row.is_bound else "series", row.label))
        axis.annotate(f"{value:.3g}", (value, index), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        if memory and row.bound_bw > 0:
            axis.vlines(row.bound_bw, index - 0.42, index + 0.42, color="black", linewidth=1.4, linestyle=(0, (3, 1.5)),
                        gid=style.gid("bound memory", row.label))
    style.beside(axis, rows)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(f"{words}, {size_text(rows[0].size)}")
    return figure
