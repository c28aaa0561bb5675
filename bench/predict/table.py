#!/usr/bin/env python3
"""Prints the table of a sweep of `gradrail predict --json`. Usage: table.py FILE"""
import json
import pathlib
import sys

print(f"{'':<24} {'step ms':>10} {'99% ms':>10} {'line rate':>9} {'cpu':>5} {'memory':>6} {'w.cpu':>5}  limit (share of the critical path)")
for row in json.loads(pathlib.Path(sys.argv[1]).read_text())["points"]:
    label = " ".join(f"{name}={value}" for name, value in row["point"].items())
    step, use = row["step_time_s"], row["utilization"]
    print(f"{label:<24} {step['median'] * 1e3:10.2f} {step['p99'] * 1e3:10.2f} {row['share_of_line_rate']:9.3f} "
          f"{use['shard_cpu']:5.2f} {use['shard_memory']:6.2f} {use['worker_cpu']:5.2f}  {row['bottleneck']} "
          f"({row['critical_path'][row['bottleneck']]:.2f})")
