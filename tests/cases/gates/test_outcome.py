# One test passes and one fails by its own assertion. The JSON for programs must have a field that says so, beside the outcome of the gates.
import json

import pytest

pytest_plugins = "pytester"
PROGRAM = """
import torch
from torch.distributed.tensor import Shard, distribute_tensor

def test_step(dtdispatch, device_mesh):
    w = distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])
    dtdispatch.steps(lambda: w + w, name="train")
    assert {holds}
"""


def failed_fields(value):
    """Yield the true values of all fields whose names contain *failed*."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from [each] if "failed" in key and each else failed_fields(each)
    elif isinstance(value, list):
        for each in value:
            yield from failed_fields(each)


@pytest.mark.parametrize("holds", [True, False])
def test_field(pytester, holds):
    pytester.makepyfile(test_inner=PROGRAM.format(holds=holds))
    result = pytester.runpytest_subprocess(
        "--dtdispatch", "--dtdispatch-max=misses=0", "--dtdispatch-export=json:-"
    )
    assert result.ret == (0 if holds else 1)
    assert bool([*failed_fields(json.loads(result.outlines[-1]))]) is not holds
