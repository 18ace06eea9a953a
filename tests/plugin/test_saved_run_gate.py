"""Comparison with a saved run, from flags to exit status, with a scripted clock."""

from __future__ import annotations

import json
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
    Judged,
    assert_gate_failed,
    assert_refused,
    failed,
    import_compilers,
    judged,
    passed,
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
TWO = {"passed": 2, "regressed": 2}


def reason(ran: Judged) -> str:
    """Return why no row was compared."""
    [gate] = ran.run.gates
    [whole] = gate.verdicts
    assert whole.row.test == ""
    return f"{whole.row.label}; {whole.remedy}"


def uncompared(ran: Judged) -> str:
    """Return why a run that passed was not compared with the saved run."""
    assert (ran.result.ret, ran.run.gates) == (pytest.ExitCode.OK, ())
    return ran.run.uncompared


def test_median_that_grew_alone_is_inconclusive(pytester: pytest.Pytester) -> None:
    save(pytester)
    write(pytester, **BURSTS)
    passed(judged(pytester, *GATE), passed=4)
    moved = passed(judged(pytester, *OF_MEDIANS), passed=2, inconclusive=2)
    assert moved.compared("mul") == moved.compared("mul", "miss") == "inconclusive"
    assert " 2 passed, 2 inconclusive in " in moved.result.outlines[-1]
    strict = judged(pytester, *COMPARE, "--dtdispatch-fail=median:10%,strict")
    failed(strict, passed=2, inconclusive=2)
    assert " 2 passed, 1 gate failed, 2 inconclusive in " in strict.result.outlines[-1]


def test_noisy_row_is_marked_and_judged(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "NOISY", NOISY)
    save(pytester)
    every_other_pass = "import itertools, scripted\nextra = itertools.cycle([0] * 16 + [5_000] * 16)"
    write(pytester, **{"import scripted": every_other_pass, "wait(scripted.extra_ns)": "wait(next(extra))"})
    noisy = passed(judged(pytester, *GATE), passed=4)
    assert [row.label for row in noisy.run.rows() if row.noisy] == ["mul"]
    assert {row.proof for row in noisy.run.rows()} == {"proved"}


# Verdicts


