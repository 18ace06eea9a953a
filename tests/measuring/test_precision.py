"""The interval of a median, and when it is narrow enough."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.measuring.plan import ENOUGH_TO_TRY, is_enough, median_interval

VALUES = st.lists(st.integers(1, 10**9), min_size=6, max_size=60)
WITHIN = st.floats(0.001, 0.9)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Ranks from the binomial table of Conover's book, at 95 %.
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (12, 3, 10), (15, 4, 12), (20, 6, 15)],
)
def test_the_ends_are_the_samples_of_the_table(count: int, low: int, high: int) -> None:
    assert median_interval(range(1, count + 1)) == (low, high)


@pytest.mark.parametrize("count", range(6))
def test_five_samples_are_too_few(count: int) -> None:
    assert median_interval([1] * count) is None


@pytest.mark.parametrize("count", [6, 8, 9, 11])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95])
def test_it_covers_the_median_as_often_as_it_says_and_no_narrower_one_does(
    count: int, confidence: float
) -> None:
    """Each sample is below the median or above it: all ways are counted."""
    interval = median_interval(range(count), confidence)
    assert interval is not None
    low, high = (int(end) for end in interval)

    def coverage(low: int, high: int) -> float:
        covered = sum(low < sum(ways) <= high for ways in itertools.product((0, 1), repeat=count))
        return float(covered / 2**count)

    assert coverage(low, high) >= confidence
    assert low + 1 > high - 1 or coverage(low + 1, high - 1) < confidence


@given(VALUES.flatmap(lambda values: st.tuples(st.just(values), st.permutations(values))))
def test_order_does_not_matter(two: tuple[list[int], list[int]]) -> None:
    assert median_interval(two[0]) == median_interval(two[1])


@given(VALUES)
def test_the_interval_holds_the_median_of_the_samples(values: list[int]) -> None:
    interval = median_interval(values)
    assert interval is not None
    ordered = sorted(values)
    assert interval[0] <= ordered[(len(values) - 1) // 2] <= ordered[len(values) // 2] <= interval[1]
    assert {*interval} <= {*values}


@given(VALUES, st.integers(1, 1000), WITHIN)
def test_the_unit_does_not_matter(values: list[int], times: int, within: float) -> None:
    scaled = [value * times for value in values]
    interval = median_interval(values)
    assert interval is not None
    assert median_interval(scaled) == (interval[0] * times, interval[1] * times)


@given(VALUES, WITHIN)
def test_what_is_enough_is_enough_for_a_wider_bound(values: list[int], within: float) -> None:
    assert not is_enough(values, within) or is_enough(values, within * 1.1)


@given(st.integers(1, 10**9), st.integers(0, 40))
def test_samples_that_are_all_the_same_are_enough_once_there_are_eight(value: int, count: int) -> None:
    assert is_enough([value] * count, 0.05) is (count >= ENOUGH_TO_TRY)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.inf])
def test_a_confidence_is_between_0_and_1(confidence: float) -> None:
    with pytest.raises(ValueError, match="a confidence lies between 0 and 1"):
        median_interval([1, 2, 3], confidence)
