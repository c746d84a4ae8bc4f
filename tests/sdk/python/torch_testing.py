# SPDX-License-Identifier: Apache-2.0
"""A module and its training, for the tests of shard.torch: by shard.torch on
several ranks, and by torch's own optimizers in one process, which sees the mean
of the ranks' losses. Without PyTorch the tests that import this are skipped."""

import sys
import threading
import unittest

from sdk_testing import SdkTest

try:
    import torch
except ImportError as error:
    reason = f"PyTorch is not installed here (python3-torch): {error}"
    print(f"tests of shard.torch: skipped: {reason}", file=sys.stderr)
    raise unittest.SkipTest(reason)

import shard.torch
from torch import nn

torch.set_num_threads(1)

RANKS = 2
WIDTH = 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.head = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.unused = None

    def forward(self, x):
        self.seen += 1
        return self.head(self.blocks(x))


_making = threading.Lock()  # torch has one generator for all threads.


def make_net(change=lambda net: None):
    with _making:
        torch.manual_seed(0)
        net = Net()
        change(net)
        return net


def loss_of(net, step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, WIDTH, generator=generator)
    return (net(x.to(net.head.weight.dtype)) - x.flip(1)).float().pow(2).mean()


def make_optimizer(net, comm, text="adamw?lr=0.01&weight_decay=0.1", **options):
    return shard.torch.Optimizer(net, comm, text, wrap="class?names=Block",
                                 **options)


def train_steps(net, optimizer, comm, steps, each=lambda optimizer: None,
                **step_options):
    """Trains on one of the ranks; returns the mean losses."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(net, step, comm.rank)
        loss.backward()
        optimizer.step(**step_options)
        losses.append(comm.sum(loss.item()) / comm.world_size)
        each(optimizer)
    return losses


def train(comm, steps=4, *, change=lambda net: None, begin=0, root=None,
          each=lambda optimizer: None, step_options=(), **options):
    """Trains a net of its own; returns losses, optimizer and net."""
    net = make_net(change)
    optimizer = make_optimizer(net, comm, **options)
    if root is not None:
        optimizer.load(root)
    losses = train_steps(net, optimizer, comm, range(begin, begin + steps),
                         each, **dict(step_options))
    return losses, optimizer, net


def reference(steps=4, *, change=lambda net: None, begin=0, optimizer=None,
              net=None, max_norm=None, make=None):
    """The same in one process, with torch's AdamW."""
    net = net or make_net(change)
    make = make or (lambda net: torch.optim.AdamW(
        net.parameters(), lr=0.01, weight_decay=0.1))
    optimizer = optimizer or make(net)
    losses = []
    for step in range(begin, begin + steps):
        optimizer.zero_grad()
        loss = sum(loss_of(net, step, rank) for rank in range(RANKS)) / RANKS
        loss.backward()
        if max_norm:
            nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses, optimizer, net


class TorchTest(SdkTest):
    def assert_close(self, actual, expected, tolerance=2e-6):
        self.assertEqual(len(actual), len(expected))
        for a, b in zip(actual, expected):
            self.assertAlmostEqual(a, b, delta=tolerance)
