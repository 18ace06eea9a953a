"""What was asked for and not done does not look like success: it is told, and in pytest's last line."""

from __future__ import annotations

import pytest

from tests.plugin_runs import ALONE, IMPORTS, MEASURED, assert_says_once, measure, run, text_of

pytestmark = pytest.mark.torch

TESTS = (
    IMPORTS
    + """
def test_add(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a
        a * a
"""
)
UNMATCHED = "no op matches '{}' (--dtdispatch-ops, or ops of the marker); these ran: add.Tensor, mul.Tensor"
RED, YELLOW = "\x1b[31m\x1b[1m", "\x1b[33m\x1b[1m"


def last_line(result: pytest.RunResult) -> str:
    return str(result.stdout.lines[-1])


@pytest.mark.parametrize("flags", [("--dtdispatch",), ("--dtdispatch-all",)])
def test_ops_that_match_none_are_named_with_those_that_ran(
    pytester: pytest.Pytester, flags: tuple[str, ...]
) -> None:
    pytester.makepyfile(TESTS)
    result = run(pytester, *flags, "--dtdispatch-ops", "matmul", "--color=yes")
    assert result.ret == pytest.ExitCode.OK
    assert f"nothing was measured: {UNMATCHED.format('matmul')}" in text_of(result)
    assert f"{YELLOW}1 not measured" in last_line(result)


def test_one_of_several_ops_that_matches_none_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = measure(pytester, "--dtdispatch-ops=add*", "--dtdispatch-ops=mm*", "--benchmark-quiet")
    assert [line for line in result.stdout.lines if "these ran" in line] == [UNMATCHED.format("mm*")]
    assert "1 passed in" in last_line(result)


def test_a_run_without_any_op_says_how_many_tests_were_not_measured(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass\ndef test_two(): pass")
    assert "2 passed, 2 not measured in" in last_line(run(pytester, "--dtdispatch"))


def test_a_capture_that_is_not_entered_is_an_error(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("def test_it(dtdispatch):\n    dtdispatch.capture()")
    result = measure(pytester)
    says = "this capture was never entered, so nothing was measured; use it in a with"
    assert_says_once(result, f"{path}:2: {says}")
    result.assert_outcomes(passed=1, errors=1)
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "flag", ["rounds=5", "metric=counts", "ops=mm*", "cold", "any-machine", "max-collectives=0"]
)
def test_a_measuring_flag_alone_is_refused(pytester: pytest.Pytester, flag: str) -> None:
    result = run(pytester, f"--dtdispatch-{flag}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = f"--dtdispatch-{flag.partition('=')[0]}"
    assert_says_once(result, f"ERROR: {name}: nothing is measured without --dtdispatch or --dtdispatch-all")


def test_flags_that_place_a_mesh_and_ini_values_need_no_measuring(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_rounds = 5\ndtdispatch_max_collectives = 0")
    pytester.makepyfile("def test_it(device_mesh): assert device_mesh.shape == (2, 2)")
    flags = ("--dtdispatch-mesh=2x2", "--dtdispatch-backend=fake", "--dtdispatch-device=cpu")
    run(pytester, *flags, "--dtdispatch-timeout=9").assert_outcomes(passed=1)


def test_any_machine_without_a_saved_run_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--dtdispatch", "--dtdispatch-any-machine")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    says = "--dtdispatch-any-machine: --benchmark-compare must name the saved run to compare with"
    assert_says_once(result, says)


def test_failed_gates_are_in_the_last_line_in_red(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    pytester.path.joinpath("expected.csv").write_text("gone,dispatch_hit_ns,1,0.1\n")
    expected = ("--dtdispatch-expected=expected.csv", "--color=yes", "--benchmark-quiet")
    result = measure(pytester, *expected)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert f"{RED}1 gate failed" in last_line(result)
    also_idle = ("--dtdispatch-max-collectives=0", "--dtdispatch-ops=nope", "--dtdispatch-csv=out.csv")
    result = measure(pytester, *expected, *also_idle)
    assert f"{RED}2 gates failed" in last_line(result)
    assert f"{RED}1 file not written" in last_line(result)


def test_quiet_draws_the_histograms_that_are_asked_for(pytester: pytest.Pytester) -> None:
    # In a process of its own: the charts' library cannot be imported twice.
    pytester.makepyfile(TESTS)
    flags = (*ALONE, *MEASURED, "--benchmark-quiet", "--benchmark-histogram=drawn")
    result = pytester.runpytest_subprocess(*flags)
    result.assert_outcomes(passed=1)
    drawn = sorted(path.name for path in pytester.path.glob("*.svg"))
    assert drawn == [f"drawn-dtdispatch_{state}.svg" for state in ("hit", "local", "miss")]
    assert "Name (time in" not in text_of(result)
