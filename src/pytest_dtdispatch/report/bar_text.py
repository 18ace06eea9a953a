"""Bars as letters: of blocks, and in plain ASCII where an output can show no more."""

from __future__ import annotations

from pytest_dtdispatch.report.bars import Bars, LogScale, log_scale
from pytest_dtdispatch.report.document import Line, Table

GLYPHS = "█▒·"
TO_ASCII = str.maketrans(GLYPHS, "#=-")
LEAST_WIDTH, GREATEST_WIDTH = 12, 40
SHARE_OF_PAGE = 1 / 8  # at least
OF_NS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
OF_COUNTS = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def least_width(page: int) -> int:
    """Give the columns that bars take at least on a page so wide.

    Example:
        >>> least_width(80), least_width(160)
        (12, 20)
    """
    return min(max(LEAST_WIDTH, int(page * SHARE_OF_PAGE)), GREATEST_WIDTH)


def scale_of(table: Table) -> LogScale | None:
    """Choose the scale of all bars of a table; none where it has no bar."""
    if table.bars is None:
        return None
    return log_scale(line.ends for group in table.groups for line in group.lines)


def bar_head(bars: Bars, scale: LogScale, width: int) -> str:
    """Write both ends of a scale above its bars.

    Example:
        >>> bar_head(Bars(("hit",), ("hit",)), LogScale(1e3, 1e7), 12)
        '1us     10ms'
    """
    low, high = (_amount(end, bars.unit) for end in (scale.low, scale.high))
    return f"{low}{high.rjust(width - len(low))}"


def bar_text(line: Line, scale: LogScale, width: int) -> str:
    """Draw the bar of a line; without its figures it is empty.

    Example:
        >>> bar_text(Line("add", (), ends=(10, 100, 10_000)), LogScale(1, 10_000), 8).translate(TO_ASCII)
        '##==----'
    """
    drawn = ""
    for glyph, (_, stop) in zip(GLYPHS, scale.pieces(line.ends), strict=False):
        drawn += glyph * (round(stop * width) - len(drawn))
    return drawn


def bar_legend(bars: Bars, scale: LogScale) -> str:
    """Say what bars are made of, and on what scale they stand."""
    pieces = ", ".join(f"{glyph} {added}" for glyph, added in zip(GLYPHS, bars.added, strict=False))
    low, high = (_amount(end, bars.unit) for end in (scale.low, scale.high))
    return f"Bars: {pieces}; logarithmic, from {low} to {high}."


def _amount(end: float, unit: str) -> str:
    units = OF_NS if unit == "ns" else OF_COUNTS
    name, size = next((each for each in units if end >= each[1]), units[-1])
    return f"{end / size:g}{name}"
