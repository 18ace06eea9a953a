"""Intervals of medians and of paired ratios."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.stats.intervals import LOOKS, median_interval, paired_ratio, repeated_confidence

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
    assert coverage(low, high) >= 0.95 > coverage(low + 1, high - 1)


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


def test_few_samples_have_no_interval() -> None:
    assert [median_interval([1] * count) for count in range(6)] == [None] * 6
    assert paired_ratio([10] * 5, [5] * 5, 0.95) is None


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_interval_of_pairs_has_its_coverage(confidence: float) -> None:
    """Of equal sides, all signs of the differences are equally likely."""
    sizes = [1.01**n for n in (1, 2, 4, 8, 16, 32, 64, 128)]  # no two means are equal
    excluded = 0
    for signs in itertools.product((1, -1), repeat=len(sizes)):
        head = [size**sign for size, sign in zip(sizes, signs, strict=True)]
        found = paired_ratio([1.0] * len(sizes), head, confidence)
        assert found
        _, low, high = found
        excluded += not low <= 1 <= high
    assert 0 < excluded / 2 ** len(sizes) <= 1 - confidence


def test_exact_and_approximated_intervals_of_pairs_meet() -> None:
    draw = random.Random(0)
    base, head = ([draw.gauss(100, 5) for _ in range(61)] for _ in range(2))
    exact, approximated = (paired_ratio(base[:count], head[:count], 0.999) for count in (60, 61))
    assert exact
    assert approximated
    assert exact == pytest.approx(approximated, rel=0.005)


def test_errors_of_all_looks_add_up_to_a_thousandth() -> None:
    errors = [1 - repeated_confidence(number / LOOKS) for number in range(1, LOOKS + 1)]
    assert errors == sorted(errors)
    assert 0.0009 < sum(errors) <= 0.001
    assert repeated_confidence(0.99) == repeated_confidence(0.75)
    assert repeated_confidence(7.0) == repeated_confidence(1.0)
    assert repeated_confidence(0.0) == repeated_confidence(0.25)  # of a file by another program
