# SPDX-License-Identifier: Apache-2.0
"""Saves 2 GB with PyTorch and safetensors, for checkpoint.cc: see peer.h.

Every rank saves its half, fsync included, with the libraries' own functions:
torch.save, torch.distributed.checkpoint, safetensors.torch.save_file. A variant
that cannot be imported has the answer "unavailable"; stderr has the reason.
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


def load_torch():
    def save(state, folder):
        path = os.path.join(folder, f"rank-{RANK}.pt")
        torch.save(state, path)
        sync(path)

    return save


def load_safetensors():
    from safetensors.torch import save_file

    def save(state, folder):
        path = os.path.join(folder, f"rank-{RANK}.safetensors")
        save_file(state, path)
        sync(path)

    return save


def load_dcp():
    try:
        import torch.distributed.checkpoint as dcp
    except ImportError:
        import torch.distributed._shard.checkpoint as dcp

    def save(state, folder):
        writer = dcp.FileSystemWriter(folder)
        keyed = {f"{RANK}.{key}": value for key, value in state.items()}
        if hasattr(dcp, "save"):
            dcp.save(keyed, storage_writer=writer)
        else:
            dcp.save_state_dict(keyed, writer)
        if RANK == 0:
            for name in os.listdir(folder):
                sync(os.path.join(folder, name))

    return save


def load_variants():
    variants = {}
    for name, load in {
        "torch_save": load_torch,
        "dcp": load_dcp,
        "safetensors": load_safetensors,
    }.items():
        try:
            variants[name] = load()
        # Some versions cannot be imported by some Pythons, with other errors
        # than ImportError.
        except Exception as error:
            if RANK == 0:
                print(f"{name} is not measured: {error}", file=sys.stderr)
    return variants


def main():
    dist.init_process_group(
        "gloo", init_method=f"file://{MEETING}/store", rank=RANK, world_size=WORLD
    )
    state = {f"tensor.{i}": torch.rand(NUMEL) for i in range(64)}
    variants = load_variants()
    print("peer: ready", flush=True)
    for line in sys.stdin:
        save = variants.get(line.strip())
        if save is None:
            print("peer: unavailable", flush=True)
            continue
        folder = os.path.join(FOLDER, "torch")
        os.makedirs(folder, exist_ok=True)
        dist.barrier()
        start = time.monotonic()
        save(state, folder)
        dist.barrier()
        print("peer:", (time.monotonic() - start) * 1e3, flush=True)
        if RANK == 0:
            shutil.rmtree(folder)
        dist.barrier()


main()
