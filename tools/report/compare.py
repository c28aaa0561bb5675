"""Compares two recorded runs: ratios of the times with confidence intervals.

Welch's test of the logarithms of the rounds, with one 95 % confidence interval for all rows (Bonferroni). Use
`--rounds 20` for small differences. Runs of different machines, versions or settings are refused without --unlike.

Exit status: 0 no row differs, 1 a row differs or is in one run only, 2 not a run, or the runs are not alike.
"""
import math
import statistics
from dataclasses import dataclass

import runs

FAMILY_LEVEL = 0.05  # the probability that any row of two equal runs is reported as different
NO_INTERVAL = 1e3  # an interval up to this factor is no information: it is that of two or three rounds
# The values of settings that a run does not record: a suite has the settings that it uses.
DEFAULTS = {"check": True, "factor": 4, "keep": 2, "on": "host", "optimizer": "sgd", "ps": 1, "push": "fp32", "rails": "off",
            "readers": 8, "return": "fp32", "servers": 1, "shards": 1, "slowdown": 10.0, "step_ms": 2.0, "streams": "auto",
            "changed": 0.01, "weights": "bf16", "window": 32}


def add_flags(parser):
    parser.add_argument("first", help="a run that `gradrail bench SUITE -J` has recorded")
    parser.add_argument("second", help="another one, of the same suite and settings")
    parser.add_argument("--unlike", action="store_true", help="compare runs with different machines, versions or settings too")


def run(options):
    first, second = runs.read_run(options.first), runs.read_run(options.second)
    different = differences(first, second)
    if different and not options.unlike:
        raise runs.Problem(f"the runs are not alike ({'; '.join(different)}); --unlike compares them all the same")
    rows = [{(row.path, row.what, row.size): row for row in each.rows} for each in (first, second)]
    names = sorted({*rows[0], *rows[1]})
    comparable = sum(all(name in each and has_rounds(each[name]) for each in rows) for name in names)
    for line in different:
        print(f"# NOT alike: {line}")
    for each in (first, second):
        print(f"# {each.file}: {each.version}")
    print(f"# ratio: second / first, with its interval at 95 % for all {comparable} rows together; "
          "times: geometric means of the rounds")
    print(f"# {'path':<38} {'what':<10}{'size':>12} {'first us':>11} {'second us':>11} {'ratio':>8}")
    count = 0
    for name in names:
        text, differs = described(rows[0].get(name), rows[1].get(name), comparable)
        print(f"  {name[0]:<38} {name[1]:<10}{name[2]:>12} {text}")
        count += differs
    print(f"# {count} of {len(names)} rows differ; {comparable} were compared")
    return 1 if count else 0


def settings(run):
    """Returns the settings that two comparable runs share. The order of the rounds (seed) may differ."""
    return {name: value for name, value in run.config.items() if name != "seed"}


def differing(first, second):
    """Returns [(name, value, value)] of the settings that differ. A setting that is off may be missing."""
    found = []
    for name in sorted({*first, *second}):
        one, other = (each.get(name, DEFAULTS.get(name)) or None for each in (first, second))
        if one != other:
            found.append((name, one, other))
    return found


def differences(first, second):
    """Returns "machine: A / B", one for each thing that two comparable runs share."""
    def shared(run):  # the title has the participants, and whether they spun
        return {"machine": run.machine, "load": run.title, "libraries": run.libraries, **settings(run)}
    return [f"{name}: {runs.shown(one)} / {runs.shown(other)}" for name, one, other in differing(shared(first), shared(second))]


def has_rounds(row):
    return not row.failed and bool(row.rounds_us) and min(row.rounds_us) > 0


def described(first, second, comparisons):
    """Returns the text of a row, and whether the row counts as a difference."""
    if first is None or second is None:
        return f"only in the {'second' if first is None else 'first'} run", True
    if first.wrong > 0 or second.wrong > 0:
        return f"wrong results in the {'first' if first.wrong > 0 else 'second'} run", True
    measured = [has_rounds(row) for row in (first, second)]
    if not all(measured):
        if not any(measured):
            return "measured in neither", False
        return f"not measured in the {'second' if measured[0] else 'first'} run", True
    ratio = ratio_of(first.rounds_us, second.rounds_us, comparisons)
    interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]" if ratio.high <= NO_INTERVAL else "too few rounds for an interval"
    verdict = "" if not ratio.is_significant else " slower" if ratio.ratio > 1 else " faster"
    means = [statistics.geometric_mean(row.rounds_us) for row in (first, second)]
    return f"{means[0]:>11.2f} {means[1]:>11.2f} {ratio.ratio:>8.3f}  {interval}{verdict}", ratio.is_significant


@dataclass
class Ratio:
    """Second over first. Above 1 the second run is slower."""
    ratio: float
    low: float  # low end of the confidence interval
    high: float

    @property
    def is_significant(self):
        return self.low > 1 or self.high < 1


def ratio_of(first, second, comparisons):
    """Welch's test of the logarithms, at FAMILY_LEVEL for all comparisons together (Bonferroni). Fewer than two rounds say
    nothing: an interval from 0 to infinity.
    Source: B. L. Welch, The generalization of Student's problem, Biometrika 34 (1947)."""
    if len(first) < 2 or len(second) < 2:
        return Ratio(second[0] / first[0] if first and second else 1.0, 0.0, math.inf)
    logs = [[math.log(value) for value in values] for values in (first, second)]
    ratio = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    squared = [statistics.variance(each) / len(each) for each in logs]  # errors of the means
    error = sum(squared)
    if error == 0:  # all rounds are equal: the interval is a point
        return Ratio(math.exp(ratio), math.exp(ratio), math.exp(ratio))
    # Welch and Satterthwaite: the two runs may differ in their variance.
    freedom = error ** 2 / sum(each ** 2 / (len(values) - 1) for each, values in zip(squared, logs))
    reach = student_quantile(freedom, FAMILY_LEVEL / max(comparisons, 1)) * math.sqrt(error)
    return Ratio(math.exp(ratio), bounded_exp(ratio - reach), bounded_exp(ratio + reach))


def bounded_exp(value):
    return math.exp(value) if value < 700 else math.inf


def student_quantile(freedom, both_tails):
    """The t beyond which so much of Student's distribution lies, on both sides together."""
    low, high = 0.0, 1e12  # t exceeds 1000 for one degree of freedom and a hundred rows
    for _ in range(200):
        middle = (low + high) / 2
        if incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle * middle)) > both_tails:
            low = middle
        else:
            high = middle
    return high


def incomplete_beta(a, b, x):
    """Regularized incomplete beta function I_x(a, b), by its continued fraction.
    Source: Press et al., Numerical Recipes, 6.4; Lentz, Applied Optics 15 (1976)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    # The fraction converges fast below this bound only. The symmetry of the function covers the rest.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)

    def away_from_zero(value):  # Lentz divides by partial results, which may be 0
        return value if abs(value) > 1e-300 else 1e-300
    c, d = 1.0, 1 / away_from_zero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        for step in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                     -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / away_from_zero(1 + step * d)
            c = away_from_zero(1 + step / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    # The formula uses logarithms: the gamma function overflows above 171. log1p() keeps the digits of a small x.
    return fraction / a * math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
