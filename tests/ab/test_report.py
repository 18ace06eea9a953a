"""The printed result of an A/B run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_dtdispatch.ab.report import exit_status, judgement_of, pasted_text, run_document
from pytest_dtdispatch.ab.rule import Rule
from pytest_dtdispatch.ab.run import are_in_turn, judge_runs
from pytest_dtdispatch.ab.values import Metric
from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report.run import ReportedRun, Turn
from pytest_dtdispatch.steps.events import Collective, Redistribution
from pytest_dtdispatch.steps.model import StepCounts
from tests.ab.fakes import counted, missing, run_of
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


OLD = ["add@4, at a.py:1", "mm@4, at a.py:2", "neg@4, at a.py:3"]
NEW = ["add@4, at a.py:4", "relu@4, at a.py:5", "mm@4 (2x), at a.py:6, a.py:7", "neg@4, at a.py:8"]
AT = CodePlace("layers.py", 31)
MOVED = Redistribution("redistribute", "f32[8]", ("S0",), ("R",), 512, place=AT)
WITH_MOVE = StepCounts(events=(*missing(31).steps[0].events, MOVED, Collective("all_gather", 512, place=AT)))
HOSTILE = "t.py::test_a[<b>|`x`]::a|`b`<script>@c&d\\|e::misses_per_step"
# Runs of counts of both sides, by name.
COUNTS = {
    "equal counts": (counted({"t.py::test::a::misses_per_step": 1}),) * 2,
    "new items after many": (counted({}, missing(*range(30))), counted({}, missing(*range(37)))),
    "new and moved calls": (counted({}, missing(called=OLD)), counted({}, missing(called=NEW))),
    "redistribution with its collective": (
        counted({}, missing()),
        counted({}, replace(missing(), steps=(WITH_MOVE,))),
    ),
    "hostile name": (counted({HOSTILE: 0}), counted({HOSTILE: 2_000_000, "t.py::test::b::n_per_step": 3})),
}
RULE_OF_COUNTS = Rule(Metric.COUNTS, 1, 1)


def test_outputs_match_the_saved_text() -> None:
    judged = {name: judge_runs(old, new, Rule()) for name, (old, new) in ALTERNATING.items()}
    judged |= {name: judge_runs([old], [new], RULE_OF_COUNTS) for name, (old, new) in COUNTS.items()}
    outputs = {name: "\n".join(lines_of(run_document(one), 140)) for name, one in judged.items()}
    narrow = lines_of(run_document(judged["not measured in the head"]), 80)
    outputs["not measured in the head, 80 columns"] = "\n".join(narrow)
    for name in ("slower", "not measured in the head", "hostile name", "new items after many"):
        outputs[f"{name}, Markdown"] = pasted_text(judged[name])
    assert_outputs_match(Path(__file__).with_name("ab_outputs.txt"), outputs)


def test_new_call_changes_but_does_not_fail() -> None:
    """A call that moved to another line is not new; a second call of the same signature is."""
    old, new = COUNTS["new and moved calls"]
    judged = judge_runs([old], [new], RULE_OF_COUNTS)
    assert exit_status(judged) == exit_status(judge_runs([new], [old], RULE_OF_COUNTS)) == 0
    found = {one.row.state: one.verdict for one in judged.verdicts}
    assert found.pop("calls_per_step") is Verdict.CHANGED
    assert {*found.values()} == {Verdict.PASSED}


def test_redistribution_is_annotated_once() -> None:
    """Redistributions and collectives at the same lines have one cause, but not misses."""
    old, new = COUNTS["redistribution with its collective"]
    failed = judgement_of(judge_runs([old], [new], RULE_OF_COUNTS)).failed
    assert [one.row.state for one in failed] == ["misses_per_step", "redistributes_per_step"]


def test_line_that_moved_did_not_cause_a_regression() -> None:
    added, moved = replace(MOVED, tensor="f32[16]"), replace(MOVED, place=replace(AT, line=32))
    gathered = Collective("all_gather", 512, place=AT)
    old, new = (
        counted({}, replace(missing(), steps=(StepCounts(events=events),)))
        for events in ((MOVED,), (added, gathered, moved))
    )
    [failed] = judgement_of(judge_runs([old], [new], RULE_OF_COUNTS)).failed
    assert (failed.row.state, failed.lines) == ("redistributes_per_step", ("layers.py:31",))


def test_no_run_of_counts_is_ignored() -> None:
    """A side may have more runs than the other, or than runs that prove hits."""
    row = "t.py::test_step::a::misses_per_step"
    base, head = [counted({row: 1}), counted({row: 3})], [counted({row: 1})]
    proof = [run_of("time")]
    for before, after in ((base, head), ([*base, *proof], [*head, *proof])):
        judged = judge_runs(before, after, Rule(Metric.COUNTS, 1, 1))
        assert [one.verdict for one in judged.verdicts] == [Verdict.INCONCLUSIVE]
        assert [len(samples) for samples in judged.sides.values()] == [2, 1]


def test_process_without_a_partner_is_left_out() -> None:
    base, head = alternating(processes(), processes(1.2))
    judged = judge_runs([*base, replace(base[-1], control={"add": 5})], head, Rule())
    assert judged == judge_runs(base, head, Rule())


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
