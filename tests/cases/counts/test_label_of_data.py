# After `p.data = longer` the spec of p, which is the key of torch's cache, still has the old shape: the row shows the key, and a line says that tensor and spec differ.
import re

pytest_plugins = "pytester"
PROGRAM = """
import torch
from torch.distributed.tensor import Shard, distribute_tensor

def test_data(dtdispatch, device_mesh):
    p = torch.nn.Parameter(distribute_tensor(torch.rand(8, 8, dtype=torch.bfloat16), device_mesh, [Shard(0)]))
    p.data = distribute_tensor(torch.rand(16, 8, dtype=torch.bfloat16), device_mesh, [Shard(0)])
    assert tuple(p._spec.tensor_meta.shape) == (8, 8)
    with dtdispatch.capture():
        for _ in range(3):
            p * 4
"""


def said_by(pytester):
    pytester.makepyfile(test_inner=PROGRAM)
    result = pytester.runpytest_subprocess("--dtdispatch", "-q")
    result.assert_outcomes(passed=1)
    return result.stdout.str()


def test_label(pytester):
    rows = [
        line.split("  ")[1] for line in said_by(pytester).splitlines() if line.startswith("  mul.Tensor(")
    ]
    assert rows == ["mul.Tensor(bf16[8,8]S0)@4"]


def test_line(pytester):
    lines = said_by(pytester).splitlines()
    assert any(re.search(r"\bspec\b", line) for line in lines), "no line names the spec"
