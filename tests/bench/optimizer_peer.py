#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps AdamW on one fp32 parameter on the CPU with another system, for
tests/bench/optimizer_step.cc.

Called as `optimizer_peer.py SYSTEM ELEMENTS RANK WORLD_SIZE FOLDER`; SYSTEM is

  torch      torch.optim.AdamW(fused=True) where it is there for the CPU
             (PyTorch 2.4), else foreach=True; stderr says which
  deepspeed  DeepSpeedCPUAdam

On two threads, as the benchmark. The protocol is in tests/bench/peer.h.
"""

import sys
import time

SYSTEM, ELEMENTS = sys.argv[1], int(sys.argv[2])

try:
    import torch
    if SYSTEM == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError as e:
    print(f"optimizer_peer: {SYSTEM}: {e}", file=sys.stderr)
    sys.exit(77)


def make_optimizer(param):
    if SYSTEM == "deepspeed":
        return DeepSpeedCPUAdam([param], lr=1e-3, weight_decay=0.01,
                                adamw_mode=True)
    for form in ("fused", "foreach"):
        try:
            optimizer = torch.optim.AdamW([param], lr=1e-3, weight_decay=0.01,
                                          **{form: True})
            optimizer.step()
        except (TypeError, RuntimeError):
            continue
        print(f"optimizer_peer: torch {torch.__version__}, {form}=True",
              file=sys.stderr)
        return optimizer
    sys.exit("optimizer_peer: torch has neither a fused nor a foreach AdamW")


def main():
    torch.set_num_threads(2)
    param = torch.nn.Parameter(torch.randn(ELEMENTS) * 0.02)
    param.grad = torch.randn(ELEMENTS) * 1e-3
    optimizer = make_optimizer(param)
    optimizer.step()  # The first step allocates the states.
    print("peer: ready", flush=True)
    for _ in sys.stdin:
        start = time.monotonic()
        optimizer.step()
        print("peer:", (time.monotonic() - start) * 1e3, flush=True)


if __name__ == "__main__":
    main()
