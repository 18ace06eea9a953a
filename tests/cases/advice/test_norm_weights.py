"""Right: six parameters are gathered one by one inside their modules in each step; an advice is due (keep them Replicate(): 0 gathers, or gather them together: saves 5). None is given."""

import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor


class Norm(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.weight = nn.Parameter(distribute_tensor(torch.ones(12), mesh, [Shard(0)]))

    def forward(self, x):
        return x * x.square().mean(-1, keepdim=True).rsqrt() * self.weight.full_tensor()


def test_norms(dtdispatch, device_mesh):
    net, x = nn.Sequential(*[Norm(device_mesh) for _ in range(6)]), torch.rand(4, 12)

    def step():
        net(x).sum().backward()
        net.zero_grad()

    steps = dtdispatch.steps(step, name="norms")
    if dtdispatch.enabled:
        assert (steps.collectives_per_step, steps.redistributes_per_step) == (6, 12)
        assert any(0 < advice.count <= 12 for advice in steps.advice)
