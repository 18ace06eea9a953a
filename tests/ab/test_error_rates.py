"""Windows of a pool: what is counted, and over how much."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from pytest_dtdispatch.ab.error_rates import TRIPPED, tally_runs, tally_screens
from pytest_dtdispatch.ab.judge import Floors
from pytest_dtdispatch.ab.model import BASE, HEAD
from pytest_dtdispatch.ab.plan import abba, dealt
from pytest_dtdispatch.core.verdicts import Verdict


def pool(count: int, noise: float = 0.02) -> list[dict[str, float]]:
    draw = random.Random(7)
    rows = {"a::hit": 7e3, "a::miss": 1e6, "a::local": 2e3}
    return [{row: ns * math.exp(draw.gauss(0, noise)) for row, ns in rows.items()} for _ in range(count)]


@pytest.mark.parametrize("pairs", [1, 2, 5, 10])
def test_each_pair_has_both_sides_and_each_second_pair_is_turned_round(pairs: int) -> None:
    order = abba(pairs)
    made = list(zip(order[::2], order[1::2], strict=True))
    assert all(set(pair) == {BASE, HEAD} for pair in made)
    assert all(one != other for one, other in pairwise(made))


def test_a_steady_drift_falls_on_both_sides_alike() -> None:
    base, head = dealt(range(20))
    assert sum(base) == sum(head)


def test_equal_processes_give_no_alarm_and_every_comparison_is_counted() -> None:
    tally = tally_runs(pool(34), 5, 10, Floors(), dealt)
    assert (tally.windows, tally.rows, tally.apart) == (5, 10, 2)
    assert sum(tally.found.values()) == 10
    assert tally.found[str(Verdict.PASSED)] == 10


def test_a_slow_side_is_caught_in_every_window() -> None:
    tally = tally_runs(pool(34), 5, 10, Floors(), dealt, slowed_by=0.3)
    assert tally.found == {str(Verdict.REGRESSED): 10}


def test_a_screen_counts_what_trips_in_either_direction() -> None:
    screens = tally_screens(pool(12), 5, Floors(), dealt, slowed_by=0.3)
    assert (screens.windows, screens.rows, screens.apart) == (3, 6, 2)
    assert screens.found[TRIPPED] == 6
    assert tally_screens(pool(12), 5, Floors(), dealt, slowed_by=-0.3).found[TRIPPED] == 6
    assert tally_screens(pool(12), 5, Floors(), dealt).found[TRIPPED] == 0


def test_a_pool_that_is_too_small_has_no_window() -> None:
    assert tally_runs(pool(29), 5, 10, Floors(), dealt).rows == 0
