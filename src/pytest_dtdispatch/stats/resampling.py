"""Quantiles, and how far a ratio and a rate can be trusted, from the samples alone."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from statistics import median

Statistic = Callable[[Sequence[float]], float]

RESAMPLES = 2000  # 10 of them lie outside each end of a 99 % interval


def ratio_interval(
    base: Sequence[float],
    head: Sequence[float],
    statistic: Statistic = median,
    confidence: float = 0.99,
    resamples: int = RESAMPLES,
    seed: int = 0,
    block: int = 1,
) -> tuple[float, float]:
    """Give the percentile interval of ``statistic(head) / statistic(base)``, the same for the same seed.

    Samples that were taken together resemble each other, so they are drawn together: in blocks, which do
    not overlap. The interval contains what differs between blocks of a run, and nothing of what differs
    between two runs.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3; blocks:
    Carlstein, "The Use of Subseries Values for Estimating the Variance of a General Statistic from a
    Stationary Sequence" (1986).

    Args:
        base: at least one sample above 0, in any unit, in the order taken.
        head: at least one sample above 0, in the same unit, in the order taken.
        statistic: of samples.
        confidence: between 0 and 1.
        resamples: how many times both are drawn again.
        seed: of the draws.
        block: samples that were taken together.

    Returns:
        Both ends of the ratio.

    Raises:
        ValueError: no samples, or a number out of its range.

    Example:
        >>> low, high = ratio_interval([9, 10, 10, 11] * 5, [18, 20, 20, 22] * 5)
        >>> low < 2 < high
        True
    """
    if not base or not head:
        raise ValueError("a ratio needs at least one sample of each")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
    if resamples < 1 or block < 1:
        raise ValueError(f"resamples and block are at least 1, not {resamples} and {block}")
    draws = random.Random(seed)
    base_blocks, head_blocks = _blocks(base, block), _blocks(head, block)
    ratios = [
        statistic(_drawn(head_blocks, draws)) / statistic(_drawn(base_blocks, draws))
        for _ in range(resamples)
    ]
    tail = (1 - confidence) / 2
    return quantile(ratios, tail), quantile(ratios, 1 - tail)


def quantile(values: Sequence[float], q: float) -> float:
    """Give a quantile, linear between the two samples beside it.

    Source: definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), which is
    numpy's default.

    Args:
        values: at least one, in any unit and order.
        q: from 0 (least) to 1 (greatest).

    Returns:
        The quantile, in the unit of the values.

    Raises:
        ValueError: no values, or q out of its range.

    Example:
        >>> quantile([40, 10, 20, 30], 0.25)
        17.5
    """
    if not values:
        raise ValueError("a quantile needs at least one value")
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    left, right = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return left if left == right else left + (right - left) * (position - below)


def rate_interval(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Give the exact interval of a rate: at each end the count found gets too unlikely.

    Source: Clopper and Pearson, "The Use of Confidence or Fiducial Limits Illustrated in the Case of the
    Binomial" (1934). It holds for independent trials; trials that share samples carry less than their number.

    Args:
        count: how often it happened.
        total: of how many trials, at least 1.
        confidence: between 0 and 1.

    Returns:
        Both ends, as fractions.

    Raises:
        ValueError: there are no trials, or the count is none of them.

    Example:
        >>> low, high = rate_interval(0, 976)
        >>> low, round(high, 5)
        (0.0, 0.00377)
    """
    if total < 1 or not 0 <= count <= total:
        raise ValueError(f"{count} of {total} is no rate")
    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else _root(lambda rate: 1 - _at_most(count - 1, total, rate) - tail)
    high = 1.0 if count == total else _root(lambda rate: tail - _at_most(count, total, rate))
    return low, high


def _blocks(values: Sequence[float], block: int) -> list[Sequence[float]]:
    return [values[start : start + block] for start in range(0, len(values), block)]


def _drawn(blocks: Sequence[Sequence[float]], draws: random.Random) -> list[float]:
    return list(itertools.chain.from_iterable(draws.choices(blocks, k=len(blocks))))


def _at_most(count: int, total: int, rate: float) -> float:
    """Give the chance of at most so many of a binomial number."""
    if rate <= 0 or rate >= 1:
        return 1.0 if rate <= 0 or count >= total else 0.0
    logs = math.log(rate), math.log1p(-rate)
    whole = math.lgamma(total + 1)
    return min(
        1.0,
        math.fsum(
            math.exp(
                whole - math.lgamma(k + 1) - math.lgamma(total - k + 1) + k * logs[0] + (total - k) * logs[1]
            )
            for k in range(count + 1)
        ),
    )


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
