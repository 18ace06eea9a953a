"""A rate that was counted, and what it may be in truth."""

from __future__ import annotations

import math
from collections.abc import Callable


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
