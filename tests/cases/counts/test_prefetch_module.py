# The bytes of a collective show whose parameters it moves: FSDP2 gathers those of a layer while the next one runs backward.
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

SIZES = [64, 128, 256, 512, 64]
OWNERS = {(a * b + b) * 4: str(n) for n, (a, b) in enumerate(pairwise(SIZES))}  # weight and bias


@pytest.mark.parametrize("is_frozen", [False, True])
def test_modules(dtdispatch, device_mesh, is_frozen):
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(SIZES)))
    for layer in model[:-1] if is_frozen else ():
        layer.requires_grad_(False)
    for each in (*model, model):
        fully_shard(each, mesh=device_mesh)
    x = torch.rand(4, 64)

    def step():
        model(x).sum().backward()
        model.zero_grad()

    runs = dtdispatch.steps(step).steps[-1].collective_runs
    assert len(runs) == (7 if is_frozen else 12)
    assert {run.bytes for run in runs} == {*OWNERS}
    assert [(run.kind, run.place.module) for run in runs] == [(run.kind, OWNERS[run.bytes]) for run in runs]
