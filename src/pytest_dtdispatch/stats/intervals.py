"""Robust statistics of times with interference by other programs."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

CONFIDENCE = 0.95
LEAST_SHARE = 1e-4  # of resamples; rarer values of a quantile are joined, and 0.005 lie outside each end


def quietest_block(values: Sequence[float], blocks: int = 7, least: int = 3) -> float:
    """Return the lowest median of blocks of neighboring values.

    Interference by other programs only increases a time, and is intermittent: the quietest block has the time
    of a call without interference, and does not depend on a single sample.

    Args:
        values: at least one value, in the order of measurement.
        blocks: maximum number of blocks.
        least: minimum number of values in a block; one less if the values do not divide evenly.

    Example:
        >>> quietest_block([9, 8, 9, 5, 4, 6, 9, 7, 9])
        5
    """
    count = min(blocks, -(-len(values) // least))
    cuts = [number * len(values) // count for number in range(count + 1)]
    return min(statistics.median(values[start:end]) for start, end in itertools.pairwise(cuts))


def scatter(values: Sequence[float]) -> float | None:
    """Return how far the true median may lie above the quietest block, or the block above the minimum.

    The first detects occasional interference, the second permanent interference.

    Args:
        values: values in the order of measurement.

    Returns:
        The larger of the two, as a share of its lower end; None for fewer than five values.

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
    """Return the minimum, and the upper end of the median's 95 % confidence interval.

    The quietest block lies between them; :func:`scatter` is its distance from the farther one.

    Args:
        values: values in any order.

    Returns:
        Both ends; None for fewer than five values, or if the minimum is 0.

    Example:
        >>> bounds([100, 100, 100, 150, 110, 120, 100, 100]), bounds([100, 900])
        ((100, 150), None)
    """
    # Minimum and maximum of five samples contain the median with 94 %.
    if len(values) < 5 or not min(values):
        return None
    _, high = median_interval(values) or (0, max(values))
    return min(values), high


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
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


def quantile_ratio_interval(
    base: Sequence[float], head: Sequence[float], q: float, confidence: float
) -> tuple[float, float]:
    """Return the bootstrap percentile interval of the ratio of a quantile of two runs, ``head / base``.

    Neighboring samples are correlated, so that a resample is drawn in blocks of :func:`_blocks`. The interval
    contains the variation between blocks of a run, but none between two runs.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3; blocks:
    Carlstein, "The Use of Subseries Values for Estimating the Variance of a General Statistic from a
    Stationary Sequence" (1986). All resamples are counted, as :func:`_resampled_quantiles` describes.

    Args:
        base: at least one sample above 0, in any unit, in the order measured.
        head: at least one sample above 0, in the same unit, in the order measured.
        q: from 0 (minimum) to 1 (maximum).
        confidence: between 0 and 1.

    Returns:
        Both ends of the ratio.

    Example:
        >>> low, high = quantile_ratio_interval([9, 10, 10, 11] * 5, [18, 20, 20, 22] * 5, 0.5, 0.99)
        >>> low < 2 < high
        True
    """
    of_base, of_head = _resampled_quantiles(base, q), _resampled_quantiles(head, q)
    ratios = sorted((now / then, p * share) for now, p in of_head for then, share in of_base)
    cumulated = list(itertools.accumulate(share for _, share in ratios))
    ends = ((1 - confidence) / 2, (1 + confidence) / 2)
    low, high = (ratios[bisect.bisect_left(cumulated, end)][0] for end in ends)
    return low, high


def _resampled_quantiles(values: Sequence[float], q: float) -> list[tuple[float, float]]:
    """Return the values of a quantile over all resamples, with their probabilities.

    A resample consists of as many blocks as the samples have, drawn with replacement. Its number of samples
    up to some value is the sum of the numbers in the drawn blocks, so that its distribution is a power of the
    polynomial with one term for each block, whose exponent is the number in that block. If the quantile lies
    between two samples, both are assumed to have the same rank among their resamples.
    """
    blocks = _blocks(values)
    position = q * (len(blocks) * len(blocks[0]) - 1)
    draws, below, above = len(blocks), math.floor(position), math.ceil(position)
    # The coefficients are the digits of one integer. Their sum is its remainder modulo the base less 1.
    bits = draws * draws.bit_length() + 1
    ordered = sorted({value for block in blocks for value in block})
    reached: tuple[list[float], list[float]] = ([], [])  # probabilities of at most each value
    for value in ordered:
        ways = sum(1 << bits * sum(one <= value for one in block) for block in blocks) ** draws
        for shares, rank in zip(reached, (below, above), strict=True):
            shares.append((ways >> bits * (rank + 1)) % ((1 << bits) - 1) / draws**draws)
    found, last = [], 0.0
    for share in sorted({*reached[0], *reached[1]}):
        if share - last > LEAST_SHARE or share == 1:
            low, high = (ordered[bisect.bisect_left(shares, share)] for shares in reached)
            found.append((low + (high - low) * (position - below), share - last))
            last = share
    return found


def mean_ratio_interval(
    base: Sequence[float], head: Sequence[float], confidence: float
) -> tuple[float, float]:
    """Return the interval of the ratio of the means of two runs, from the variance between their blocks.

    Source: the logarithm of a ratio of means is approximately normal, with the sum of both squared
    coefficients of variation as its variance (the delta method).

    Args:
        base: at least one sample above 0, in any unit, in the order measured.
        head: at least one sample above 0, in the same unit, in the order measured.
        confidence: between 0 and 1.

    Returns:
        Both ends of the ratio.

    Example:
        >>> low, high = mean_ratio_interval([9, 10, 10, 11] * 5, [18, 20, 20, 22] * 5, 0.99)
        >>> low < 2 < high
        True
    """
    variance = 0.0
    for values in (base, head):
        means = [statistics.fmean(block) for block in _blocks(values)]
        variance += statistics.pvariance(means) / len(means) / statistics.fmean(values) ** 2
    ratio = statistics.fmean(head) / statistics.fmean(base)
    factor = math.exp(NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(variance))
    return ratio / factor, ratio * factor


def _blocks(values: Sequence[float]) -> list[Sequence[float]]:
    """Split samples into equal blocks of neighbors, at least 20 from 20 samples on."""
    size = max(1, len(values) // 20)
    return [values[start : start + size] for start in range(0, len(values) - size + 1, size)]


def quantile(values: Sequence[float], q: float) -> float:
    """Return a quantile, linearly interpolated between two samples.

    Source: definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), which is
    numpy's default.

    Args:
        values: at least one value, in any unit and order.
        q: from 0 (minimum) to 1 (maximum).

    Returns:
        The quantile, in the unit of the values.

    Example:
        >>> quantile([40, 10, 20, 30], 0.25)
        17.5
    """
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    left, right = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return left if left == right else left + (right - left) * (position - below)
