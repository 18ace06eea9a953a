"""Step counts in a run of pytest: assertions, limits, inputs of several shapes, whole tests, a trace."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.plugin_runs import IMPORTS, assert_reported_once, judged, measure, measure_source, run, text_of

pytestmark = pytest.mark.torch

STEPS = """
import itertools

def steady(mesh):
    a = sharded(mesh)
    return lambda: a + a

def growing(mesh):
    rows = itertools.count(8)

    def step():
        a = sharded(mesh, next(rows), 8)
        a + a
        a.full_tensor()

    return step

"""
ASSERTED = f"""{STEPS}
def test_grows(dtdispatch, device_mesh):
    steps = dtdispatch.steps(growing(device_mesh), warmup=2, steps=3)
    assert steps.misses_per_step == 0

def test_holds(dtdispatch, device_mesh):
    step = steady(device_mesh)
    assert dtdispatch.steps(step).misses_per_step == 0
    with dtdispatch.capture():
        step()

def test_varies(dtdispatch, device_mesh):
    a, times = sharded(device_mesh), itertools.count(1)
    steps = dtdispatch.steps(lambda: [a + a for _ in range(next(times))])
    assert steps.unsteady or not dtdispatch.enabled
"""
MISSED_IN_ALL = (
    "add.Tensor(f32[10-12,8]S0, f32[10-12,8]S0)@4: "
    "shape of self and other [10-12,8], was [9-11,8], at *test_*.py:* (forward) (once in each of steps 1-3)"
)
WHOLE = ("--dtdispatch-all", "--dtdispatch-metric=counts")


# Assertions


def test_failed_assertion_lists_misses_with_causes(pytester: pytest.Pytester) -> None:
    result = measure_source(pytester, ASSERTED, failed=1, passed=2)
    result.stdout.fnmatch_lines(["E       assert 1 == 0", f"E*{MISSED_IN_ALL}".replace("[", "[[]")])
    unmeasured = run(pytester, passed=3)
    assert "counts" not in text_of(unmeasured)


# Inputs of several shapes

BATCHES = """
def test_batches(dtdispatch, device_mesh):
    batches = [sharded(device_mesh, rows, 8) for rows in (8, 16, 8, 24, 16, 24)]
    steps = dtdispatch.steps(lambda batch: batch * 2, inputs=batches, name="scale")
    assert steps.steady_after == ((3, 4) if dtdispatch.enabled else (0, 0))
    dtdispatch.steps(lambda: batches[0] * 2)
"""


def test_steps_with_inputs_are_exported_and_limited(pytester: pytest.Pytester) -> None:
    measure_source(pytester, BATCHES, "--dtdispatch-export=csv:out.csv", passed=1)
    rows = (pytester.path / "out.csv").read_text()
    assert "::scale,misses_per_step,1" in rows
    assert "::step,misses_per_step,0" in rows
    limited = measure(pytester, "--dtdispatch-max=misses=0", failed=1)
    limited.stdout.fnmatch_lines(["E *misses=0, and step 1 has 1, at test_it.py:*"])
    run(pytester).assert_outcomes(passed=1)


# Whole tests


def test_limits_apply_to_whole_tests(pytester: pytest.Pytester) -> None:
    source = f"""{IMPORTS}{STEPS}
def test_plain(device_mesh):
    a = sharded(device_mesh)
    a + a
    a + a
    a + 1

def test_none():
    pass

def test_fails(device_mesh):
    growing(device_mesh)()
    assert 1 == 2
"""
    pytester.makepyfile(test_it=source)
    ran = judged(pytester, *WHOLE, passed=2, failed=1)
    counted = {test: steps for test, steps in ran.run.results["steps"].items() if "fails" not in test}
    assert {test: (one.calls, one.hits, one.misses) for test, [one] in counted.items()} == {
        "test_it.py::test_plain": (3, 1, 2)
    }
    result = run(pytester, *WHOLE, "--dtdispatch-max=misses=0", passed=1, failed=2)
    # A failing test fails with the same error as uncounted.
    assert_reported_once(result, "capture 1: over its limits")
    assert "assert 1 == 2" in text_of(result)
    run(pytester, *WHOLE, "--dtdispatch-max=misses=2").assert_outcomes(passed=2, failed=1)


def test_counts_metric_counts_captures_and_calls(pytester: pytest.Pytester) -> None:
    source = f"""{STEPS}
def test_regions(dtdispatch, device_mesh, a):
    with dtdispatch.capture() as book:
        a + a
    assert dtdispatch.call(lambda x: x, 7, name="seven") == 7
    dtdispatch.call(steady(device_mesh), name="add")
    assert [(steps.name, steps.misses, steps.hits) for steps in book.of("steps")] == [
        ("capture 1", 1, 0), ("seven", 0, 0), ("add", 0, 1)
    ]
    assert dtdispatch.scaling(lambda n: steady(device_mesh), name="adds").sizes == ()
    assert dtdispatch.steps(steady(device_mesh)).misses_per_step == 0
