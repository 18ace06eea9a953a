"""Right: dense and expert weights lie on two meshes, so one bucket can't hold both: 2 gathers remain of 6, at most 4 are saved (said: 5)."""

import torch
from torch.distributed.tensor import Shard, distribute_tensor


def test_export(dtdispatch, mesh_factory):
    mesh = mesh_factory((2, 2), dim_names=("dp", "ep"))
    dense = [distribute_tensor(torch.rand(4, 6), mesh["dp"], [Shard(0)]) for _ in range(3)]
    experts = [distribute_tensor(torch.rand(4, 6), mesh["ep"], [Shard(0)]) for _ in range(3)]
    steps = dtdispatch.steps(lambda: [w.full_tensor() for w in dense + experts], name="export")
    if dtdispatch.enabled:
        assert sum(advice.count for advice in steps.advice) == 4
