"""Intervals of medians and of paired ratios of times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations_with_replacement
from statistics import NormalDist

MAX_EXACT = 60  # pairs, or both samples of a rank sum, for about 20 ms
LOOKS = 4  # intervals of one comparison, each after a quarter of its time limit


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
    tail, count = (1 - confidence) / 2, len(values)
    if count > 1000:  # the normal approximation of the same section
        k = math.floor((count - NormalDist().inv_cdf(1 - tail) * math.sqrt(count)) / 2)
    else:
        k = end_index([math.comb(count, below) for below in range(count + 1)], tail)
    if k < 1:
        return None
    ordered = sorted(values)
    return ordered[k - 1], ordered[-k]


def end_index(ways: Sequence[int], tail: float) -> int:
    """Return the largest k with ``P(T < k) <= tail``: the index of the ends of a distribution-free interval.

    Args:
        ways: number of equally probable cases with each value of the statistic T, from 0.
        tail: probability outside of the interval at each end.

    Example:
        >>> end_index([1, 5, 10, 10, 5, 1], 0.05), end_index([1, 2, 1], 0.05)
        (1, 0)
    """
    below, most = 0, tail * (1 + 1e-12) * sum(ways)  # 1 - confidence is rounded
    for k, count in enumerate(ways):
        below += count
        if below > most:
            return k
    return len(ways)


def normal_end_index(mean: float, deviation: float, tail: float) -> int:
    """Return the same for a statistic with a nearly normal distribution, corrected for continuity."""
    return max(0, math.floor(mean + 0.5 + NormalDist().inv_cdf(tail) * deviation))


def paired_ratio(
    base: Sequence[float], head: Sequence[float], confidence: float
) -> tuple[float, float, float] | None:
    """Return the ratio ``head / base`` of pairs, and its confidence interval.

    Samples measured at the same time are a pair: if the machine becomes slower or faster, both do, and their
    ratio does not change. The ratio is the median of the means of any two pairs, in logarithms. Its ends are
    the k-th smallest and the k-th largest mean, for the largest k with ``P(T < k) <= (1 - confidence) / 2``,
    where T is Wilcoxon's signed-rank statistic. The logarithms must be distributed symmetrically, as they are
    if base and head only differ by a factor; any spread is allowed.

    Source: Hollander and Wolfe, "Nonparametric Statistical Methods" (2nd edition, 1999), sections 3.2 and
    3.3, the estimate of Hodges and Lehmann and the interval of Tukey.

    Args:
        base: samples above 0, in the order measured.
        head: as many samples, each measured next to the base sample of the same index.
        confidence: between 0 and 1.

    Returns:
        The ratio, and both ends; None if there are too few pairs for the confidence.

    Example:
        >>> paired_ratio([10, 20, 30] * 5, [10, 20, 30] * 5, 0.999)
        (1.0, 1.0, 1.0)
        >>> paired_ratio([10] * 10, [5] * 10, 0.999) is None
        True
    """
    k = _signed_rank_index(len(base), (1 - confidence) / 2)
    if k < 1:
        return None
    logarithms = sorted(math.log(one / other) for other, one in zip(base, head, strict=True))
    means = sorted((one + other) / 2 for one, other in combinations_with_replacement(logarithms, 2))
    return math.exp(statistics.median(means)), math.exp(means[k - 1]), math.exp(means[-k])


@lru_cache(maxsize=256)
def _signed_rank_index(pairs: int, tail: float) -> int:
    """Return the index of the ends of the interval of :func:`paired_ratio`; 0 if there are too few pairs."""
    if tail <= 0:
        return 0
    highest = pairs * (pairs + 1) // 2
    if pairs > MAX_EXACT:
        return normal_end_index(highest / 2, math.sqrt(highest * (2 * pairs + 1) / 12), tail)
    ways = [1] + [0] * highest  # number of sets of ranks by their sum
    for rank in range(1, pairs + 1):
        for total in range(highest, rank - 1, -1):
            ways[total] += ways[total - rank]
    return end_index(ways, tail)


def repeated_confidence(share: float) -> float:
    """Return the confidence of an interval if up to four intervals decide whether a measurement continues.

    Each follows a quarter of the samples. All four together contain the true value with a probability of
    99.9 %: their errors add up to less than 0.1 %. The last has most of it, with a standard score of 3.33;
    earlier ones are those of the boundary of O'Brien and Fleming.

    Source: Jennison and Turnbull, "Group Sequential Methods" (2000), section 2.4, and chapter 9, repeated
    confidence intervals.

    Args:
        share: number of samples as a fraction of the maximum; rounded down to quarters, at least one.

    Example:
        >>> errors = [1 - repeated_confidence(share) for share in (0.25, 0.5, 0.75, 1.0)]
        >>> [f"{error:.6f}" for error in errors], round(sum(errors), 4)
        (['0.000000', '0.000002', '0.000120', '0.000868'], 0.001)
    """
    quarters = min(max(int(LOOKS * share), 1), LOOKS)
    score = 3.33 / math.sqrt(quarters / LOOKS)
    return 1 - 2 * NormalDist().cdf(-score)
