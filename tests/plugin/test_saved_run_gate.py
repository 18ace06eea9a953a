"""Comparison with a saved run, from flags to exit status, with a scripted clock."""

from __future__ import annotations

import json
import math
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.core import measurement
from pytest_dtdispatch.core.measurement import NOISY
from pytest_dtdispatch.core.text import progress_to
from pytest_dtdispatch.plugin import session
from tests.plugin_runs import (
    BURSTS,
    IMPORTS,
    OTHER_PLUGINS,
    SCRIPTED,
    assert_gate_failed,
    assert_passed,
    assert_refused,
    import_compilers,
    run,
    text_of,
)
from tests.probes import needs_plugin

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("scripted")]
import_compilers()

MEASURED = ("--dtdispatch", "--dtdispatch-rounds=10", "--dtdispatch-repeat=2", "--benchmark-quiet")
SAVE = (*MEASURED, "--benchmark-save=base")
COMPARE = (*MEASURED, "--benchmark-compare=0001")
GATE = (*COMPARE, "--dtdispatch-fail=10%")
OF_MEDIANS = (*COMPARE, "--dtdispatch-fail=median:10%")
SAVED: dict[tuple[object, ...], tuple[Path, str]] = {}


def write(pytester: pytest.Pytester, marker: str = "", **replaced: str) -> None:
    source = SCRIPTED.replace("{marker}", marker)
    for old, new in replaced.items():
        source = source.replace(old, new)
    pytester.makepyfile(test_gate=source)


