"""Right: these ops gather their operand whichever dimension is sharded, and the local tensors give another result.

Advised was "shard another dimension, or work on the local tensor". Softmax is the control: another dimension helps, one redistribution is saved.
"""

import re

import pytest
import torch
from torch.distributed.tensor import Shard, distribute_tensor

OPS = {
    "var": torch.var,
    "std": torch.std,
    "median": torch.median,
    "trace": torch.trace,
    "svdvals": torch.linalg.svdvals,
    "mean of 5 rows": torch.mean,
}


def counted(dtdispatch, mesh, op, whole, name):
    def steps_of(dim):
        part = distribute_tensor(whole, mesh, [Shard(dim)])
        return dtdispatch.steps(lambda: op(part), name=f"{name} S{dim}")

    return [steps_of(dim) for dim in (0, 1)]


@pytest.mark.parametrize("name", OPS)
def test_op(dtdispatch, device_mesh, name):
    op, whole = OPS[name], torch.rand(5, 5) if name == "mean of 5 rows" else torch.rand(8, 8)
    assert not all(torch.equal(op(part), op(whole)) for part in whole.chunk(4))
    both = counted(dtdispatch, device_mesh, op, whole, name)
    if dtdispatch.enabled:
        assert [steps.implicit_per_step for steps in both] == [1, 1]
        said = [advice.change for steps in both for advice in steps.advice]
        assert not any(re.search("other dim|different dim|local tensor", change) for change in said), said


def test_softmax(dtdispatch, device_mesh):
    both = counted(dtdispatch, device_mesh, lambda x: x.softmax(0), torch.rand(8, 8), "softmax")
    if dtdispatch.enabled:
        assert [steps.implicit_per_step for steps in both] == [1, 0]
        assert [sum(advice.count for advice in steps.advice) for steps in both] == [1, 0]
