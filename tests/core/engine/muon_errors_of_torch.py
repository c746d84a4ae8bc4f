#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how far torch.optim.Muon's bf16 iteration is from the same in double,
for the gradients of cuda_muon_precision_test.cc, and prints that test's table.

Run by hand, with an interpreter that has PyTorch 2.9 or later and numpy."""

import math

import numpy as np
import torch
from torch.optim import _muon

# As in the test and its reference.
SHAPES = ((32, 32), (48, 80), (80, 48), (64, 64), (20, 300))
SEEDS = range(1, 17)
STEPS = 5
EPS = 1e-7
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def gradient(rows, cols, seed):
    values = np.empty(rows * cols, np.float32)
    for i in range(rows * cols):
        value = math.cos(seed * 5 + cols * 7 + i) * math.exp(i % 11 - 5.0)
        values[i] = float(np.float32(value)) * math.sin(float(i * i % 1009))
    return values.reshape(rows, cols)


def in_double(x):
    x = x.astype(np.float64)
    if x.shape[0] > x.shape[1]:
        return in_double(x.T).T
    a, b, c = COEFFICIENTS
    x /= max(np.linalg.norm(x), EPS)
    for _ in range(STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def in_torch(x):
    # pylint: disable=protected-access
    return _muon._zeropower_via_newtonschulz(
        torch.from_numpy(x), COEFFICIENTS, STEPS, EPS).double().numpy()


def main():
    print(f"// torch {torch.__version__}, CPU")
    for rows, cols in SHAPES:
        squares = 0.0
        for seed in SEEDS:
            g = gradient(rows, cols, seed)
            squares += np.sum((in_torch(g) - in_double(g))**2)
        print(f"    {{{rows}, {cols}, {math.sqrt(squares):.5f}}},")


if __name__ == "__main__":
    main()
