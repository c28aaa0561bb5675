"""Adds up the pieces of a soak. Usage: soak_totals.py FILE, where FILE is the $GRADRAIL_SOAK_TABLE of soak_test.py.

A row is a piece. "recovery" is the time from the fault (a kill) or from its end (the others) until all workers make steps
again. "stalled": sync rounds that lost a worker because the machine did not run it. "KiB/h" and "files/h" are the growth of
resident memory and descriptors within the processes."""
import collections
import json
import pathlib
import sys


def share(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def row(piece, name):
    recovery = piece["recovery_s"]
    rounds = "+".join(str(piece["rounds"].get(mode, 0)) for mode in ("sync", "async"))
    return (f"{name:16}  {piece['commit']:8} {piece['seconds']:6}  {sum(piece['faults'].values()):6}  {rounds:>7}  "
            f"{piece['same_bits']:9}  {piece.get('stalled', 0):7}  {piece['steps']:9}  "
            f"{piece['restarts']:8}  {share(recovery, 0.5):6.2f} {share(recovery, 0.99):6.2f} {max(recovery, default=0):6.2f}  {piece['rss_kib_per_hour']:6}  "
            f"{piece['files_per_hour']:7}  {piece['load']:5.1f}  {piece['result']}")


def total(pieces):
    faults, rounds = collections.Counter(), collections.Counter()
    for piece in pieces:
        faults.update(piece["faults"])
        rounds.update(piece["rounds"])
    seconds = sum(piece["seconds"] for piece in pieces)

    def mean(key):  # each piece counts by its time
        return round(sum(piece[key] * piece["seconds"] for piece in pieces) / max(seconds, 1), 1)

    return {"commit": "", "seconds": seconds, "faults": faults, "rounds": rounds,
            "same_bits": sum(piece["same_bits"] for piece in pieces),
            "stalled": sum(piece.get("stalled", 0) for piece in pieces), "steps": sum(piece["steps"] for piece in pieces),
            "restarts": sum(piece["restarts"] for piece in pieces),
            "recovery_s": [value for piece in pieces for value in piece["recovery_s"]],
            "rss_kib_per_hour": mean("rss_kib_per_hour"), "files_per_hour": mean("files_per_hour"), "load": mean("load"),
            "result": f"{sum(piece['result'] == 'passed' for piece in pieces)} of {len(pieces)} passed"}


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    pieces = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]
    print("piece             commit   seconds  faults  sync+async  same bits  stalled      steps  restarts   p50    p99    max  "
          "  KiB/h  files/h   load  result")
    for piece in pieces:
        print(row(piece, piece["date"]))
    whole = total(pieces)
    print(row(whole, "all"))
    print("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(whole["faults"].items())))


if __name__ == "__main__":
    main()
