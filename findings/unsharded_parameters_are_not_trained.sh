#!/usr/bin/env bash
# Guess: an optimizer made before the first step trains the model, whatever FSDP2 does with its parameters between
# steps; or it raises, as the optimizer would step over parameters without gradients.
# Seen (torch 2.13.0, CPU): after `set_reshard_after_backward(False)` before the last backward too, the gradients lie
# on the sharded parameters that the optimizer has, but `model.parameters()` are the gathered ones, without a
# gradient: an optimizer made from them, or a clipping of them, does nothing, and nothing raises.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
for each in (*model, model):
    fully_shard(each, mesh=init_device_mesh("cpu", (4,)))
sharded = list(model.parameters())


def gradients(stays_gathered):
    model.set_reshard_after_backward(not stays_gathered)
    model(torch.ones(2, 8)).sum().backward()
    found = [[each.grad is not None for each in some] for some in (sharded, list(model.parameters()))]
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model.zero_grad()
    for each in sharded:
        each.grad = None
    return found, float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


usual, usual_norm = gradients(stays_gathered=False)
kept, kept_norm = gradients(stays_gathered=True)
print("torch", torch.__version__)
print("resharded: gradients of sharded parameters, and of model.parameters():", usual, "norm", usual_norm)
print("gathered: gradients of sharded parameters, and of model.parameters():", kept, "norm", kept_norm)
assert usual == [[True] * 4, [True] * 4] and usual_norm > 0
assert kept == [[True] * 4, [False] * 4] and kept_norm == 0
PYTHON
