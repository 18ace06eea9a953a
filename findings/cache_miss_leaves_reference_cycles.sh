#!/usr/bin/env bash
# Guess: an op on DTensors leaves nothing behind for Python's garbage collector, whether its sharding is in the cache of
# plans or not: what propagation creates is freed by reference counts as soon as it returns.
# Seen (torch 2.13.0, CPU): a hit leaves nothing; each miss leaves 120 objects (`+`), 107 (`@`) or 85 (`t`) in cycles that
# only a collection frees. A loop that times misses with the collector disabled, as `timeit` does, grows with each of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import gc

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
OPS = {"+": lambda x: x + x, "@": lambda x: x @ x, "t": lambda x: x.t()}


def garbage(op, tensors):
    """Return the number of objects per call that only the collector frees."""
    gc.collect()
    gc.disable()
    for tensor in tensors:
        op(tensor)
    found = gc.collect()
    gc.enable()
    return found / len(tensors)


print("torch", torch.__version__)
for name, op in OPS.items():
    first, *others = [distribute_tensor(torch.ones(n, n), mesh, [Shard(0)]) for n in range(8, 60)]
    op(first)  # imports and other first uses
    misses, hits = garbage(op, others), garbage(op, others)
    print(f"{name}: {misses:g} objects in cycles after each miss, {hits:g} after each hit")
    assert hits == 0
    assert misses >= 10
dist.destroy_process_group()
PYTHON
