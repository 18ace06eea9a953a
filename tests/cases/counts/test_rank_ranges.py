# Two misses, each because of another mesh. The line for both must name ranks of meshes that existed.
import re

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

MESHES = [[[0, 1], [2, 3]], [[0, 1], [2, 3]], [[0, 1], [4, 5]], [[0, 2], [1, 3]]]


def test_ranks(dtdispatch, mesh_factory):
    mesh_factory((8,))
    ranks = iter(MESHES)

    def step():
        a = DTensor.from_local(torch.rand(4, 4), DeviceMesh("cpu", next(ranks)), [Shard(0), Replicate()])
        return a + a

    steps = dtdispatch.steps(step, warmup=2, steps=2)
    assert [len(each.missed) for each in steps.steps] == [1, 1]
    existed = {",".join(str(rank) for row in mesh for rank in row) for mesh in MESHES}
    lines = [line.partition(", at ")[0].partition("mesh")[2] for line in steps.misses_per_step.details]
    named = {
        text.strip(",") for line in lines for text in re.findall(r"[\d,-]+", line) if "," in text.strip(",")
    }
    assert named
    assert named <= existed
