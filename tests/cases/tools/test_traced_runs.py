"""Runs with and without tracemalloc and memray: rows are marked, and gates compare none of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest_plugins = "pytester"
PROGRAM = """
import os, torch, tracemalloc
from torch.distributed.tensor import Shard, distribute_tensor

def test_add(dtdispatch, device_mesh):
    a = distribute_tensor(torch.rand(64, 64), device_mesh, [Shard(0)])
    if os.environ.get("TRACED"):
        tracemalloc.start()
    with dtdispatch.capture():
        a + a
"""
# A plugin that looks as memray does: only its function for new threads is visible.
MEMRAY = """
import threading, pytest

def start_thread_trace(frame, event, arg): ...

@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    threading.setprofile(start_thread_trace)
    try:
        return (yield)
    finally:
        threading.setprofile(None)
"""
GATE = ("--benchmark-compare=0001", "--dtdispatch-fail=median:20%")


def run(pytester: pytest.Pytester, *flags: str) -> dict[str, Any]:
    """Run the program, and return its results."""
    pytester.makepyfile(test_inner=PROGRAM)
    base = ("--dtdispatch", "-p", "no:cacheprovider", "--dtdispatch-export=json:results.json")
    pytester.runpytest_subprocess(*base, *flags)
    results: dict[str, Any] = json.loads((pytester.path / "results.json").read_text())
    return results


@pytest.mark.parametrize("traced", ["saved", "compared"])
def test_tracemalloc_on_one_side(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, traced: str
) -> None:
    for side, flags in (("saved", ["--benchmark-save=base"]), ("compared", GATE)):
        monkeypatch.setenv("TRACED", "1" * (side == traced))
        results = run(pytester, *flags)
        [row] = results["rows"]
        assert row["tracers"] == ["tracemalloc"] * (side == traced)
    [gate] = results["gates"]
    assert {each["verdict"] for each in gate["verdicts"]} == {"mismatched"}
    assert any("(tracemalloc)" in each["remedy"] for each in gate["verdicts"])


def test_plugin_that_traces_in_c(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(memray=MEMRAY)
    [row] = run(pytester, "-p", "memray")["rows"]
    assert row["tracers"] == ["memray"]
