#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the kernels of a cuda_fatbin: see cuda_fatbin_test in fatbin.bzl."""

import argparse
import os
import pathlib
import re
import subprocess
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


# What a division becomes without -prec-div is div.full.
APPROXIMATES = re.compile(r"\.(approx|ftz)\b|\bdiv\.full\b")
# ptxas may join a product and a sum that name no rounding: the sum of fma is rounded
# once, that of the CPU twice.
CONTRACTIBLE = re.compile(r"\b(add|sub|mul)(\.sat)?\.f(32|64)(x2)?\b")


def read_ptx(text, dynamic):
    """Returns ({KERNEL: bytes of dynamic shared memory}, errors).

    `dynamic` has the bytes of each variable whose size only a launch tells.
    """
    kernels, errors, variables = {}, [], set()
    kernel = None
    for line in text.splitlines():
        code = line.partition("//")[0]
        if APPROXIMATES.search(code):
            errors.append(f"the PTX approximates or flushes: {line.strip()}")
        if CONTRACTIBLE.search(code):
            errors.append(f"the PTX names no rounding: {line.strip()}")
        if found := re.search(r"\.extern \.shared .*\b(\w+)\[\]", code):
            name = found[1]
            # The PTX has the mangled name.
            sizes = [size for part, size in dynamic.items() if part in name]
            if not sizes:
                errors.append(f"no size is known of the shared memory {name}")
            variables.add((name, max(sizes, default=0)))
        elif found := re.search(r"\.(entry|func)\b", code):
            named = re.search(r"\.entry (\w+)", code)
            kernel = named[1] if named else None
            if kernel:
                kernels[kernel] = 0
        else:
            for name, size in variables:
                if not re.search(rf"\b{name}\b", code):
                    continue
                if kernel:
                    # All such variables of a kernel begin at one address.
                    kernels[kernel] = max(kernels[kernel], size)
                else:
                    errors.append(f"a function that is not inlined uses {name}")
    return kernels, errors


def read_dynamic(program):
    """Runs a program that prints lines of "VARIABLE BYTES"."""
    if program is None:
        return {}
    printed = subprocess.run([program], check=True, capture_output=True, text=True)
    lines = [line.split() for line in printed.stdout.splitlines()]
    return {variable: int(size) for variable, size in lines}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-registers", type=int, required=True)
    parser.add_argument("--dynamic-shared", metavar="PROGRAM")
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
    dynamic, wrong = read_ptx(texts[".ptx"], read_dynamic(args.dynamic_shared))
    errors += wrong
    for kernel, (registers, shared) in kernels.items():
        shared += dynamic.get(kernel.split()[0], 0)
        kernels[kernel] = registers, shared

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