def test_unchanged_run_passes_and_shows_drift(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    [gate] = passed(judged(pytester, *GATE), passed=4).run.gates
    assert Path(gate.where).name == path.name
    assert gate.remarks == ("the op on plain tensors shifted by +0.0 % (median of 1 rows)",)
    edit(path, lambda saved: saved.update(started="2026-07-31T09:30:15+00:00"))
    scripted.extra_ns = 500
    ran = passed(judged(pytester, *GATE), passed=4)
    ran.result.stdout.fnmatch_lines(["  drift of 4 passed rows since 2026-07-31: median +2.5 %"])


def test_row_slower_by_half_is_named(pytester: pytest.Pytester, scripted: types.SimpleNamespace) -> None:
    """A row that a test slows down by half fails and is named in the output."""
    save(pytester)
    scripted.extra_ns = 5_000
    beside = "--benchmark-compare-fail=median:{}"  # the gate of pytest-benchmark
    ran = failed(judged(pytester, *GATE, beside.format("90%")), **TWO)
    assert ", 10.0 -> 15.0 us (+50.0 %), regressed" in text_of(ran.result)
    assert ran.compared("mul") == ran.compared("mul", "miss") == "regressed"
    assert ran.compared(ADD) == "passed"
    theirs = judged(pytester, *GATE, beside.format("10%"))
    assert theirs.result.ret != pytest.ExitCode.OK
    assert "test_mul::mul::miss (0001_" in text_of(theirs.result).partition("Performance has regressed:")[2]
    assert theirs.compared("mul") == "regressed"
    of_states = ("--dtdispatch-fail=hit=median:7.5%", "--dtdispatch-fail=miss=median:75%")
    ran = failed(judged(pytester, *COMPARE, *of_states), passed=3, regressed=1)
    assert (ran.compared("mul"), ran.compared("mul", "miss")) == ("regressed", "passed")
    # A marker's threshold takes precedence for its test.
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    passed(judged(pytester, *GATE), passed=4)
    write(pytester, marker='@pytest.mark.dtdispatch(threshold=["hit=40%", "median:60%"])')
    failed(judged(pytester, *COMPARE), passed=2, regressed=1)


def test_comparison_without_threshold_never_fails(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    scripted.extra_ns = 5_000
    ran = judged(pytester, *COMPARE)
    assert uncompared(ran) == ""
    assert (ran.compared("mul"), ran.compared(ADD)) == ("regressed", "passed")
    assert not any(each.criterion for each in ran.run.compared)
    assert " benchmark 'dtdispatch" not in text_of(ran.result), "tables of pytest-benchmark need its flags"
    edit(path, lambda saved: saved["environment"].update(threads="99"))
    assert uncompared(judged(pytester, *COMPARE)) == "threads: 99 then, 1 now"


# Tests that run again


def test_temporary_slowdown_is_not_saved(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = json.loads(save(pytester).read_text())["benchmarks"]
    scripted.extra_ns = 5_000
    monkeypatch.setattr(session, "pause", lambda seconds: setattr(scripted, "extra_ns", 0))
    assert "2 tests ran again, as the run is saved" in text_of(run(pytester, *SAVE, passed=2))
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
    run(pytester, *flags, passed=2)
    assert scripted.runs == expected


def test_temporary_slowdown_fails_no_run(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    monkeypatch.setattr(session, "pause", lambda seconds: setattr(scripted, "extra_ns", 0))
    ran = passed(judged(pytester, *GATE, passed=2), passed=4)
    assert "1 test ran again" in text_of(ran.result)


def test_slower_test_runs_again_three_times(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, pauses: list[float]
) -> None:
    save(pytester)
    pauses.clear()
    scripted.extra_ns = 5_000
    scripted.runs = 0
    write(pytester, **{"    def mul():": "    scripted.runs += 1\n    def mul():"})
    messages: list[str] = []
    with progress_to(messages.append):
        failed(judged(pytester, *GATE), **TWO)
    assert (scripted.runs, tuple(pauses)) == (4, session.PAUSES_S)
    why = "as rows were slower than the saved ones"
    again = [message for message in messages if "again" in message]
    assert again == [f"running 1 test again, {why}: test_gate.py::test_mul"] * len(session.PAUSES_S)


def test_failure_of_a_repetition_is_ignored(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, pauses: list[float]
) -> None:
    save(pytester)
    scripted.extra_ns = 5_000
    once = "    assert not hasattr(scripted, 'ran'); scripted.ran = True\n    def mul():"
    write(pytester, **{"    def mul():": once})
    failed(judged(pytester, *GATE), **TWO)


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
    failed(judged(pytester, *GATE), **TWO)
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
    write(pytester, HELD, **dict([GONE[how]]))
    ran = judged(pytester, *COMPARE)
    assert ran.result.ret == pytest.ExitCode.TESTS_FAILED
    assert "missing" in {str(row.verdict) for row in ran.run.compared if row.row.label == "mul"}
    assert ran.compared(ADD) == "passed"


def test_removed_marker_is_judged_as_saved(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    save(pytester, marker=HELD)
    write(pytester)
    scripted.extra_ns = 5_000
    [gate] = failed(judged(pytester, *COMPARE), regressed=2).run.gates
    assert {row.criterion for row in gate.verdicts} == {"30%"}
    passed(judged(pytester, *COMPARE, "--dtdispatch-fail=60%"), passed=4)


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
    ran = judged(pytester, *COMPARE, *(each.format(path=pytester.path) for each in chosen))
    assert (ran.compared("mul") == "missing") is is_missed
    assert ran.result.ret == (pytest.ExitCode.TESTS_FAILED if is_missed else pytest.ExitCode.OK)


@pytest.mark.parametrize("flag", ["-x", "--maxfail=1"])
def test_saved_run_that_stopped_is_refused(pytester: pytest.Pytester, flag: str) -> None:
    fails = "def test_fails(): assert False"
    write(pytester, **{"def test_mul": f"{fails}\n\ndef test_mul"})
    run(pytester, *SAVE, flag)
    write(pytester)
    why = "the saved run is incomplete: the run stopped after 2 of 3 tests"
    assert reason(failed(judged(pytester, *GATE), mismatched=1)).startswith(why)
    assert uncompared(judged(pytester, *COMPARE)) == why


def test_saved_run_with_failed_last_test_is_complete(pytester: pytest.Pytester) -> None:
    write(pytester)
    pytester.makepyfile(test_z="def test_fails(): assert False")
    run(pytester, *SAVE, "-x", "test_gate.py", "test_z.py")
    (pytester.path / "test_z.py").unlink()
    passed(judged(pytester, *GATE), passed=4)


@pytest.mark.parametrize(
    "ini", ["testpaths = test_*.py", "testpaths = test_kept.py", "addopts = test_kept.py"]
)
def test_rows_of_a_renamed_file_are_missing(pytester: pytest.Pytester, ini: str) -> None:
    save(pytester)
    pytester.path.joinpath("test_gate.py").rename(pytester.path / "test_kept.py")
    pytester.makeini(f"[pytest]\n{ini}\n")
    failed(judged(pytester, *GATE), missing=4, new=4)
    if "addopts" not in ini:
        [gate] = failed(judged(pytester, *GATE, "test_kept.py"), new=4).run.gates
        assert gate.excluded == 4


@pytest.mark.parametrize("traced", ["base", "head"])
def test_profiler_on_one_side_is_a_mismatch(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, traced: str
) -> None:
    write(pytester)
    profiled = "import sys, scripted\nsys.setprofile(lambda *event: None)\n"
    for side, flags in (("base", SAVE), ("head", GATE)):
        pytester.makepyfile(conftest=profiled if side == traced else "")
        try:
            ran = judged(pytester, *flags)
        finally:
            sys.setprofile(None)
    never = traced == "base"  # also a verdict on the whole run: no later run can be judged against it
    [gate] = failed(ran, mismatched=4 + never).run.gates
    why = f"in {'the saved' if never else 'this'} run alone a tracer or profiler ran ("
    assert [why in row.remedy for row in gate.verdicts] == [True] * 4 + [False] * never


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
    ran = judged(pytester, *COMPARE, "--dtdispatch-fail=5000%", "--dtdispatch-any-machine")
    assert_gate_failed(ran.result, "mesh: 4 then, 2x4 now", passed=1)
    for label, state in (("mul", "hit"), ("sizes[1]", "hit"), ("both[one]", "call"), ("ones", "eager")):
        assert ran.compared(label, state) == "mismatched"
    assert ran.compared("no mesh", "call") not in ("mismatched", "regressed")


def test_other_machine_is_mismatched_unless_allowed(pytester: pytest.Pytester) -> None:
    edit(save(pytester), lambda saved: saved["environment"].update(threads="99"))
    why = reason(failed(judged(pytester, *GATE), mismatched=1))
    assert why.startswith("threads: 99 then, 1 now; ")
    assert "--dtdispatch-any-machine" in why
    passed(judged(pytester, *GATE, "--dtdispatch-any-machine"), passed=4)


# Nothing to compare


def test_gate_without_saved_run_fails_but_saves(pytester: pytest.Pytester) -> None:
    write(pytester)
    both = (*MEASURED, "--benchmark-compare", "--benchmark-autosave", "--dtdispatch-fail=10%")
    why = reason(failed(judged(pytester, *both), missing=1))
    assert why.startswith("--benchmark-compare finds no saved run")
    assert "--benchmark-autosave" in why
    passed(judged(pytester, *both), passed=4)


def test_unmeasured_run_fails_disabled_gates(pytester: pytest.Pytester) -> None:
    save(pytester)
    counts = failed(judged(pytester, *GATE, "--dtdispatch-metric=counts"), disabled=1)
    assert reason(counts).startswith("this run measures counts, and no times")
    disabled = failed(judged(pytester, *GATE, "--benchmark-disable"), disabled=1)
    assert reason(disabled).startswith("--benchmark-disable is set")
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    ran = run(pytester, *COMPARE, "--benchmark-disable", passed=1, failed=1)
    assert "60% judged nothing: --benchmark-disable is set" in text_of(ran)


@pytest.mark.long
@needs_plugin("xdist")
def test_xdist_run_fails_disabled_gates(pytester: pytest.Pytester) -> None:
    save(pytester)
    pytester.makepyfile(test_gate="def test_plain(): pass")
    (pytester.path / "expected.csv").write_text("gone,dispatch_hit_ns,1,0.1\n")
    others = [f"-pno:{plugin}" for plugin in OTHER_PLUGINS if plugin != "xdist"]
    result = pytester.runpytest_subprocess(*others, *GATE, "--dtdispatch-expected=expected.csv", "-n1")
    text = assert_gate_failed(result, "disabled pytest-xdist runs tests in parallel", passed=1)
    assert text.count("1 disabled") == 2


def test_ini_thresholds_apply_only_with_a_saved_run(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_fail = median:10%\n")
    write(pytester)
    assert run(pytester, "-k", "add").ret == pytest.ExitCode.OK
    ran = judged(pytester, *SAVE)
    assert (ran.result.ret, ran.run.gates) == (pytest.ExitCode.OK, ())
    assert "gate: thresholds are set, but --benchmark-compare names no saved" in text_of(ran.result)
    passed(judged(pytester, *COMPARE), passed=4)


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


def test_saved_run_without_our_rows_is_refused(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace
) -> None:
    path = save(pytester)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtdispatch": None}))
    message = f"{path} is not a saved run: nothing in it was measured with --dtdispatch"
    assert uncompared(judged(pytester, *COMPARE)) == message
    assert_refused(run(pytester, *GATE), message)
    write(pytester, marker='@pytest.mark.dtdispatch(threshold="60%")')
    assert reason(failed(judged(pytester, *COMPARE), missing=1)).startswith(message)


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
    ran = passed(judged(pytester, *newest), passed=4)
    assert Path(ran.run.gates[0].where).name == path.name
    lines = [line for line in ran.result.outlines if "passed over" in line]
    whys = ("nothing in it was measured", "its CPU is 'another', not ", "it is empty")
    for line, file, why in zip(lines, (theirs, other, empty), whys, strict=True):
        assert line.startswith(f"--benchmark-compare passed over {file}: ")
        assert why in line
    ran = passed(judged(pytester, *newest, "--dtdispatch-any-machine"), passed=4)
    assert Path(ran.run.gates[0].where).name == other.name
    path.unlink()
    assert reason(failed(judged(pytester, *newest), missing=1)).startswith(
        "--benchmark-compare finds no saved"
    )
    assert_refused(run(pytester, *GATE, "--benchmark-compare=0002"), f"{empty} is not JSON")


def test_several_saved_runs_are_refused(pytester: pytest.Pytester) -> None:
    save(pytester)
    assert run(pytester, *SAVE).ret == pytest.ExitCode.OK
    several = (*MEASURED, "--benchmark-compare=*base")
    assert_refused(run(pytester, *several, "--dtdispatch-fail=5%"), "names 2 saved runs")
    assert uncompared(judged(pytester, *several)).startswith("--benchmark-compare=*base names 2")
