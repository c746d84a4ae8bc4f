#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one rank of the training steps of tests/bench/python_torch_step.cc.

A GPT of PyTorch's modules, with the width of GPT-2 124M and half of its blocks, is
trained on 16 tokens per rank:

  compute   forward and backward pass alone
  stage1, stage2
            with shard.torch.Optimizer
  zero      with DistributedDataParallel over Gloo (gradient_as_bucket_view) and
            ZeroRedundancyOptimizer(AdamW, parameters_as_bucket_view=True)
  losses    answers no time but the largest difference between the losses of
            stage1, stage2 and zero so far, of as many steps each

The protocol with the benchmark is in tests/bench/peer.h."""

import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.optim import ZeroRedundancyOptimizer
except ImportError as e:
    print(f"torch_step: PyTorch is not installed here: {e}", file=sys.stderr)
    sys.exit(77)

import shard
import shard.torch

VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 16384, 16, 768, 6, 12
OPTIMIZER = dict(lr=1e-4, weight_decay=0.1)


class Block(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(WIDTH, HEADS, 4 * WIDTH, dropout=0, activation="gelu",
                         batch_first=True, norm_first=True)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        # No buffer: nothing to broadcast.
        self.mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def make():
    torch.manual_seed(0)
    return Gpt()


class Trained:
    """A module, its optimizer, and the losses of its steps."""

    def __init__(self, module, optimizer):
        self.module = module
        self.optimizer = optimizer
        self.losses = []

    def step(self, rank):
        generator = torch.Generator().manual_seed(1000 * len(self.losses) + rank)
        text = torch.randint(VOCABULARY, (1, CONTEXT + 1), generator=generator)
        self.module.zero_grad(set_to_none=True)
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(
            self.module(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        self.losses.append(loss.item())


def main():
    rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet",
                            rank=rank, world_size=world_size)
    variants = {"compute": Trained(make(), None)}
    text = "adamw?" + "&".join(f"{k}={v}" for k, v in OPTIMIZER.items())
    for stage in (1, 2):
        comm = shard.Comm(f"shm:{os.path.basename(folder)}-{stage}", rank=rank,
                          world_size=world_size, timeout=600)
        module = make()
        variants[f"stage{stage}"] = Trained(module, shard.torch.Optimizer(
            module, comm, text, stage=stage, wrap="class?names=Block"))
    module = nn.parallel.DistributedDataParallel(
        make(), gradient_as_bucket_view=True)
    variants["zero"] = Trained(module, ZeroRedundancyOptimizer(
        module.parameters(), optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=True, **OPTIMIZER))

    print("peer: ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        dist.barrier()
        start = time.monotonic()
        if name == "losses":
            zero = variants["zero"].losses
            print("peer:", max(abs(a - b) for stage in (1, 2) for a, b in zip(
                variants[f"stage{stage}"].losses, zero)), flush=True)
            continue
        variants[name].step(rank)
        print("peer:", (time.monotonic() - start) * 1e3, flush=True)


if __name__ == "__main__":
    main()
