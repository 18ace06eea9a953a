"""By how much one sample lies above another, with an interval that asks nothing of their distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from pytest_dtdispatch.stats.location import median
from pytest_dtdispatch.stats.rank_sums import mann_whitney_counts

MOST_EXACT = 60  # samples of both together


def hodges_lehmann(base: Sequence[float], head: Sequence[float]) -> float:
    """Give the shift from base to head: the median of all differences ``head - base``.

    Of logarithms it is the logarithm of a ratio.

    Source: Hodges and Lehmann, "Estimates of Location Based on Rank Tests" (1963).

    Args:
        base: at least one sample, in any unit.
        head: at least one sample, in the same unit.

    Returns:
        The shift, in that unit.

    Raises:
        ValueError: no samples.

    Example:
        >>> hodges_lehmann([1, 2, 3], [11, 12, 300])
        10.0
    """
    return median(_differences(base, head))


def shift_interval(
    base: Sequence[float], head: Sequence[float], confidence: float = 0.95
) -> tuple[float, float]:
    """Give the interval of :func:`hodges_lehmann`: from the k-th least to the k-th greatest difference.

    k is the greatest number with ``P(U < k) <= (1 - confidence) / 2``, where U is the statistic of Mann and
    Whitney: exact for up to :data:`MOST_EXACT` samples together, by the normal approximation beyond. Where
    there are too few samples for the confidence, the interval has no ends. Ties only make it cover more.

    Source: Lehmann, "Nonparametrics: Statistical Methods Based on Ranks" (1975), section 2.6; Moses's method.

    Args:
        base: at least one sample, in any unit.
        head: at least one sample, in the same unit.
        confidence: between 0 and 1.

    Returns:
        Both ends, in that unit.

    Raises:
        ValueError: no samples, or a confidence out of its range.

    Example:
        >>> shift_interval([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
        (7, 13)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
    differences = sorted(_differences(base, head))
    k = _least_place(len(base), len(head), (1 - confidence) / 2)
    if k < 1:
        return -math.inf, math.inf
    return differences[k - 1], differences[-k]


def _differences(base: Sequence[float], head: Sequence[float]) -> list[float]:
    if not base or not head:
        raise ValueError("a shift needs at least one sample of each")
    return [h - b for h in head for b in base]


def _least_place(base: int, head: int, tail: float) -> int:
    """Give the greatest k with ``P(U < k) <= tail``; 0 where there is none above."""
    if base + head > MOST_EXACT:
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
