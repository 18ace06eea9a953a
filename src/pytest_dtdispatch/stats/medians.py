"""What stands for times that something else on the machine made longer, and how far they scatter."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

CONFIDENCE = 0.95
BLOCKS, LEAST_OF_BLOCK = 7, 3
MOST_COINS = 1000
FEWEST = 5  # the least and the greatest of five hold the median with 94 %


def quietest_block(values: Sequence[float], blocks: int = BLOCKS, least: int = LEAST_OF_BLOCK) -> float:
    """Give the lowest median of neighbouring values, cut into blocks of the same length, or nearly so.

    What else runs on a machine only adds to a time, and rests now and then: the quietest block says what a
    call takes meanwhile, and no one sample decides.

    Args:
        values: at least one, in the order taken.
        blocks: the most that they are cut into.
        least: values that a block has, or one less where they do not come out even.

    Example:
        >>> quietest_block([9, 8, 9, 5, 4, 6, 9, 7, 9])
        5
    """
    count = min(blocks, -(-len(values) // least))
    cuts = [place * len(values) // count for place in range(count + 1)]
    return min(statistics.median(values[start:end]) for start, end in pairwise(cuts))


def scatter(values: Sequence[float]) -> float | None:
    """Tell how far the true median may lie above the quietest block, or that above the least value.

    Where something takes the machine now and then, the one shows; where it nearly always does, the other.

    Args:
        values: in the order taken.

    Returns:
        The greater of the two, as a share of the lower end; None of fewer than five values.

    Example:
        >>> scatter([100, 100, 100, 150, 110, 120, 100, 100]), scatter([150] * 9 + [100])
        (0.5, 0.5)
        >>> scatter([100, 900]) is None
        True
    """
    if (found := bounds(values)) is None:
        return None
    (low, high), figure = found, quietest_block(values)
    return max(high / figure, figure / low) - 1


def bounds(values: Sequence[float]) -> tuple[float, float] | None:
    """Give the least value, and the upper end of the interval that holds the median with 95 %.

    Between them lies the quietest block; how far from the farther one, :func:`scatter` tells.

    Args:
        values: in any order.

    Returns:
        Both; None of fewer than five values, of which that is not known.

    Example:
        >>> bounds([100, 100, 100, 150, 110, 120, 100, 100]), bounds([100, 900])
        ((100, 150), None)
    """
    if len(values) < FEWEST or not min(values):
        return None
    _, high = median_interval(values) or (0, max(values))
    return min(values), high


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
    """How many samples are outside the interval at each end; -1 where all of them are too few."""
    tail = (1 - confidence) / 2
    if count > MOST_COINS:  # the normal approximation of the same section
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
    """Give the median of ``head / base`` over pairs, and the interval that holds what it estimates.

    What was taken at one time is a pair: where a machine gets slower or faster, both do, and their ratio
    stays. The interval is that of :func:`median_interval`.

    Args:
        base: samples above 0, in the order taken.
        head: as many samples, each taken next to the one of the base at its place.
        confidence: between 0 and 1.

    Returns:
        The ratio, and both ends; None where the pairs are too few for the confidence.

    Example:
        >>> paired_ratio([10, 20, 30] * 5, [5, 10, 15] * 5, 0.999)
        (0.5, 0.5, 0.5)
        >>> paired_ratio([10] * 10, [5] * 10, 0.999) is None
        True
    """
    ratios = [one / other for other, one in zip(base, head, strict=True)]
    interval = median_interval(ratios, confidence)
    return None if interval is None else (statistics.median(ratios), *interval)
