"""Statistics that a few wild samples do not move."""

from __future__ import annotations

import math
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


def median(values: Sequence[float]) -> float:
    """Give the middle value, or the mean of the middle two.

    Args:
        values: at least one, in any unit and order.

    Raises:
        ValueError: no values.

    Example:
        >>> median([3, 1, 2, 100])
        2.5
    """
    return quantile(values, 0.5)


def mad(values: Sequence[float]) -> float:
    """Give the median absolute deviation from the median, as it is: not scaled to a standard deviation.

    Source: Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation" (1993), without their
    constant b.

    Args:
        values: at least one, in any unit and order.

    Raises:
        ValueError: no values.

    Example:
        >>> mad([1, 2, 3, 4, 100])
        1.0
    """
    middle = median(values)
    return median([abs(value - middle) for value in values])
