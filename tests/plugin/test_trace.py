"""The steps of a run as torch's profiler writes them, with our ranges among its own."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.plugin_runs import IMPORTS, MEASURED, run, text_of

pytestmark = pytest.mark.torch

TESTS = f"""{IMPORTS}
def step_on(mesh):
    rows = iter(range(8, 800, 4))
    return lambda: (sharded(mesh, next(rows), 8) * 2).full_tensor()

def test_train(dtdispatch, device_mesh):
    dtdispatch.steps(step_on(device_mesh), warmup=1, steps=2)

def test_two(dtdispatch, device_mesh):
    dtdispatch.steps(step_on(device_mesh), warmup=0, steps=1, name="first")
    dtdispatch.steps(step_on(device_mesh), warmup=0, steps=1, name="second")

def test_call(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    dtdispatch.call(lambda: a + a, name="add")

def test_fails(dtdispatch, device_mesh):
    dtdispatch.steps(lambda: 1 / 0)

def test_profiled(dtdispatch, device_mesh):
    with torch.profiler.profile(acc_events=True):
        dtdispatch.steps(step_on(device_mesh))
"""
TRACE = (*MEASURED, "--dtdispatch-export=trace:trace.json")


@pytest.fixture(autouse=True)
def tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_traced=TESTS)


def events_of(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    """Everything in the trace that took a time."""
    events = json.loads((pytester.path / "trace.json").read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


def test_every_step_of_a_run_is_in_the_trace(pytester: pytest.Pytester) -> None:
    result = run(pytester, *TRACE, "-k", "test_train or test_two or test_call")
    result.assert_outcomes(passed=3)
    events = events_of(pytester)
    result.stdout.fnmatch_lines([f"{len(events):,} events written to {pytester.path / 'trace.json'}"])
    names = [event["name"] for event in sorted(events, key=lambda event: event["ts"])]
    steps = [name for name in names if name.startswith(("step ", "test_traced.py"))]
    assert steps == [
        *("test_traced.py::test_train: step", "step 1 (warm-up)", "step 1", "step 2"),
        *("test_traced.py::test_two: first", "step 1 of first"),
        *("test_traced.py::test_two: second", "step 1 of second"),
    ]
    kinds = Counter(name.partition(" ")[0] for name in names)
    assert {"miss", "redistribution", "wrap", "unwrap", "collective"} <= kinds.keys()
    assert "aten::mul" in names


def test_counted_regions_are_steps_of_the_trace_too(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--dtdispatch-all", "--dtdispatch-metric=counts", *TRACE[-1:], "-k", "test_call")
    result.assert_outcomes(passed=1)
    assert any(event["name"] == "test_traced.py::test_call: add" for event in events_of(pytester))


def test_a_run_that_counts_no_steps_writes_no_trace_and_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, *TRACE, "-k", "test_call")
    path = pytester.path / "trace.json"
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"failed: {path} was not written: no steps were counted"])
    assert "1 file not written" in result.outlines[-1]
    assert not path.exists()
    assert "Traceback" not in text_of(result)


def test_a_step_that_fails_leaves_those_of_others_and_a_trace_replaces_an_earlier_one(
    pytester: pytest.Pytester,
) -> None:
    for _ in range(2):
        result = run(pytester, *TRACE, "-k", "test_train or test_fails")
        result.assert_outcomes(passed=1, failed=1)
    assert Counter(event["name"] for event in events_of(pytester))["step 2"] == 1
    assert "pytest_dtdispatch/" not in text_of(result)


def test_a_profiler_that_runs_is_left_alone(pytester: pytest.Pytester) -> None:
    result = run(pytester, *TRACE, "-k", "test_profiled")
    result.stdout.fnmatch_lines(["*a profiler of torch runs already, and a trace needs it: close it first"])
    run(pytester, *MEASURED, "-k", "test_profiled").assert_outcomes(passed=1)