def save(pytester: pytest.Pytester, marker: str = "") -> Path:
    """Save a run and return its file. Cached: with a scripted clock it is the same in every test."""
    write(pytester, marker)
    key = (marker, sys.modules["scripted"].extra_ns)
    if key not in SAVED:
        assert run(pytester, *SAVE).ret == pytest.ExitCode.OK
        [path] = (pytester.path / ".benchmarks").rglob("0001_base.json")
        SAVED[key] = path.relative_to(pytester.path), path.read_text()
    name, text = SAVED[key]
    path = pytester.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edit our part of a saved file."""
    saved = json.loads(path.read_text())
    change(saved["dtdispatch"]["run"])
    path.write_text(json.dumps(saved))


ADD = "add.Tensor(f32[8,8]S0, f32[8,8]S0)@4"


def verdict_of(result: pytest.RunResult, state: str, label: str = "mul") -> str:
    """Return the verdict of a row in the table that compares it with the saved run; empty if absent."""
    found = re.search(rf"^  {re.escape(label)} +{state} .* (\w+)$", text_of(result), re.MULTILINE)
    return found[1] if found else ""


def failed(result: pytest.RunResult, *words: str, passed: int = 2) -> str:
    return assert_gate_failed(result, "gate: failed against ", *words, passed=passed)


def test_median_that_grew_alone_is_inconclusive(pytester: pytest.Pytester) -> None:
    save(pytester)
    write(pytester, **BURSTS)
    assert_passed(run(pytester, *GATE), "4 passed")
    result = run(pytester, *OF_MEDIANS)
    assert_passed(result, "2 passed, 2 inconclusive", "  2 inconclusive: the median moved, ")
    assert " 2 passed, 2 inconclusive in " in result.outlines[-1]
    assert verdict_of(result, "hit") == verdict_of(result, "miss") == "inconclusive"
    strict = run(pytester, *COMPARE, "--dtdispatch-fail=median:10%,strict")
    failed(strict, "2 passed, 2 inconclusive", "2 inconclusive (median:10%,strict)")
    assert " 2 passed, 1 gate failed, 2 inconclusive in " in strict.outlines[-1]


def test_noisy_row_is_marked_and_judged(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "NOISY", NOISY)
    save(pytester)
    every_other_pass = "import itertools, scripted\nextra = itertools.cycle([0] * 16 + [5_000] * 16)"
    write(pytester, **{"import scripted": every_other_pass, "wait(scripted.extra_ns)": "wait(next(extra))"})
    result = run(pytester, *GATE)
    result.stdout.fnmatch_lines(["1 of 2 rows are noisy: *", "gate: passed against *"])
    marked = run(pytester, *MEASURED)
    marked.stdout.fnmatch_lines(["  signature *  mark", "  mul * noisy *", "  2 of 2 rows are proved *"])


# Verdicts


def test_unchanged_run_passes_and_shows_drift(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    result = run(pytester, *GATE)
    shifted = "the op on plain tensors shifted by +0.0 % (median of 1 rows)"
    assert_passed(result, f"gate: passed against .../{path.parent.name}/{path.name}: 4 passed", shifted)
    assert "regressed" not in text_of(result)
    edit(path, lambda saved: saved.update(started="2026-07-31T09:30:15+00:00"))
    scripted.extra_ns = 500
    result = run(pytester, *GATE)
    assert_passed(result)
    result.stdout.fnmatch_lines(["  drift of 4 passed rows since 2026-07-31: median +2.5 %"])


def test_row_slower_by_half_is_named(pytester: pytest.Pytester, scripted: types.SimpleNamespace) -> None:
    """A row that a test slows down by half fails and is named in the output."""
    save(pytester)
    scripted.extra_ns = 5_000
    beside = "--benchmark-compare-fail=median:{}"  # the gate of pytest-benchmark
    result = run(pytester, *GATE, beside.format("90%"))
    failed(
        result,
        *("2 passed, 2 regressed", "  2 regressed: find what slowed it", " 10.0 us  15.0 us "),
        ", 10.0 -> 15.0 us (+50.0 %), regressed",
    )
    assert verdict_of(result, "hit") == verdict_of(result, "miss") == "regressed"
    assert verdict_of(result, "hit", ADD) == "passed"
    theirs = run(pytester, *GATE, beside.format("10%"))
    assert theirs.ret != pytest.ExitCode.OK
    assert "test_mul::mul::miss (0001_" in text_of(theirs).partition("Performance has regressed:")[2]
    assert verdict_of(theirs, "hit") == "regressed"
    of_states = ("--dtdispatch-fail=hit=median:7.5%", "--dtdispatch-fail=miss=median:75%")
    result = run(pytester, *COMPARE, *of_states)
    failed(result, "3 passed, 1 regressed")
    assert (verdict_of(result, "hit"), verdict_of(result, "miss")) == ("regressed", "passed")
    # A marker's threshold takes precedence for its test.
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    assert_passed(run(pytester, *GATE))
    write(pytester, marker='@pytest.mark.dtdispatch(threshold=["hit=40%", "median:60%"])')
    failed(run(pytester, *COMPARE), "2 passed, 1 regressed", " hit=40% ")


def test_comparison_without_threshold_never_fails(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    scripted.extra_ns = 5_000
    result = run(pytester, *COMPARE)
    assert_passed(result, ", 10.0 -> 15.0 us (+50.0 %), slower")
    result.stdout.fnmatch_lines(["  signature *base *now *change % *median % *verdict"])
    assert verdict_of(result, "hit") == "slower"
    assert re.search(rf"^  {re.escape(ADD)} +hit .* no change$", text_of(result), re.MULTILINE)
    assert "gate: " not in text_of(result)
    assert " benchmark 'dtdispatch" not in text_of(result), (
        "tables of pytest-benchmark require one of its flags"
    )
    edit(path, lambda saved: saved["environment"].update(threads="99"))
    other = run(pytester, *COMPARE)
    assert_passed(other, "not compared with the saved run: threads: 99 then, 1 now")


# Tests that run again


def test_temporary_slowdown_is_not_saved(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = json.loads(save(pytester).read_text())["benchmarks"]
    scripted.extra_ns = 5_000
    monkeypatch.setattr(session, "pause", lambda seconds: setattr(scripted, "extra_ns", 0))
    result = run(pytester, *SAVE)
    assert_passed(result, "2 tests ran again, as the run is saved")
    result.assert_outcomes(passed=2)
    [path] = (pytester.path / ".benchmarks").rglob("0002_base.json")
    figures = [
        [(row["fullname"], row["extra_info"]["figure_ns"]) for row in rows]
        for rows in (quick, json.loads(path.read_text())["benchmarks"])
    ]
    assert figures[0] == figures[1] != []


@pytest.mark.parametrize(("flags", "expected"), [(SAVE, 3), (MEASURED, 1)])
def test_only_saved_runs_repeat_all_tests(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, flags: tuple[str, ...], expected: int
) -> None:
    scripted.runs = 0
    write(pytester, **{"    def mul():": "    scripted.runs += 1\n    def mul():"})
    assert_passed(run(pytester, *flags))
    assert scripted.runs == expected


def test_temporary_slowdown_fails_no_run(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    monkeypatch.setattr(session, "pause", lambda seconds: setattr(scripted, "extra_ns", 0))
    result = run(pytester, *GATE)
    assert_passed(result, "4 passed", "1 test ran again")
    result.assert_outcomes(passed=2)


def test_slower_test_runs_again_three_times(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, pauses: list[float]
) -> None:
    save(pytester)
    pauses.clear()
    scripted.extra_ns = 5_000
    scripted.runs = 0
    write(pytester, **{"    def mul():": "    scripted.runs += 1\n    def mul():"})
    failed(run(pytester, *GATE), "2 passed, 2 regressed")
    assert (scripted.runs, tuple(pauses)) == (4, session.PAUSES_S)


def test_progress_names_tests_that_run_again(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    messages: list[str] = []
    with progress_to(messages.append):
        failed(run(pytester, *GATE), "2 passed, 2 regressed")
    again = [message for message in messages if "again" in message]
    why = "as rows were slower than the saved ones"
    assert again == [f"running 1 test again, {why}: test_gate.py::test_mul"] * len(session.PAUSES_S)


def test_failure_of_a_repetition_is_ignored(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, pauses: list[float]
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    once = "    assert not hasattr(scripted, 'ran'); scripted.ran = True\n    def mul():"
    write(pytester, **{"    def mul():": once})
    failed(run(pytester, *GATE), "2 passed, 2 regressed")


def test_many_slower_tests_run_only_once(
    pytester: pytest.Pytester,
    scripted: types.SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    pauses: list[float],
) -> None:
    monkeypatch.setattr(session, "MAX_AGAIN", 0)
    save(pytester)
    pauses.clear()
    scripted.extra_ns = 5_000
    failed(run(pytester, *GATE), "2 passed, 2 regressed")
    assert not pauses


# Thresholds of markers in the saved run

GONE = {
    "renamed": ("def test_mul", "def test_times"),
    "skipped": ("def test_mul", "@pytest.mark.skip(reason='slow')\ndef test_mul"),
    "without the fixture": ('dtdispatch.call(mul, name="mul")', "mul()"),
    "without its call": ('dtdispatch.call(mul, name="mul")', "dtdispatch.steps(mul)"),
}
HELD = '@pytest.mark.dtdispatch(threshold="30%")\n'


@pytest.mark.parametrize("how", GONE)
def test_absent_row_with_saved_marker_threshold_is_missing(pytester: pytest.Pytester, how: str) -> None:
    save(pytester, marker=HELD)
    old, new = GONE[how]
    write(pytester, HELD, **{old: new})
    result = run(pytester, *COMPARE)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text_of(result)
    assert verdict_of(result, "hit") == "missing"
    assert verdict_of(result, "hit", ADD) != "missing"


def test_removed_marker_is_judged_as_saved(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester, marker=HELD)
    write(pytester)
    scripted.extra_ns = 5_000
    failed(run(pytester, *COMPARE), "2 regressed", "2 regressed (30%)")
    assert_passed(run(pytester, *COMPARE, "--dtdispatch-fail=60%"))


@pytest.mark.parametrize(
    ("chosen", "is_missed"),
    [
        (["-k", "not mul"], False),
        (["--deselect", "test_gate.py::test_mul"], False),
        (["below"], False),
        (["test_gate.py::test_add", "test_other.py"], False),
        (["{path}"], True),
        (["test_gate.py::test_mul"], True),
    ],
)
def test_missing_row_depends_on_the_selection(
    pytester: pytest.Pytester, chosen: list[str], is_missed: bool
) -> None:
    """A row with a saved threshold is missing unless the command line deselects it."""
    save(pytester, marker=HELD)
    write(pytester, HELD + GONE["skipped"][1].partition("\n")[0])
    pytester.makepyfile(test_other="def test_other(): pass")
    pytester.mkdir("below").joinpath("test_below.py").write_text("def test_below(): pass")
    result = run(pytester, *COMPARE, *(each.format(path=pytester.path) for each in chosen))
    assert (verdict_of(result, "hit") == "missing") is is_missed
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if is_missed else pytest.ExitCode.OK), text_of(result)


@pytest.mark.parametrize("flag", ["-x", "--maxfail=1"])
def test_saved_run_that_stopped_is_refused(pytester: pytest.Pytester, flag: str) -> None:
    fails = "def test_fails(): assert False"
    write(pytester, **{"def test_mul": f"{fails}\n\ndef test_mul"})
    run(pytester, *SAVE, flag)
    write(pytester)
    failed(
        run(pytester, *GATE),
        "1 mismatched",
        "the saved run is incomplete: the run stopped after 2 of 3 tests",
    )
    assert_passed(run(pytester, *COMPARE), "not compared with the saved run: the saved run is incomplete: ")


def test_saved_run_with_failed_last_test_is_complete(pytester: pytest.Pytester) -> None:
    write(pytester)
    pytester.makepyfile(test_z="def test_fails(): assert False")
    run(pytester, *SAVE, "-x", "test_gate.py", "test_z.py")
    (pytester.path / "test_z.py").unlink()
    assert_passed(run(pytester, *GATE), "4 passed")


@pytest.mark.parametrize(
    "ini", ["testpaths = test_*.py", "testpaths = test_kept.py", "addopts = test_kept.py"]
)
def test_rows_of_a_renamed_file_are_missing(pytester: pytest.Pytester, ini: str) -> None:
    path = save(pytester)
    pytester.path.joinpath("test_gate.py").rename(pytester.path / "test_kept.py")
    pytester.makeini(f"[pytest]\n{ini}\n")
    failed(run(pytester, *GATE), "4 missing")
    named = run(pytester, *GATE, "test_kept.py")
    message = f"{path.name}: 4 new, 4 rows not selected"
    if "addopts" not in ini:
        failed(named, message)


def test_excluded_rows_are_counted(pytester: pytest.Pytester) -> None:
    save(pytester)
    assert_passed(run(pytester, *GATE, "-kmul"), "2 passed, 2 rows not selected (10%)")
    assert "not selected" not in text_of(run(pytester, *GATE))


@pytest.mark.parametrize("traced", ["base", "head"])
def test_profiler_on_one_side_is_a_mismatch(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, traced: str
) -> None:
    write(pytester)
    profiled = "import sys, scripted\nsys.setprofile(lambda *event: None)\n"
    for side, flags in (("base", SAVE), ("head", GATE)):
        pytester.makepyfile(conftest=profiled if side == traced else "")
        try:
            result = run(pytester, *flags)
        finally:
            sys.setprofile(None)
    failed(
        result,
        "4 mismatched",
        f"in {'the saved' if traced == 'base' else 'this'} run alone a tracer or profiler ran (",
    )


def test_process_of_ab_runs_no_test_again(
    pytester: pytest.Pytester,
    scripted: types.SimpleNamespace,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(pytester, marker=HELD)
    scripted.extra_ns = 5_000
    monkeypatch.setenv("DTDISPATCH_AB_OUTPUT", str(pytester.path / "answer.json"))
    pytester.makeini("[pytest]\naddopts = --benchmark-compare=0001")
    run(pytester, *MEASURED, "-ppytest_dtdispatch.plugin.ab_process")
    assert (pytester.path / "answer.json").exists()
    assert not pauses


# Different meshes and machines

KINDS = (
    IMPORTS
    + """
{marker}
def test_kinds(dtdispatch, a):
    def mul():
        return a * a

    dtdispatch.call(mul, name="mul")
    dtdispatch.scaling(lambda size: mul, (1, 2), name="sizes")
    dtdispatch.compare({"one": mul, "two": mul}, name="both")
    dtdispatch.compile(torch.ones_like, a, name="ones", backend="eager")
    dtdispatch.call(lambda: None, name="no mesh")
