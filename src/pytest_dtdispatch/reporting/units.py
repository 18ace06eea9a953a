"""Times in a unit that suits a whole column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A unit of time.

    Args:
        name: ``ns``, ``us`` or ``ms``.
        ns: how many nanoseconds it has.
        decimals: digits after the point that a column in it shows.
    """

    name: str
    ns: float
    decimals: int

    def text(self, ns: float | None) -> str:
        """Write a time given in nanoseconds; a dash where there is none.

        Example:
            >>> Unit("us", 1e3, 1).text(6_940)
            '6.9'
        """
        return "-" if ns is None else f"{ns / self.ns:,.{self.decimals}f}"


def column_unit(values_ns: Iterable[float | None]) -> Unit:
    """Choose one unit for a column, so that its smallest value has a digit before the point.

    Args:
        values_ns: the column's times in nanoseconds.

    Example:
        >>> column_unit([6_940, 1_211_000]).name
        'us'
    """
    sizes = [abs(value) for value in values_ns if value]
    smallest = min(sizes, default=0.0)
    if smallest >= 1e6:
        return Unit("ms", 1e6, 2)
    if smallest >= 1e3 or max(sizes, default=0.0) >= 1e6:
        return Unit("us", 1e3, 1)
    return Unit("ns", 1.0, 0)
