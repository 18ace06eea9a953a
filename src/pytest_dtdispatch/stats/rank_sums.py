"""Rank-sum test of two samples, their shift with its confidence interval, and the power of the test."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from statistics import median, quantiles, variance

from pytest_dtdispatch.stats.intervals import MAX_EXACT, end_index, normal_end_index


def mann_whitney(base: Sequence[float], head: Sequence[float]) -> float:
    """Return the one-sided p value of "head is larger".

    It is exact for up to :data:`MAX_EXACT` samples in all, with or without ties: the share of all ways
    to choose the head's midranks whose sum is at least the observed one. For more samples it is the normal
    approximation, corrected for ties and for continuity.

    Source: Lehmann, "Nonparametrics: Statistical Methods Based on Ranks" (1975), sections 1.2 to 1.4.

    Args:
        base: at least one sample, in any unit.
        head: at least one sample, in the same unit.

    Returns:
        Above 0, at most 1.

    Example:
        >>> mann_whitney([1, 2, 3], [4, 5, 6])
        0.05
    """
    ranks = doubled_midranks([*base, *head])
    found = sum(ranks[len(base) :])
    if len(ranks) > MAX_EXACT:  # the normal approximation, with the correction for continuity
        n, pairs = len(ranks), len(base) * len(head)
        above = found / 2 - len(head) * (len(head) + 1) / 2  # pairs with the head's sample above
        ties = sum(t**3 - t for t in Counter(ranks).values())
        spread = pairs / 12 * (n + 1 - ties / (n * (n - 1)))
        if spread <= 0:  # all samples are equal
            return 1.0
        z = (above - pairs / 2 - 0.5) / math.sqrt(spread)
        return max(math.erfc(z / math.sqrt(2)) / 2, math.ulp(0.0))
    step = math.gcd(*(rank - 2 for rank in ranks)) or 1
    counts = sums_of_choices([(rank - 2) // step for rank in ranks], len(head))
    return sum(counts[(found - 2 * len(head)) // step :]) / math.comb(len(ranks), len(head))


def hodges_lehmann(base: Sequence[float], head: Sequence[float]) -> float:
    """Return the shift from base to head: the median of all differences ``head - base``.

    The shift of logarithms is the logarithm of a ratio.

    Source: Hodges and Lehmann, "Estimates of Location Based on Rank Tests" (1963).

    Args:
        base: at least one sample, in any unit.
        head: at least one sample, in the same unit.

    Returns:
        The shift, in that unit.

    Example:
        >>> hodges_lehmann([1, 2, 3], [11, 12, 300])
        10
    """
    return median(_differences(base, head))


def shift_interval(
    base: Sequence[float], head: Sequence[float], confidence: float = 0.95
) -> tuple[float, float]:
    """Return the confidence interval of :func:`hodges_lehmann`.

    Its ends are the k-th smallest and the k-th largest difference. k is the largest number with
    ``P(U < k) <= (1 - confidence) / 2`` for the statistic U of Mann and Whitney: exact for up to
    :data:`MAX_EXACT` samples in all, else by the normal approximation. The interval is infinite if there are
    too few samples for the confidence. Ties only increase its coverage.

    Source: Lehmann, "Nonparametrics: Statistical Methods Based on Ranks" (1975), section 2.6; Moses's method.

    Args:
        base: at least one sample, in any unit.
        head: at least one sample, in the same unit.
        confidence: between 0 and 1.

    Returns:
        Both ends, in that unit.

    Example:
        >>> shift_interval([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
        (7, 13)
    """
    ordered = sorted(_differences(base, head))
    tail, size = (1 - confidence) / 2, len(base) + len(head)
    if size > MAX_EXACT:
        mean = len(base) * len(head) / 2
        k = normal_end_index(mean, math.sqrt(mean * (size + 1) / 6), tail)
    else:
        k = end_index(mann_whitney_counts(len(base), len(head)), tail)
    if k < 1:
        return -math.inf, math.inf
    return ordered[k - 1], ordered[-k]


def pooled_deviation(base: Sequence[float], head: Sequence[float]) -> float:
    """Return the standard deviation inside both samples, pooled over them.

    Args:
        base: at least one sample, in any unit.
        head: as many samples, in the same unit.

    Returns:
        The deviation, in that unit; 0 for one sample each.

    Example:
        >>> pooled_deviation([1, 3], [12, 14]) == math.sqrt(2)
        True
    """
    if len(base) == 1:
        return 0.0
    return math.sqrt((variance(base) + variance(head)) / 2)


def detectable_shift(deviation: float, size: int, floor: float = 0.0, alpha: float = 0.05) -> float:
    """Return the smallest shift that two normal samples of this size detect in 9 of 10 cases.

    A shift is detected if the estimate of Hodges and Lehmann exceeds the floor, and the one-sided rank test
    gives ``p <= alpha``: if the lower end of the interval with confidence ``1 - 2 * alpha`` exceeds 0. Adding
    a constant to all head samples adds it to both, so that each pair of samples has a smallest one. This is
    the ninth decile over 1,000 pairs.

    Args:
        deviation: standard deviation of the samples.
        size: number of samples on each side.
        floor: smallest relevant shift, in the unit of the deviation.
        alpha: significance level of the test, above 0 and below 0.5.

    Returns:
        The shift, in the unit of the deviation; infinite if there are too few samples for the level.

    Example:
        >>> detectable_shift(0.0, 8, floor=0.25), round(detectable_shift(1.0, 8, alpha=0.005), 1)
        (0.25, 2.3)
    """
    if not deviation:
        return floor
    drawn = _normal_shifts(size, alpha)
    return quantiles([max(floor - deviation * shift, -deviation * low) for shift, low in drawn], n=10)[-1]


@functools.lru_cache(maxsize=8)
def _normal_shifts(size: int, alpha: float) -> list[tuple[float, float]]:
    """Return the estimated shift of two equal normal samples, and its lower end, for all draws."""
    draw = random.Random(0)
    drawn = []
    for _ in range(1000):  # for a decile within 3 %
        base, head = ([draw.gauss(0.0, 1.0) for _ in range(size)] for _ in range(2))
        drawn.append((hodges_lehmann(base, head), shift_interval(base, head, 1 - 2 * alpha)[0]))
    return drawn


def doubled_midranks(values: Sequence[float]) -> list[int]:
    """Return twice the ranks of values, from 1: equal values share the mean of their ranks.

    Example:
        >>> doubled_midranks([10, 30, 20, 20])
        [2, 8, 5, 5]
    """
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    start = 0
    for _, tied in itertools.groupby(order, key=values.__getitem__):
        indices = list(tied)
        for i in indices:
            ranks[i] = 2 * start + len(indices) + 1
        start += len(indices)
    return ranks


def sums_of_choices(ranks: Sequence[int], size: int) -> list[int]:
    """Count the choices of ``size`` ranks by their sum.

    The counts of a size are packed into one integer, with a field of bits for each sum, so that adding a rank
    to all of them is one shift.

    Args:
        ranks: integers of at least 0.
        size: number of ranks to choose.

    Returns:
        The number of choices with sum s at index s.

    Example:
        >>> sums_of_choices([1, 2, 3], 2)
        [0, 0, 0, 1, 1, 1, 0]
    """
    width = (len(ranks) + 7) // 8 + 1  # bytes: no count exceeds 2 ** len(ranks)
    chosen = [1] + [0] * size
    for count, rank in enumerate(ranks, 1):
        for k in range(min(size, count), 0, -1):
            chosen[k] += chosen[k - 1] << (8 * width * rank)
    total = sum(ranks) + 1
    packed = chosen[size].to_bytes(width * total, "little")
    return [int.from_bytes(packed[width * s : width * (s + 1)], "little") for s in range(total)]


@functools.lru_cache(maxsize=32)
def mann_whitney_counts(base: int, head: int) -> tuple[int, ...]:
    """Count the orders of untied samples by U, the number of pairs with the head's sample above.

    Source: Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger
    than the Other" (1947).

    Args:
        base: number of samples.
        head: number of samples.

    Returns:
        The number of orders at index u, from 0 to ``base * head``.

    Example:
        >>> mann_whitney_counts(2, 2)
        (1, 1, 2, 1, 1)
    """
    smallest = head * (head + 1) // 2
    return tuple(sums_of_choices(range(1, base + head + 1), head)[smallest : smallest + base * head + 1])


def _differences(base: Sequence[float], head: Sequence[float]) -> list[float]:
    """Return every difference ``head - base``."""
    return [h - b for h in head for b in base]
