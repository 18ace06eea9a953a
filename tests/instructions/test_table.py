"""The table of counted instructions."""

from __future__ import annotations

from typing import Any

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Refused, Samples, State
from pytest_dtdispatch.core.units import INSTRUCTIONS
from pytest_dtdispatch.instructions.table import build_instructions_table
from pytest_dtdispatch.report.measurements import Line
from pytest_dtdispatch.report.terminal import table_lines


def counts(state: State, *values: int) -> Samples:
    return Samples(state, values, unit=INSTRUCTIONS)


def counted(*samples: Samples, **more: Any) -> Measurement:
    return Measurement("add@4", "add@4", "add", "4", Contains.DISPATCH, 3, Figures(5, samples, **more))


MISSES = counts(State.MISS, 6_720_000, 6_650_000, 6_650_100)
HITS = counts(State.HIT, 66_000, 66_050)
LOCALS = counts(State.LOCAL, 11_000)


def only_line(measurement: Measurement, verbose: bool = False) -> Line:
    [group] = build_instructions_table({"test_a": [measurement]}, verbose).groups
    [line] = group.lines
    return line


def test_a_row_has_the_least_count_its_spread_and_how_many_there_are() -> None:
    table = build_instructions_table({"test_a": [counted(MISSES, HITS, LOCALS)]})
    assert table.titles == ("miss", "miss+", "hit", "hit+", "local", "miss/hit", "samples")
    [line] = table.groups[0].lines
    assert line.cells == ("6,650,000", "70,000", "66,000", "50", "11,000", "100.8", "3+2")
    assert line.is_proved


def test_what_was_not_counted_is_a_dash() -> None:
    assert only_line(counted(counts(State.CALL, 9))).cells == ("-", "-", "9", "0", "-", "-", "0+1")


def test_cold_counts_have_a_column_where_there_are_any() -> None:
    table = build_instructions_table({"test_a": [counted(counts(State.COLD, 9_000_000), HITS)]})
    assert table.titles[0] == "cold"
    assert table.groups[0].lines[0].cells[:2] == ("9,000,000", "-")


def test_what_was_refused_is_not_proved() -> None:
    refused = Samples(State.HIT, (), (Refused("the meter did not count", 10),), INSTRUCTIONS)
    line = only_line(counted(refused))
    assert (line.proof, line.is_proved) == ("the meter did not count (10x)", False)


def test_verbose_adds_rounds_calls_and_remarks() -> None:
    line = only_line(counted(HITS, remarks=("no local row",)), verbose=True)
    assert line.cells[-2:] == ("5", "3")
    assert line.notes == ("no local row",)


def test_no_line_says_that_a_count_is_a_time() -> None:
    table = build_instructions_table({"test_a": [counted(MISSES, HITS)]})
    text = " ".join(piece.text for line in table_lines(table, 120) for piece in line)
    assert not {"s", "ms", "us", "ns"} & set(text.split())
