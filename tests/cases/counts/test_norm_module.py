# The gradient of each block's norm weight is reduced over tp once, Partial -> Replicate, in modules 0.norm and 1.norm (or 0 and 1).
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.out = (
            nn.RMSNorm(16),
            nn.Linear(16, 32, bias=False),
            nn.Linear(32, 16, bias=False),
        )

    def forward(self, h):
        return h + self.out(self.up(self.norm(h)))


def test_modules(dtdispatch, mesh_factory):
    mesh = mesh_factory((2, 2), dim_names=("fs", "tp"))
    net = nn.Sequential(Block(), Block())
    for block in net:
        parallelize_module(
            block,
            mesh["tp"],
            {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "out": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
            },
        )
        fully_shard(block, mesh=mesh["fs"])
    fully_shard(net, mesh=mesh["fs"])
    h = DTensor.from_local(torch.rand(2, 4, 16), mesh["tp"], [Shard(1)], run_check=False)
    steps = dtdispatch.steps(lambda: net(h).to_local().sum().backward(), name="step")
    reduced = [
        each for each in steps.steps[-1].redistributions if (each.source, each.target) == (("P",), ("R",))
    ]
    assert sorted(each.place.module.removesuffix(".norm") for each in reduced) == ["0", "1"]
