"""A run against a saved one: what is said of each row."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.thresholds import Threshold
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.gates.baseline import StateRow
from pytest_dtdispatch.gates.saved_run import MIN_SAMPLES, MOST_SAMPLES, Judgement, judge_run, not_judged

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=20)

TEN = Threshold("", "median", 0.1)
STEADY = tuple(1000.0 + 7 * n % 20 for n in range(20))


def row(name: str = "hit", factor: float = 1.0, count: int = 20) -> StateRow:
    ns = tuple(factor * STEADY[n % 20] for n in range(count))
    return StateRow(f"t.py::test_a::{name}", State(name.split()[0]), ns)


def judge(base: Iterable[StateRow], head: Iterable[StateRow], *thresholds: Threshold) -> Judgement:
    return judge_run(list(base), list(head), lambda _: thresholds or (TEN,))


def verdicts_of(judgement: Judgement) -> list[str]:
    return [str(row.verdict) for row in judgement.verdicts]


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.0, "passed"),
        (1.05, "passed"),
        (1.1, "inconclusive"),
        (1.15, "regressed"),
        (1.5, "regressed"),
        (0.95, "passed"),
        (0.5, "improved"),
    ],
)
def test_a_row_is_judged_by_its_whole_interval(factor: float, verdict: str) -> None:
    judgement = judge([row()], [row(factor=factor)])
    assert verdicts_of(judgement) == [verdict]
    figures = dict(judgement.verdicts[0].figures)
    assert figures["ratio"] == pytest.approx(factor)
    assert figures["ratio_low"] <= figures["ratio"] <= figures["ratio_high"]
    assert judgement.verdicts[0].criterion == "median:10%"
    assert bool(judgement.verdicts[0].remedy) == (verdict != "passed")


@pytest.mark.parametrize("field", ["min", "q1", "median", "q3", "mean"])
def test_every_field_sees_a_slow_down(field: str) -> None:
    threshold = Threshold("", field, 0.1)
    assert verdicts_of(judge([row()], [row()], threshold)) == ["passed"]
    assert verdicts_of(judge([row()], [row(factor=1.5)], threshold)) == ["regressed"]


@unhurried
@given(st.lists(st.integers(1, 10**6).map(float), min_size=MIN_SAMPLES, max_size=40))
def test_a_run_against_itself_never_regresses_nor_improves(ns: list[float]) -> None:
    same = StateRow("t.py::test_a::hit", State.HIT, tuple(ns))
    [verdict] = verdicts_of(judge([same], [same]))
    assert verdict in ("passed", "inconclusive")


def test_each_threshold_of_a_row_is_judged() -> None:
    judgement = judge([row()], [row(factor=1.5)], TEN, Threshold("", "min", 1.0))
    assert verdicts_of(judgement) == ["regressed", "passed"]


def test_rows_on_one_side_only_are_new_and_missing() -> None:
    judgement = judge([row(), row("miss")], [row(), row("call")])
    assert verdicts_of(judgement) == ["passed", "new", "missing"]
    assert judgement.has_failed
    assert not judge([row()], [row(), row("call")]).has_failed


def test_rows_without_a_threshold_and_control_rows_are_not_judged() -> None:
    judgement = judge_run([row(), row("local")], [row(), row("local")], lambda _: ())
    assert judgement.verdicts == ()
    assert judgement.has_failed  # nothing compared never passes
    assert verdicts_of(judge([row("local")], [row("local")])) == []


@pytest.mark.parametrize("factor", [1.5, 1.04, 0.9])
def test_a_row_past_its_threshold_beside_a_shifted_control_is_no_regression(factor: float) -> None:
    base = [row(), row("miss"), row("local"), row("cold")]
    head = [row(), row("miss", factor=1.5), row("local", factor=factor), row("call")]
    judgement = judge(base, head)
    assert verdicts_of(judgement) == ["passed", "contaminated", "new", "missing"]
    assert judgement.control_shift == pytest.approx(factor - 1)
    assert judgement.has_failed


def test_a_gain_beside_a_shifted_control_is_doubted() -> None:
    judgement = judge([row(), row("local")], [row(factor=0.5), row("local", factor=0.5)])
    assert verdicts_of(judgement) == ["improved"]
    assert "it may have been the machine" in judgement.verdicts[0].remedy
    assert not judgement.has_failed


def test_one_control_row_of_several_does_not_spoil_a_run() -> None:
    names = ["local a", "local b", "local c"]
    base = [row(), *(StateRow(f"{name}::local", State.LOCAL, STEADY) for name in names)]
    head = [row(), *(StateRow(f"{name}::local", State.LOCAL, STEADY) for name in names[:2]), row("local")]
    head[-1] = StateRow("local c::local", State.LOCAL, tuple(3 * ns for ns in STEADY))
    judgement = judge(base, head)
    assert verdicts_of(judgement) == ["passed"]
    assert judgement.control_shift == pytest.approx(0)
    assert judgement.controls == 3


def test_without_control_rows_the_shift_is_not_known() -> None:
    assert judge([row()], [row()]).control_shift is None


@pytest.mark.parametrize(("base", "head"), [(2, 20), (20, 2), (MIN_SAMPLES - 1, 200)])
def test_too_few_samples_are_inconclusive_and_a_run_of_them_fails(base: int, head: int) -> None:
    judgement = judge([row(count=base)], [row(count=head, factor=2.0)])
    assert verdicts_of(judgement) == ["inconclusive"]
    assert "samples" in judgement.verdicts[0].remedy
    assert judgement.has_failed
    others = judge([row(count=base), row("miss")], [row(count=head), row("miss")])
    assert not others.has_failed


def test_a_saved_run_without_samples_is_compared_by_its_figures() -> None:
    saved = StateRow(row().name, State.HIT, (), (("min", 1000.0), ("median", 1010.0), ("mean", 1010.0)))
    assert verdicts_of(judge([saved], [row()])) == ["passed"]
    judgement = judge([saved], [row(factor=1.5)])
    assert verdicts_of(judgement) == ["regressed"]
    assert dict(judgement.verdicts[0].figures)["base_samples"] == 0
    quartile = judge([saved], [row()], Threshold("", "q1", 0.1))
    assert verdicts_of(quartile) == ["inconclusive"]
    assert "--benchmark-save-data" in quartile.verdicts[0].remedy


def test_a_threshold_under_what_the_run_could_resolve_is_named_the_worst_first() -> None:
    wild = StateRow("t.py::test_a::miss", State.MISS, tuple(1000.0 + 90 * (7 * n % 20) for n in range(20)))
    judgement = judge([row(), wild], [row(), wild])
    [unresolved] = judgement.unresolved
    assert unresolved.row == wild.name
    assert dict(unresolved.figures)["resolution_percent"] > 10


def test_many_samples_are_judged_in_seconds() -> None:
    many = StateRow(
        "t.py::test_a::hit", State.HIT, tuple(1000.0 + math.sin(n) for n in range(50 * MOST_SAMPLES))
    )
    slower = StateRow(many.name, many.state, tuple(1.5 * ns for ns in many.ns))
    judgement = judge([many], [slower])
    assert verdicts_of(judgement) == ["regressed"]
    assert dict(judgement.verdicts[0].figures)["head_samples"] == len(many.ns)


@pytest.mark.parametrize("verdict", [Verdict.DISABLED, Verdict.MISMATCHED, Verdict.MISSING])
def test_what_could_not_be_judged_at_all_fails(verdict: Verdict) -> None:
    assert not_judged(verdict, "why").has_failed


@pytest.mark.parametrize(
    ("state", "flag"),
    [
        ("hit", "--dtdispatch-rounds or --dtdispatch-max-time"),
        ("compile-cold", "--dtdispatch-compile-rounds"),
    ],
)
def test_a_row_with_too_few_samples_names_the_flag_that_gives_it_more(state: str, flag: str) -> None:
    judgement = judge([row(state)], [row(state, count=MIN_SAMPLES - 1)])
    assert verdicts_of(judgement) == ["inconclusive"]
    assert f"raise {flag}, in the saved run too" in judgement.verdicts[0].remedy
