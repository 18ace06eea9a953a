"""A whole and its parts as one bar in SVG, with a list of what each colour is."""

from __future__ import annotations

from itertools import accumulate

from pytest_dtdispatch.report.bars import BarPart, StackedBar
from pytest_dtdispatch.report.drawing import box, clipped, drawing
from pytest_dtdispatch.report.html_parts import Html, element

COLORS = 8
HEIGHT = 30
ROOM = 0.012  # share of the width that a letter takes on a small screen


def stacked_bar(bar: StackedBar) -> Html:
    """Draw a bar; names stand in its parts where they have room, and all in the list below."""
    ends = list(accumulate(part.share for part in bar.parts))
    pieces: list[Html] = []
    for n, (part, end) in enumerate(zip(bar.parts, ends, strict=True)):
        pieces.append(box(end - part.share, end, 0, HEIGHT, _kind(n, part), element("title", _told(part))))
        if part.share > ROOM * len(part.name):
            pieces.append(
                clipped(
                    end - part.share, end, 0, HEIGHT, part.name, "" if part.is_rest else f"on{n % COLORS}"
                )
            )
    said = f"{bar.whole}: {', '.join(map(_told, bar.parts))}"
    key = (
        element("li", element("span", class_=f"swatch {_kind(n, part)}", aria_hidden="true"), _told(part))
        for n, part in enumerate(bar.parts)
    )
    caption = element("figcaption", element("strong", bar.title), f": {bar.whole}")
    note = element("p", bar.note, class_="notice") if bar.note else ""
    chart = drawing(said, HEIGHT, *pieces)
    return element("figure", caption, chart, element("ul", *key, class_="key"), note, class_="stack")


def _kind(place: int, part: BarPart) -> str:
    return "rest" if part.is_rest else f"p{place % COLORS}"


def _told(part: BarPart) -> str:
    return f"{part.name} {part.text}"
