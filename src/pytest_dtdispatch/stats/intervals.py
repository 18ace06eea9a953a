"""Intervals of medians and of paired ratios of times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the confidence interval of the median, between two samples.

    It assumes nothing about the distribution: the number of independent samples below the median is
    binomially distributed with probability 1/2.

    Source: Conover, "Practical Nonparametric Statistics" (3rd edition, 1999), section 3.2, confidence
    interval for a quantile.

    Example:
        >>> median_interval([5, 1, 4, 2, 3, 9])
        (1, 9)
        >>> median_interval(range(1, 21))
        (6, 15)
        >>> median_interval([1, 2, 3, 4, 5]) is None
        True
        >>> median_interval(range(1, 21), confidence=0.999)
        (3, 18)
    """
    left_out = _left_out(len(values), confidence)
    if left_out < 0:
        return None
    ordered = sorted(values)
    return ordered[left_out], ordered[-1 - left_out]


@lru_cache(maxsize=1024)
def _left_out(count: int, confidence: float) -> int:
    """Return the number of samples outside the interval at each end; -1 if there are too few samples."""
    tail = (1 - confidence) / 2
    if count > 1000:  # the normal approximation of the same section
        return math.floor((count - NormalDist().inv_cdf(1 - tail) * math.sqrt(count)) / 2) - 1
    ways = 0
    for heads in range(count // 2 + 1):
        ways += math.comb(count, heads)
        if ways > tail * 2**count:
            return heads - 1
    return -1


def paired_ratio(
    base: Sequence[float], head: Sequence[float], confidence: float
) -> tuple[float, float, float] | None:
    """Return the median of ``head / base`` over pairs, and its confidence interval.

    Samples measured at the same time are a pair: if the machine becomes slower or faster, both do, and their
    ratio does not change. The interval is that of :func:`median_interval`.

    Args:
        base: samples above 0, in the order measured.
        head: as many samples, each measured next to the base sample of the same index.
        confidence: between 0 and 1.

    Returns:
        The ratio, and both ends; None if there are too few pairs for the confidence.

    Example:
        >>> paired_ratio([10, 20, 30] * 5, [5, 10, 15] * 5, 0.999)
        (0.5, 0.5, 0.5)
        >>> paired_ratio([10] * 10, [5] * 10, 0.999) is None
        True
    """
    ratios = [one / other for other, one in zip(base, head, strict=True)]
    interval = median_interval(ratios, confidence)
    return None if interval is None else (statistics.median(ratios), *interval)
