"""The printed result of an A/B run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_dtdispatch.ab.report import exit_status, run_document
from pytest_dtdispatch.ab.rule import Rule
from pytest_dtdispatch.ab.run import are_in_turn, judge_runs
from pytest_dtdispatch.ab.values import Metric
from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report.run import ReportedRun, Turn
from tests.ab.fakes import counted, run_of
from tests.rendered import assert_outputs_match, lines_of
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


SAVED = [replace(run, where=f"{number}.json") for number, run in enumerate(processes())]
SKIPPED = run_of("time", absent={TEST: "skipped: no GPU"})
ALTERNATING = {
    "slower": alternating(processes(), processes(1.1)),
    "not measured in the head": alternating(processes(miss=9), processes()),
    "new": alternating(processes(), processes(miss=90_000)),
    "contaminated": alternating(processes(plain=900), processes(plain=945)),
    "skipped once": alternating(processes(), [SKIPPED, *processes()[:4]]),
    "one pair": alternating(processes()[:1], processes()[:1]),
    "two machines": [SAVED, SAVED],
}


def test_outputs_match_the_saved_text() -> None:
    judged = {name: judge_runs(*sides, Rule()) for name, sides in ALTERNATING.items()}
    counts = [counted({"t.py::test_step::a::misses_per_step": 1})]
    judged["counts"] = judge_runs(counts, counts, Rule(Metric.COUNTS, 1, 1))
    outputs = {name: "\n".join(lines_of(run_document(one), 140)) for name, one in judged.items()}
    narrow = lines_of(run_document(judged["not measured in the head"]), 80)
    outputs["not measured in the head, 80 columns"] = "\n".join(narrow)
    assert_outputs_match(Path(__file__).with_name("ab_outputs.txt"), outputs)


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
