"""Whether one sample lies above another, and by how much: rank sums, their test and its interval."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, median

MOST_EXACT = 60  # samples of both together: some 20 ms


def mann_whitney(base: Sequence[float], head: Sequence[float]) -> float:
    """Give the one-sided p value of "head is larger": how often chance alone puts head as high as it lies.

    Exact for up to :data:`MOST_EXACT` samples together, ties or not: of all ways to choose the head's ranks
    among the midranks, the share whose sum is at least the one found. Beyond, the normal approximation with
    the corrections for ties and for continuity.

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
    if len(ranks) > MOST_EXACT:
        return _normal_p(ranks, len(base), len(head), found)
    step = math.gcd(*(rank - 2 for rank in ranks)) or 1
    places = [(rank - 2) // step for rank in ranks]
    counts = sums_of_choices(places, len(head))
    return sum(counts[(found - 2 * len(head)) // step :]) / math.comb(len(ranks), len(head))


def hodges_lehmann(base: Sequence[float], head: Sequence[float]) -> float:
    """Give the shift from base to head: the median of all differences ``head - base``.

    Of logarithms it is the logarithm of a ratio.

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

    Example:
        >>> shift_interval([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
        (7, 13)
    """
    ordered = sorted(_differences(base, head))
    k = _least_place(len(base), len(head), (1 - confidence) / 2)
    if k < 1:
        return -math.inf, math.inf
    return ordered[k - 1], ordered[-k]


def smallest_detectable(
    base: Sequence[float], head: Sequence[float], floor: float = 0.0, alpha: float = 0.05
) -> float:
    """Give the smallest slow-down that samples with this spread could have shown.

    A slow-down is judged regressed where the shift of logarithms is past ``log(1 + floor)`` and the
    one-sided rank test gives ``p <= alpha``. Moving every sample of the head moves the shift and its
    interval alike, so the test first trips where the lower end of the interval with confidence ``1 - 2 *
    alpha`` leaves 0: at a shift of its distance from the shift found. What was found itself does not enter,
    its spread alone does.

    Source: the rank test and its interval are one by inversion: Lehmann, "Nonparametrics: Statistical
    Methods Based on Ranks" (1975), section 2.6.

    Args:
        base: at least one sample above 0, in any unit.
        head: at least one sample above 0, in the same unit.
        floor: the least slow-down that counts, as a fraction: 0.1 is 10 %.
        alpha: the level of the test, above 0 and under 0.5.

    Returns:
        A slow-down in percent; infinite where so few samples can never give such a p.

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
    """Adjust p values by Holm's levels, from the largest down: where many are small, fewer are lost.

    It holds for tests that do not depend on each other, or grow and shrink together, as rows do that were
    measured in the same processes.

    Source: Hochberg, "A Sharper Bonferroni Procedure for Multiple Tests of Significance" (1988); dependence:
    Sarkar, "Some Probability Inequalities for Ordered MTP2 Random Variables" (1998).

    Args:
        p_values: each from 0 to 1; may be none.

    Returns:
        The adjusted values, in the order given: none is above that of Holm's own procedure.

    Example:
        >>> hochberg([0.25, 0.125]), hochberg([0.25, 0.25])
        ([0.25, 0.25], [0.25, 0.25])
    """
    adjusted = [0.0] * len(p_values)
    least = 1.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: -p_values[i])):
        least = min(least, (place + 1) * p_values[i])
        adjusted[i] = least
    return adjusted


def doubled_midranks(values: Sequence[float]) -> list[int]:
    """Rank values from 1; equal ones share the mean of their ranks. Doubled, so that all are whole numbers.

    Example:
        >>> doubled_midranks([10, 30, 20, 20])
        [2, 8, 5, 5]
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0] * len(values)
    start = 0
    for _, tied in itertools.groupby(order, key=lambda i: values[i]):
        places = list(tied)
        for place in places:
            ranks[place] = 2 * start + len(places) + 1
        start += len(places)
    return ranks


def sums_of_choices(ranks: Sequence[int], size: int) -> list[int]:
    """Count in how many ways ``size`` of the ranks add up to each sum.

    The counts of a size are kept in one whole number, a field of bits for each sum, so that adding a rank to
    all of them is one shift.

    Args:
        ranks: whole numbers of at least 0.
        size: how many are chosen.

    Returns:
        At index s the number of choices whose sum is s.

    Example:
        >>> sums_of_choices([1, 2, 3], 2)
        [0, 0, 0, 1, 1, 1, 0]
    """
    width = (len(ranks) + 7) // 8 + 1  # bytes: no count passes 2 ** len(ranks)
    chosen = [1] + [0] * size
    for taken, rank in enumerate(ranks):
        for k in range(min(size, taken + 1), 0, -1):
            chosen[k] += chosen[k - 1] << (8 * width * rank)
    total = sum(ranks) + 1
    packed = chosen[size].to_bytes(width * total, "little")
    return [int.from_bytes(packed[width * s : width * (s + 1)], "little") for s in range(total)]


@functools.lru_cache(maxsize=32)
def mann_whitney_counts(base: int, head: int) -> tuple[int, ...]:
    """Count the orders of untied samples that give each U: how many pairs have the head's sample above.

    Source: Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically Larger
    than the Other" (1947).

    Args:
        base: number of samples.
        head: number of samples.

    Returns:
        At index u, from 0 to ``base * head``, the number of orders.

    Example:
        >>> mann_whitney_counts(2, 2)
        (1, 1, 2, 1, 1)
    """
    least = head * (head + 1) // 2
    return tuple(sums_of_choices(range(1, base + head + 1), head)[least : least + base * head + 1])


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
