"""Right: parameters, trainable or frozen, are gathered again in each of four micro-batches; left gathered until the last, 12 of 54 collectives are enough, and 7 of 33.

`needed` is the least: 6 gathers and 6 reductions; a frozen base could stay gathered, which leaves one of each.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def build(mesh, frozen, keep):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    if frozen:
        model[:-1].requires_grad_(False)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=not keep)
    fully_shard(model, mesh=mesh)
    batches = [torch.rand(4, 256) for _ in range(4)]

    def step():
        for i, x in enumerate(batches):
            model.set_requires_gradient_sync(i == 3)
            if keep:
                model.set_reshard_after_backward(i == 3)
            model(x).sum().backward()
        model.zero_grad()

    return step


@pytest.mark.parametrize(("frozen", "before", "after", "needed"), [(False, 54, 12, 12), (True, 33, 7, 2)])
def test_micro(dtdispatch, device_mesh, frozen, before, after, needed):
    default = dtdispatch.steps(build(device_mesh, frozen, keep=False), name="default")
    left = dtdispatch.steps(build(device_mesh, frozen, keep=True), name="left")
    if dtdispatch.enabled:
        assert (default.collectives_per_step, left.collectives_per_step) == (before, after)
        assert all(advice.count <= after - needed for advice in left.advice)
        assert any(0 < advice.count <= before - needed for advice in default.advice)
