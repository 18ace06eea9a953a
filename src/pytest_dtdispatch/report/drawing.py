"""Charts as SVG: lengths in percent of the width, so that text keeps its size on any screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.report.html_parts import Html, element


def drawing(said: str, height: int, *inner: str, kind: str = "") -> Html:
    """Make a drawing, with what it shows in words for who does not see it."""
    return element(
        "svg", element("title", said), *inner, role="img", class_=kind, width="100%", height=height
    )


def percent(place: float) -> str:
    """Write a place from 0 to 1.

    Example:
        >>> percent(0.12345), percent(1)
        ('12.35%', '100%')
    """
    return f"{100 * place:.2f}".rstrip("0").rstrip(".") + "%"


def box(start: float, stop: float, y: float, height: float, kind: str, *inner: str) -> Html:
    """Draw a box between two places."""
    return element(
        "rect",
        *inner,
        x=percent(start),
        width=percent(max(stop - start, 0.0)),
        y=f"{y:g}",
        height=f"{height:g}",
        class_=kind,
    )


def rule(place: float, y: float, height: float, kind: str) -> Html:
    """Draw a line from top to bottom."""
    at = percent(place)
    return element("line", x1=at, x2=at, y1=f"{y:g}", y2=f"{y + height:g}", class_=kind)


def label(place: float, y: float, text: str, kind: str = "") -> Html:
    """Write a text at a place; at either end it begins, or ends, there."""
    anchor = "start" if place < 0.08 else "end" if place > 0.92 else "middle"
    return element("text", text, x=percent(place), y=f"{y:g}", text_anchor=anchor, class_=kind)


def clipped(start: float, stop: float, y: float, height: float, text: str, kind: str = "") -> Html:
    """Write a text in a box, cut where the box ends."""
    inner = element("text", text, x="4", y=f"{height / 2 + 4:g}", class_=kind)
    where = {"x": percent(start), "width": percent(stop - start), "y": f"{y:g}", "height": f"{height:g}"}
    return element("svg", inner, **where)


@dataclass(frozen=True)
class Tick:
    """A mark on a scale.

    Args:
        place: from 0 to 1.
        text: what stands there.
    """

    place: float
    text: str


def axis(ticks: Sequence[Tick], y: float) -> Iterable[Html]:
    """Write the texts of marks in a line."""
    return (label(tick.place, y, tick.text, "tick") for tick in ticks)


def grid(ticks: Sequence[Tick], height: float) -> Iterable[Html]:
    """Draw a line at each mark that is not at an end."""
    return (rule(tick.place, 0, height, "grid") for tick in ticks if 0 < tick.place < 1)
