"""When samples are enough: their median is known closely. Without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

CONFIDENCE = 0.95
WITHIN = 0.1  # of the median, on both sides
ENOUGH_TO_TRY = 8  # samples; gates judge no row of fewer


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Give the interval between two samples that holds the median of what they were drawn from.

    It supposes nothing of the distribution: of n independent samples, those below the median are as many as
    heads of n coins.

    Source: Conover, "Practical Nonparametric Statistics" (3rd edition, 1999), section 3.2, confidence
    interval for a quantile.

    Example:
        >>> median_interval([5, 1, 4, 2, 3, 9])
        (1, 9)
        >>> median_interval(range(1, 21))
        (6, 15)
        >>> median_interval([1, 2, 3, 4, 5]) is None
        True
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
    left_out = _left_out(len(values), confidence)
    if left_out < 0:
        return None
    ordered = sorted(values)
    return ordered[left_out], ordered[-1 - left_out]


def is_enough(values: Sequence[float], within: float) -> bool:
    """Tell whether the median is known: whether its interval is no wider than asked.

    Example:
        >>> is_enough([100, 101, 99, 100, 102, 100, 98, 100], 0.05)
        True
        >>> is_enough([100, 101, 99, 100, 102, 100, 98, 200], 0.05)
        False
        >>> is_enough([100] * 7, 0.05)
        False
    """
    interval = median_interval(values) if len(values) >= ENOUGH_TO_TRY else None
    if interval is None:
        return False
    ordered = sorted(values)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return interval[0] >= middle * (1 - within) and interval[1] <= middle * (1 + within)


@lru_cache(maxsize=1024)
def _left_out(count: int, confidence: float) -> int:
    """How many samples are outside the interval at each end; -1 where all of them are too few."""
    most = (1 - confidence) / 2 * 2**count  # ways to throw the coins, at each end
    ways = 0
    for heads in range(count // 2 + 1):
        ways += math.comb(count, heads)
        if ways > most:
            return heads - 1
    return -1