"""
)


def test_other_mesh_is_mismatched_even_with_any_machine(pytester: pytest.Pytester) -> None:
    then, now = (
        KINDS.replace("{marker}", f"@pytest.mark.dtdispatch(mesh='{mesh}')") for mesh in ("4", "2x4")
    )
    pytester.makepyfile(test_gate=then)
    assert run(pytester, *SAVE).ret == pytest.ExitCode.OK
    pytester.makepyfile(test_gate=now)
    gate = ("--dtdispatch-fail=5000%", "--dtdispatch-any-machine")
    result = run(pytester, *COMPARE, *gate)
    text = failed(result, "mesh: 4 then, 2x4 now", passed=1)
    for label, state in (("mul", "hit"), ("sizes[1]", "hit"), ("both[one]", "call"), ("ones", "eager")):
        assert verdict_of(result, state, label) == "mismatched"
    assert verdict_of(result, "call", "no mesh") != "mismatched"
    assert "regressed" not in text


def test_other_machine_is_mismatched_unless_allowed(pytester: pytest.Pytester) -> None:
    edit(save(pytester), lambda saved: saved["environment"].update(threads="99"))
    message = "mismatched threads: 99 then, 1 now"
    failed(run(pytester, *GATE), "1 mismatched", message, "--dtdispatch-any-machine")
    assert_passed(run(pytester, *GATE, "--dtdispatch-any-machine"), "4 passed")


# Nothing to compare


def test_gate_without_saved_run_fails_but_saves(pytester: pytest.Pytester) -> None:
    write(pytester)
    both = (*MEASURED, "--benchmark-compare", "--benchmark-autosave", "--dtdispatch-fail=10%")
    message = ("--benchmark-compare finds no saved run", "--benchmark-autosave")
    failed(run(pytester, *both), "1 missing", *message)
    assert_passed(run(pytester, *both), "4 passed")


def test_unmeasured_run_fails_disabled_gates(pytester: pytest.Pytester) -> None:
    save(pytester)
    counts = run(pytester, *GATE, "--dtdispatch-metric=counts")
    failed(counts, "disabled this run measures counts, and no times")
    failed(run(pytester, *GATE, "--benchmark-disable"), "disabled --benchmark-disable is set")
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    result = run(pytester, *COMPARE, "--benchmark-disable", passed=1, failed=1)
    assert "60% judged nothing: --benchmark-disable is set" in text_of(result)


@pytest.mark.long
@needs_plugin("xdist")
def test_xdist_run_fails_disabled_gates(pytester: pytest.Pytester) -> None:
    save(pytester)
    pytester.makepyfile(test_gate="def test_plain(): pass")
    (pytester.path / "expected.csv").write_text("gone,dispatch_hit_ns,1,0.1\n")
    others = [f"-pno:{plugin}" for plugin in OTHER_PLUGINS if plugin != "xdist"]
    result = pytester.runpytest_subprocess(*others, *GATE, "--dtdispatch-expected=expected.csv", "-n1")
    text = failed(result, "disabled pytest-xdist runs tests in parallel", passed=1)
    assert text.count("1 disabled") == 2


def test_ini_thresholds_apply_only_with_a_saved_run(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_fail = median:10%\n")
    write(pytester)
    assert_passed(run(pytester, "-k", "add"))
    assert_passed(run(pytester, *SAVE), "gate: thresholds are set, but --benchmark-compare names no saved")
    assert_passed(run(pytester, *COMPARE), "4 passed")


# User errors

MUST_NAME = "--benchmark-compare of pytest-benchmark must name"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--benchmark-compare",), "nothing is measured without --dtdispatch"),
        (("--dtdispatch",), f"{MUST_NAME} the saved run to compare with"),
        (("--dtdispatch", "-pno:benchmark"), MUST_NAME),
    ],
)
def test_gate_without_work_is_refused(
    pytester: pytest.Pytester, flags: tuple[str, ...], message: str
) -> None:
    write(pytester)
    assert_refused(run(pytester, *flags, "--dtdispatch-fail=median:10%"), "--dtdispatch-fail: ", message)


def test_torn_saved_run_is_refused(pytester: pytest.Pytester) -> None:
    path = save(pytester)
    path.write_text(path.read_text()[:-100])
    for flags in (GATE, COMPARE):  # without a flag, the saved thresholds would be lost
        assert_refused(run(pytester, *flags), f"{path} is not JSON: ")


THRESHOLD = {"type": "Threshold", "state": "", "field": "median", "fraction": 0.2}


@pytest.mark.parametrize("spoiled", [{"fraction": math.nan}, {"fraction": -5}, {"field": "no"}])
def test_invalid_saved_threshold_is_refused(pytester: pytest.Pytester, spoiled: dict[str, Any]) -> None:
    path = save(pytester)
    edit(path, lambda saved: saved.update(thresholds={"test_gate.py::test_mul": [THRESHOLD | spoiled]}))
    assert_refused(run(pytester, *COMPARE), f"{path} is not a saved run: ", "hreshold")


def test_saved_run_without_our_rows_is_refused(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtdispatch": None}))
    message = f"{path} is not a saved run: nothing in it was measured with --dtdispatch"
    result = run(pytester, *COMPARE)
    assert_passed(result, f"not compared with the saved run: {message}")
    assert "gate: " not in text_of(result)
    assert_refused(run(pytester, *GATE), message)
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    failed(run(pytester, *COMPARE), f"missing {message}")


def test_newest_run_of_this_machine_is_compared(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    empty, other, theirs = (path.with_name(f"000{n}_later.json") for n in (2, 3, 4))
    empty.touch()
    other.write_text(path.read_text())
    edit(other, lambda saved: saved["environment"].update(CPU="another"))
    theirs.write_text(json.dumps(json.loads(path.read_text()) | {"dtdispatch": None}))
    newest = (*MEASURED, "--benchmark-compare", "--dtdispatch-fail=median:10%")
    result = run(pytester, *newest)
    assert_passed(result, f"{path.name}: 4 passed")
    lines = [line for line in result.outlines if "passed over" in line]
    for line, file, reason in zip(
        lines,
        (theirs, other, empty),
        ("nothing in it was measured", "its CPU is 'another', not ", "it is empty"),
        strict=True,
    ):
        assert line.startswith(f"--benchmark-compare passed over {file}: ")
        assert reason in line
    any_machine = run(pytester, *newest, "--dtdispatch-any-machine")
    assert_passed(any_machine, f"{other.name}: 4 passed")
    path.unlink()
    failed(run(pytester, *newest), "1 missing", "--benchmark-compare finds no saved run")
    assert_refused(run(pytester, *GATE, "--benchmark-compare=0002"), f"{empty} is not JSON")


def test_several_saved_runs_are_refused(pytester: pytest.Pytester) -> None:
    save(pytester)
    assert run(pytester, *SAVE).ret == pytest.ExitCode.OK
    several = (*MEASURED, "--benchmark-compare=*base")
    assert_refused(run(pytester, *several, "--dtdispatch-fail=5%"), "names 2 saved runs")
    assert_passed(
        run(pytester, *several), "not compared with the saved run: --benchmark-compare=*base names 2"
    )
