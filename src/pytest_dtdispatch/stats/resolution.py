"""The smallest slow-down that a comparison could have judged regressed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_dtdispatch.stats.shift import hodges_lehmann, shift_interval


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

    Raises:
        ValueError: no samples, a sample of 0 or less, or a number out of its range.

    Example:
        >>> round(smallest_detectable([10.0, 10.1, 10.2, 10.3, 10.4], [10.0, 10.1, 10.2, 10.3, 10.4]), 1)
        2.0
        >>> smallest_detectable([10.0] * 5, [10.0] * 5, floor=0.075)
        7.5
    """
    if floor < 0 or not 0 < alpha < 0.5:
        raise ValueError(f"floor is at least 0 and alpha between 0 and 0.5, not {floor} and {alpha}")
    if any(value <= 0 for value in (*base, *head)):
        raise ValueError("samples are above 0")
    logs = [math.log(value) for value in base], [math.log(value) for value in head]
    low, _ = shift_interval(*logs, confidence=1 - 2 * alpha)
    return 100 * max(floor, math.expm1(hodges_lehmann(*logs) - low))


def smallest_past(ratio: float, low: float) -> float:
    """Give the smallest threshold that a slow-down of its own size could have been told from none by.

    A row is judged regressed where the whole interval of its ratio is past the threshold. Slowing every
    sample moves the ratio and its interval by one factor, so the interval leaves 1 at a slow-down of
    ``ratio / low``.

    Args:
        ratio: of head to base.
        low: lower end of its interval, above 0.

    Returns:
        A slow-down in percent.

    Example:
        >>> round(smallest_past(1.02, 1.0), 9)
        2.0
    """
    return 100 * (ratio / low - 1)
