"""Whether one sample lies above another: the rank sum test of Mann, Whitney and Wilcoxon."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from pytest_dtdispatch.stats.rank_sums import doubled_midranks, sums_of_choices

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

    Raises:
        ValueError: no samples.

    Example:
        >>> mann_whitney([1, 2, 3], [4, 5, 6])
        0.05
    """
    if not base or not head:
        raise ValueError("a rank sum needs at least one sample of each")
    ranks = doubled_midranks([*base, *head])
    found = sum(ranks[len(base) :])
    if len(ranks) > MOST_EXACT:
        return _normal(ranks, len(base), len(head), found)
    step = math.gcd(*(rank - 2 for rank in ranks)) or 1
    places = [(rank - 2) // step for rank in ranks]
    counts = sums_of_choices(places, len(head))
    return sum(counts[(found - 2 * len(head)) // step :]) / math.comb(len(ranks), len(head))


def _normal(ranks: Sequence[int], base: int, head: int, found: int) -> float:
    n = base + head
    above = found / 2 - head * (head + 1) / 2  # pairs with the head's sample above
    ties = sum(t**3 - t for t in Counter(ranks).values())
    variance = base * head / 12 * (n + 1 - ties / (n * (n - 1)))
    if variance <= 0:  # all samples are equal
        return 1.0
    z = (above - base * head / 2 - 0.5) / math.sqrt(variance)
    return max(math.erfc(z / math.sqrt(2)) / 2, math.ulp(0.0))
