"""Right: torch's Adagrad reads its step counters; they belong on the host (plain CPU tensors), which saves all 4 reads. 'Stack them and read them once' can't be done by the user."""

import re

import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def test_counters(dtdispatch, device_mesh):
    weights = [
        torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])) for _ in range(4)
    ]
    optimizer = torch.optim.Adagrad(weights, foreach=False)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
        optimizer.state[weight]["step"] = distribute_tensor(torch.tensor(0.0), device_mesh, [Replicate()])
    steps = dtdispatch.steps(optimizer.step, name="step")
    if dtdispatch.enabled:
        assert len(steps.steps[-1].reads) == 4
        assert not any(
            re.search("stack|on the device|after the step", advice.change) for advice in steps.advice
        ), steps.advice
