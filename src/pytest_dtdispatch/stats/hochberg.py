"""Several tests at once, and still one chance of a false alarm."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values, so that all below a level may be called at that level together.

    Source: Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).

    Args:
        p_values: each from 0 to 1; may be none.

    Returns:
        The adjusted values, in the order given.

    Raises:
        ValueError: a value out of its range.

    Example:
        >>> holm([0.02, 0.001, 0.5])
        [0.04, 0.003, 0.5]
    """
    _check(p_values)
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = worst
    return adjusted


def hochberg(p_values: Sequence[float]) -> list[float]:
    """Adjust p values by Holm's levels, from the largest down: where many are small, fewer are lost.

    It holds for tests that do not depend on each other, or grow and shrink together, as rows do that were
    measured in the same processes.

    Source: Hochberg, "A Sharper Bonferroni Procedure for Multiple Tests of Significance" (1988); dependence:
    Sarkar, "Some Probability Inequalities for Ordered MTP2 Random Variables" (1998).

    Args:
        p_values: each from 0 to 1; may be none.

    Returns:
        The adjusted values, in the order given: none is above that of :func:`holm`.

    Raises:
        ValueError: a value out of its range.

    Example:
        >>> hochberg([0.25, 0.125]), holm([0.25, 0.125])
        ([0.25, 0.25], [0.25, 0.25])
        >>> hochberg([0.25, 0.25]), holm([0.25, 0.25])
        ([0.25, 0.25], [0.5, 0.5])
    """
    _check(p_values)
    adjusted = [0.0] * len(p_values)
    least = 1.0
    for place, i in enumerate(sorted(range(len(p_values)), key=lambda i: -p_values[i])):
        least = min(least, (place + 1) * p_values[i])
        adjusted[i] = least
    return adjusted


def _check(p_values: Sequence[float]) -> None:
    for p in p_values:
        if not 0 <= p <= 1:
            raise ValueError(f"a p value lies between 0 and 1, not at {p}")
