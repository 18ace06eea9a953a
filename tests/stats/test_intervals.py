"""Intervals of medians and ratios, quantiles, the quietest block, and scatter of samples."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.intervals import (
    CONFIDENCE,
    mean_ratio_interval,
    median_interval,
    paired_ratio,
    quantile,
    quantile_ratio_interval,
    quietest_block,
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


@given(TIMES, TIMES, st.sampled_from([0.5, 4.0]), st.sampled_from([0.0, 0.25, 0.5, 0.75, None]))
def test_ratio_interval_is_bounded_and_scales(
    base: list[float], head: list[float], scale: float, q: float | None
) -> None:
    def interval(head: list[float], confidence: float = 0.99) -> tuple[float, float]:
        if q is None:
            return mean_ratio_interval(base, head, confidence)
        return quantile_ratio_interval(base, head, q, confidence)

    low, high = interval(head)
    assert 0 < low <= high
    if q is not None:
        assert min(head) / max(base) <= low
        assert high <= max(head) / min(base)
    assert interval([scale * value for value in head]) == pytest.approx((scale * low, scale * high))
    wider = interval(head, 0.999)
    assert wider[0] <= low
    assert high <= wider[1]


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
@pytest.mark.parametrize(("count", "q"), [(4, 0.0), (5, 0.5), (5, 0.25), (3, 1.0)])
def test_interval_counts_every_resample(count: int, q: float, confidence: float) -> None:
    base, head = [[(7 * n + start) % 11 + 5.0 for n in range(count)] for start in (0, 3)]
    resampled = ([quantile(draw, q) for draw in itertools.product(of, repeat=count)] for of in (base, head))
    then, now = map(Counter, resampled)
    ratios = sorted((b / a, m * n) for a, m in then.items() for b, n in now.items())
    cumulated = list(itertools.accumulate(ways / count ** (2 * count) for _, ways in ratios))
    expected = [
        next(ratio for (ratio, _), share in zip(ratios, cumulated, strict=True) if share >= end - 1e-12)
        for end in ((1 - confidence) / 2, (1 + confidence) / 2)
    ]
    assert quantile_ratio_interval(base, head, q, confidence) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("count", [1, 2, 19, 20, 39, 41, 59, 99, 100])
@pytest.mark.parametrize("q", [0.0, 0.75, 1.0])
def test_interval_exists_for_any_number_of_samples(count: int, q: float) -> None:
    values = [1000.0 + 7 * n % 20 for n in range(count)]
    low, high = quantile_ratio_interval(values, values, q, 0.99)
    assert 0.98 <= low <= 1 <= high <= 1.02


def test_blocks_widen_intervals_of_correlated_samples() -> None:
    drifting = [100.0 + 10 * (n // 10 % 2) + n % 3 for n in range(200)]
    shuffled = random.Random(0).sample(drifting, len(drifting))
    together, alone = (quantile_ratio_interval(of, of, 0.5, 0.99) for of in (drifting, shuffled))
    assert together[0] < alone[0]
    assert alone[1] < together[1]


@given(SAMPLES, st.floats(0, 1))
def test_quantile_equals_numpy(some: list[float], q: float) -> None:
    assert quantile(some, q) == pytest.approx(float(np.quantile(some, q)), abs=1e-6)
    assert min(some) <= quantile(some, q) <= max(some)
