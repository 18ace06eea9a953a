"""Right: the group of the whole model is gathered in each micro-batch; set_reshard_after_backward(False) before all but the last saves 3. Advised was to leave it to the group of the module that calls it, which does not exist here."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def test_root(dtdispatch, device_mesh):
    def make(keep):
        net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        fully_shard(net, mesh=device_mesh)
        x = torch.rand(3, 64)

        def step():
            for i in range(4):
                net.set_requires_gradient_sync(i == 3)
                net.set_reshard_after_backward(i == 3 or not keep)
                net(x).sum().backward()
            net.zero_grad()

        return step

    before, after = (dtdispatch.steps(make(keep), name=f"keep={keep}") for keep in (False, True))
    if dtdispatch.enabled:
        assert before.collectives_per_step - after.collectives_per_step == 3
        assert any("reshard" in advice.change and advice.count == 3 for advice in before.advice)
        assert not any("group of the module" in advice.change for advice in before.advice)
