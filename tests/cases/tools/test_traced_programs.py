"""Programs under profilers: rows of TimeCaptureMode, and steps of StepWatch, carry the name of the tool."""

from __future__ import annotations

import sys

import pytest

pytest_plugins = "pytester"
PROGRAM = """
import sys, torch
from torch.distributed.tensor import Shard, distribute_tensor
from pytest_dtdispatch import StepWatch, TimeCaptureMode, fake_mesh

sys.path.insert(0, ".")
if "stub" in sys.argv:
    import _yappi
with fake_mesh(4) as mesh:
    a = distribute_tensor(torch.rand(64, 64), mesh, [Shard(0)])
    with TimeCaptureMode(repeat_count=10) as mode:
        a + a
    with StepWatch(list().append) as watch:
        for _ in range(4):
            a + a
            watch.step()
print(mode, watch, sep="\\n")
"""
STUB = "def is_running(): return True"


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        (("-m", "cProfile", "-o", "out", "cell.py"), "cProfile"),
        (("cell.py", "stub"), "yappi"),
        (("cell.py",), ""),
    ],
)
def test_tool_is_named(pytester: pytest.Pytester, launcher: tuple[str, ...], name: str) -> None:
    pytester.makepyfile(cell=PROGRAM, _yappi=STUB)
    said = pytester.run(sys.executable, *launcher).outlines
    (row,) = (line for line in said if line.strip().startswith("add.Tensor"))
    (steady,) = (line for line in said if line.strip().startswith("steady"))
    assert row.endswith(name)
    assert ("traced" in row) is bool(name)
    assert steady.endswith("traced") is bool(name)
    assert any(f"({name})" in line for line in said) is bool(name)
