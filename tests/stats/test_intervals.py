"""The interval of a median and of a ratio, quantiles, the quietest block, and how far samples scatter."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pytest_dtdispatch.stats.intervals import (
    CONFIDENCE,
    FEWEST,
    median_interval,
    paired_ratio,
    quantile,
    quietest_block,
    ratio_interval,
    scatter,
)

TIMES = st.lists(st.integers(1, 10**6).map(float), min_size=1, max_size=12)
NUMBERS = st.integers(-(2**20), 2**20).map(float)
SAMPLES = st.lists(NUMBERS, min_size=1, max_size=25)
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


@given(VALUES, st.randoms(use_true_random=False), st.integers(1, 1000))
def test_the_interval_holds_the_median_whatever_the_order_and_the_unit(
    values: list[int], order: random.Random, times: int
) -> None:
    interval = median_interval(values)
    assert interval is not None
    ordered = sorted(values)
    assert interval[0] <= ordered[(len(values) - 1) // 2] <= ordered[len(values) // 2] <= interval[1]
    assert {*interval} <= {*values}
    scaled = [value * times for value in order.sample(values, len(values))]
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
    assert paired_ratio([10] * 5, [5] * 5, CONFIDENCE) is None
    assert scatter([7] * 5) == scatter([7] * 200) == 0, "what is always the same"
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


@given(TIMES, TIMES, st.sampled_from([0.5, 4.0]), st.integers(1, 4))
def test_the_interval_of_a_ratio_is_seeded_and_keeps_its_scale(
    base: list[float], head: list[float], scale: float, block: int
) -> None:
    interval = ratio_interval(base, head, resamples=50, block=block)
    low, high = interval
    assert ratio_interval(base, head, resamples=50, block=block) == interval
    assert 0 < low <= high
    assert min(head) / max(base) <= low
    assert high <= max(head) / min(base)
    slower = ratio_interval(base, [scale * value for value in head], resamples=50, block=block)
    assert slower == pytest.approx((scale * low, scale * high))
    wider = ratio_interval(base, head, resamples=50, block=block, confidence=0.999)
    assert wider[0] <= low
    assert high <= wider[1]


def test_the_interval_of_a_ratio_is_about_as_wide_as_scipys() -> None:
    base = [100 + 10 * math.sin(n * n) for n in range(60)]
    head = [110 + 10 * math.cos(n * n) for n in range(60)]
    ours = ratio_interval(base, head)
    theirs = stats.bootstrap(
        (base, head),
        lambda b, h, axis: np.median(h, axis=axis) / np.median(b, axis=axis),
        confidence_level=0.99,
        method="percentile",
        random_state=0,
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.01)


def test_blocks_widen_an_interval_where_samples_resemble_their_neighbours() -> None:
    drifting = [100.0 + 10 * (n // 10 % 2) + n % 3 for n in range(200)]
    alone, together = (ratio_interval(drifting, drifting, block=block) for block in (1, 10))
    assert together[0] < alone[0]
    assert alone[1] < together[1]


@given(SAMPLES, st.floats(0, 1), st.sampled_from([0.25, 1.0, 8.0]), NUMBERS)
def test_a_quantile_is_numpys_and_goes_with_scale_and_shift(
    some: list[float], q: float, scale: float, by: float
) -> None:
    moved = [scale * value + by for value in some[::-1]]
    assert quantile(some, q) == pytest.approx(float(np.quantile(some, q)), abs=1e-6)
    assert quantile(moved, q) == pytest.approx(scale * quantile(some, q) + by, abs=1e-6)
    assert min(some) <= quantile(some, q) <= max(some)
