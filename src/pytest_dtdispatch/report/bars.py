"""Bars beside the lines of a table, as data: what each piece ends at, on one logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

Ends = tuple[float | None, ...]


@dataclass(frozen=True)
class BarPart:
    """One part of a whole.

    Args:
        name: of the part.
        share: of the whole bar, from 0 to 1.
        text: its size, as it is written beside the name.
        is_rest: whether it is what no part explains.
    """

    name: str
    share: float
    text: str
    is_rest: bool = False


@dataclass(frozen=True)
class StackedBar:
    """A whole and its parts side by side, for formats that can draw: a table near it has the same figures.

    Args:
        title: what it is of.
        whole: its size.
        parts: in the order they are drawn.
        note: what must be known of it; empty where nothing.
    """

    title: str
    whole: str
    parts: tuple[BarPart, ...]
    note: str = ""


@dataclass(frozen=True)
class LogScale:
    """A logarithmic scale between two powers of ten.

    Args:
        low: where it starts.
        high: where it ends.
    """

    low: float
    high: float

    def place(self, value: float) -> float:
        """Give the place of a value, from 0 to 1.

        Example:
            >>> LogScale(10, 1000).place(100), LogScale(10, 1000).place(0)
            (0.5, 0.0)
        """
        if value <= self.low:
            return 0.0
        return min(math.log(value / self.low) / math.log(self.high / self.low), 1.0)

    def pieces(self, ends: Ends) -> tuple[tuple[float, float], ...]:
        """Give where each piece of a bar starts and ends; one that is not known, or adds nothing, is empty.

        Example:
            >>> LogScale(10, 1000).pieces((None, 100, 1000))
            ((0.0, 0.0), (0.0, 0.5), (0.5, 1.0))
        """
        places, start = [], 0.0
        for end in ends:
            stop = start if end is None else max(self.place(end), start)
            places.append((start, stop))
            start = stop
        return tuple(places)


def log_scale(bars: Iterable[Ends]) -> LogScale | None:
    """Choose the powers of ten that all ends lie between; none where no end is above zero.

    Example:
        >>> log_scale([(1_500, 6_000, 900_000), (None, 40_000, None)])
        LogScale(low=1000.0, high=1000000.0)
    """
    ends = [end for bar in bars for end in bar if end is not None and end > 0]
    if not ends:
        return None
    low, high = math.floor(math.log10(min(ends))), math.ceil(math.log10(max(ends)))
    return LogScale(10.0**low, 10.0 ** max(high, low + 1))
