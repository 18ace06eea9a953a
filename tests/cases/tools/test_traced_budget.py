"""A budget under a tracer has no source lines: its last line has the largest part without a line."""

from __future__ import annotations

import re

import pytest

pytest_plugins = "pytester"
PROGRAM = """
import sys, torch
from torch.distributed.tensor import Shard, distribute_tensor

def test_traced(dtdispatch, device_mesh):
    a = distribute_tensor(torch.ones(8, 8), device_mesh, [Shard(0)])
    sys.settrace(lambda *args: None)
    try:
        assert dtdispatch.budget(lambda: a + a).tracers == ("test_inner",)
    finally:
        sys.settrace(None)
"""


def test_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_inner=PROGRAM)
    result = pytester.runpytest_subprocess("--dtdispatch", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert any(line.split()[:1] == ["dispatch"] for line in result.outlines), "the table has no part dispatch"
    worst = [line for line in result.outlines if line.startswith("worst: ")]  # none if steps are noisy
    assert all(re.fullmatch(r"worst: dispatch, \d+% of the step", line) for line in worst)
