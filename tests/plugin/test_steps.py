"""Counting steps as users do: assertions, limits of the marker and the flags, whole tests."""

from __future__ import annotations

import pytest

from tests.plugin_runs import IMPORTS, assert_says_once, measure, run, text_of
from tests.probes import NATIVE_CACHE, has

pytestmark = pytest.mark.torch

STEPS = (
    IMPORTS
    + """
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
)
ASSERTED = (
    STEPS
    + """
def test_step(dtdispatch, device_mesh):
    steps = dtdispatch.steps(growing(device_mesh), warmup=2, steps=3)
    assert steps.misses_per_step == 0
"""
)
COUNTED = (
    STEPS
    + """
def test_step(dtdispatch, device_mesh):
    dtdispatch.steps({step}(device_mesh), warmup=2, steps=3, name="train")
"""
)
WHY = "shape of self and other [10,8], was [9,8]"
MISSED = f"add.Tensor(f32[10,8]S0, f32[10,8]S0)@4: {WHY}"
MISSED_IN_ALL = (
    "add.Tensor(f32[10-12,8]S0, f32[10-12,8]S0)@4: "
    "shape of self and other [10-12,8], was [9-11,8], at *test_*.py:* (forward) (once in each of steps 1-3)"
)
WHOLE = ("--dtdispatch-all", "--dtdispatch-metric=counts")


def counted(step: str, marker: str = "") -> str:
    source = COUNTED.replace("{step}", step)
    return (
        source.replace("def test_step", f"@pytest.mark.dtdispatch({marker})\ndef test_step")
        if marker
        else source
    )


# Assertions


def test_a_failing_assertion_lists_what_missed_and_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASSERTED)
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E       assert 1 == 0", f"E*{MISSED_IN_ALL}".replace("[", "[[]")])


def test_a_holding_assertion_passes_and_the_table_says_steady(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ASSERTED.replace("growing(device", "steady(device"))
    result = measure(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["  step *misses*state", "test_*.py::test_step (counts of each step)", "*steady"]
    )
    assert "Counts of each step" in text_of(result)
    assert "Medians" not in text_of(result), "nothing was timed"


def test_without_the_flag_the_step_runs_once_and_the_assertion_holds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        ASSERTED + "\n    assert next(itertools.count()) == 0\n    assert not dtdispatch.enabled\n"
    )
    result = run(pytester)
    result.assert_outcomes(passed=1)
    assert "counts" not in text_of(result)


def test_counts_and_times_of_one_test_are_both_shown(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        STEPS
        + """
def test_both(dtdispatch, device_mesh):
    step = steady(device_mesh)
    assert dtdispatch.steps(step).misses_per_step == 0
    with dtdispatch.capture():
        step()
"""
    )
    result = measure(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*add.Tensor(f32*", "*counts of each step*", "*miss: first call*", "*Counts of*"]
    )
    quiet = measure(pytester, "-qq")
    quiet.stdout.fnmatch_lines(["signatures and calls measured: 1", "steps counted: 1"])


# Limits


def test_a_step_over_its_limits_fails_its_test_with_what_it_has(pytester: pytest.Pytester) -> None:
    found = {
        "misses=0": f"    {MISSED}",
        "cache_growth=0": "    native: 1 entries" if has(NATIVE_CACHE) else "    python: 1 entries",
        "spec_growth=0": "",
        "redistributes=0": "    redistribute: f32[10,8] S0 -> R on mesh dimension 0, 384 bytes",
        "wraps=0": "    distribute_tensor: f32[10,8] S0, at test_",
        "collectives=1": "    scatter: 384 bytes, at test_",
    }
    pytester.makepyfile(counted("growing", f'max="{",".join(found)}"'))
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    text = text_of(result)
    assert "GateError: train: over its limits" in text
    for limit, what in found.items():
        assert f"E       {limit}, and step " in text
        assert what in text
    assert "pytest_dtdispatch/" not in text.partition("short test summary")[0]


def test_limits_of_the_command_line_beat_those_of_the_marker_and_the_ini_file(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\ndtdispatch_max = misses=0\n")
    pytester.makepyfile(counted("growing"))
    measure(pytester).assert_outcomes(failed=1)
    run(pytester).assert_outcomes(passed=1)
    pytester.makepyfile(counted("growing", 'max="misses=0"'))
    measure(pytester, "--dtdispatch-max=misses=1,collectives=9").assert_outcomes(passed=1)
    pytester.makepyfile(counted("growing", 'max="misses=1"'))
    measure(pytester, "--dtdispatch-max=misses=0").assert_outcomes(failed=1)


# A gate that judges nothing never passes


def test_a_marker_with_a_limit_on_a_test_that_counts_nothing_fails_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\npytestmark = pytest.mark.dtdispatch(max='misses=0')\n"
        "def test_step(dtdispatch): pass\ndef test_without_fixture(): pass\n"
    )
    result = measure(pytester)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "test_*.py::test_step: not judged",
            "misses=0 judged nothing: no steps were counted; call dtdispatch.steps*",
        ]
    )
    run(pytester).assert_outcomes(passed=2)


def test_a_flag_that_judges_nothing_fails_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(IMPORTS + "\ndef test_step(dtdispatch):\n    pass\n")
    result = measure(pytester, "--dtdispatch-max=collectives=3", "--dtdispatch-max=misses=0,recompiles=0")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gate: failed against limits: 3 missing",
            "*--dtdispatch-max collectives=3 judged nothing: no steps were counted*",
            "*--dtdispatch-max misses=0 judged nothing: no steps were counted*",
            "*--dtdispatch-max recompiles=0 judged nothing: nothing was compiled*",
        ]
    )


def test_a_disabled_gate_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(counted("steady", 'max="misses=0"'))
    result = measure(pytester, "--benchmark-disable")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["misses=0 judged nothing: --benchmark-disable is given", "gate: failed against limits: 1 disabled"]
    )


# Whole tests


def test_whole_tests_are_counted(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # a narrower table leaves out hits
    pytester.makepyfile(
        STEPS
        + """
def test_plain(device_mesh):
    a = sharded(device_mesh)
    a + a
    a + a
    a + 1

def test_none():
    pass
"""
    )
    result = run(pytester, *WHOLE)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_plain (counts of each step)",
            "  capture 1      3     1       2 *",
            "*missed add.Tensor(*: first call of this op, at test_whole_tests_are_counted.py:* (forward)",
        ]
    )
    assert "test_none" not in text_of(result), "a test without DTensors is no line"


def test_limits_hold_for_whole_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(STEPS + "\ndef test_plain(device_mesh):\n    growing(device_mesh)()\n")
    result = run(pytester, *WHOLE, "--dtdispatch-max=misses=0")
    result.assert_outcomes(failed=1)
    assert_says_once(result, "capture 1: over its limits")
    run(pytester, *WHOLE, "--dtdispatch-max=misses=1").assert_outcomes(passed=1)


def test_a_whole_test_that_fails_fails_as_it_does_uncounted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        STEPS + "\ndef test_plain(device_mesh):\n    growing(device_mesh)()\n    assert 1 == 2\n"
    )
    result = run(pytester, *WHOLE, "--dtdispatch-max=misses=0")
    result.assert_outcomes(failed=1)
    assert "over its limits" not in text_of(result)
    assert "assert 1 == 2" in text_of(result)


def test_captures_and_calls_are_counted_where_counts_are_the_metric(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        STEPS
        + """
def test_regions(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture() as book:
        a + a
    assert dtdispatch.call(lambda x: x, 7, name="seven") == 7
    dtdispatch.call(steady(device_mesh), name="add")
    assert [(steps.name, steps.misses, steps.hits) for steps in book.counts()] == [
        ("capture 1", 1, 0), ("seven", 0, 0), ("add", 0, 1)
    ]
    assert dtdispatch.scaling(lambda n: steady(device_mesh), name="adds").points == ()
    assert dtdispatch.steps(steady(device_mesh)).misses_per_step == 0
"""
    )
    run(pytester, "--dtdispatch", "--dtdispatch-metric=counts").assert_outcomes(passed=1)


# Mistakes


ONE_NAME = """
def test_counted_first(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    def step():
        return a + a
    assert dtdispatch.steps(step).name == dtdispatch.budget(step, 1, 1).name == "step"
    dtdispatch.call(step)

def test_timed_first(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    def step(n=0):
        return a + a
    dtdispatch.call(step)
    dtdispatch.budget(step, 1, 1)
    dtdispatch.steps(step, inputs=[1, 2])

@pytest.mark.parametrize("again", [
    lambda dtdispatch, step: dtdispatch.budget(step, 1, 1),
    lambda dtdispatch, step: dtdispatch.steps(step, inputs=[1, 2]),
    lambda dtdispatch, step: dtdispatch.call(step),
    lambda dtdispatch, step: dtdispatch.compile(step),
    lambda dtdispatch, step: dtdispatch.compare({"a": step, "b": step}, name="step"),
    lambda dtdispatch, step: dtdispatch.scaling(lambda size: step, (1, 2), name="step"),
])
def test_of_one_kind(dtdispatch, device_mesh, again):
    a = sharded(device_mesh)
    def step(n=0):
        return a + a
    dtdispatch.budget(step, 1, 1)
    dtdispatch.steps(step)
    dtdispatch.call(step)
    with pytest.raises(Exception, match="the name 'step' is taken by another call of this test"):
        again(dtdispatch, step)
"""


def test_a_step_is_counted_budgeted_and_timed_under_one_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(IMPORTS + ONE_NAME)
    result = measure(pytester, "--dtdispatch-export=csv:results.csv")
    result.assert_outcomes(passed=8)
    file = pytester.path / "results.csv"
    keys = [",".join(row.split(",")[:2]).partition("::")[2] for row in file.read_text().splitlines()]
    for test in ("test_counted_first", "test_timed_first"):
        metrics = ("dispatch_hit_ns", "dispatch_miss_ns", "misses_per_step", "redistributes", "collectives")
        assert sorted(key for key in keys if test in key) == sorted(
            f"{test}::step,{each}" for each in metrics
        )


def test_an_unsteady_step_is_told_with_both_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        STEPS
        + """
def test_step(dtdispatch, device_mesh):
    a, times = sharded(device_mesh), itertools.count(1)
    steps = dtdispatch.steps(lambda: [a + a for _ in range(next(times))])
    assert steps.unsteady
"""
    )
    result = measure(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*unsteady", "    unsteady: 4 calls in step 1 and 5 in step 2"])
