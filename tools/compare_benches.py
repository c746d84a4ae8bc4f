#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the results of one benchmark in two builds.

Usage: compare_benches.py [--pairs N] BEFORE AFTER [ARG...]

BEFORE and AFTER are programs that print lines "BENCH <name> <metric> <value>
<unit>". Each of N rounds (default 15) runs BEFORE twice and AFTER once, in an
order that changes from round to round, so that other load of the machine falls
on both. For every metric it prints one line:

  BENCH <name> <metric>.after_over_before <median of the ratios per round> ratio

followed by the medians of both, and the spread of BEFORE over itself in the
same rounds: half of those ratios lie within it. A change that is smaller than
this spread has not been measured.

The exit code is not 0 if a program fails, or prints no metric that both have.
"""

import argparse
import statistics
import subprocess
import sys

# Each program is as often first, second and third as the others.
ORDERS = [("A", "B", "a"), ("B", "a", "A"), ("a", "A", "B")]


def measure(program, args):
    """Returns the metrics that one run prints: (value, unit) by name."""
    run = subprocess.run([program, *args], stdout=subprocess.PIPE, text=True,
                         check=False)
    if run.returncode != 0:
        sys.exit(f"compare_benches: {program} failed with exit code"
                 f" {run.returncode}")
    metrics = {}
    for line in run.stdout.splitlines():
        words = line.split()
        if len(words) == 5 and words[0] == "BENCH":
            metrics[f"{words[1]} {words[2]}"] = (float(words[3]), words[4])
    return metrics


def ratios(rounds, name, over, under):
    """Returns one ratio for each round in which both runs have the metric."""
    pairs = [(r[over].get(name), r[under].get(name)) for r in rounds]
    return [a[0] / b[0] for a, b in pairs if a and b and b[0] != 0]


def spread(values):
    """Returns the quartiles: half of the values lie between them."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def main():
    parser = argparse.ArgumentParser(
        description="Compares what one benchmark measures in two builds.")
    parser.add_argument("--pairs", type=int, default=15, metavar="N",
                        help="rounds (default: %(default)s)")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.pairs < 1:
        parser.error(f"--pairs must be at least 1, not {options.pairs}")

    rounds = []
    for i in range(options.pairs):
        if sys.stderr.isatty():
            print(f"\rround {i + 1} of {options.pairs}", end="",
                  file=sys.stderr, flush=True)
        programs = {"A": options.before, "a": options.before,
                    "B": options.after}
        rounds.append({which: measure(programs[which], options.args)
                       for which in ORDERS[i % len(ORDERS)]})
    if sys.stderr.isatty():
        print(file=sys.stderr)

    compared = 0
    for name, (_, unit) in rounds[0]["A"].items():
        changes = ratios(rounds, name, "B", "A")
        itself = ratios(rounds, name, "a", "A")
        if not changes or not itself:
            continue
        compared += 1
        low, high = spread(itself)
        medians = [statistics.median(r[which][name][0] for r in rounds
                                     if name in r[which])
                   for which in ("A", "B")]
        print(f"BENCH {name}.after_over_before"
              f" {statistics.median(changes):.4g} ratio"
              f"  ({medians[0]:.4g} -> {medians[1]:.4g} {unit};"
              f" before over itself {low:.3f} to {high:.3f})", flush=True)
    if compared == 0:
        sys.exit("compare_benches: no metric that both programs print")


if __name__ == "__main__":
    main()
