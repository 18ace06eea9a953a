"""A head that is a group of its own and is called for each of four chunks: 11 gathers; as a part of the group of the module that calls it, which has one already: 3. Said: saves at most 7."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return sum(self.head(chunk).sum() for chunk in self.norm(self.body(x)).chunk(4))


def test_head(dtdispatch, device_mesh):
    gathers, said = [], []
    for names in (("body", "head"), ("body",)):
        model = Model()
        for module in (*map(model.get_submodule, names), model):
            fully_shard(module, mesh=device_mesh)

        def step(model=model):
            model(torch.ones(4, 8)).backward()
            model.zero_grad()

        steps = dtdispatch.steps(step, name=str(len(names)))
        if dtdispatch.enabled:
            gathers.append(sum(run.kind == "all_gather" for run in steps.steps[-1].collective_runs))
            said.append([advice.count for advice in steps.advice if "group" in advice.change])
    if dtdispatch.enabled:
        assert gathers == [11, 3]
        assert 8 in said[0], said
