"""How far rows that passed have moved, taken together."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.core.verdicts import Drift, RowVerdict, Verdict
from pytest_dtdispatch.gates.drifts import Drifts, drifts_of
from pytest_dtdispatch.gates.expected import judge_results
from pytest_dtdispatch.gates.expected_file import ExpectedRow

HIT = "dispatch_hit_ns"


def row(name: str, percent: float, spread: float = 1.0, verdict: Verdict = Verdict.PASSED) -> RowVerdict:
    ends = (("change_low_percent", percent - spread), ("change_high_percent", percent + spread))
    return RowVerdict(name, verdict, (("change_percent", percent), *ends))


@pytest.mark.parametrize(
    ("percent", "spread", "is_noise"),
    [(2, 1, False), (-2, 1, False), (1, 1, True), (0, 0, True), (0.5, 9, True)],
)
def test_a_drift_whose_interval_takes_in_nothing_is_noise(
    percent: float, spread: float, is_noise: bool
) -> None:
    drift = row("a", percent, spread).drift
    assert drift is not None
    assert drift.is_noise == is_noise


def test_the_furthest_are_those_that_can_be_told_from_noise() -> None:
    drifts = drifts_of([row("a", 5, 9), row("b", 3), row("c", 2), row("d", -4), row("e", -9, 10)])
    assert [each.row.row for each in drifts.rows] == ["a", "b", "c", "d", "e"]
    assert drifts.most_up is not None
    assert drifts.most_up.row.row == "b"
    assert drifts.most_down is not None
    assert drifts.most_down.row.row == "d"
    assert [each.row.row for each in drifts.told] == ["b", "c", "d"]


def test_the_middle_has_the_medians_of_figures_and_of_intervals() -> None:
    assert drifts_of([row("a", 1, 3), row("b", 5), row("c", 3)]).middle == Drift(3, (2, 4))


def test_rows_that_did_not_pass_or_have_no_baseline_are_left_out() -> None:
    failed = [row("a", 50, verdict=Verdict.REGRESSED), row("b", -50, verdict=Verdict.IMPROVED)]
    assert drifts_of([*failed, RowVerdict("c", Verdict.PASSED)]) == Drifts(())


@pytest.mark.parametrize(
    ("expected", "margin", "found", "percent"),
    [(1000, 0.3, 1100, 10.0), (1000, 0.3, 900, -10.0), (4, 0, 4, 0.0), (0, 0, 0, 0.0)],
)
def test_against_expected_results_the_margin_stands_beside_the_drift(
    expected: int, margin: float, found: int, percent: float
) -> None:
    judgement = judge_results([ExpectedRow("t", HIT, expected, margin)], [MetricValue("t", HIT, found)])
    [verdict] = judgement.verdicts
    assert verdict.drift is not None
    assert verdict.drift.percent == pytest.approx(percent)
    assert verdict.drift.interval is None
    assert not verdict.drift.is_noise
    assert dict(verdict.figures)["margin_percent"] == 100 * margin


def test_of_nothing_there_is_no_drift() -> None:
    [verdict] = judge_results([ExpectedRow("t", HIT, 0, 0)], [MetricValue("t", HIT, 7)]).verdicts
    assert verdict.drift is None
