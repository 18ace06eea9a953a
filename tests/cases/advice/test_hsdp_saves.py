"""Right: with HSDP, set_requires_gradient_sync saves 15 reduce_scatters and 15 all_reduces: 30. Promised are 15; nothing where parameters stay gathered between the micro-batches."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def make(mesh, keep, sync_last_only):
    net = nn.Sequential(*[nn.Linear(96, 96) for _ in range(5)])
    for layer in net:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not keep)
    fully_shard(net, mesh=mesh)
    xs = [torch.rand(3, 96) for _ in range(4)]

    def step():
        for i, x in enumerate(xs):
            net.set_requires_gradient_sync(i == 3 or not sync_last_only)
            net.set_reshard_after_backward(i == 3 or not keep)
            net(x).square().mean().backward()
        net.zero_grad()

    return step


@pytest.mark.parametrize("keep", [False, True])
def test_saves(dtdispatch, mesh_factory, keep):
    mesh = mesh_factory((2, 2), dim_names=("replicate", "shard"))
    before = dtdispatch.steps(make(mesh, keep, False), name="before")
    after = dtdispatch.steps(make(mesh, keep, True), name="after")
    if dtdispatch.enabled:
        assert before.collectives_per_step - after.collectives_per_step == 30
        assert sum(advice.count for advice in before.advice if "gradient_sync" in advice.change) == 30
