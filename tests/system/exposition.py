"""Reads the text format of Prometheus strictly, with the checks of `promtool check metrics` and checks of the sums."""
import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{(.*)\}})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
OURS = re.compile(r"gradrail_")
NO_BASE_UNIT = re.compile(r"_(ms|us|ns|milliseconds|microseconds|nanoseconds|minutes|hours|kilobytes|kib|mib|percent)(_|$)")


class Bad(AssertionError):
    pass


def need(condition, text):
    if not condition:
        raise Bad(text)


def labels_of(text):
    found, at = {}, 0
    while at < len(text or ""):
        match = LABEL.match(text, at)
        need(match, f"labels {text!r}")
        need(match[1] not in found, f"label {match[1]} twice in {text!r}")
        found[match[1]] = match[2]
        at = match.end()
    return found


def read(text):
    """Returns {family: (type, help, [(name, labels, value)])}. Raises Bad if the text is not valid."""
    need(text.endswith("\n"), "the last line has no end")
    families, current = {}, None
    for line in text.splitlines():
        words = line.split(" ", 3)
        if line.startswith("# HELP "):
            need(words[2] not in families, f"{words[2]} twice")
            families[words[2]] = [None, words[3] if len(words) > 3 else "", []]
            current = words[2]
        elif line.startswith("# TYPE "):
            need(words[2] == current, f"TYPE of {words[2]} after HELP of {current}")
            families[current][0] = words[3]
        elif line:
            match = SAMPLE.fullmatch(line)
            need(match, f"line {line!r}")
            need(re.fullmatch(rf"{current}(_bucket|_sum|_count)?", match[1]), f"{match[1]} among those of {current}")
            value = float(match[3].replace("Inf", "inf"))
            families[current][2].append((match[1], labels_of(match[2]), value))
    return families


def check_histogram(name, samples):
    groups = {}
    for sample, labels, value in samples:
        key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
        group = groups.setdefault(key, {"buckets": []})
        if sample.endswith("_bucket"):
            group["buckets"].append((float(labels["le"].replace("Inf", "inf")), value))
        else:
            group[sample.rpartition("_")[2]] = value
    for group in groups.values():
        bounds = [bound for bound, _ in group["buckets"]]
        counts = [count for _, count in group["buckets"]]
        need(bounds == sorted(set(bounds)) and bounds[-1] == math.inf, f"{name}: bounds {bounds}")
        need(counts == sorted(counts) and counts[-1] == group["count"], f"{name}: counts {counts} of {group['count']}")
        need(group["sum"] >= 0, f"{name}: sum {group['sum']}")


def check(text):
    """Reads the text like read(), and checks the naming rules of Prometheus for the families of gradrail."""
    families = read(text)
    for name, (kind, help_text, samples) in families.items():
        need(kind in ("counter", "gauge", "histogram", "summary"), f"{name}: type {kind}")
        need(samples, f"{name}: no samples")
        distinct = {(sample, tuple(sorted(labels.items()))) for sample, labels, _ in samples}
        need(len(distinct) == len(samples), f"{name}: two samples with the same labels")
        if not OURS.match(name):
            continue
        need(help_text.endswith("."), f"{name}: HELP {help_text!r} is no sentence")
        need((kind == "counter") == name.endswith("_total"), f"{name} is a {kind}")
        need(not re.search(r"_(bucket|count|sum)$", name), f"{name}: a name for parts of histograms")
        need(not NO_BASE_UNIT.search(name), f"{name}: not in a base unit")
        need(all(math.isfinite(value) for _, _, value in samples), f"{name}: {samples}")
        if kind == "counter":
            need(all(value >= 0 for _, _, value in samples), f"{name}: {samples}")
        if kind == "histogram":
            check_histogram(name, samples)
    return families
