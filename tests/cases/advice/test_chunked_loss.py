"""A loss in four chunks, with a backward for each and one for the body: 5 reduce_scatters, 2 if only the last pass of the head reduces. Said: 3 passes, at most 2 saved."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def test_chunks(dtdispatch, device_mesh):
    net = nn.ModuleDict({"body": nn.Linear(8, 8), "head": nn.Linear(8, 8)})
    for module in net.values():
        fully_shard(module, mesh=device_mesh)

    def step(last_only=False):
        hidden = net["body"](torch.ones(4, 8))
        leaf = hidden.detach().requires_grad_()
        for number, chunk in enumerate(leaf.chunk(4)):
            net["head"].set_requires_gradient_sync(not last_only or number == 3)
            net["head"](chunk).sum().backward()
        hidden.backward(leaf.grad)
        net.zero_grad()

    before, after = dtdispatch.steps(step, name="before"), dtdispatch.steps(lambda: step(True), name="after")
    if dtdispatch.enabled:
        saved = before.collectives_per_step - after.collectives_per_step
        said = [advice.count for advice in before.advice if "gradient_sync" in advice.change]
        assert saved == 3
        assert said == [3]
