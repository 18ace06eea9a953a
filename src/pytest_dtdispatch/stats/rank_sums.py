"""Rank-sum test of two samples, and the confidence interval of their shift."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, median

MAX_EXACT = 60  # total size of both samples, for about 20 ms


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
    if len(ranks) > MAX_EXACT:
        return _normal_p(ranks, len(base), len(head), found)
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
    k = _smallest_index(len(base), len(head), (1 - confidence) / 2)
    if k < 1:
        return -math.inf, math.inf
    return ordered[k - 1], ordered[-k]


def smallest_detectable(
    base: Sequence[float], head: Sequence[float], floor: float = 0.0, alpha: float = 0.05
) -> float:
    """Return the smallest slowdown that is detectable in samples with this spread.

    A slowdown is a regression if the shift of logarithms exceeds ``log(1 + floor)`` and the one-sided rank
    test gives ``p <= alpha``. Adding a constant to all head samples adds it to the shift and both ends of its
    interval, so the smallest detectable shift is the distance from the lower end of the interval with
    confidence ``1 - 2 * alpha`` to the observed shift. It depends on the spread, not on the observed shift.

    Source: the interval is the inversion of the rank test: Lehmann, "Nonparametrics: Statistical
    Methods Based on Ranks" (1975), section 2.6.

    Args:
        base: at least one sample above 0, in any unit.
        head: at least one sample above 0, in the same unit.
        floor: smallest relevant slowdown, as a fraction: 0.1 is 10 %.
        alpha: significance level of the test, above 0 and below 0.5.

    Returns:
        The slowdown in percent; infinite if there are too few samples for the significance level.

    Example:
        >>> round(smallest_detectable([10.0, 10.1, 10.2, 10.3, 10.4], [10.0, 10.1, 10.2, 10.3, 10.4]), 1)
        2.0
        >>> smallest_detectable([10.0] * 5, [10.0] * 5, floor=0.075)
        7.5
    """
    logs = [math.log(value) for value in base], [math.log(value) for value in head]
    low, _ = shift_interval(*logs, confidence=1 - 2 * alpha)
    return 100 * max(floor, math.expm1(hodges_lehmann(*logs) - low))


def hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for multiple tests: Holm's levels, applied from the largest value down.

    Valid for tests that are independent or positively dependent, as are rows measured in the same processes.

    Source: Hochberg, "A Sharper Bonferroni Procedure for Multiple Tests of Significance" (1988); dependence:
    Sarkar, "Some Probability Inequalities for Ordered MTP2 Random Variables" (1998).

    Args:
        p_values: values from 0 to 1; may be empty.

    Returns:
        The adjusted values, in the same order: none exceeds that of Holm's procedure.

    Example:
        >>> hochberg([0.25, 0.125]), hochberg([0.25, 0.25])
        ([0.25, 0.25], [0.25, 0.25])
    """
    adjusted = [0.0] * len(p_values)
    smallest = 1.0
    for factor, i in enumerate(sorted(range(len(p_values)), key=lambda i: -p_values[i]), 1):
        smallest = min(smallest, factor * p_values[i])
        adjusted[i] = smallest
    return adjusted


def doubled_midranks(values: Sequence[float]) -> list[int]:
    """Return twice the ranks of values, from 1: equal values share the mean of their ranks.

    Example:
        >>> doubled_midranks([10, 30, 20, 20])
        [2, 8, 5, 5]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0] * len(values)
    start = 0
    for _, tied in itertools.groupby(order, key=lambda i: values[i]):
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


def _normal_p(ranks: Sequence[int], base: int, head: int, found: int) -> float:
    n = base + head
    above = found / 2 - head * (head + 1) / 2  # pairs with the head's sample above
    ties = sum(t**3 - t for t in Counter(ranks).values())
    variance = base * head / 12 * (n + 1 - ties / (n * (n - 1)))
    if variance <= 0:  # all samples are equal
        return 1.0
    z = (above - base * head / 2 - 0.5) / math.sqrt(variance)
    return max(math.erfc(z / math.sqrt(2)) / 2, math.ulp(0.0))


def _smallest_index(base: int, head: int, tail: float) -> int:
    """Return the largest k with ``P(U < k) <= tail``; 0 if there is no larger one."""
    if base + head > MAX_EXACT:
        deviation = math.sqrt(base * head * (base + head + 1) / 12)
        # P(U <= k - 1) with the correction for continuity.
        return max(0, math.floor(base * head / 2 + 0.5 + NormalDist().inv_cdf(tail) * deviation))
    counts = mann_whitney_counts(base, head)
    most = tail * math.comb(base + head, head) * (1 + 1e-12)  # 1 - confidence is rounded
    below, k = 0, 0
    while k < len(counts) and below + counts[k] <= most:
        below += counts[k]
        k += 1
    return k
