"""Rank sums: properties of the test, its interval and resolution."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.rank_sums import (
    hochberg,
    hodges_lehmann,
    mann_whitney,
    shift_interval,
    smallest_detectable,
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


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.2))
def test_hochberg_rejects_up_to_its_largest_allowed_p(p_values: list[float], level: float) -> None:
    ordered = sorted(p_values)
    tests = len(ordered)
    allowed = [k for k, p in enumerate(ordered, 1) if (tests - k + 1) * p <= level]
    adjusted = hochberg(p_values)
    assert sum(p <= level for p in adjusted) == max(allowed, default=0)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    assert hochberg(p_values[::-1]) == adjusted[::-1]


@given(two_untied(10), st.sampled_from([0.01, 0.05]), st.sampled_from([0.0, 0.075]))
def test_smallest_detectable_slowdown_is_the_tripping_point(
    pair: tuple[list[float], list[float]], alpha: float, floor: float
) -> None:
    base, head = ([math.log(1 + value) for value in some] for some in pair)
    percent = smallest_detectable([math.exp(v) for v in base], [math.exp(v) for v in head], floor, alpha)
    still = [value - hodges_lehmann(base, head) for value in head]

    def trips(slow_down: float) -> bool:
        slowed = [value + math.log1p(slow_down / 100) for value in still]
        is_past = hodges_lehmann(base, slowed) > math.log1p(floor)
        return is_past and mann_whitney(base, slowed) <= alpha * (1 + 1e-9)

    if percent == math.inf:
        assert not trips(1e300)
    else:
        assert trips(percent * (1 + 1e-6) + 1e-6)
        assert not trips(percent * (1 - 1e-6) - 1e-6)
