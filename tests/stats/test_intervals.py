"""Intervals of medians and ratios, quantiles, the quietest block, and scatter of samples."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.intervals import (
    CONFIDENCE,
    median_interval,
    paired_ratio,
    quantile,
    quietest_block,
    ratio_interval,
    scatter,
)

TIMES = st.lists(st.integers(1, 10**6).map(float), min_size=1, max_size=12)
SAMPLES = st.lists(st.integers(-(2**20), 2**20).map(float), min_size=1, max_size=25)
VALUES = st.lists(st.integers(1, 10**9), min_size=6, max_size=60)


def interval_of(values: Sequence[float]) -> tuple[float, float]:
    interval = median_interval(values)
    assert interval is not None
    return interval


@pytest.mark.parametrize("count", [6, 8, 9, 12, 15, 20, 999, 1000])
def test_median_interval_is_narrowest_with_its_coverage(count: int) -> None:
    """The number of samples below the median is distributed like heads of coins."""
    low, high = interval_of(range(count))

    def coverage(low: float, high: float) -> float:
        covering = sum(math.comb(count, heads) for heads in range(int(low) + 1, int(high) + 1))
        return float(covering / 2**count)

    assert low + high == count - 1
    assert coverage(low, high) >= CONFIDENCE > coverage(low + 1, high - 1)


@given(VALUES, st.randoms(use_true_random=False))
def test_ends_are_samples_regardless_of_order(values: list[int], order: random.Random) -> None:
    low, high = interval_of(range(len(values)))
    ends = sorted(values)[int(low)], sorted(values)[int(high)]
    assert interval_of(order.sample(values, len(values))) == ends


@pytest.mark.parametrize("count", [1001, 1_200, 50_000])
def test_interval_narrows_with_more_samples(count: int) -> None:
    low, high = interval_of(range(1, count + 1))
    assert low + high == count + 1
    assert (high - low) / count**0.5 == pytest.approx(1.96, abs=0.1)
    if count == 1001:
        assert abs(low - interval_of(range(1, 1001))[0]) <= 2


@given(VALUES, st.integers(1, 20), st.integers(1, 9))
def test_quietest_block_lies_between_minimum_and_median(values: list[int], blocks: int, least: int) -> None:
    assert min(values) <= quietest_block(values, blocks, least)
    assert quietest_block(values, 1) == statistics.median(values)


@pytest.mark.parametrize("place", range(2, 20))
def test_quiet_period_lowers_figure_but_one_sample_cannot(place: int) -> None:
    busy = [90] * 20
    assert quietest_block([*busy[:place], 10, *busy[place + 1 :]]) == 90
    assert quietest_block([*busy[:place], 10, 12, 11, *busy[place:]]) <= 51


@pytest.mark.parametrize(
    ("count", "last"), [(1, 1), (2, 2), (3, 3), (4, 2), (5, 3), (7, 3), (10, 3), (20, 3), (200, 29)]
)
def test_block_size_depends_on_sample_count(count: int, last: int) -> None:
    values = [*range(count, 0, -1)]
    assert quietest_block(values) == statistics.median(values[-last:])


def test_few_samples_have_no_interval_and_no_scatter() -> None:
    assert [median_interval([1] * count) for count in range(6)] == [None] * 6
    assert [scatter([7] * count) for count in range(5)] == [None] * 5
    assert paired_ratio([10] * 5, [5] * 5, CONFIDENCE) is None
    assert scatter([7] * 5) == scatter([7] * 200) == 0, "constant samples"
    assert scatter([0] * 20) is None, "relative to a median of 0"


@given(VALUES)
def test_scatter_covers_median_bound_and_minimum(values: list[int]) -> None:
    share, figure = scatter(values), quietest_block(values)
    assert share is not None
    assert interval_of(values)[1] <= figure * (1 + share) * 1.000001
    assert figure <= min(values) * (1 + share) * 1.000001


@given(TIMES, TIMES, st.sampled_from([0.5, 4.0]), st.integers(1, 4))
def test_ratio_interval_is_deterministic_and_scales(
    base: list[float], head: list[float], scale: float, block: int
) -> None:
    low, high = ratio_interval(base, head, resamples=50, block=block)
    assert ratio_interval(base, head, resamples=50, block=block) == (low, high)
    assert 0 < low <= high
    assert min(head) / max(base) <= low
    assert high <= max(head) / min(base)
    slower = ratio_interval(base, [scale * value for value in head], resamples=50, block=block)
    assert slower == pytest.approx((scale * low, scale * high))
    wider = ratio_interval(base, head, resamples=50, block=block, confidence=0.999)
    assert wider[0] <= low
    assert high <= wider[1]


def test_block_resampling_widens_intervals_of_correlated_samples() -> None:
    drifting = [100.0 + 10 * (n // 10 % 2) + n % 3 for n in range(200)]
    alone, together = (ratio_interval(drifting, drifting, block=block) for block in (1, 10))
    assert together[0] < alone[0]
    assert alone[1] < together[1]


@given(SAMPLES, st.floats(0, 1))
def test_quantile_equals_numpy(some: list[float], q: float) -> None:
    assert quantile(some, q) == pytest.approx(float(np.quantile(some, q)), abs=1e-6)
    assert min(some) <= quantile(some, q) <= max(some)
