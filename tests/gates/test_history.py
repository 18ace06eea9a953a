"""The run in which a row changed, from the figures of a series of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.core.measurement import INSTRUCTIONS
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import CountChange, Threshold, TimeChange, Verdict
from pytest_dtdispatch.gates.history import RowChange, RunFigures, changed_positions, series_changes
from pytest_dtdispatch.gates.times import TimedRow, plain_shifts
from tests.gates.rows import row

TEST = "t.py::test_a"
A, B, C, FAST, SPIKE = 100, 130, 170, 70, 150


@pytest.mark.parametrize(
    ("figures", "positions"),
    [
        ([A] * 6 + [B] * 4, [6]),
        ([B] * 6 + [A] * 4, [6]),
        ([A, 104, 98, 101, 110, 99, 106, 115, 96, 103], []),
        ([A] * 4 + [SPIKE] + [A] * 5, []),
        ([A] * 4 + [FAST] + [A] * 5, []),
        ([A] * 3 + [B] * 3 + [A] * 4, []),  # taken back
        ([A] * 3 + [FAST] * 3 + [A] * 4, []),
        ([A] * 4 + [B] * 3 + [C] * 3, [4, 7]),
        ([C] * 4 + [B] * 3 + [A] * 3, [4, 7]),
        ([A] * 3 + [B] * 3 + [FAST] * 4, [3, 6]),
        ([A] * 4 + [FAST, FAST, A, FAST, FAST, FAST], [4]),  # one slow run after the change
        ([A] * 5 + [SPIKE] + [FAST] * 4, [6]),
        ([SPIKE] + [A] * 5 + [B] * 4, [1, 6]),
        ([A] * 9 + [B], [9]),
        ([A] * 9 + [FAST], [9]),
        ([A, B], [1]),
        ([A, B, B], [1]),
        ([A, B, A], []),
        ([A * 1.03**n for n in range(10)], [8]),  # a slow drift
        ([A * 0.97**n for n in range(10)], [3]),
        ([A * 1.006**n for n in range(40)], [32]),
        ([0, 0, 0, 2, 2, 2], [3]),
        ([A], []),
        ([], []),
    ],
)
def test_lasting_change_has_a_position(figures: Sequence[float], positions: list[int]) -> None:
    assert changed_positions(figures, 0.2) == positions


@given(
    length=some.integers(3, 40),
    position=some.integers(1, 38),
    factor=some.floats(0.01, 100),
    margin=some.floats(0, 1),
)
def test_single_deviating_figure_is_no_change(
    length: int, position: int, factor: float, margin: float
) -> None:
    figures = [100.0] * length
    figures[min(position, length - 2)] *= factor
    assert changed_positions(figures, margin) == []


@given(figures=some.lists(some.integers(0, 1000), max_size=12), margin=some.floats(0, 1))
def test_positions_are_ordered_with_two_figures_between(figures: list[int], margin: float) -> None:
    positions = changed_positions(figures, margin)
    assert all(0 < position < len(figures) for position in positions)
    assert all(later - earlier > 1 for earlier, later in pairwise(positions))


def run(*rows: TimedRow, **counts: int) -> RunFigures:
    numbers = {
        RowId(TEST, "train", name): MetricValue(RowId(TEST, "train"), name, n) for name, n in counts.items()
    }
    return RunFigures({each.row: each for each in rows}, numbers)


def found(runs: Sequence[RunFigures]) -> list[tuple[int, str | None, Verdict, bool]]:
    changes = series_changes(runs, {})
    return [(each.run, each.verdict.row.state, each.verdict.verdict, each.is_confirmed) for each in changes]


FACTORS = (1.0, 1.04, 0.98, 1.01, 1.1, 0.99, 1.06, 1.1, 0.97, 1.03)  # of unchanged runs


def test_planted_change_is_in_the_seventh_run() -> None:
    factors = [factor * (1.3 if n >= 6 else 1) for n, factor in enumerate(FACTORS)]
    runs = [
        run(row("hit", factor), row("miss", other)) for factor, other in zip(factors, FACTORS, strict=True)
    ]
    [change] = series_changes(runs, {})
    assert (change.run, change.verdict.verdict, change.is_confirmed) == (6, Verdict.REGRESSED, True)
    assert change.verdict.row == RowId(TEST, "add", "hit")
    assert isinstance(change.verdict.change, TimeChange)
    assert (change.verdict.change.base_ns, change.verdict.change.head_ns) == (980, 1261)
    assert change.figures == tuple(round(1000 * factor) for factor in factors)


def test_unchanged_rows_have_no_change() -> None:
    assert found([run(row("hit", factor), misses_per_step=0) for factor in FACTORS]) == []


def test_any_lasting_difference_of_a_count_is_a_change() -> None:
    counts = (0, 0, 1, 0, 0, 2, 2, 2)
    [change] = series_changes([run(misses_per_step=count) for count in counts], {})
    assert change.run == 5
    assert change.verdict.change == CountChange(0, 2, None)
    assert change.verdict.row == RowId(TEST, "train", "misses_per_step")
    larger = [run(collective_bytes=count) for count in (10**6, 10**6, 10**6 - 1, 10**6 - 1)]
    assert found(larger) == [(2, "collective_bytes", Verdict.IMPROVED, True)]


@pytest.mark.parametrize(("factor", "changes"), [(1.01, 0), (1.03, 1)])
def test_instructions_change_by_more_than_two_percent(factor: float, changes: int) -> None:
    counts = [round(66_000 * each) for each in (1, 1, factor, factor)]
    runs = [run(instruction_count=count) for count in counts]
    assert len(series_changes([RunFigures({}, each.numbers, INSTRUCTIONS) for each in runs], {})) == changes


def test_run_without_samples_keeps_the_unit_of_the_others() -> None:
    counted = [run(instruction_count=count) for count in (66_000, 66_100, 66_200, 66_500)]
    runs = [run(misses_per_step=0), *(RunFigures({}, each.numbers, INSTRUCTIONS) for each in counted)]
    assert found(runs) == []


def test_change_in_the_last_run_alone_is_unconfirmed() -> None:
    runs = [run(row("hit", factor)) for factor in (1, 1, 1, 1.5)]
    assert found(runs) == [(3, "hit", Verdict.REGRESSED, False)]
    assert found([*runs, runs[0]]) == []
    assert found([*runs, runs[-1]]) == [(3, "hit", Verdict.REGRESSED, True)]


def test_threshold_of_a_marker_applies_to_its_test() -> None:
    runs = [run(row("hit", factor)) for factor in (1, 1, 1.3, 1.3)]
    of_markers = {TEST: (Threshold("hit", "min", 0.5),)}
    assert [len(series_changes(runs, each)) for each in ({}, of_markers)] == [1, 0]


def test_shift_of_plain_ops_contaminates_a_change() -> None:
    runs = [run(row("hit", factor), row("local", factor)) for factor in (1, 1, 1.25, 1.25)]
    assert found(runs) == [(2, "hit", Verdict.CONTAMINATED, True)]


def test_change_on_another_mesh_is_a_mismatch() -> None:
    runs = [run(replace(row("hit", factor), mesh=mesh)) for factor, mesh in ((1, "4"), (2, "8"), (2, "8"))]
    assert found(runs) == [(1, "hit", Verdict.MISMATCHED, False)]


def test_plain_ops_are_compared_once_for_all_changed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []

    def counted(*runs: Mapping[RowId, TimedRow]) -> list[float]:
        compared.append(runs)
        return plain_shifts(*runs)

    monkeypatch.setattr("pytest_dtdispatch.gates.history.plain_shifts", counted)
    labels = "abcdefgh"
    runs = [
        run(*(row("hit", factor, label=each) for each in labels), row("local")) for factor in (1, 1, 1.3, 1.3)
    ]
    assert len(found(runs)) == len(labels)
    assert len(compared) == 1


def test_rows_that_gates_cannot_judge_are_ignored() -> None:
    few = run(row("hit", 3.0, passes=2))
    assert found([run(row()), run(row()), few, few]) == []


def test_series_of_two_clocks_is_compared_by_wall_time() -> None:
    by_both, by_wall = run(row(factor=1.4, cpu=1.0)), run(row(factor=1.1))
    [change] = series_changes([by_both, by_both, by_wall, by_wall], {})
    assert (change.run, change.verdict.verdict) == (2, Verdict.IMPROVED)
    assert change.figures == (1400, 1400, 1100, 1100)


def appeared(runs: Sequence[RunFigures]) -> list[tuple[int, str, Verdict, bool]]:
    return [
        (each.run, each.verdict.row.label, each.verdict.verdict, each.is_confirmed)
        for each in series_changes(runs, {})
    ]


def test_rows_that_appear_and_disappear_are_marked() -> None:
    old, add, both = run(row(label="mul")), run(row()), run(row(), row(label="mul"))
    assert appeared([old, old, both, both, add]) == [
        (2, "add", Verdict.NEW, True),
        (4, "mul", Verdict.MISSING, False),
    ]
    assert appeared([both, add, both]) == []  # a run of some tests only


def test_row_of_a_single_run_is_unconfirmed() -> None:
    one, two = run(row()), run(row(), row(label="mul"))
    assert appeared([one, one, two, one, one]) == [
        (2, "mul", Verdict.NEW, False),
        (3, "mul", Verdict.MISSING, False),
    ]


def test_rows_of_a_new_test_are_one_change() -> None:
    other = RunFigures({RowId("t.py::test_b", name, "hit"): row(label=name) for name in "xy"}, {})
    whole = RunFigures({**run(row()).times, **other.times}, {})
    [change] = series_changes([run(row()), run(row()), whole, whole], {})
    assert change == RowChange(2, change.verdict, True)
    assert (change.verdict.row, change.verdict.verdict) == (RowId("t.py::test_b"), Verdict.NEW)
