#!/usr/bin/env bash
# Guess: a mesh that `_flatten()` was called on reduces a sum over both of its dimensions in one collective, as torch's
# own warning says, whatever other meshes did before.
# Seen (torch 2.13.0, CPU): if an equal mesh without a flattened one redistributed a tensor of this shape before, the
# cached plan is reused, and there are still two collectives; a tensor of another shape has one. A mesh that is
# flattened itself after its first redistribution has one too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())


def mesh_of(rows, columns):
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=(rows, columns))


def collectives(mesh, size):
    x = distribute_tensor(torch.ones(size, 8), mesh, [Shard(0), Shard(0)])
    with CommDebugMode() as counted:
        x.sum().full_tensor()
    return counted.get_total_counts()


first, equal, itself = mesh_of("a", "b"), mesh_of("a", "b"), mesh_of("c", "d")
found = {"a mesh": collectives(first, 8)}
equal._flatten()
found["an equal mesh, flattened"] = collectives(equal, 8)
found["the same, another shape"] = collectives(equal, 16)
found["another mesh"] = collectives(itself, 8)
itself._flatten()
found["that mesh, flattened"] = collectives(itself, 8)
print("torch", torch.__version__)
print("collectives of a sum:", found)
assert equal == first
assert list(found.values()) == [2, 2, 1, 2, 1]
PYTHON
