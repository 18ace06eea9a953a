"""A run held against a saved one, from flags to exit status, on a clock that does as it is told."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.measuring.sampler import SAMPLERS, WallClock
from tests.plugin_runs import (
    IMPORTS,
    OTHER_PLUGINS,
    assert_gate_failed,
    assert_refused,
    import_compilers,
    run,
    text_of,
)
from tests.probes import needs_plugin
from tests.scripted_clock import ScriptedClock

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TESTS = (
    IMPORTS
    + """
import scripted

def test_add(dtdispatch, device_mesh):
    a = sharded(device_mesh)
    with dtdispatch.capture():
        a + a

{marker}
def test_mul(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def mul():
        scripted.clock.wait(scripted.extra_ns)
        return a * a

    dtdispatch.call(mul, name="mul")
"""
)
BURSTS = {
    "import scripted": "import random, scripted\ndraws = random.Random(1)",
    "wait(scripted.extra_ns)": "wait(draws.choice((0, 10**6)))",
}
MUL = "test_gate.py::test_mul::mul::"
MEASURED = ("--dtdispatch", "--dtdispatch-rounds=10", "--dtdispatch-repeat=2", "--benchmark-quiet")
SAVE = (*MEASURED, "--benchmark-save=base")
COMPARE = (*MEASURED, "--benchmark-compare=0001")
GATE = (*COMPARE, "--dtdispatch-fail=median:10%")
SAVED: dict[tuple[object, ...], tuple[Path, str]] = {}


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """Let each run have the same latencies, and a test add to those of its callable."""
    control = types.SimpleNamespace(clock=ScriptedClock(), extra_ns=0)
    monkeypatch.setitem(sys.modules, "scripted", control)
    monkeypatch.setitem(SAMPLERS, "time", WallClock(control.clock))
    monkeypatch.setenv("COLUMNS", "200")
    return control


def write(pytester: pytest.Pytester, marker: str = "", **replaced: str) -> None:
    source = TESTS.replace("{marker}", marker)
    for old, new in replaced.items():
        source = source.replace(old, new)
    pytester.makepyfile(test_gate=source)


def save(pytester: pytest.Pytester, *flags: str, marker: str = "") -> Path:
    """Save a run, and give its file; on a scripted clock it is the same in each test, and made once."""
    write(pytester, marker)
    asked = (*flags, marker, sys.modules["scripted"].extra_ns)
    if asked not in SAVED:
        assert run(pytester, *SAVE, *flags).ret == pytest.ExitCode.OK
        [path] = (pytester.path / ".benchmarks").rglob("0001_base.json")
        SAVED[asked] = path.relative_to(pytester.path), path.read_text()
    name, text = SAVED[asked]
    path = pytester.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run_of(saved: dict[str, Any]) -> dict[str, Any]:
    """Give what we have in a saved file."""
    found: dict[str, Any] = saved["dtdispatch"]["run"]
    return found


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    saved = json.loads(path.read_text())
    change(saved)
    path.write_text(json.dumps(saved))


def failed(result: pytest.RunResult, *words: str, passed: int = 2) -> str:
    return assert_gate_failed(result, "gate: failed against ", *words, passed=passed)


def test_a_noisy_row_is_marked_and_counted_and_not_judged(pytester: pytest.Pytester) -> None:
    save(pytester)
    write(pytester, **BURSTS)
    result = run(pytester, *GATE)
    text = text_of(result)
    assert result.ret == pytest.ExitCode.OK, text
    assert "2 passed, 2 inconclusive" in text
    assert " 2 passed, 2 inconclusive in " in result.outlines[-1]
    assert "\n    noisy: its samples scatter by " in text
    result.stdout.fnmatch_lines(
        [
            "dtdispatch: load * on * core*",
            "  signature *  mark",
            "  mul * noisy",
            "  2 of 2 rows are proved *",
        ]
    )
    assert result.outlines[-2].startswith("1 of 2 rows are noisy (miss, hit): "), text
    strict = run(pytester, *COMPARE, "--dtdispatch-fail=median:10%,strict")
    failed(
        strict,
        "2 passed, 2 inconclusive",
        f"inconclusive {MUL}hit",
        "\n    median:10%,strict of all samples\n",
    )
    assert " 2 passed, 1 gate failed, 2 inconclusive in " in strict.outlines[-1]


def test_nothing_is_judged_against_a_saved_row_that_is_noisy(pytester: pytest.Pytester) -> None:
    write(pytester, **BURSTS)
    assert run(pytester, *SAVE).ret == pytest.ExitCode.OK
    write(pytester)
    result = run(pytester, *GATE)
    text = text_of(result)
    assert result.ret == pytest.ExitCode.OK, text
    assert "2 passed, 2 inconclusive" in text
    assert "\n    noisy in the saved run: its samples scatter by " in text
    assert "rows are noisy" not in text, "this run is quiet"


def test_a_saved_run_of_one_round_is_refused_and_says_how_to_save_another(pytester: pytest.Pytester) -> None:
    write(pytester)
    one_round = ("--dtdispatch-rounds=1", "--dtdispatch-repeat=10")
    assert run(pytester, *SAVE, *one_round).ret == pytest.ExitCode.OK
    text = failed(run(pytester, *GATE), "2 of 4 thresholds can never be judged against this saved run")
    assert "save one with a greater --dtdispatch-rounds or" in text
    hits = run(pytester, *COMPARE, "--dtdispatch-fail=hit=median:10%")
    assert hits.ret == pytest.ExitCode.OK, text_of(hits)


def test_drift_since_the_saved_run_is_told_of_rows_that_passed(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    edit(path, lambda saved: run_of(saved).update(taken="2026-07-31T09:30:15+00:00"))
    scripted.extra_ns = 500
    result = run(pytester, *GATE)
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    result.stdout.fnmatch_lines(["  drift of 4 passed rows since 2026-07-31: median * intervals)"])


# Verdicts


def test_a_run_against_itself_passes(pytester: pytest.Pytester) -> None:
    path = save(pytester)
    result = run(pytester, *GATE)
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    result.assert_outcomes(passed=2)
    text = text_of(result)
    assert f"gate: passed against {path}: 4 passed" in text
    assert "the op on plain tensors shifted by +0.0 % (median of 1 rows)" in text
    assert "regressed" not in text


def test_a_row_that_a_test_slows_down_by_half_fails_and_is_named(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    text = failed(
        run(pytester, *GATE), "2 passed, 2 regressed", f"regressed {MUL}hit", f"regressed {MUL}miss"
    )
    assert "median:10% of all samples: 10.0 us -> 15.0 us, +50.0 %, 99 % interval +" in text
    assert "(20 and 20 samples)" in text
    assert "find what slowed it" in text
    assert "regressed test_gate.py::test_add::" not in text


def test_a_threshold_of_one_state_leaves_the_others_alone(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    result = run(pytester, *COMPARE, "--dtdispatch-fail=hit=median:7.5%", "--dtdispatch-fail=miss=median:75%")
    text = failed(result, "3 passed, 1 regressed", f"regressed {MUL}hit")
    assert f"regressed {MUL}miss" not in text


def test_a_row_that_became_faster_is_named_and_passes(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    scripted.extra_ns = 5_000
    save(pytester)
    scripted.extra_ns = 0
    result = run(pytester, *GATE)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["gate: passed against *: 2 passed, 2 improved", f"  improved {MUL}*"])


def test_a_threshold_of_a_marker_wins_for_its_test(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester)
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    scripted.extra_ns = 5_000
    assert run(pytester, *GATE).ret == pytest.ExitCode.OK
    write(pytester, marker='@pytest.mark.dtdispatch(threshold=["hit=40%", "min:60%"])')
    failed(run(pytester, *COMPARE), "2 passed, 1 regressed", "hit=median:40% of all samples: 10.0 us")


def test_a_renamed_test_fails_as_missing_and_is_new_under_its_new_name(pytester: pytest.Pytester) -> None:
    save(pytester)
    write(pytester, test_mul="test_times")
    text = failed(run(pytester, *GATE), "2 passed, 2 new, 2 missing", f"missing {MUL}hit")
    assert f"new {MUL.replace('test_mul', 'test_times')}hit" in text
    assert "restore the test, or save a new run" in text


def test_rows_of_tests_that_were_deselected_are_not_missing(pytester: pytest.Pytester) -> None:
    save(pytester)
    result = run(pytester, *GATE, "-k", "test_add")
    assert result.ret == pytest.ExitCode.OK, text_of(result)
    assert "2 passed" in text_of(result)


# What a marker held when it was saved

GONE = {
    "renamed": ("def test_mul", "def test_times"),
    "skipped": ("def test_mul", "@pytest.mark.skip(reason='slow')\ndef test_mul"),
    "deleted": ("def test_mul", "def helper"),
    "without the fixture": ('dtdispatch.call(mul, name="mul")', "mul()"),
    "without its call": ('dtdispatch.call(mul, name="mul")', "dtdispatch.steps(mul)"),
}
HELD = '@pytest.mark.dtdispatch(threshold="30%")\n'


@pytest.mark.parametrize(("how", "other"), [*((how, HELD) for how in GONE), ("deleted", "")])
def test_a_row_that_was_saved_under_a_threshold_of_its_marker_is_missed(
    pytester: pytest.Pytester, how: str, other: str
) -> None:
    save(pytester, marker=HELD)
    old, new = GONE[how]
    write(pytester, HELD, **{old: new, "def test_add": f"{other}def test_add"})
    result = run(pytester, *COMPARE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text_of(result)
    assert f"missing {MUL}hit\n    median:30% of all samples\n" in text_of(result)
    assert "missing test_gate.py::test_add" not in text_of(result)


def test_a_row_whose_test_lost_its_marker_is_judged_as_it_was_saved(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester, marker=HELD)
    write(pytester)
    scripted.extra_ns = 5_000
    failed(run(pytester, *COMPARE), "2 regressed", "median:30% of all samples: 10.0 us -> 15.0 us")
    assert run(pytester, *COMPARE, "--dtdispatch-fail=60%").ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("chosen", "is_missed"),
    [
        (["-k", "not mul"], False),
        (["-m", "not dtdispatch"], False),
        (["--deselect", "test_gate.py::test_mul"], False),
        (["test_gate.py::test_add"], False),
        (["below"], False),
        (["test_gate.py::test_add", "test_other.py"], False),
        (["test_gate.py"], True),
        (["."], True),
        (["{path}"], True),
        (["test_gate.py::test_mul"], True),
    ],
)
def test_a_held_row_is_missed_where_the_command_line_does_not_leave_it_out(
    pytester: pytest.Pytester, chosen: list[str], is_missed: bool
) -> None:
    save(pytester, marker=HELD)
    write(pytester, HELD + GONE["skipped"][1].partition("\n")[0])
    pytester.makepyfile(test_other="def test_other(): pass")
    pytester.mkdir("below").joinpath("test_below.py").write_text("def test_below(): pass")
    result = run(pytester, *COMPARE, *(each.format(path=pytester.path) for each in chosen))
    assert (f"missing {MUL}hit" in text_of(result)) is is_missed
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if is_missed else pytest.ExitCode.OK), text_of(result)


# Other meshes

KINDS = (
    IMPORTS
    + """
import scripted

{marker}
def test_kinds(dtdispatch, device_mesh):
    a = sharded(device_mesh)

    def mul():
        return a * a

    dtdispatch.call(mul, name="mul")
    dtdispatch.scaling(lambda size: mul, (1, 2), name="sizes")
    dtdispatch.compare({"one": mul, "two": mul}, name="both")
    dtdispatch.compile(torch.ones_like, a, name="ones", backend="eager")
    dtdispatch.call(lambda: None, name="no mesh")
"""
)


@pytest.fixture(scope="module")
def _compilers() -> None:
    import_compilers()


@pytest.mark.usefixtures("_compilers")
@pytest.mark.parametrize(("then", "now", "by_flag"), [("4", "8", True), ("4", "2x4", False)])
def test_every_row_of_another_mesh_is_mismatched_whatever_the_machine(
    pytester: pytest.Pytester, then: str, now: str, by_flag: bool
) -> None:
    def on(mesh: str) -> list[str]:
        marker = "" if by_flag else f"@pytest.mark.dtdispatch(mesh='{mesh}')"
        pytester.makepyfile(test_gate=KINDS.replace("{marker}", marker))
        return [f"--dtdispatch-mesh={mesh}"] if by_flag else []

    assert run(pytester, *SAVE, *on(then)).ret == pytest.ExitCode.OK
    gate = (*COMPARE, "--dtdispatch-fail=5000%", "--dtdispatch-any-machine")
    text = failed(run(pytester, *gate, *on(now)), f"mesh: {then} then, {now} now", passed=1)
    for name in ("mul::hit", "sizes[1]::hit", "both[one]::call", "ones::eager"):
        assert f"mismatched test_gate.py::test_kinds::{name}\n" in text
    assert "mismatched test_gate.py::test_kinds::no mesh" not in text
    assert "regressed" not in text


def test_a_threshold_under_what_the_run_could_resolve_is_warned_of(pytester: pytest.Pytester) -> None:
    save(pytester)
    result = run(pytester, *COMPARE, "--dtdispatch-fail=median:0.001%")
    assert "warning: " in text_of(result)
    said = " ".join(text_of(result).split())
    assert " of 4 thresholds lie under what this run could resolve; " in said
    assert "; median:0.001% of all samples of test_gate.py::" in said


def test_a_run_of_another_machine_is_refused_unless_it_is_wanted(pytester: pytest.Pytester) -> None:
    edit(save(pytester), lambda saved: run_of(saved)["environment"].update(threads="99"))
    says = "threads: 99 then, 1 now"
    failed(run(pytester, *GATE), "1 mismatched", f"mismatched {says}", "--dtdispatch-any-machine")
    result = run(pytester, *GATE, "--dtdispatch-any-machine")
    assert result.ret == pytest.ExitCode.OK
    assert "4 passed" in text_of(result)


# Nothing to compare


def test_no_saved_run_fails_and_the_run_can_be_saved(pytester: pytest.Pytester) -> None:
    write(pytester)
    result = run(pytester, *MEASURED, "--benchmark-compare", "--benchmark-autosave", "--dtdispatch-fail=10%")
    failed(result, "1 missing", "--benchmark-compare finds no saved run", "--benchmark-autosave")
    second = run(pytester, *MEASURED, "--benchmark-compare", "--benchmark-autosave", "--dtdispatch-fail=10%")
    assert second.ret == pytest.ExitCode.OK, text_of(second)
    assert "4 passed" in text_of(second)


def test_a_run_that_measures_nothing_fails(pytester: pytest.Pytester) -> None:
    save(pytester)
    pytester.makepyfile(test_gate="def test_plain(): pass")
    failed(run(pytester, *GATE), "4 missing", passed=1)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--dtdispatch-metric=counts", "disabled --dtdispatch-metric counts times"),
        ("--benchmark-disable", "disabled --benchmark-disable is given"),
    ],
)
def test_where_nothing_is_timed_the_gate_fails_as_disabled(
    pytester: pytest.Pytester, flag: str, says: str
) -> None:
    save(pytester)
    failed(run(pytester, *GATE, flag), says)


@pytest.mark.slow
@pytest.mark.long
@needs_plugin("xdist")
def test_under_xdist_the_gate_fails_as_disabled(pytester: pytest.Pytester) -> None:
    path = save(pytester)
    pytester.makepyfile(test_gate="def test_plain(): pass")
    others = [f"-pno:{plugin}" for plugin in OTHER_PLUGINS if plugin != "xdist"]
    result = pytester.runpytest_subprocess(*others, *GATE, "-n1")
    failed(result, "1 disabled", "disabled pytest-xdist runs tests in parallel", passed=1)
    assert path.exists()


def test_a_threshold_of_a_marker_fails_its_test_where_nothing_is_measured(pytester: pytest.Pytester) -> None:
    save(pytester)
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    result = run(pytester, *COMPARE, "--benchmark-disable")
    result.assert_outcomes(passed=1, failed=1)
    assert "gate threshold is disabled: --benchmark-disable is given" in text_of(result)


def test_thresholds_of_an_ini_file_wait_until_a_saved_run_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_fail = median:10%\n")
    write(pytester)
    assert run(pytester, "-k", "add").ret == pytest.ExitCode.OK
    result = run(pytester, *SAVE)
    assert result.ret == pytest.ExitCode.OK
    assert "gate: thresholds are given, and --benchmark-compare names no saved run" in text_of(result)
    result = run(pytester, *COMPARE)
    assert result.ret == pytest.ExitCode.OK
    assert "4 passed" in text_of(result)


def test_without_thresholds_nothing_is_said(pytester: pytest.Pytester) -> None:
    path = save(pytester)
    assert "gate: " not in text_of(run(pytester, *COMPARE))
    path.write_text("{")
    result = run(pytester, *COMPARE)
    assert result.ret == pytest.ExitCode.OK
    assert "gate: " not in text_of(result)


def test_the_gate_of_pytest_benchmark_works_beside_ours(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    result = run(pytester, *GATE, "--benchmark-compare-fail=median:10%")
    assert result.ret != pytest.ExitCode.OK
    text = text_of(result)
    assert "Performance has regressed" in text
    assert f"regressed {MUL}hit" in text
    assert run(pytester, *GATE, "--benchmark-compare-fail=median:90%").ret == pytest.ExitCode.TESTS_FAILED


# Mistakes


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((*COMPARE, "--dtdispatch-fail=median:5%,lax"), "not '5%,lax'"),
        (("--benchmark-compare",), "nothing is measured without --dtdispatch"),
        (("--dtdispatch",), "--benchmark-compare must name the saved run to compare with"),
        (("--dtdispatch", "-pno:benchmark"), "that plugin is off"),
    ],
)
def test_a_gate_that_could_judge_nothing_is_refused(
    pytester: pytest.Pytester, flags: tuple[str, ...], says: str
) -> None:
    write(pytester)
    assert_refused(run(pytester, *flags, "--dtdispatch-fail=median:10%"), "--dtdispatch-fail: ", says)


def truncate(path: Path) -> None:
    path.write_text(path.read_text()[:-100])


def test_a_corrupted_saved_run_is_refused_before_anything_runs(pytester: pytest.Pytester) -> None:
    path = save(pytester)
    truncate(path)
    assert_refused(run(pytester, *GATE), f"{path} is no saved run: ")


def test_a_corrupted_saved_run_fails_where_a_marker_alone_needs_it(pytester: pytest.Pytester) -> None:
    path = save(pytester)
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    truncate(path)
    failed(run(pytester, *COMPARE), f"missing {path} is no saved run: ")


def test_several_saved_runs_are_refused(pytester: pytest.Pytester) -> None:
    save(pytester)
    assert run(pytester, *SAVE).ret == pytest.ExitCode.OK
    assert_refused(
        run(pytester, *MEASURED, "--benchmark-compare=*base", "--dtdispatch-fail=5%"), "names 2 saved runs"
    )
