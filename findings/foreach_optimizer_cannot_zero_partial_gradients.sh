#!/usr/bin/env bash
# Guess: foreach=True only makes an optimizer faster: whatever it can do op by op, it can do by lists.
# Seen (torch 2.13.0, CPU): with partial gradients of replicated parameters both step alike, and both clear gradients by
# zero_grad(); zero_grad(set_to_none=False) raises RuntimeError with foreach=True alone. zero_ takes a partial DTensor,
# and _foreach_zero_ does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - 2> /dev/null <<'PYTHON'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
mesh = init_device_mesh("cpu", (2,))


def outcome(foreach: bool, set_to_none: bool) -> str:
    weight = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]))
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=foreach)
    (distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]) @ weight).sum().backward()
    assert weight.grad.placements[0].is_partial()
    optimizer.step()
    try:
        optimizer.zero_grad(set_to_none=set_to_none)
        return "cleared"
    except RuntimeError as error:
        return "raises" if "in-place operations that require placement changes" in str(error) else str(error)


print("torch", torch.__version__)
found = {(foreach, none): outcome(foreach, none) for foreach in (False, True) for none in (True, False)}
for (foreach, none), text in found.items():
    print(f"foreach={foreach}, set_to_none={none}: {text}")
assert [*found.values()] == ["cleared", "cleared", "cleared", "raises"], found
PYTHON
