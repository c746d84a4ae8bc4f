# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules on libshard, ZeRO stages 0 to 2.

    import shard, shard.torch

    with shard.Comm("env:") as comm:
        optimizer = shard.torch.Optimizer(module, comm, "adamw?lr=1e-3")
        for batch in batches:
            optimizer.zero_grad()
            loss(module, batch).backward()
            optimizer.step(max_grad_norm=1.0)
        optimizer.save("ckpt")

Nothing else in the package imports PyTorch."""

from ._optimizer import Optimizer

__all__ = ["Optimizer"]
