"""Verdicts as lines of a terminal."""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.thresholds import Threshold
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.gates.baseline import StateRow
from pytest_dtdispatch.gates.saved_run import Judgement, judge_run, not_judged
from pytest_dtdispatch.report.verdicts import judgement_lines

STEADY = tuple(10_000.0 + n for n in range(20))
THRESHOLD = Threshold("", "median", 0.1)


def lines_of(judgement: Judgement, width: int = 200) -> list[str]:
    return ["".join(piece.text for piece in line) for line in judgement_lines(judgement, "base.json", width)]


def judged(factor: float, base: tuple[float, ...] = STEADY) -> Judgement:
    figures = (("min", 1e4), ("median", 1e4), ("mean", 1e4))
    then = StateRow("t.py::test_a::hit", State.HIT, base, figures)
    now = StateRow(then.name, then.state, tuple(factor * ns for ns in STEADY))
    return judge_run([then], [now], lambda row: [THRESHOLD])


def test_rows_that_passed_are_a_count() -> None:
    assert lines_of(judged(1.0)) == ["gate: passed against base.json: 1 passed"]


def test_a_row_that_did_not_has_its_figures_and_its_remedy() -> None:
    first, row, figures, remedy = lines_of(judged(1.5))
    assert first == "gate: failed against base.json: 1 regressed"
    assert row == "  regressed t.py::test_a::hit"
    assert figures.startswith("    median:10%: 10.0 us -> 15.0 us, +50.0 %, 99 % interval +")
    assert figures.endswith("(20 and 20 samples)")
    assert remedy.strip()


def test_a_run_saved_without_samples_is_named_as_one() -> None:
    assert (
        "(saved without samples, so the interval is of this run's 20 alone)" in lines_of(judged(1.5, ()))[2]
    )


def test_what_could_not_be_judged_says_why() -> None:
    assert lines_of(not_judged(Verdict.MISMATCHED, "threads: 2 then, 4 now", "save one")) == [
        "gate: failed against base.json: 1 mismatched",
        "  mismatched threads: 2 then, 4 now",
        "    save one",
    ]


def test_lines_of_figures_fit_the_width() -> None:
    assert all(len(line) <= 80 for line in lines_of(judged(1.5), width=80))


def test_no_thresholds_are_a_failure_that_says_so() -> None:
    assert lines_of(Judgement(())) == ["gate: failed against base.json: no row has a threshold"]
