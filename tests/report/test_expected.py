"""What the gate on expected results says."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.core.metrics import MetricValue
from pytest_dtdispatch.gates.expected import judge_results, not_judged
from pytest_dtdispatch.gates.expected_file import ExpectedRow
from pytest_dtdispatch.report.expected import expected_lines

HIT = "dispatch_hit_ns"
LONG = f"tests/test_a_folder/test_file.py::test_{'name' * 30}::mm(f32[8,8]S0, f32[8,8]R)@4"


def lines(rows: list[ExpectedRow], results: list[MetricValue], width: int = 80) -> list[str]:
    judgement = judge_results(rows, results)
    return [
        "".join(piece.text for piece in line)
        for line in expected_lines(judgement, "expected.csv", "results.csv", width)
    ]


def test_what_passed_is_counted_and_no_row_is_printed() -> None:
    rows = [ExpectedRow("a", HIT, 1000, 0.3), ExpectedRow("b", HIT, 1000, 0.3)]
    found = lines(rows, [MetricValue("a", HIT, 1200), MetricValue("b", HIT, 1000)])
    assert found == ["gate: passed against expected.csv: 2 passed"]


def test_a_failed_gate_says_which_by_how_much_and_what_to_paste() -> None:
    rows = [
        ExpectedRow("a", HIT, 1000, 0.3),
        ExpectedRow(LONG, HIT, 1000, 0.3),
        ExpectedRow("c", HIT, 0, 0.3),
    ]
    results = [MetricValue("a", HIT, 1200), MetricValue(LONG, HIT, 123_456), MetricValue("c", HIT, 7)]
    assert lines(rows, results) == [
        "gate: failed against expected.csv: 1 passed, 2 regressed",
        f"  regressed {LONG}",
        "    dispatch_hit_ns 1,000 +-30 %: found 123,456, +12245.6 %",
        "    find what made it grow, or update the expected file where the cost is",
        "      wanted",
        "  regressed c",
        "    dispatch_hit_ns 0 +-30 %: found 7",
        "    find what made it grow, or update the expected file where the cost is",
        "      wanted",
        "  what changed, by command or as rows to paste:",
        '    dtdispatch expected update expected.csv --results results.csv --reason "..."',
        "a,dispatch_hit_ns,1200,0.3",
        f'"{LONG}",dispatch_hit_ns,123400,0.3',
        "c,dispatch_hit_ns,7,0.3",
    ]


def test_new_results_are_listed_up_to_ten() -> None:
    results = [MetricValue("a", HIT, 1), *(MetricValue(str(n), HIT, n) for n in range(12))]
    found = lines([ExpectedRow("a", HIT, 1, 0)], results)
    assert found[:3] == [
        "gate: passed against expected.csv: 1 passed, 12 new",
        "  new 0: dispatch_hit_ns 0",
        "  new 1: dispatch_hit_ns 1",
    ]
    assert found[10:] == [
        "  new 9: dispatch_hit_ns 9",
        "  and 2 more that are new; --dtdispatch-csv writes all",
        "    the expected file has no such row: add one to gate it",
    ]


@pytest.mark.parametrize("results", [[], [MetricValue("a", HIT, 5)]])
def test_nothing_compared_is_said(results: list[MetricValue]) -> None:
    found = lines([], results)
    assert found[0].startswith("gate: failed against expected.csv: ")
    assert found[-1] == "  no row could be judged, so the gate fails"


def test_why_nothing_was_measured_is_said() -> None:
    [head, why, _] = expected_lines(not_judged("run with -n0"), "expected.csv", "results.csv", 80)
    assert [piece.text for piece in head][-1] == "1 disabled"
    assert "".join(piece.text for piece in why) == "  disabled run with -n0"
