"""Where samples lie, and how far apart two of them: figures that a few wild samples do not move."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


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
        10
    """
    return statistics.median(differences(base, head))


def differences(base: Sequence[float], head: Sequence[float]) -> list[float]:
    """Give every difference ``head - base``.

    Args:
        base: at least one sample, in any unit.
        head: at least one sample, in the same unit.

    Returns:
        One for each pair of samples, in that unit.

    Raises:
        ValueError: no samples.
    """
    if not base or not head:
        raise ValueError("a shift needs at least one sample of each")
    return [h - b for h in head for b in base]
