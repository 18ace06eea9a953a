"""How far a ratio can be trusted, from the samples alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from pytest_dtdispatch.stats.location import median, quantile

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


def _blocks(values: Sequence[float], block: int) -> list[Sequence[float]]:
    return [values[start : start + block] for start in range(0, len(values), block)]


def _drawn(blocks: Sequence[Sequence[float]], draws: random.Random) -> list[float]:
    return list(itertools.chain.from_iterable(draws.choices(blocks, k=len(blocks))))