"""
    measure_source(pytester, source, "--dtdispatch-metric=counts", passed=1)


# Names

ONE_NAME = """
def test_counted_first(dtdispatch, a):
    def step():
        return a + a
    assert dtdispatch.steps(step).name == dtdispatch.budget(step, 1, 1).name == "step"
    dtdispatch.call(step)

def test_timed_first(dtdispatch, a):
    def step(n=0):
        return a + a
    dtdispatch.call(step)
    dtdispatch.budget(step, 1, 1)
    dtdispatch.steps(step, inputs=[1, 2])
"""


def test_counts_budget_and_times_share_one_name(pytester: pytest.Pytester) -> None:
    measure_source(pytester, ONE_NAME, "--dtdispatch-export=csv:results.csv", passed=2)
    file = pytester.path / "results.csv"
    keys = [",".join(row.split(",")[:2]).partition("::")[2] for row in file.read_text().splitlines()]
    events = ("misses_per_step", "redistributes", "implicit", "reads", "partial_reads")
    collectives = ("collectives", "collective_bytes", "collectives[0]", "collective_bytes[0]")
    metrics = ("dispatch_hit_ns", "dispatch_miss_ns", *events, *collectives, "dtensor_growth", "calls")
    tests = ("test_counted_first", "test_timed_first")
    assert sorted(keys) == sorted(f"{test}::step,{each}" for test in tests for each in metrics)


def test_whole_test_budget_has_no_lines_of_pytest(pytester: pytest.Pytester) -> None:
    source = "def test_add(device_mesh):\n    a = sharded(device_mesh)\n    a + a\n"
    text = text_of(measure_source(pytester, source, "--dtdispatch-budget", "-v", passed=1))
    budget = text.partition("test_it.py::test_add: test (budget)")[2]
    assert f"test_it.py:{len(IMPORTS.splitlines()) + 3}" in budget
    assert "_pytest" not in budget
    assert "pluggy" not in budget


# A trace of all steps by torch's profiler, with our ranges

TRACED = """
def step_on(mesh):
    rows = iter(range(8, 800, 4))
    return lambda: (sharded(mesh, next(rows), 8) * 2).full_tensor()

def test_train(dtdispatch, device_mesh):
    dtdispatch.steps(step_on(device_mesh), warmup=1, steps=2)

def test_two(dtdispatch, device_mesh):
    dtdispatch.steps(step_on(device_mesh), warmup=0, steps=1, name="first")
    dtdispatch.steps(step_on(device_mesh), warmup=0, steps=1, name="second")

def test_call(dtdispatch, a):
    dtdispatch.call(lambda: a + a, name="add")

def test_fails(dtdispatch, device_mesh):
    dtdispatch.steps(lambda: 1 / 0)

def test_profiled(dtdispatch, device_mesh):
    with torch.profiler.profile(acc_events=True):
        dtdispatch.steps(step_on(device_mesh))
"""
TRACE = "--dtdispatch-export=trace:trace.json"


def events_of(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    """Return the events of the trace that have a duration."""
    events = json.loads((pytester.path / "trace.json").read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


def test_trace_has_every_step_of_passed_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=IMPORTS + TRACED)
    # Counted regions are also steps.
    run(pytester, *WHOLE, TRACE, "-k", "test_call").assert_outcomes(passed=1)
    assert any(event["name"] == "test_it.py::test_call: add" for event in events_of(pytester))
    result = measure(pytester, TRACE, "-k", "not profiled")  # an earlier trace is replaced
    result.assert_outcomes(passed=3, failed=1)
    events = events_of(pytester)
    result.stdout.fnmatch_lines([f"{len(events):,} events written to {pytester.path / 'trace.json'}"])
    names = [event["name"] for event in sorted(events, key=lambda event: event["ts"])]
    steps = [name for name in names if name.startswith(("step ", "test_it.py")) and "fails" not in name]
    assert steps[:8] == [
        *("test_it.py::test_train: step", "step 1 (warm-up)", "step 1", "step 2"),
        *("test_it.py::test_two: first", "step 1 of first"),
        *("test_it.py::test_two: second", "step 1 of second"),
    ]
    kinds = Counter(name.partition(" ")[0] for name in names)
    assert {"miss", "redistribution", "wrap", "unwrap", "collective"} <= kinds.keys()
    assert "aten::mul" in names
    assert "pytest_dtdispatch/" not in text_of(result)


def test_unwritable_trace_fails_the_run_with_reason(pytester: pytest.Pytester) -> None:
    path = pytester.path / "trace.json"
    result = measure_source(pytester, TRACED, TRACE, "-k", "test_call", passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"failed: {path} was not written: no steps were counted"])
    assert "1 file not written" in result.outlines[-1]
    assert not path.exists()
    result = measure(pytester, TRACE, "-k", "test_profiled")
    result.stdout.fnmatch_lines(["*a profiler of torch is running, and a trace needs it: close it first"])
    measure(pytester, "-k", "test_profiled").assert_outcomes(passed=1)
