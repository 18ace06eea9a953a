"""Steps with inputs of several shapes as users count them: what is printed, limits, mistakes."""

from __future__ import annotations

import pytest

from tests.plugin_runs import IMPORTS, assert_says_once, measure, run

pytestmark = pytest.mark.torch

BATCHES = (
    IMPORTS
    + """
def test_batches(dtdispatch, device_mesh):
    batches = [sharded(device_mesh, rows, 8) for rows in (8, 16, 8, 24, 16, 24)]
    steps = dtdispatch.steps(lambda batch: batch * 2, inputs=batches, name="scale")
    assert steps.steady_after == ((3, 4) if dtdispatch.enabled else (0, 0))
"""
)
LIMITED = BATCHES.replace("def test", '@pytest.mark.dtdispatch(max="misses=0")\ndef test')


def test_inputs_are_shown_by_shape(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pytester.makepyfile(BATCHES)
    result = measure(pytester, "--benchmark-quiet")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines(
        [
            r".* 0\+6  steady after 3 shapes$",
            r" +inputs of 3 shapes in 6 steps: steady after 3 shapes and 4 steps$",
            r"  shape +steps  missed  misses  cache\+",
            r".*inputs of scale \(counts of all steps of a shape\)",
            r"  f32\[8,8\]S0@4 +2 +1 +1 +",
            r"  f32\[16,8\]S0@4 +2 +1 +1 +",
            r"  f32\[24,8\]S0@4 +2 +1 +1 +",
        ],
        consecutive=False,
    )


def test_without_the_flag_the_step_runs_once_with_each_input(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LIMITED)
    run(pytester).assert_outcomes(passed=1)


def test_a_limit_judges_each_step(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LIMITED)
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *misses=0, and step 1 has 1"])


def test_a_limit_holds_after_a_warm_up_with_all_shapes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LIMITED.replace("name=", "warmup=4, name=").replace("(3, 4)", "(3, 0)"))
    measure(pytester).assert_outcomes(passed=1)


def test_steps_with_inputs_may_be_beside_others_and_in_files(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(f"{BATCHES}    dtdispatch.steps(lambda: batches[0] * 2)\n")
    measure(pytester, "--dtdispatch-export=csv:out.csv").assert_outcomes(passed=1)
    rows = (pytester.path / "out.csv").read_text()
    assert "::scale,misses_per_step,1" in rows
    assert "::step,misses_per_step,0" in rows


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("inputs=[]", "CaptureError: steps(): inputs has no items: give one at least"),
        ("inputs=(n for n in ())", "CaptureError: steps(): inputs has no items: give one at least"),
        ("inputs=8", "CaptureError: steps(): inputs=8 cannot be iterated over"),
        ("steps=5, inputs=[8]", "CaptureError: steps(): steps=5 with inputs: each input is a step"),
    ],
)
def test_a_mistake_is_told_in_one_line(pytester: pytest.Pytester, call: str, line: str) -> None:
    pytester.makepyfile(f"def test_step(dtdispatch):\n    dtdispatch.steps(lambda x: x, {call})\n")
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    assert_says_once(result, line)


def test_the_exception_of_a_step_is_shown_as_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "def step(n):\n    assert n != 2, 'the third'\n\n"
        "def test_step(dtdispatch):\n    dtdispatch.steps(step, inputs=range(9))\n"
    )
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*AssertionError: the third"])
    result.stdout.no_fnmatch_line("*steps/model*")
