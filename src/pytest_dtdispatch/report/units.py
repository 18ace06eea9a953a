"""Units in which times are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
MAX_DECIMALS = 3
MIN_NS = 1e-3  # no clock ticks that fast: such a time is a rounding error, and chooses no digits


@dataclass(frozen=True)
class Scale:
    """A unit of time.

    Args:
        name: ``ns``, ``us``, ``ms`` or ``s``.
        ns: how many nanoseconds it has.
        decimals: digits after the point that a column in it shows.
    """

    name: str
    ns: float
    decimals: int

    def text(self, ns: float | None) -> str:
        """Write a time given in nanoseconds; a dash where there is none."""
        return "-" if ns is None else f"{ns / self.ns:,.{self.decimals}f}"


# One unit and as many digits in every run: two runs are read side by side.
MILLISECONDS, MICROSECONDS = Scale("ms", 1e6, 3), Scale("us", 1e3, 2)


def column_scale(values_ns: Iterable[float | None]) -> Scale:
    """Choose one unit for a column: its median reads as 1 to 999, its smallest value has three digits."""
    sizes = sorted(size for value in values_ns if (size := abs(value or 0)) >= MIN_NS)
    if not sizes:
        return Scale("us", 1e3, 1)
    typical = sizes[len(sizes) // 2]
    name, ns = next(((name, ns) for name, ns in UNITS if typical >= ns), UNITS[-1])
    leading = math.floor(math.log10(sizes[0] / ns))
    return Scale(name, ns, min(max(2 - leading, 0), MAX_DECIMALS))


def short_time(ns: float) -> str:
    """Write a round time shortly.

    Example:
        >>> short_time(1000), short_time(2.5e8), short_time(0.5)
        ('1 us', '250 ms', '0.5 ns')
    """
    name, size = next(((name, size) for name, size in UNITS if ns >= size), UNITS[-1])
    return f"{ns / size:.3g} {name}"


def short_count(count: float) -> str:
    """Write a round count shortly.

    Example:
        >>> short_count(1000), short_count(2.5e6), short_count(12)
        ('1 k', '2.5 M', '12')
    """
    for name, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:.3g}"
