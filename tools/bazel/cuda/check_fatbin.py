#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the kernels of a cuda_fatbin: see cuda_fatbin_test in fatbin.bzl."""

import argparse
import os
import pathlib
import re
import sys


def read_registers(text):
    """Returns ({"KERNEL ARCH": (registers, shared bytes)}, errors)."""
    kernels, errors, name, arch = {}, [], "?", "?"
    for line in text.splitlines():
        if found := re.search(r"entry function '(.*)' for '(.*)'", line):
            entry, arch = found.groups()
            name = entry
        elif found := re.search(r"Function properties for (\S+)", line):
            # Also those of functions that are called and not inlined.
            name = found[1]
        elif "stack frame" in line:
            if any(int(number) for number in re.findall(r"(\d+) bytes", line)):
                errors.append(f"{name} {arch} spills or has a stack: {line.strip()}")
        elif found := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[f"{entry} {arch}"] = (
                int(found[1]),
                int(shared[1]) if shared else 0,
            )
    return kernels, errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-registers", type=int, required=True)
    parser.add_argument("--record", action="store_true", dest="write")
    parser.add_argument("record")
    parser.add_argument("outputs", nargs=2)
    args = parser.parse_args()
    texts = {}
    for path in map(pathlib.Path, args.outputs):
        texts[path.suffix] = path.read_text()
    version, _, log = texts[".txt"].partition("\n")
    if version.startswith("none: "):
        print(f"skipped: {version[6:]}")
        return 1 if args.write else 0

    kernels, errors = read_registers(log)
    if not kernels:
        errors.append("ptxas names no kernel")
    for kernel, (registers, _) in kernels.items():
        if registers > args.max_registers:
            errors.append(
                f"{kernel} uses {registers} registers; allowed are"
                f" {args.max_registers}"
            )
    for line in texts[".ptx"].splitlines():
        # div.full is what a division becomes without -prec-div.
        code = line.partition("//")[0]
        if re.search(r"\.(approx|ftz)\b|\bdiv\.full\b", code):
            errors.append(f"the PTX approximates or flushes: {line.strip()}")

    lines = [f"{version}: kernel, architecture, registers, bytes of shared memory"]
    lines += [f"{kernel} {r} {s}" for kernel, (r, s) in sorted(kernels.items())]
    if args.write:
        root = pathlib.Path(os.environ["BUILD_WORKSPACE_DIRECTORY"])
        (root / args.record).write_text("\n".join(lines) + "\n")
        print(f"wrote {args.record}")
    else:
        recorded = pathlib.Path(args.record).read_text().splitlines()
        if recorded[:1] != lines[:1]:
            # Each compiler allocates registers in its own way.
            print(f"{args.record} is of another nvcc and is not compared")
        elif recorded != lines:
            errors += [f"not in the record: {l}" for l in lines if l not in recorded]
            errors += [f"only in the record: {l}" for l in recorded if l not in lines]
            target = os.environ.get("TEST_TARGET", "TEST")
            errors.append(f"if that is meant: bazel run {target} -- --record")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
