#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that the times and ratios that docs/benchmarks.md predicts are those of
its bytes per element, of its products, and of the peaks that it names. That the
bytes are right is tested where they are counted: step_bytes_test,
muon_bytes_test and cuda_offload_bytes_test."""

import math
import pathlib
import re

TEXT = pathlib.Path("docs/benchmarks.md").read_text(encoding="utf-8")
PROSE = " ".join(TEXT.split())

# Elements of most cases, and of those of offload.
ELEMENTS = 2**30
OFFLOADED = 2**27
# The batches of each of Muon's cases: a shape, and how many matrices of it are
# multiplied together.
BATCHES = {
    "12 blocks of GPT-2": [(768, 2304, 12), (768, 768, 12)]
                          + 2 * [(768, 3072, 6), (3072, 768, 6)],
    "4096 x 4096": [(4096, 4096, 1)],
}
NS_STEPS = 5


def found(pattern, text=PROSE):
    """Returns the numbers of the only place that the pattern matches."""
    places = re.findall(pattern, text)
    assert len(places) == 1, f"{len(places)} places have /{pattern}/"
    place = places[0]
    return [float(number) for number in
            (place if isinstance(place, tuple) else (place,))]


def expect(told, computed, what):
    """Fails where the text `told` is not `computed`, rounded to its digits."""
    digits = len(told.partition(".")[2])
    # A half may be rounded either way.
    assert abs(float(told) - computed) <= 0.51 * 10**-digits, (
        f"{what}: {told} is told, and it is {computed:.5g}")


def rows():
    """Yields the case, the bytes and the prediction of each row."""
    for line in TEXT.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and cells[4] == "open":
            yield cells[0], cells[2], cells[3]


def check_adamw(bandwidth):
    seen = 0
    for case, count, prediction in rows():
        if not case.startswith("adamw") or not count:
            continue
        taken = float(count) * ELEMENTS
        for told in re.findall(r"([\d.]+) GB\b", prediction):
            expect(told, taken / 1e9, case)
        for told in re.findall(r"([\d.]+) ms", prediction):
            expect(told, taken / bandwidth * 1e3, case)
            seen += 1
    assert seen == 5, seen


def products_of(batches):
    """Yields the rows, columns and inner size of each product of a step of
    Newton-Schulz, and how many are made together."""
    for height, width, count in batches:
        small, large = sorted((height, width))
        yield small, small, large, count
        yield small, small, small, count
        yield small, large, small, count


def flops_of(batches):
    return NS_STEPS * sum(2 * m * n * k * count
                          for m, n, k, count in products_of(batches))


def at_work(batches, processors):
    """Returns the share of the time for which multiprocessors have a tile."""
    tile = 128
    busy = taken = 0
    for m, n, k, count in products_of(batches):
        tiles = count * math.ceil(m / tile) * math.ceil(n / tile)
        busy += tiles * k
        taken += math.ceil(tiles / processors) * processors * k
    return busy / taken


def check_muon(bandwidth):
    processors = int(found(r"H100 SXM: (\d+) multiprocessors")[0])
    peaks = dict(zip(("highest", "high", "medium"), found(
        r"(\d+) TFLOP/s in fp32, (\d+) in TF32, (\d+) in bf16")))
    told = re.search(r"at work for (\d+) percent of the time with GPT-2's blocks, "
                     r"and for (\d+) with 4096", PROSE).groups()
    for name, percent in zip(BATCHES, told):
        expect(percent, 100 * at_work(BATCHES[name], processors), name)
    seen = 0
    for case, count, prediction in rows():
        if not case.startswith("muon "):
            continue
        precision, name = re.fullmatch(r"muon (\w+), (.*)", case).groups()
        batches = BATCHES[name]
        elements = sum(math.prod(batch) for batch in batches)
        kernels = float(count) * elements / bandwidth
        products = (flops_of(batches) / peaks[precision] / 1e12
                    / at_work(batches, processors))
        ratio, milliseconds = re.match(r"([\d.]+) times ([\d.]+) ms",
                                       prediction).groups()
        expect(milliseconds, products * 1e3, case)
        expect(ratio, 1 + kernels / products, case)
        for half in re.findall(r"([\d.]+) at half of that rate", prediction):
            expect(half, 1 + kernels / (2 * products), case)
        seen += 1
    assert seen == 6, seen


def check_prose_of_muon(bandwidth):
    """Compares what the text says of kernels, which take 36 or 32 bytes per
    element, and of products."""
    places = (r"([\d.]+) ms \(f32\) or ([\d.]+) ms \(bf16\) of kernels, and "
              r"([\d.]+) TFLOP", r"has ([\d.]+) or ([\d.]+) ms, and ([\d.]+) TFLOP")
    for batches, place in zip(BATCHES.values(), places):
        wide, narrow, products = re.search(place, PROSE).groups()
        elements = sum(math.prod(batch) for batch in batches)
        expect(wide, 36 * elements / bandwidth * 1e3, place)
        expect(narrow, 32 * elements / bandwidth * 1e3, place)
        expect(products, flops_of(batches) / 1e12, place)
    launches = len(BATCHES["12 blocks of GPT-2"]) * (4 + 3 * NS_STEPS)
    assert f"That is {launches} launches" in PROSE, launches


def check_offload():
    number = r"([\d.]+)"
    memory, bus = found(f"at {number} GB/s of memory; the bus takes [\\d.]+ ms "
                        f"at {number} GB/s each way")
    # The slower way of the bus: down gradients, and parameters without masters.
    down = {"adamw bf16 with masters": 2, "adamw f32": 8}
    seen = 0
    for case, count, prediction in rows():
        if not case.startswith("offload, ") or "threads" not in case:
            continue
        name = re.fullmatch(r"offload, (.*), 16 threads", case).group(1)
        of_host = float(re.match(r"\d+", count).group())
        told = re.findall(r"([\d.]+) ms", prediction)
        assert len(told) == 2, prediction
        expect(told[0], of_host * OFFLOADED / memory / 1e6, case)
        expect(told[1], down[name] * OFFLOADED / bus / 1e6, case)
        seen += 1
    assert seen == 2, seen


def main():
    bandwidth = found(r"multiprocessors, and ([\d.]+) TB/s of memory")[0] * 1e12
    check_adamw(bandwidth)
    check_muon(bandwidth)
    check_prose_of_muon(bandwidth)
    check_offload()


if __name__ == "__main__":
    main()
