#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quickstart of libshard in Python: trains a small language model on any
number of ranks, and saves a checkpoint from which the next run goes on.

    install -m 755 quickstart.py quickstart
    shardctl run -n 2 -- ./quickstart checkpoints 400   # trains 400 steps
    shardctl run -n 3 -- ./quickstart checkpoints 600   # and 200 more

Read train() first. The model predicts each byte of a text from the bytes before
it. README.md beside this file defines it to the bit, so that the quickstarts in
all languages save the same checkpoints. numpy does the arithmetic."""

import math
import sys

import numpy as np

import shard

VOCAB = 256  # A token is a byte.
CONTEXT = 4  # The bytes that a prediction reads.
DIM = 16  # The numbers that describe a byte.
BATCH = 64  # Predictions per step, over all ranks.
REPORT = 50  # Steps from one line of output to the next.

# The parameters. Their names are the keys in checkpoints.
SHAPES = {"embed": (VOCAB, DIM), "position": (CONTEXT, DIM),
          "out": (VOCAB, DIM), "bias": (VOCAB,)}


def initialize(engine, ids):
    """Sets the first values: small random numbers, and a bias of 0."""
    n = 0
    for name, shape in SHAPES.items():
        count = math.prod(shape)
        random = np.arange(n, n + count, dtype=np.uint64) * 2654435761 + 12345
        values = (random % 2**32 >> 8) * 2.0**-24 - 0.5
        if name == "bias":
            values[:] = 0
        engine.set_param(ids[name], values.reshape(shape))  # As float32.
        n += count
    engine.broadcast_params()


def add_up(terms):
    """Adds terms along the first axis from the first to the last. numpy's sum()
    adds them in another order, and so rounds differently."""
    return np.add.accumulate(terms)[-1]


def power(x):
    """Returns 1 / (1 - x / 1024)^1024, which is nearly exp(x) for x <= 0. Every
    language computes the same bits, and exp in a way of its own."""
    result = 1 - x / 1024
    for _ in range(10):
        result = result * result
    return 1 / result


def learn(params, sums, text, at):
    """Predicts the byte at `at`, adds the gradients of the loss to the sums,
    and returns the loss."""
    before = text[at - CONTEXT:at][::-1]  # The nearest one first.
    position, out = params["position"], params["out"]
    embed = params["embed"][before]
    hidden = add_up(position * embed)
    p = add_up(np.vstack([params["bias"], (hidden * out).T]))
    p = power(p - p.max())
    total = add_up(p)
    loss = -math.log(p[text[at]] / total)
    grad = p / total
    grad[text[at]] -= 1
    grad /= BATCH
    sums["bias"] += grad
    sums["out"] += grad[:, None] * hidden
    hidden_grad = add_up(grad[:, None] * out)
    np.add.at(sums["embed"], before, hidden_grad * position)
    sums["position"] += hidden_grad * embed
    return loss


def train(folder, steps, text):
    # Meet the other ranks, which `shardctl run` has started. At the end of the
    # block they meet again; an exception in it is an error of the others too.
    with shard.Comm("env:") as comm:
        # Declare the model, and decide how it is sharded. In stage 1 each rank
        # keeps the optimizer states of its part of the parameters, and steps
        # that part.
        model = shard.Model("ByteModel")
        ids = {name: model.add_param(0, name, shard.DType.F32, shape)
               for name, shape in SHAPES.items()}
        plan = shard.Plan(model, stage=1, world_size=comm.world_size,
                          optimizer="adamw?lr=0.02&weight_decay=0")
        engine = shard.Engine(plan, comm)

        # Go on from the last checkpoint, or begin.
        done = 0
        try:
            done = engine.load(folder).step
        except shard.Error as error:
            if error.code != shard.Code.NOT_FOUND:
                raise
            initialize(engine, ids)

        # Arrays in memory of libshard: the model reads the parameters, and
        # writes the gradients of each step.
        params = {name: engine.param(ids[name]) for name in SHAPES}
        grads = {name: engine.grad(ids[name]) for name in SHAPES}
        loss = 0.0
        for step in range(done, steps):
            weights = {name: params[name].astype(float) for name in SHAPES}
            sums = {name: np.zeros(SHAPES[name]) for name in SHAPES}
            # This rank's part of the batch.
            for i in range(comm.rank, BATCH, comm.world_size):
                random = (step * BATCH + i) * 2654435761 % 2**32
                at = CONTEXT + random % (len(text) - CONTEXT)
                loss += learn(weights, sums, text, at)
            for name in SHAPES:
                grads[name][...] = sums[name]  # Rounds to float32.
            engine.step(grad_divisor=1)  # learn() has divided by the batch.
            if (step + 1) % REPORT == 0:
                loss = comm.sum(loss) / (BATCH * REPORT)  # Over all ranks.
                if comm.rank == 0:
                    print(f"step {step + 1}: loss {loss:.4f}")
                loss = 0.0
        if done < steps:
            engine.save(folder)


def main(folder="", steps="", path="/usr/share/common-licenses/GPL-3", *more):
    try:
        with open(path, "rb") as file:
            text = np.frombuffer(file.read(1 << 20), np.uint8)
    except OSError:
        text = b""
    steps = int(steps) if steps.isdecimal() else 0
    if more or steps < 1 or len(text) <= CONTEXT:
        print("usage: quickstart FOLDER STEPS [TEXT], where STEPS is at least 1"
              f" and TEXT ('{path}') a file of more than {CONTEXT} bytes",
              file=sys.stderr)
        return 2
    train(folder, steps, text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
