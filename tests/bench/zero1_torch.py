#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one rank of the step of tests/bench/zero1_step.cc in PyTorch.

All-reduce of the gradients over Gloo, division, then
ZeroRedundancyOptimizer(AdamW, parameters_as_bucket_view=True), which steps and
broadcasts. Gradients are views into flat 25 MiB buckets. Variants differ in the
all-reduce:

  plain     parameter by parameter, as a loop without DistributedDataParallel
  bucketed  bucket by bucket
  async     all buckets in flight at once, as DistributedDataParallel has them
            at best, when the backward pass costs nothing

The protocol with the benchmark is in tests/bench/peer.h.
"""

import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
except ImportError as e:
    print(f"zero1_torch: PyTorch is not installed here: {e}", file=sys.stderr)
    sys.exit(77)

WIDTH = 768
BUCKET_ELEMENTS = 25 * 1024 * 1024 // 4


def gpt2_shapes():
    shapes = [(50257, WIDTH), (1024, WIDTH)]
    for _ in range(12):
        shapes += [
            (WIDTH,), (WIDTH,),
            (3 * WIDTH, WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,),
            (WIDTH,), (WIDTH,),
            (4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,),
        ]
    return shapes + [(WIDTH,), (WIDTH,)]


def make_buckets(params):
    """Returns flat gradient buckets; every param.grad is a view into one."""
    groups, size = [[]], 0
    for p in params:
        if size >= BUCKET_ELEMENTS:
            groups.append([])
            size = 0
        groups[-1].append(p)
        size += p.numel()
    buckets = []
    for group in groups:
        flat = torch.randn(sum(p.numel() for p in group)) * 1e-3
        offset = 0
        for p in group:
            p.grad = flat[offset:offset + p.numel()].view_as(p)
            offset += p.numel()
        buckets.append(flat)
    return buckets


def main():
    rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet",
                            rank=rank, world_size=world_size)
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(s) * 0.02) for s in gpt2_shapes()]
    optimizer = ZeroRedundancyOptimizer(
        params, optimizer_class=torch.optim.AdamW,
        parameters_as_bucket_view=True, lr=1e-3, weight_decay=0.1)
    buckets = make_buckets(params)

    def step(variant):
        if variant == "plain":
            for p in params:
                dist.all_reduce(p.grad)
        elif variant == "bucketed":
            for bucket in buckets:
                dist.all_reduce(bucket)
        else:
            for work in [dist.all_reduce(b, async_op=True) for b in buckets]:
                work.wait()
        for bucket in buckets:
            bucket.div_(world_size)
        optimizer.step()

    step("plain")  # The first step allocates the states.
    print("peer: ready", flush=True)
    for line in sys.stdin:
        dist.barrier()
        start = time.monotonic()
        step(line.strip())
        print("peer:", (time.monotonic() - start) * 1e3, flush=True)


if __name__ == "__main__":
    main()
