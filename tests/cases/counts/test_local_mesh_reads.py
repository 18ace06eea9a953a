"""pytest --dtdispatch --dtdispatch-backend local: the numbers that torch reads to slice a mesh are ranks, always on the host."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Shard


def test_slice(dtdispatch, mesh_factory):
    mesh = mesh_factory((2, 4), dim_names=("dp", "tp"))
    x = torch.rand(4, 4)

    def step():
        a = DTensor.from_local(x, mesh["tp"], [Shard(0)])
        return a + a

    steps = dtdispatch.steps(step, warmup=2, steps=2)
    assert steps.reads_per_step == 0
