"""Verdicts on results against expected ones, and the rows to put in their place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.gates.expected import corrections, judge_results, not_judged, shortened
from pytest_dtdispatch.gates.expected_file import ExpectedRow

HIT = "dispatch_hit_ns"
VALUES = some.integers(0, 10**15)
MARGINS = some.floats(0, 1)


def verdict(expected: int, margin: float, value: int, metric: str = HIT) -> Verdict:
    judgement = judge_results([ExpectedRow("t", metric, expected, margin)], [MetricValue("t", metric, value)])
    [row] = judgement.verdicts
    assert judgement.has_failed == (row.verdict is not Verdict.PASSED)
    return row.verdict


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (1000, "passed"),
        (1100, "passed"),
        (1101, "regressed"),
        (900, "passed"),
        (899, "improved"),
        (0, "improved"),
    ],
)
def test_both_sides_of_the_margin_fail(value: int, found: str) -> None:
    assert verdict(1000, 0.1, value) == found


@pytest.mark.parametrize(("value", "found"), [(0, "passed"), (1, "regressed")])
def test_a_counter_may_be_expected_to_be_0_exactly(value: int, found: str) -> None:
    assert verdict(0, 0, value, "misses_per_step") == found


@given(VALUES, MARGINS)
def test_what_is_expected_passes(value: int, margin: float) -> None:
    assert verdict(value, margin, value) is Verdict.PASSED


@given(VALUES, MARGINS, VALUES, VALUES)
def test_more_is_never_judged_better(expected: int, margin: float, one: int, other: int) -> None:
    order = [Verdict.IMPROVED, Verdict.PASSED, Verdict.REGRESSED]
    less, more = (order.index(verdict(expected, margin, value)) for value in sorted((one, other)))
    assert less <= more


def test_a_row_without_a_result_is_missing_and_fails() -> None:
    rows = [
        ExpectedRow("gone", HIT, 5, 0.1),
        ExpectedRow("t", HIT, 5, 0.1),
        ExpectedRow("t", "compile_time_instruction_count", 5, 0.1),
        ExpectedRow("t", "instruction_count_miss", 5, 0.1),
    ]
    judgement = judge_results(rows, [MetricValue("t", HIT, 5)])
    assert [row.verdict for row in judgement.verdicts] == ["missing", "passed", "missing", "missing"]
    assert "restore the test" in judgement.verdicts[0].remedy
    assert "--dtdispatch-metric instructions" in judgement.verdicts[2].remedy
    assert "--dtdispatch-metric instructions" in judgement.verdicts[3].remedy
    assert judgement.has_failed


def test_a_result_without_a_row_is_new_and_does_not_fail() -> None:
    judgement = judge_results(
        [ExpectedRow("t", HIT, 5, 0.1)], [MetricValue("t", HIT, 5), MetricValue("t", "dispatch_miss_ns", 900)]
    )
    assert [row.verdict for row in judgement.verdicts] == ["passed", "new"]
    assert not judgement.has_failed


@pytest.mark.parametrize("results", [[], [MetricValue("t", HIT, 5)]])
def test_nothing_compared_fails(results: list[MetricValue]) -> None:
    judgement = judge_results([], results)
    assert judgement.has_failed
    assert not judgement.has_compared
    assert not_judged("no time").has_failed


# Corrections


@pytest.mark.parametrize(
    ("value", "written"), [(1034, None), (1035, 1035), (966, None), (965, 965), (123456, 123400)]
)
def test_only_rows_off_by_more_than_a_third_of_their_margin_are_corrected(
    value: int, written: int | None
) -> None:
    row = ExpectedRow("t", HIT, 1000, 0.103, "earlier", 7)
    found = list(corrections([row], [MetricValue("t", HIT, value), MetricValue("new", HIT, 3)]))
    assert [(each.name, each.expected, each.noise_margin, each.line) for each in found] == (
        [] if written is None else [("t", written, 0.103, 7)]
    )


@given(VALUES, MARGINS, VALUES)
def test_a_correction_makes_the_same_results_pass_and_needs_no_other(
    expected: int, margin: float, value: int
) -> None:
    row, result = ExpectedRow("t", HIT, expected, margin), MetricValue("t", HIT, value)
    for corrected in corrections([row], [result]):
        assert not judge_results([corrected], [result]).has_failed


@given(VALUES, MARGINS)
def test_a_value_is_cut_to_four_digits_or_left_whole(value: int, margin: float) -> None:
    cut = shortened(value, margin)
    assert cut == value or (str(cut)[:4] == str(value)[:4] and not int(str(cut)[4:]))
    if margin >= 0.01:
        assert len(str(cut).rstrip("0")) <= 4
