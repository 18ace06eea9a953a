"""Every kind of result and of name passes through files and gates under every selection of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_dtdispatch.comparing.model import CallCounts, ComparedVariant
from pytest_dtdispatch.compiled.model import CompileCounts, CompiledFunction
from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.measurement import Contains, Measurement, Samples, State
from pytest_dtdispatch.core.results import Finding, row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.store import ResultStore, TestRecord
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.gates.expected import parse_expected, results_text
from pytest_dtdispatch.gates.selection import Selection
from pytest_dtdispatch.plugin.finish import collect
from pytest_dtdispatch.plugin.gates import Gates
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.report.run import Baseline, ReportedRun
from pytest_dtdispatch.steps.events import Redistribution, by_cause
from pytest_dtdispatch.steps.model import StepCounts, Steps
from tests.reported_runs import HITS, MISSES, measured

pytestmark = pytest.mark.torch

TESTS = ("t.py::test_a", "t.py::test_a[x::y]", "t.py::TestA::test_b[::]", "t.py::test_c[ two\nlines ]")
LABELS = ("add", "block::add", "a::b::hit", "a,b")
TIMES = (Samples(State.MISS, MISSES), Samples(State.HIT, HITS))
COMPILED = (Samples(State.COMPILE_COLD, MISSES), Samples(State.CALL, HITS))
KEYS = frozenset(map(row_key, TESTS))


def selections(test: str) -> dict[str, tuple[Selection, bool]]:
    """Return command-line selections by name, and whether each contains the test."""
    key = row_key(test)
    return {
        "everything": (Selection(tests=KEYS), True),
        "its file": (Selection(("t.py::",), tests=KEYS), True),
        "the test": (Selection((f"{key}::",), tests=KEYS), True),
        "another file": (Selection(("u.py::",), tests=KEYS), False),
        "deselected": (Selection(deselected={key}, tests=KEYS), False),
    }


def results(label: str) -> dict[str, Finding | Measurement]:
    compiled = measured(label, *COMPILED, contains=Contains.COMPILED)
    compared = measured(label, Samples(State.CALL, HITS), contains=Contains.COMPARED)
    return {
        "measured": measured(label, *TIMES, contains=Contains.END_TO_END),
        "steps": Steps(label, (), (StepCounts(hits=3), StepCounts(hits=3))),
        "compiled": CompiledFunction(label, "inductor", CompileCounts(1, (), 2, ()), compiled),
        "compared": ComparedVariant(label, "plain", "mlp", compared, CallCounts(1, 2, 3, 4)),
    }


def run_of(test: str, *found: Finding | Measurement) -> tuple[ReportedRun, dict[str, TestRecord]]:
    store = ResultStore(test)
    for one in found:
        if isinstance(one, Measurement):
            store.enter_call(one.label, one.mesh, one.figures)
        else:
            store.add(one)
    records = {test: store.freeze(KINDS)}
    return replace(collect(records, Settings()), started="2026-01-01T00:00:00"), records


@pytest.mark.parametrize("kind", results(""))
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("test", TESTS)
def test_expected_file_of_a_run_judges_it(test: str, label: str, kind: str) -> None:
    run, records = run_of(test, results(label)[kind])
    numbers = run.metrics()
    assert {number.row for number in numbers} == {RowId(test, label)}
    text = "".join(f"{row},0\n" for row in results_text(numbers).splitlines())
    expected = parse_expected(text, "expected.csv", metric_names())
    gates = Gates(Settings(), expected=[expected])
    for name, (selection, is_selected) in selections(test).items():
        [judged] = gates.judge(run, records, selection).gates
        found = {row.verdict for row in judged.verdicts if row.verdict is not Verdict.NEW}
        assert found == ({Verdict.PASSED} if is_selected else set()), name
        [without] = gates.judge(run_of(test)[0], {}, selection).gates
        rows = [(row.row, row.verdict) for row in without.verdicts]
        lost = [(RowId(row_key(test), label), Verdict.MISSING)] * len(numbers)
        assert rows == (lost if is_selected else []), name


@pytest.mark.parametrize(("branch", "base"), [("", "main"), ("v2", "origin/v2")])
def test_count_above_its_limit_has_causes_and_a_command(
    branch: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_BASE_REF", branch)
    lines = [CodePlace("layers.py", line) for line in (6, 7, 7)]
    moves = [Redistribution("add", "f32[8]", ("S0",), ("R",), 32, place=line) for line in lines]
    run, records = run_of(TESTS[0], Steps("train", (), (StepCounts(events=tuple(moves)),)))
    text = f"{TESTS[0]}::train,redistributes,1,max\n{TESTS[0]}::train,collectives,1,max\n"
    expected = parse_expected(text, "limits.csv", metric_names())
    [gate] = Gates(Settings(), expected=[expected]).judge(run, records, Selection(tests=KEYS)).gates
    [over] = gate.failed
    assert over.lines == ("layers.py:7", "layers.py:6")
    assert len(over.details) == 2
    assert gate.command == "dtdispatch expected update limits.csv --results RESULTS.csv --limits"
    ab = f"dtdispatch ab --metric counts --base-rev {base} --head-rev HEAD -- {TESTS[0]}"
    assert gate.remarks == (f"what changed since the base: {ab}",)


def causes_of_failed_counts(then: Sequence[Redistribution], now: Sequence[Redistribution]) -> Sequence[str]:
    """Return the remarks of a gate on causes of more than two redistributions since a saved run."""
    base, _ = run_of(TESTS[0], Steps("train", (), (StepCounts(events=tuple(then)),)))
    run, records = run_of(TESTS[0], Steps("train", (), (StepCounts(events=tuple(now)),)))
    expected = parse_expected(f"{TESTS[0]}::train,redistributes,2,max\n", "limits.csv", metric_names())
    gates = Gates(Settings(), baseline=Baseline(replace(base, where="base.json")), expected=[expected])
    [gate] = gates.judge(run, records, Selection(tests=KEYS)).gates
    return gate.remarks[:-1]


def test_failed_count_names_causes_that_a_saved_run_lacks() -> None:
    saved = [Redistribution("add", "f32[8]", ("S0",), ("R",), 32, place=CodePlace("layers.py", 6))] * 2
    moved = [replace(one, place=CodePlace("layers.py", 7)) for one in saved]  # by a line added above
    added = Redistribution("mul", "f32[8]", ("S0",), ("R",), 32, place=CodePlace("layers.py", 5))
    new = by_cause([[added]]) + by_cause([[moved[0]]])
    found = causes_of_failed_counts(saved, (added, *moved, moved[0]))
    assert found == tuple(f"not in base.json: {cause}" for cause in new)
    many = [replace(added, op=f"op{number}") for number in range(7)]
    assert causes_of_failed_counts(saved, many)[5:] == ("and 2 more",)
    assert causes_of_failed_counts(many, many) == ()


def test_time_above_its_value_has_no_command_for_counts() -> None:
    run, records = run_of(TESTS[0], results("add")["measured"])
    text = "".join(f"{row.rpartition(',')[0]},1,0\n" for row in results_text(run.metrics()).splitlines())
    expected = parse_expected(text, "expected.csv", metric_names())
    [gate] = Gates(Settings(), expected=[expected]).judge(run, records, Selection(tests=KEYS)).gates
    assert {row.verdict for row in gate.failed} == {Verdict.REGRESSED}
    assert gate.remarks == ()
