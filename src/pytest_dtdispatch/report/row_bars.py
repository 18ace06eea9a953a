"""The bar of a row as SVG: local, what a hit adds, what a miss adds, on one logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.report.bars import Ends, LogScale, log_scale
from pytest_dtdispatch.report.drawing import Tick, axis, box, drawing, grid, percent
from pytest_dtdispatch.report.html_parts import Html, element, joined

KINDS = ("local", "hit", "miss")  # classes of pieces
MEANINGS = ("local", "overhead on a hit", "extra on a miss")
LEAST_DECADES = 3
MOST_TICKS = 3  # beside the first: more have no room on a telephone
HEIGHT, TOP, THICK = 20, 5, 10
LEGEND = (
    "Bars are on a logarithmic scale: each piece ends at its figure, and equal lengths are equal ratios. "
    "The thin line behind an end is the noise of that figure."
)


def ends_of(row: Measurement) -> Ends:
    """Give what the pieces of the bar of a row end at."""
    steady = row.steady
    return row.figure(State.LOCAL), steady.figure if steady else None, row.figure(State.MISS)


def scale_of(rows: Iterable[Measurement]) -> LogScale | None:
    """Choose the scale of all bars: it has a range of 1,000 at least."""
    scale = log_scale([ends_of(row) for row in rows])
    if scale is None:
        return None
    return LogScale(scale.low, max(scale.high, scale.low * 10**LEAST_DECADES))


def ticks_of(scale: LogScale, text: Callable[[float], str]) -> list[Tick]:
    """Mark each power of ten."""
    decades = round(math.log10(scale.high / scale.low))
    marks = [scale.low * 10**n for n in range(decades + 1)]
    step = math.ceil(decades / MOST_TICKS)
    return [Tick(scale.place(mark), text(mark)) for mark in marks[::step]]


def bar_axis(ticks: list[Tick]) -> Html:
    """Draw the scale above the bars."""
    return drawing(f"logarithmic scale from {ticks[0].text} to {ticks[-1].text}", 14, *axis(ticks, 11))


def row_bar(row: Measurement, scale: LogScale, ticks: list[Tick], text: Callable[[float], str]) -> Html:
    """Draw the bar of a row, with the noise of its figures."""
    ends = ends_of(row)
    known = [f"{name} {text(end)}" for name, end in zip(KINDS, ends, strict=True) if end is not None]
    pieces = [
        box(start, stop, TOP, THICK, kind)
        for kind, (start, stop) in zip(KINDS, scale.pieces(ends), strict=True)
        if stop > start
    ]
    noise = [_whisker(samples, scale) for samples in (row.steady, row.of(State.MISS)) if samples]
    return drawing(
        ", ".join(known) or "nothing measured", HEIGHT, *grid(ticks, HEIGHT), *pieces, *noise, kind="bar"
    )


def _whisker(samples: Samples, scale: LogScale) -> Html:
    """Draw a line from a figure as far as the median may lie above it."""
    figure = samples.figure
    most = figure * (1 + samples.scatter) if samples.scatter else float(max(samples.values))
    y = TOP + THICK / 2
    start, stop = percent(scale.place(figure)), percent(scale.place(most))
    return element("line", x1=start, x2=stop, y1=f"{y:g}", y2=f"{y:g}", class_="noise")


def key() -> Html:
    """Say what the colours are."""
    marks = (
        element("li", element("span", class_=f"swatch {kind}", aria_hidden="true"), meaning)
        for kind, meaning in zip(KINDS, MEANINGS, strict=True)
    )
    return joined((element("ul", *marks, class_="key"), element("p", LEGEND, class_="hint")))
