# SPDX-License-Identifier: Apache-2.0
"""The training of tests/bench/ffi.cc in Python."""

import sys
import time

try:
    import numpy
except ImportError as error:
    print(f"step.py: numpy is not installed here: {error}", file=sys.stderr)
    sys.exit(77)

import shard
from shard import Pass

STEPS = 4


def train(engine, units):
    """Trains for a step, and returns the loss."""
    loss = 0.0
    for number in range(units):
        with engine.unit(number, Pass.FORWARD) as unit:
            for param in unit.params():
                p = param.data.item(0)
                loss += 0.5 * p * p
    for number in reversed(range(units)):
        with engine.unit(number, Pass.BACKWARD) as unit:
            for param in unit.params():
                param.grad.flat[0] = param.data.item(0)
            unit.mark_grads_ready()
    engine.step()
    return loss


def main():
    with open(sys.argv[1], "rb") as file:
        plan = shard.Plan.decode(file.read())
    engine = shard.Engine(plan, shard.Comm("local:"))
    info = plan.info()
    for param in range(info.num_params):
        shape = plan.param_info(param).shape
        engine.set_param(param,
                         numpy.full(shape, 1 + param / 256, numpy.float32))
    engine.broadcast_params()

    loss = 0.0
    print("peer: ready", flush=True)
    for line in sys.stdin:
        answer = loss
        if line == "train\n":
            start = time.perf_counter()
            for _ in range(STEPS):
                loss = train(engine, info.num_units)
            answer = (time.perf_counter() - start) * 1e3
        print(f"peer: {answer!r}", flush=True)


main()
