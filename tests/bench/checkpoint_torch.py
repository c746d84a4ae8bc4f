# SPDX-License-Identifier: Apache-2.0
"""Saves of 2 GB by PyTorch and safetensors, for checkpoint.cc: see peer.h.

Every rank saves its half, fsync included, as the library's own functions do it:
torch.save, torch.distributed.checkpoint, safetensors.torch.save_file. A variant
whose library is not installed has no result: -1 would be a number, so the rank
ends, and the bench goes on without it.
"""

import os
import shutil
import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError:
    print("PyTorch is not installed", file=sys.stderr)
    sys.exit(77)

RANK = int(sys.argv[1])
WORLD = int(sys.argv[2])
MEETING = sys.argv[3]
FOLDER = os.environ["SHARD_BENCH_FOLDER"]
NUMEL = 2_000_000_000 // 4 // WORLD // 64


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save_torch(state, folder):
    path = os.path.join(folder, f"rank-{RANK}.pt")
    torch.save(state, path)
    sync(path)


def save_safetensors(state, folder):
    from safetensors.torch import save_file

    path = os.path.join(folder, f"rank-{RANK}.safetensors")
    save_file(state, path)
    sync(path)


def save_dcp(state, folder):
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError:
        import torch.distributed._shard.checkpoint as dcp
    writer = dcp.FileSystemWriter(folder)
    keyed = {f"{RANK}.{key}": value for key, value in state.items()}
    if hasattr(dcp, "save"):
        dcp.save(keyed, storage_writer=writer)
    else:
        dcp.save_state_dict(keyed, writer)
    if RANK == 0:
        for name in os.listdir(folder):
            sync(os.path.join(folder, name))


VARIANTS = {
    "torch_save": save_torch,
    "dcp": save_dcp,
    "safetensors": save_safetensors,
}


def main():
    dist.init_process_group(
        "gloo", init_method=f"file://{MEETING}/store", rank=RANK, world_size=WORLD
    )
    state = {f"tensor.{i}": torch.rand(NUMEL) for i in range(64)}
    print("ready", flush=True)
    for line in sys.stdin:
        folder = os.path.join(FOLDER, "torch")
        os.makedirs(folder, exist_ok=True)
        dist.barrier()
        start = time.monotonic()
        VARIANTS[line.strip()](state, folder)
        dist.barrier()
        print((time.monotonic() - start) * 1e3, flush=True)
        if RANK == 0:
            shutil.rmtree(folder)
        dist.barrier()


main()
