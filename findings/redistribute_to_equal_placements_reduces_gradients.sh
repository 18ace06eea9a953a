#!/usr/bin/env bash
# Guess: `x.redistribute(placements=x.placements)` costs nothing, forward and backward, as it moves nothing.
# Seen (torch 2.13.0, CPU): forward runs no collective, but its backward gives each gradient the placements of `x`: the
# partial gradients of three column-wise products are reduced by three all_reduces in place of one. A `ColwiseParallel`
# with `input_layouts` whose input is a replicated DTensor already, as below a `PrepareModuleInput`, does the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,))
weights = [distribute_tensor(torch.rand(8, 8), mesh, [Shard(1)]) for _ in range(3)]


def collectives(redistributes):
    local = torch.rand(2, 8, requires_grad=True)
    x = DTensor.from_local(local, mesh, [Replicate()])
    with CommDebugMode() as forward:
        inputs = [x.redistribute(placements=x.placements) if redistributes else x for _ in weights]
        loss = sum((each @ weight).to_local().sum() for each, weight in zip(inputs, weights))
    with CommDebugMode() as backward:
        loss.backward()
    return forward.get_total_counts(), backward.get_total_counts()


plain, redistributed = collectives(False), collectives(True)
print("torch", torch.__version__)
print("collectives forward and backward:", plain, "with redistribute to the same placements:", redistributed)
assert plain == (0, 1)
assert redistributed == (0, 3)
PYTHON
