"""The interval of a median, the quietest block, and how far samples scatter."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.medians import CONFIDENCE, FEWEST, median_interval, quietest_block, scatter

VALUES = st.lists(st.integers(1, 10**9), min_size=6, max_size=60)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Ranks from the binomial table of Conover's book, at 95 %.
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (12, 3, 10), (15, 4, 12), (20, 6, 15)],
)
def test_the_ends_are_the_samples_of_the_table(count: int, low: int, high: int) -> None:
    assert median_interval(range(1, count + 1)) == (low, high)


@pytest.mark.parametrize("count", [6, 8, 9, 11])
def test_it_covers_the_median_as_often_as_it_says_and_no_narrower_one_does(count: int) -> None:
    """Each sample is below the median or above it: all ways are counted."""
    interval = median_interval(range(count))
    assert interval is not None
    low, high = (int(end) for end in interval)

    def coverage(low: int, high: int) -> float:
        covered = sum(low < sum(ways) <= high for ways in itertools.product((0, 1), repeat=count))
        return float(covered / 2**count)

    assert coverage(low, high) >= CONFIDENCE
    assert low + 1 > high - 1 or coverage(low + 1, high - 1) < CONFIDENCE


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


@given(VALUES, st.integers(1, 1000))
def test_the_unit_does_not_matter(values: list[int], times: int) -> None:
    scaled = [value * times for value in values]
    interval = median_interval(values)
    assert interval is not None
    assert median_interval(scaled) == (interval[0] * times, interval[1] * times)


@given(VALUES, st.integers(1, 20), st.integers(1, 9))
def test_the_quietest_block_lies_between_the_least_and_the_median_of_all(
    values: list[int], blocks: int, least: int
) -> None:
    assert min(values) <= quietest_block(values, blocks, least)
    assert quietest_block(values, 1) == statistics.median(values)


@pytest.mark.parametrize("place", range(2, 20))
def test_one_sample_decides_nothing_and_a_quiet_spell_does(place: int) -> None:
    busy = [90] * 20
    assert quietest_block([*busy[:place], 10, *busy[place + 1 :]]) == 90
    assert quietest_block([*busy[:place], 10, 12, 11, *busy[place:]]) <= 51


@pytest.mark.parametrize(
    ("count", "last"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 3), (10, 3), (20, 3), (200, 29)]
)
def test_blocks_are_seven_or_as_many_as_have_three_samples_or_two(count: int, last: int) -> None:
    values = [*range(count, 0, -1)]
    assert quietest_block(values) == statistics.median(values[-last:])


def test_of_few_samples_nobody_knows_an_interval_or_how_far_they_scatter() -> None:
    assert [median_interval([1] * count) for count in range(6)] == [None] * 6
    assert [scatter([7] * count) for count in range(FEWEST)] == [None] * FEWEST


def test_what_is_always_the_same_does_not_scatter() -> None:
    assert scatter([7] * 5) == scatter([7] * 200) == 0
    assert scatter([0] * 20) is None, "a share of nothing"


@given(VALUES)
def test_the_median_and_the_least_are_within_the_scatter_of_the_quietest_block(values: list[int]) -> None:
    interval, share, figure = median_interval(values), scatter(values), quietest_block(values)
    assert interval is not None
    assert share is not None
    assert interval[1] <= figure * (1 + share) * 1.000001
    assert figure <= min(values) * (1 + share) * 1.000001


@pytest.mark.parametrize("count", [1001, 1_200, 50_000])
def test_of_many_samples_the_interval_narrows(count: int) -> None:
    interval = median_interval(range(1, count + 1))
    assert interval is not None
    low, high = interval
    assert low + high == count + 1
    assert (high - low) / count**0.5 == pytest.approx(1.96, abs=0.1)
    if count < 1_200:
        before = median_interval(range(1, 1001))
        assert before is not None
        assert abs(low - before[0]) <= 2
