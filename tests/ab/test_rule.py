"""The rule of an A/B run, on scripted values: times, counts and instructions."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.ab.rule import (
    CONFIRM,
    COUNTS,
    INSTRUCTIONS,
    SCREEN,
    SCREEN_LEVEL,
    Rule,
    Sides,
    Stage,
    compare_sides,
    compare_stages,
    compare_times,
    judge,
    percent,
)
from pytest_dtdispatch.ab.run import BASE, HEAD, interleaved
from pytest_dtdispatch.core.verdicts import Verdict

HIT, MISS, LOCAL = "t.py::test_add::add@4::hit", "t.py::test_add::add@4::miss", "t.py::test_add::add@4::local"
RULE = Rule()
PASSED, REGRESSED, IMPROVED = Verdict.PASSED, Verdict.REGRESSED, Verdict.IMPROVED
INCONCLUSIVE, CONTAMINATED = Verdict.INCONCLUSIVE, Verdict.CONTAMINATED
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


def screened(noise: float = 0.01, **factor: float) -> Stage:
    return compare_sides(processes(5, 1, noise), processes(5, 2, noise, **factor), RULE)


def fresh(only: list[str], noise: float = 0.01, pairs: int = 10, **factor: float) -> Stage:
    sides = processes(pairs, 3, noise), processes(pairs, 4, noise, **factor)
    return compare_sides(*sides, RULE, 0.005, only)


def verdicts(screen: Stage, confirm: Stage | None = None) -> dict[str, Verdict]:
    stages = {SCREEN: screen, CONFIRM: confirm} if confirm else {SCREEN: screen}
    return {one.row: one.verdict for one in judge(RULE, stages)}


@pytest.mark.parametrize(
    ("noise", "factor", "hit", "miss"),
    [
        (0.01, {}, PASSED, PASSED),
        (0.01, {"hit": 1.2}, REGRESSED, PASSED),
        (0.01, {"miss": 0.8}, PASSED, IMPROVED),
        (0.001, {"hit": 1.05, "miss": 1.08}, PASSED, PASSED),  # below the floor, however sure it is
        (0.001, {"hit": 1.09, "miss": 1.09}, REGRESSED, PASSED),  # a miss has a floor of its own
        (0.2, {}, INCONCLUSIVE, INCONCLUSIVE),  # a wide interval over the floor
    ],
)
def test_a_whole_run(noise: float, factor: dict[str, float], hit: Verdict, miss: Verdict) -> None:
    def taken(stage: str) -> Sides:
        if stage == SCREEN:
            return processes(5, 1, noise), processes(5, 2, noise, **factor)
        return processes(10, 3, noise), processes(10, 4, noise, **factor)

    stages = compare_stages(RULE, taken)
    assert verdicts(stages[SCREEN], stages.get(CONFIRM)) == {HIT: hit, MISS: miss}


@pytest.mark.parametrize(
    ("confirmed", "verdict"),
    [
        ({}, PASSED),
        ({"hit": 0.7}, IMPROVED),
        ({"hit": 1.3, "local": 1.1}, CONTAMINATED),
        (None, INCONCLUSIVE),
    ],
)
def test_what_tripped_is_judged_on_fresh_processes_alone(
    confirmed: dict[str, float] | None, verdict: Verdict
) -> None:
    screen = screened(hit=1.3)
    assert screen.tripped() == [HIT]
    found = verdicts(screen, None if confirmed is None else fresh([HIT], 0.01, 10, **confirmed))
    assert found == {HIT: verdict, MISS: PASSED}


def test_too_few_processes_say_how_many_would_confirm() -> None:
    def remedies(pairs: int) -> set[str]:
        screen = screened(hit=2.0, miss=2.0)
        confirm = fresh(screen.tripped(), pairs=pairs, hit=2.0, miss=2.0)
        return {one.remedy for one in judge(RULE, {SCREEN: screen, CONFIRM: confirm})}

    assert remedies(4) == {"so few processes cannot confirm 2 rows: --confirm 6"}
    assert all("commit by commit" in remedy for remedy in remedies(6))


def test_a_control_that_moved_contaminates_every_row_of_its_stage() -> None:
    screen = screened(local=1.1, hit=1.3)
    assert verdicts(screen) == {HIT: INCONCLUSIVE, MISS: CONTAMINATED}
    assert verdicts(screen, fresh([HIT], hit=1.3)) == {HIT: REGRESSED, MISS: CONTAMINATED}
    [_, miss] = judge(RULE, {SCREEN: screen})
    assert "plain tensors shifted by +" in miss.remedy


@pytest.mark.parametrize(
    ("factor", "is_past"), [(1.04, True), (1.02, False), (1 / 1.04, True), (1 / 1.02, False)]
)
def test_the_control_has_a_floor_in_either_direction(factor: float, is_past: bool) -> None:
    base, head = [{LOCAL: 2000.0}] * 3, [{LOCAL: 2000.0 * factor}] * 3
    assert compare_sides(base, head, RULE).is_contaminated is is_past
    assert not compare_sides(base, head, Rule(control=0.0)).is_contaminated


def test_without_plain_tensors_there_is_no_control() -> None:
    base, head = ([{HIT: p[HIT]} for p in processes(5, seed)] for seed in (1, 2))
    assert compare_sides(base, head, RULE).control is None


@pytest.mark.parametrize("metric", ["time", COUNTS])
def test_rows_that_some_processes_have_are_missing_new_or_inconclusive(metric: str) -> None:
    base = [{"a::t::x": 1.0, "a::t::gone": 1.0, "a::t::some": 1.0}, {"a::t::x": 1.0, "a::t::gone": 1.0}]
    head = [{"a::t::x": 1.0, "a::t::new": 1.0, "a::t::some": 1.0}] * 2
    rule = Rule(metric=metric)
    found = {one.row: one for one in judge(rule, {SCREEN: compare_sides(base, head, rule)})}
    assert {row.rpartition("::")[2]: one.verdict for row, one in found.items()} == {
        "x": found["a::t::x"].verdict,
        "some": INCONCLUSIVE,
        "gone": Verdict.MISSING,
        "new": Verdict.NEW,
    }
    assert "1 of 2 and 2 of 2 processes" in found["a::t::some"].remedy


def test_p_values_are_adjusted_for_the_number_of_rows_that_tripped() -> None:
    """One row at the least p that five pairs can have: alone it would do, beside noisy ones not."""
    sure, *noisy = rows = [f"t.py::test_{i}::add::hit" for i in range(3)]
    values = {
        sure: ((100, 101, 102, 103, 104), (120, 121, 122, 123, 124)),
        **dict.fromkeys(noisy, ((100, 101, 102, 103, 130), (120, 121, 122, 123, 124))),
    }
    base, head = ([{row: float(values[row][i][n]) for row in rows} for n in range(5)] for i in range(2))
    screen = compare_sides(base, head, RULE)
    one = compare_sides(base, head, RULE, 0.005, [sure])
    assert one.rows[sure].p == pytest.approx(1 / 252)
    assert verdicts(screen, one)[sure] is REGRESSED
    every = compare_sides(base, head, RULE, 0.005, rows)
    assert set(verdicts(screen, every).values()) == {INCONCLUSIVE}


def test_rows_that_are_slow_together_do_not_hide_each_other() -> None:
    rows = [f"t.py::test_{i}::add::hit" for i in range(20)]
    base = [dict.fromkeys(rows, value) for value in (100.0, 101.0, 102.0, 103.0, 104.0)]
    head = [dict.fromkeys(rows, value) for value in (120.0, 121.0, 122.0, 123.0, 124.0)]
    every = compare_sides(base, head, RULE, 0.005, rows)
    assert set(verdicts(compare_sides(base, head, RULE), every).values()) == {REGRESSED}


def test_a_shift_past_the_floor_that_may_be_chance_does_not_pass() -> None:
    """However narrow its interval is: two processes a side give no p of 0.05 or less."""
    base, head = ([{HIT: v * f} for v in (100.0, 100.1)] for f in (1.0, 1.2))
    screen = compare_sides(base, head, RULE)
    assert screen.tripped() == [HIT]
    assert verdicts(screen, screen) == {HIT: INCONCLUSIVE}


def test_one_disturbed_process_does_not_hide_a_slow_down_from_the_screen() -> None:
    base = [{HIT: value} for value in (100.0, 101.0, 102.0, 150.0, 160.0)]
    screen = compare_sides(base, [{HIT: value} for value in (120.0, 121.0, 122.0, 123.0, 124.0)], RULE)
    assert screen.rows[HIT].p > SCREEN_LEVEL
    assert screen.tripped() == [HIT]


def test_a_row_that_a_screen_cannot_clear_is_looked_at_again() -> None:
    noisy = screened(noise=0.2)
    assert noisy.tripped()
    assert set(verdicts(noisy, fresh(noisy.tripped())).values()) == {PASSED}


@given(st.lists(st.floats(1.0, 1e9), min_size=2, max_size=8), factors)
def test_a_shift_is_a_ratio_whatever_the_unit(base: list[float], factor: float) -> None:
    compared = compare_times(base, [value * factor for value in base], 0.075, 0.05)
    scaled = compare_times([v * 1e-3 for v in base], [v * factor * 1e-3 for v in base], 0.075, 0.05)
    assert scaled.shift == pytest.approx(compared.shift, abs=1e-9)
    assert compared.low <= compared.shift <= compared.high


@given(factors)
def test_both_sides_exchanged_shift_the_other_way(factor: float) -> None:
    base, head = [100.0, 101.0, 103.0, 107.0], [factor * v for v in (100.0, 102.0, 104.0, 109.0)]
    there, back = compare_times(base, head, 0.075, 0.05), compare_times(head, base, 0.075, 0.05)
    assert there.shift == pytest.approx(-back.shift)
    assert there.p == back.p or abs(there.shift) < 1e-9


def test_an_interval_without_an_end_stays_without() -> None:
    assert percent(math.inf) == math.inf
    assert percent(-math.inf) == -math.inf


def judged(metric: str, base: list[Any], head: list[Any]) -> Verdict:
    """Judge one number of each process."""
    rule = Rule(metric=metric)
    before, after = ([{HIT: float(one)} for one in side] for side in (base, head))
    [one] = judge(rule, {SCREEN: compare_sides(before, after, rule)})
    return one.verdict


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        ([0], [0], PASSED),
        ([0], [1], REGRESSED),
        ([2], [1], IMPROVED),
        ([2.0], [2.25], REGRESSED),
        ([0, 0], [1, 1], REGRESSED),
        ([0, 3], [4, 5], REGRESSED),
        ([0, 1], [1, 1], INCONCLUSIVE),
        ([0, 1], [0, 0], INCONCLUSIVE),
        ([1, 1], [0, 2], INCONCLUSIVE),
    ],
)
def test_a_count_is_exact_and_one_that_varies_is_inconclusive(
    base: list[float], head: list[float], verdict: Verdict
) -> None:
    assert judged(COUNTS, base, head) is verdict


@pytest.mark.parametrize(
    ("base", "head", "verdict"),
    [
        ([60_000], [61_199], PASSED),
        ([60_000], [61_201], REGRESSED),
        ([60_000], [58_799], IMPROVED),
        ([60_000, 60_100, 60_200], [63_000, 63_000, 60_300], PASSED),  # the least stands for a side
        ([64_000, 60_000, 64_000], [63_000, 63_000, 63_000], REGRESSED),
    ],
)
def test_instructions_are_held_to_a_threshold_by_the_least_of_each_side(
    base: list[float], head: list[float], verdict: Verdict
) -> None:
    assert judged(INSTRUCTIONS, base, head) is verdict


def test_plain_tensors_that_count_otherwise_contaminate_instructions() -> None:
    rule = Rule(metric=INSTRUCTIONS)
    stage = compare_sides([{HIT: 6e4, LOCAL: 12e3}], [{HIT: 6e4, LOCAL: 13e3}], rule)
    [one] = judge(rule, {SCREEN: stage})
    assert one.verdict is CONTAMINATED
    assert stage.control == pytest.approx(math.log(13 / 12))
    assert "--control off" in one.remedy


@pytest.mark.parametrize(("head", "asked_for"), [(0, [(SCREEN,)]), (1, [(SCREEN,), (SCREEN, CONFIRM)])])
def test_numbers_are_judged_on_all_processes(head: float, asked_for: list[tuple[str, ...]]) -> None:
    seen = []

    def taken(*stages: str) -> Sides:
        seen.append(stages)
        return [{HIT: 0.0}] * len(stages), [{HIT: head}] * len(stages)

    compare_stages(Rule(metric=COUNTS), taken)
    assert seen == asked_for


@pytest.mark.parametrize("pairs", [1, 2, 5, 10])
def test_each_pair_has_both_sides_and_each_second_pair_is_turned_round(pairs: int) -> None:
    order = interleaved((BASE, HEAD), pairs)
    made = list(zip(order[::2], order[1::2], strict=True))
    assert all(set(pair) == {BASE, HEAD} for pair in made)
    assert all(one != other for one, other in pairwise(made))
