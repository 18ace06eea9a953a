"""Steps with inputs of several shapes as users count them: what is printed, limits, mistakes."""

from __future__ import annotations

import pytest

from tests.plugin_runs import IMPORTS, measure, run

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
    pytester.makepyfile(f"{BATCHES}    dtdispatch.steps(lambda: batches[0] * 2)\n")
    result = measure(pytester, "--benchmark-quiet", "--dtdispatch-export=csv:out.csv")
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
    rows = (pytester.path / "out.csv").read_text()
    assert "::scale,misses_per_step,1" in rows
    assert "::step,misses_per_step,0" in rows


def test_a_limit_judges_each_step_and_without_the_flag_none(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LIMITED)
    run(pytester).assert_outcomes(passed=1)
    result = measure(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *misses=0, and step 1 has 1"])


def test_a_limit_holds_after_a_warm_up_with_all_shapes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LIMITED.replace("name=", "warmup=4, name=").replace("(3, 4)", "(3, 0)"))
    measure(pytester).assert_outcomes(passed=1)
