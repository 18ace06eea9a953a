"""Rank sums: properties of the test, its interval and its power."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.rank_sums import (
    detectable_shift,
    hodges_lehmann,
    mann_whitney,
    pooled_deviation,
    shift_interval,
)

samples = st.lists(st.integers(-(2**20), 2**20).map(float), min_size=1, max_size=25)


@st.composite
def two_untied(draw: st.DrawFn, most: int = 12) -> tuple[list[float], list[float]]:
    """Draw two samples without ties, and almost always without ties between differences."""
    sizes = draw(st.integers(1, most)), draw(st.integers(1, most))
    both, every = sum(sizes), st.integers(1, 2**40).map(float)
    drawn = draw(st.lists(every, min_size=both, max_size=both, unique=True))
    return drawn[: sizes[0]], drawn[sizes[0] :]


@pytest.mark.parametrize("count", [1, 31])
def test_equal_samples_do_not_differ(count: int) -> None:
    assert mann_whitney([7.0] * count, [7.0] * count) == 1.0
    assert hodges_lehmann([7.0] * count, [7.0] * count) == 0.0
    assert 0 < mann_whitney([1.0] * 3000, [2.0] * 3000) < 1e-300, "p is never 0"


@given(samples, samples)
def test_estimate_is_median_difference_inside_its_interval(base: list[float], head: list[float]) -> None:
    found, (low, high) = hodges_lehmann(base, head), shift_interval(base, head)
    assert found == statistics.median(one - other for one in head for other in base)
    assert low <= found <= high
    assert shift_interval(head, base) == (-high, -low)


@given(two_untied(8), st.sampled_from([0.8, 0.9, 0.95, 0.99]))
def test_shift_interval_contains_exactly_the_accepted_shifts(
    pair: tuple[list[float], list[float]], confidence: float
) -> None:
    base, head = pair
    low, high = shift_interval(base, head, confidence)
    tail = (1 - confidence) / 2

    def rejects(by: float) -> bool:
        moved = [value - by for value in head]
        return min(mann_whitney(base, moved), mann_whitney(moved, base)) <= tail * (1 + 1e-9)

    differences = {h - b for h in head for b in base}
    inner = sorted(by for by in differences if low < by < high)
    assert not any(rejects((one + other) / 2) for one, other in itertools.pairwise(inner))
    if low > -math.inf:
        assume(len(differences) == len(base) * len(head))
        assert rejects(low - 0.25)
        assert rejects(high + 0.25)


def test_exact_and_approximated_intervals_meet() -> None:
    base, head = [math.sin(n) for n in range(30)], [math.sin(n * n) + 1 for n in range(30)]
    exact = shift_interval(base, head)
    approximated = shift_interval([*base, statistics.median(base)], head)
    assert approximated == pytest.approx(exact, abs=0.05)


def test_too_few_samples_give_an_interval_without_ends() -> None:
    assert shift_interval([1.0, 2.0], [3.0, 4.0]) == (-math.inf, math.inf)
    assert shift_interval([1.0] * 4, [3.0] * 4) == (2.0, 2.0)


@pytest.mark.parametrize(("floor", "size"), [(0.0, 8), (1.0, 8), (2.5, 8), (1.0, 20)])
def test_nine_of_ten_detect_the_detectable_shift(floor: float, size: int) -> None:
    draw, alpha, runs = random.Random(1), 0.005, 1000
    shift = detectable_shift(1.0, size, floor, alpha)

    def is_detected() -> bool:
        base = [draw.gauss(0, 1) for _ in range(size)]
        head = [draw.gauss(shift, 1) for _ in range(size)]
        return hodges_lehmann(base, head) > floor and mann_whitney(base, head) <= alpha

    assert sum(is_detected() for _ in range(runs)) / runs == pytest.approx(0.9, abs=0.04)


@given(samples)
def test_pooled_deviation_ignores_the_shift(values: list[float]) -> None:
    expected = statistics.stdev(values) if len(values) > 1 else 0.0
    assert pooled_deviation(values, [value + 64 for value in values]) == pytest.approx(expected)
