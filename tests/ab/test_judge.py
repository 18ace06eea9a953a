"""The rule of an A/B run, on scripted values."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.ab.judge import (
    SCREEN_LEVEL,
    Stage,
    compare_row,
    compare_sides,
    judge,
    percent,
)
from pytest_dtdispatch.ab.model import ProcessSample, Request, RowSample
from pytest_dtdispatch.core.verdicts import Verdict

HIT, MISS, LOCAL = "t.py::test_add::add@4::hit", "t.py::test_add::add@4::miss", "t.py::test_add::add@4::local"
ASKED = Request()
factors = st.floats(0.7, 1.5)


def processes(count: int, seed: int, noise: float = 0.01, **factor: float) -> list[dict[str, float]]:
    """Script processes: a hit of 7 us, a miss of 1.3 ms, a plain op of 2 us, each times its factor."""
    draw = random.Random(seed)
    rows = {HIT: 7e3, MISS: 1.3e6, LOCAL: 2e3}
    return [
        {
            row: ns
            * factor.get(row.rpartition("::")[2], 1.0)
            * math.exp(draw.gauss(0, min(noise, 0.002) if row == LOCAL else noise))
            for row, ns in rows.items()
        }
        for _ in range(count)
    ]


def verdicts(screen: Stage, confirmation: Stage | None = None) -> dict[str, Verdict]:
    return {verdict.row: verdict.verdict for verdict in judge(screen, confirmation)}


def run(noise: float = 0.01, **factor: float) -> dict[str, Verdict]:
    screen = compare_sides(processes(5, 1, noise), processes(5, 2, noise, **factor), ASKED)
    tripped = screen.tripped()
    confirmation = None
    if tripped:
        sides = processes(10, 3, noise), processes(10, 4, noise, **factor)
        confirmation = compare_sides(*sides, ASKED, 0.005, tripped)
    return verdicts(screen, confirmation)


def test_too_few_processes_say_how_many_would_confirm() -> None:
    def remedies(pairs: int) -> set[str]:
        screen = compare_sides(processes(5, 1), processes(5, 2, hit=2.0, miss=2.0), ASKED)
        sides = processes(pairs, 3), processes(pairs, 4, hit=2.0, miss=2.0)
        return {one.remedy for one in judge(screen, compare_sides(*sides, ASKED, 0.005, screen.tripped()))}

    assert remedies(4) == {"so few processes cannot confirm 2 rows: --confirm 6"}
    assert all("commit by commit" in remedy for remedy in remedies(6))


def test_equal_sides_pass_without_a_confirmation() -> None:
    assert run() == {HIT: Verdict.PASSED, MISS: Verdict.PASSED}


def test_a_slower_row_is_regressed_and_the_other_one_is_not() -> None:
    assert run(hit=1.2) == {HIT: Verdict.REGRESSED, MISS: Verdict.PASSED}


def test_a_faster_row_is_improved() -> None:
    assert run(miss=0.8) == {HIT: Verdict.PASSED, MISS: Verdict.IMPROVED}


def test_a_shift_below_the_floor_passes_however_sure_it_is() -> None:
    assert run(noise=0.001, hit=1.05, miss=1.08) == {HIT: Verdict.PASSED, MISS: Verdict.PASSED}


def test_the_miss_has_a_floor_of_its_own() -> None:
    assert run(noise=0.001, hit=1.09, miss=1.09) == {HIT: Verdict.REGRESSED, MISS: Verdict.PASSED}


def test_what_tripped_and_does_not_come_again_passes() -> None:
    screen = compare_sides(processes(5, 1), processes(5, 2, hit=1.3), ASKED)
    assert screen.tripped() == [HIT]
    confirmation = compare_sides(processes(10, 3), processes(10, 4), ASKED, 0.005, [HIT])
    assert verdicts(screen, confirmation) == {HIT: Verdict.PASSED, MISS: Verdict.PASSED}


def test_a_slow_down_that_turns_into_a_gain_is_no_regression() -> None:
    screen = compare_sides(processes(5, 1), processes(5, 2, hit=1.3), ASKED)
    confirmation = compare_sides(processes(10, 3), processes(10, 4, hit=0.7), ASKED, 0.005, [HIT])
    assert verdicts(screen, confirmation)[HIT] is Verdict.IMPROVED


def test_what_tripped_and_was_not_confirmed_is_inconclusive() -> None:
    screen = compare_sides(processes(5, 1), processes(5, 2, hit=1.3), ASKED)
    assert verdicts(screen)[HIT] is Verdict.INCONCLUSIVE


def test_a_wide_interval_over_the_floor_is_inconclusive() -> None:
    assert run(noise=0.2) == {HIT: Verdict.INCONCLUSIVE, MISS: Verdict.INCONCLUSIVE}


def test_a_control_that_moved_contaminates_every_row_of_its_stage() -> None:
    screen = compare_sides(processes(5, 1), processes(5, 2, local=1.1), ASKED)
    assert screen.is_contaminated
    assert verdicts(screen) == {HIT: Verdict.CONTAMINATED, MISS: Verdict.CONTAMINATED}
    assert all("plain tensors shifted by +" in verdict.remedy for verdict in judge(screen))


def test_fresh_processes_with_a_steady_control_decide_what_a_contaminated_screen_could_not() -> None:
    screen = compare_sides(processes(5, 1), processes(5, 2, local=1.1, hit=1.3), ASKED)
    confirmation = compare_sides(processes(10, 3), processes(10, 4, hit=1.3), ASKED, 0.005, [HIT])
    assert verdicts(screen, confirmation) == {HIT: Verdict.REGRESSED, MISS: Verdict.CONTAMINATED}


def test_a_confirmation_with_a_control_that_moved_judges_nothing() -> None:
    screen = compare_sides(processes(5, 1), processes(5, 2, hit=1.3), ASKED)
    sides = processes(10, 3), processes(10, 4, hit=1.3, local=1.1)
    confirmation = compare_sides(*sides, ASKED, 0.005, [HIT])
    assert verdicts(screen, confirmation)[HIT] is Verdict.CONTAMINATED


@pytest.mark.parametrize(
    ("factor", "is_past"), [(1.04, True), (1.02, False), (1 / 1.04, True), (1 / 1.02, False)]
)
def test_the_control_has_a_floor_in_either_direction(factor: float, is_past: bool) -> None:
    base = [{LOCAL: 2000.0}] * 3
    assert compare_sides(base, [{LOCAL: 2000.0 * factor}] * 3, ASKED).is_contaminated is is_past


def test_the_control_can_be_switched_off() -> None:
    screen = compare_sides(processes(5, 1), processes(5, 2, local=1.5), Request(control=0.0))
    assert not screen.is_contaminated
    assert verdicts(screen)[HIT] is Verdict.PASSED


def test_without_plain_tensors_there_is_no_control() -> None:
    base, head = ([{HIT: p[HIT]} for p in processes(5, seed)] for seed in (1, 2))
    assert compare_sides(base, head, ASKED).control is None


def test_rows_of_one_side_are_missing_or_new() -> None:
    base = [{HIT: p[HIT], LOCAL: p[LOCAL]} for p in processes(5, 1)]
    head = [{MISS: p[MISS], LOCAL: p[LOCAL]} for p in processes(5, 2)]
    assert verdicts(compare_sides(base, head, ASKED)) == {HIT: Verdict.MISSING, MISS: Verdict.NEW}


def test_a_row_that_only_some_processes_have_is_inconclusive() -> None:
    base, head = processes(5, 1), processes(5, 2)
    del head[3][MISS]
    [verdict] = [v for v in judge(compare_sides(base, head, ASKED)) if v.row == MISS]
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert "5 of 5 and 4 of 5 processes" in verdict.remedy


def test_p_values_are_adjusted_for_the_number_of_rows_that_tripped() -> None:
    """One row at the least p that five pairs can have: alone it would do, beside noisy ones not."""
    sure, *noisy = rows = [f"t.py::test_{i}::add::hit" for i in range(3)]
    values = {
        sure: ((100, 101, 102, 103, 104), (120, 121, 122, 123, 124)),
        **dict.fromkeys(noisy, ((100, 101, 102, 103, 130), (120, 121, 122, 123, 124))),
    }
    base, head = ([{row: float(values[row][i][n]) for row in rows} for n in range(5)] for i in range(2))
    screen = compare_sides(base, head, ASKED)
    one = compare_sides(base, head, ASKED, 0.005, [sure])
    assert one.comparisons[sure].p == pytest.approx(1 / 252)
    assert verdicts(screen, one)[sure] is Verdict.REGRESSED
    every = compare_sides(base, head, ASKED, 0.005, rows)
    assert set(verdicts(screen, every).values()) == {Verdict.INCONCLUSIVE}


def test_rows_that_are_slow_together_do_not_hide_each_other() -> None:
    rows = [f"t.py::test_{i}::add::hit" for i in range(20)]
    base = [dict.fromkeys(rows, value) for value in (100.0, 101.0, 102.0, 103.0, 104.0)]
    head = [dict.fromkeys(rows, value) for value in (120.0, 121.0, 122.0, 123.0, 124.0)]
    screen = compare_sides(base, head, ASKED)
    every = compare_sides(base, head, ASKED, 0.005, rows)
    assert set(verdicts(screen, every).values()) == {Verdict.REGRESSED}


def test_a_shift_past_the_floor_that_may_be_chance_does_not_pass() -> None:
    """However narrow its interval is: two processes a side give no p of 0.05 or less."""
    base, head = ([{HIT: v * f} for v in (100.0, 100.1)] for f in (1.0, 1.2))
    screen = compare_sides(base, head, ASKED)
    assert screen.tripped() == [HIT]
    assert verdicts(screen, screen) == {HIT: Verdict.INCONCLUSIVE}


def test_one_disturbed_process_does_not_hide_a_slow_down_from_the_screen() -> None:
    base = [{HIT: value} for value in (100.0, 101.0, 102.0, 150.0, 160.0)]
    screen = compare_sides(base, [{HIT: value} for value in (120.0, 121.0, 122.0, 123.0, 124.0)], ASKED)
    assert screen.comparisons[HIT].p > SCREEN_LEVEL
    assert screen.tripped() == [HIT]


def test_a_row_that_a_screen_cannot_clear_is_looked_at_again() -> None:
    noisy = compare_sides(processes(5, 1, noise=0.2), processes(5, 2, noise=0.2), ASKED)
    assert noisy.tripped()
    steady = compare_sides(processes(10, 3), processes(10, 4), ASKED, 0.005, noisy.tripped())
    assert set(verdicts(noisy, steady).values()) == {Verdict.PASSED}


def test_the_value_of_a_process_is_that_of_its_quietest_block() -> None:
    row = RowSample((5.0, 1.0, 4.0, 2.0, 3.0), 0.5, 100)
    assert ProcessSample("screen", "base", 1.0, {HIT: row}).quietest_ns == {HIT: 0.5}


@given(st.lists(st.floats(1.0, 1e9), min_size=2, max_size=8), factors)
def test_a_shift_is_a_ratio_whatever_the_unit(base: list[float], factor: float) -> None:
    comparison = compare_row(base, [value * factor for value in base], 0.075, 0.05)
    scaled = compare_row([v * 1e-3 for v in base], [v * factor * 1e-3 for v in base], 0.075, 0.05)
    assert scaled.shift == pytest.approx(comparison.shift, abs=1e-9)
    assert comparison.low <= comparison.shift <= comparison.high


@given(factors)
def test_both_sides_exchanged_shift_the_other_way(factor: float) -> None:
    base, head = [100.0, 101.0, 103.0, 107.0], [factor * v for v in (100.0, 102.0, 104.0, 109.0)]
    there, back = compare_row(base, head, 0.075, 0.05), compare_row(head, base, 0.075, 0.05)
    assert there.shift == pytest.approx(-back.shift)
    assert there.p == back.p or abs(there.shift) < 1e-9


def test_an_interval_without_an_end_stays_without() -> None:
    assert percent(math.inf) == math.inf
    assert percent(-math.inf) == -math.inf
