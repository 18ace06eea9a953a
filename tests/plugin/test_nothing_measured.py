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


@pytest.mark.parametrize(
    ("code", "flags", "why"),
    [
        ("def test_one(dtdispatch): assert 0", "", "1 test failed before measuring"),
        (
            "@pytest.fixture\ndef raises(): 1 / 0\ndef test_one(raises): pass",
            "",
            "1 test failed in a fixture",
        ),
        ("import nowhere", "", "1 file not collected"),
        ("", "", "no test was collected"),
        ("def test_one(): pass", "-knothing", "1 test deselected"),
        ("def test_one(): pass", "--collect-only", "tests were only listed"),
        ("@pytest.mark.skip('later')\ndef test_one(): pass", "", "1 test skipped (later)"),
        ("pytest.importorskip('nowhere')", "", "1 file skipped (could not import 'nowhere': *)"),
        ("def test_one(dtdispatch): pytest.xfail('known')", "", "1 test failed as expected"),
        (
            "def test_one(): assert 0\ndef test_two(): pass",
            "-x",
            "1 test failed before measuring; 1 test not run",
        ),
        ("def test_one(): pytest.exit('stop')", "", "1 test not run"),
        ("def test_one(device_mesh): pass", "--dtdispatch-device=cuda", "1 test failed in a fixture"),
    ],
)
def test_how_tests_ended_is_told_where_none_was_measured(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, code: str, flags: str, why: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    pytester.makepyfile(f"import pytest\n{code}")
    result = measure(pytester, *flags.split())
    result.stdout.fnmatch_lines([f"nothing was measured: {why}".replace("[", "[[]")])
    assert "made a call" not in text_of(result)


PLAIN = """
def test_plain(dtdispatch):
    b = torch.rand(8)
    with dtdispatch.capture():  # of none
        b + b

def test_never_called(dtdispatch):
    dtdispatch.capture

def test_raises(dtdispatch):
    with pytest.raises(ValueError), dtdispatch.capture():
        raise ValueError
"""
NO_OPS = "no op on DTensors ran in the capture"


@pytest.mark.parametrize("metric", ["time", "counts"])
def test_tests_that_measured_nothing_are_named_beside_one_with_a_row(
    pytester: pytest.Pytester, metric: str
) -> None:
    path = pytester.makepyfile(test_it=TESTS + PLAIN)
    result = measure(pytester, f"--dtdispatch-metric={metric}")
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    line = path.read_text().splitlines().index("    with dtdispatch.capture():  # of none") + 1
    says = "it measured nothing with its dtdispatch fixture"
    assert [text for text in result.stdout.lines if text.startswith("not measured")] == [
        f"not measured: test_it.py::test_plain: {NO_OPS} at {path}:{line}",
        f"not measured: test_it.py::test_never_called: {says}",
        f"not measured: test_it.py::test_raises: {says}",
    ]
    assert "4 passed, 3 not measured in" in last_line(result)


@pytest.mark.parametrize(("gate", "failed"), [("max=misses=9", 1), ("expected=expected.csv", 0)])
def test_a_capture_without_ops_fails_where_a_gate_judges_captures(
    pytester: pytest.Pytester, gate: str, failed: int
) -> None:
    pytester.makepyfile(test_it=TESTS + PLAIN)
    pytester.path.joinpath("expected.csv").write_text("test_it.py::test_add::capture 1,misses_per_step,2,0\n")
    result = measure(pytester, "--dtdispatch-metric=counts", f"--dtdispatch-{gate}")
    result.assert_outcomes(passed=4 - failed, failed=failed, errors=1)  # a limit misses what raised, too
    result.stdout.fnmatch_lines([f"*test_it.py:*: {NO_OPS}, so the gate judged nothing"])


def test_a_capture_that_is_not_entered_is_an_error(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile("def test_it(dtdispatch):\n    dtdispatch.capture()")
    result = measure(pytester)
    says = "this capture was never entered, so nothing was measured; use it in a with"
    assert_says_once(result, f"{path}:2: {says}")
    result.assert_outcomes(passed=1, errors=1)
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "flag",
    [
        *("rounds=5", "metric=counts", "ops=mm*", "any-machine", "max=collectives=0", "fail=median:10%"),
        *("expected=file.csv", "export=csv:file.csv"),
    ],
)
def test_a_measuring_flag_alone_is_refused(pytester: pytest.Pytester, flag: str) -> None:
    result = run(pytester, f"--dtdispatch-{flag}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    name = f"--dtdispatch-{flag.partition('=')[0]}"
    assert_says_once(result, f"ERROR: {name}: nothing is measured without --dtdispatch or --dtdispatch-all")


def test_flags_that_place_a_mesh_and_ini_values_need_no_measuring(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_rounds = 5\ndtdispatch_max = collectives=0")
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
    also_idle = ("--dtdispatch-max=collectives=0", "--dtdispatch-ops=nope", "--dtdispatch-export=csv:out.csv")
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
