"""The printed result of an A/B run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_dtdispatch.ab.report import exit_status, run_document
from pytest_dtdispatch.ab.rule import Rule
from pytest_dtdispatch.ab.run import are_in_turn, judge_runs
from pytest_dtdispatch.ab.values import Metric
from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report.run import ReportedRun, Turn
from tests.ab.fakes import counted, run_of
from tests.rendered import lines_of
from tests.reported_runs import measured

TEST, ADD = "t.py::test_add[4]", "add.Tensor(f32[8]S0)@4"
TIMES = (7000, 7010, 7020, 7030, 7040)


def processes(factor: float = 1.0, miss: int = 0, plain: int = 0) -> list[ReportedRun]:
    """Return runs of a hit, and if requested, of a miss and of a plain op."""
    runs = []
    for ns in TIMES:
        states = [Samples(State.HIT, (round(ns * factor),))]
        states += [Samples(State.MISS, (miss,))] if miss else []
        rows: tuple[Measurement, ...] = (measured(ADD, *states),)
        runs.append(run_of("time", measured={TEST: rows}, control={"add": plain} if plain else {}))
    return runs


def alternating(base: Sequence[ReportedRun], head: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    """Return the runs of both sides with their turns."""
    sides = []
    for first, name, runs in ((1, "v1 abc (old)", base), (2, "v2 def (new)", head)):
        turns = [Turn("x", first + 2 * number, name, 7.0) for number, _ in enumerate(runs)]
        sides.append([replace(run, turn=turn) for run, turn in zip(runs, turns, strict=True)])
    return sides


def shown(base: Sequence[ReportedRun], head: Sequence[ReportedRun], width: int = 140) -> list[str]:
    before, after = alternating(base, head)
    return lines_of(run_document(judge_runs(before, after, Rule())), width)


def test_row_of_times_has_all_columns() -> None:
    lines = shown(processes(), processes(1.1))
    versions = "CPython 3.12.3, torch 2.13.0"
    assert lines[:2] == [f"base: v1 abc (old): {versions}", f"head: v2 def (new): {versions}"]
    titles = "row state base us head us change % interval % plain % p sees % verdict"
    assert " ".join(lines[2].split()) == titles
    assert lines[3] == "t.py::test_add[4]"
    found = "add.Tensor(f32[8]S0)@4 hit 7.02 7.72 +10.0 +9.4 to +10.6 - 0.0040 7.7 regressed"
    assert " ".join(lines[4].split()) == found
    assert "10 processes in 70 s" in lines
    assert lines[-1] == "1 row: 1 regressed"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_rows_without_figures_have_dashes_and_reasons(width: int) -> None:
    lines = shown(processes(miss=9), processes(), width)
    table = lines[2 : next(i for i, line in enumerate(lines) if line.startswith("10 processes"))]
    assert all(len(line) <= max(width, 75) for line in table)
    [missing] = [line for line in table if line.endswith("missing")]
    assert " miss " in missing
    assert missing.split()[2] == ("0.01" if width == 200 else "-")  # the figure of the base is optional
    assert "the head did not measure it" in " ".join(" ".join(table).split())


def test_contamination_is_reported_once() -> None:
    lines = shown(processes(plain=900), processes(plain=945))
    assert any(line.endswith("contaminated") and "hit" in line for line in lines)
    assert sum("run again" in line for line in lines) == 1
    expected = "10 processes in 70 s; plain tensors shifted by +5.0 %, past 3 %: contaminated; run again"
    assert any(line.startswith(expected) for line in lines)


def test_new_row_has_the_figure_of_its_side() -> None:
    lines = [line.split() for line in shown(processes(), processes(miss=90_000)) if " miss " in line]
    assert [line[line.index("miss") + 1 :][:2] for line in lines] == [["-", "90.00"]]


def test_runs_of_two_machines_are_inconclusive() -> None:
    """Times of saved runs that did not alternate are not judged; counts are."""
    saved = [replace(run, where=f"{number}.json") for number, run in enumerate(processes())]
    lines = lines_of(run_document(judge_runs(saved, saved, Rule())), 140)
    assert lines[0] == "base: 0.json: CPython 3.12.3, torch 2.13.0"
    assert "the runs of base and head did not alternate on one machine: times are inconclusive" in lines
    assert lines[-1] == "1 row: 1 inconclusive"
    counts = [counted({"t.py::test_step::a::misses_per_step": 1})]
    judged = judge_runs(counts, counts, Rule(Metric.COUNTS, 1, 1))
    assert lines_of(run_document(judged), 140)[-2:] == [
        "2 samples; exact: any difference is one",
        "1 number: 1 passed",
    ]


def test_no_run_of_counts_is_ignored() -> None:
    """A side may have more runs than the other, or than runs that prove hits."""
    row = "t.py::test_step::a::misses_per_step"
    base, head = [counted({row: 1}), counted({row: 3})], [counted({row: 1})]
    proof = [run_of("time")]
    for before, after in ((base, head), ([*base, *proof], [*head, *proof])):
        judged = judge_runs(before, after, Rule(Metric.COUNTS, 1, 1))
        assert [one.verdict for one in judged.verdicts] == [Verdict.INCONCLUSIVE]
        assert [len(samples) for samples in judged.sides.values()] == [2, 1]


def test_row_absent_from_some_processes_has_a_reason() -> None:
    skipped = run_of("time", absent={TEST: "skipped: no GPU"})
    notes = [line.strip() for line in shown(processes(), [skipped, *processes()[:4]])]
    assert f"in head: {TEST}: skipped: no GPU" in notes
    base, head = alternating(processes(), [run_of("time"), *processes()[:4]])
    judged = judge_runs(base, head, Rule())
    [one] = judged.verdicts
    assert (one.verdict, one.change) == (Verdict.INCONCLUSIVE, None)
    assert one.remedy == "measured in 5 of 5 and 4 of 5 processes"


def test_runs_of_one_ab_run_are_in_turn() -> None:
    base, head = alternating(processes(), processes())
    assert are_in_turn(base, head)
    assert are_in_turn(base, head[:-1])
    others = [replace(run, turn=replace(run.turn, ab_run="y")) for run in head if run.turn]
    assert not are_in_turn(base, others)
    assert not are_in_turn(base, [*head, *processes()])
    assert not are_in_turn(processes(), processes())


def test_other_machine_contaminates_no_row() -> None:
    """Plain tensors are slower on the other machine, which says nothing about the head."""
    judged = judge_runs(processes(plain=900), processes(plain=1800), Rule())
    assert [one.verdict for one in judged.verdicts] == [Verdict.INCONCLUSIVE]
    assert exit_status(judged) == 3


def test_interval_without_ends_is_not_a_number() -> None:
    lines = shown(processes()[:1], processes()[:1])
    assert " - " in lines[4]
    assert "to" not in lines[4]
