"""A pytest-benchmark that is loaded by the name of its module saves and compares runs."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"
PROGRAM = """
import torch
from torch.distributed.tensor import Shard, distribute_tensor

def test_add(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(64, 64), device_mesh, [Shard(0)])
    with dtdispatch.capture():
        a + a
"""


@pytest.mark.parametrize("name", ["benchmark", "pytest_benchmark.plugin"])
def test_run_is_saved_and_compared(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(PROGRAM)
    flags = ("-pno:cacheprovider", "-pdtdispatch", f"-p{name}", "--dtdispatch")
    saved = pytester.runpytest_subprocess(*flags, "--benchmark-save=base", "--benchmark-json=x.json")
    saved.assert_outcomes(passed=1)
    [file] = pytester.path.glob(".benchmarks/*/0001_base.json")
    assert all("add.Tensor" in path.read_text() for path in (file, pytester.path / "x.json"))
    compared = pytester.runpytest_subprocess(*flags, "--benchmark-compare", "--dtdispatch-fail=median:900%")
    assert any(line.startswith("gate: ") and "0001_base.json: " in line for line in compared.outlines)
