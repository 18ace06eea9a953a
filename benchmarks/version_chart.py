"""The picture of ``docs/versions.md``: what a hit and a miss took, from version to version."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from benchmarks.pictures import STYLE

COLOURS = {"hit": "#3b82c4", "miss": "#d9730d"}
WIDE, HIGH, LEFT, TOP, RIGHT, BETWEEN = 560, 190, 62, 30, 96, 62
TICKS = tuple(step * 10**power for power in range(5) for step in (1, 2, 5))  # us
# Rows that are named at the right edge, where there is room.
NAMED = ("add", "mm", "stack", "cat", "t", "add @2x2")
NAME_HIGH = 13


class Panel(NamedTuple):
    """Where the figures of a state stand: a logarithmic scale, and the versions side by side."""

    state: str
    top: float
    versions: Sequence[str]
    least: float
    most: float

    def x(self, number: int) -> float:
        """Give the place of a version."""
        return LEFT + number * WIDE / max(1, len(self.versions) - 1)

    def y(self, us: float) -> float:
        """Give the height of a figure."""
        share = math.log(us / self.least) / math.log(self.most / self.least)
        return self.top + HIGH * (1 - share)


def chart(data: Mapping[str, Any]) -> str:
    """Draw every row as a thin line, and the median of all rows as a bold one."""
    time, body, said = data["time"], [], []
    for number, (state, colour) in enumerate(COLOURS.items()):
        rows = {row: of[state] for row, of in time["rows"].items() if state in of}
        if not rows:
            continue
        every = [us for row in rows.values() for us in row.values()]
        panel = Panel(
            state, TOP + number * (HIGH + BETWEEN), time["versions"], min(every) / 1.1, max(every) * 1.1
        )
        middles = {v: statistics.median(found) for v in panel.versions if (found := _of_version(rows, v))}
        body += [*_frame(panel), *_lines(panel, rows, colour), _line(panel, middles, colour, 3)]
        body += _names(panel, rows)
        said.append(f"median {state}: " + ", ".join(f"{v} {us:,.1f} us" for v, us in middles.items()))
    return _picture(body, "; ".join(said))


def _of_version(rows: Mapping[str, Mapping[str, float]], version: str) -> list[float]:
    return [row[version] for row in rows.values() if version in row]


def _frame(panel: Panel) -> Iterator[str]:
    yield _text(LEFT, panel.top - 10, f"{panel.state}, us", 'font-weight="bold"')
    for us in TICKS:
        if panel.least <= us <= panel.most:
            y = panel.y(us)
            yield f'<path d="M{LEFT} {y:.1f}h{WIDE}" stroke="currentColor" stroke-opacity=".15"/>'
            yield _text(LEFT - 8, y + 4, f"{us:,}", 'text-anchor="end"')
    for number, version in enumerate(panel.versions):
        yield _text(panel.x(number), panel.top + HIGH + 18, version, 'text-anchor="middle"')


def _lines(panel: Panel, rows: Mapping[str, Mapping[str, float]], colour: str) -> Iterator[str]:
    for name, row in rows.items():
        yield _line(panel, row, colour, 1, f"<title>{escape(name)}</title>")


def _line(panel: Panel, row: Mapping[str, float], colour: str, wide: int, title: str = "") -> str:
    points = " ".join(
        f"{panel.x(number):.1f},{panel.y(row[version]):.1f}"
        for number, version in enumerate(panel.versions)
        if version in row
    )
    look = f'fill="none" stroke="{colour}" stroke-width="{wide}" stroke-opacity="{1 if wide > 1 else 0.4}"'
    return f'<polyline points="{points}" {look}>{title}</polyline>'


def _names(panel: Panel, rows: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Name some rows at the end of their lines, moved down where two would meet."""
    last = panel.versions[-1]
    ends = sorted((panel.y(row[last]), name) for name, row in rows.items() if name in NAMED and last in row)
    lowest = -math.inf
    for y, name in ends:
        lowest = max(y, lowest + NAME_HIGH)
        yield _text(LEFT + WIDE + 8, lowest + 4, name)


def _text(x: float, y: float, text: str, more: str = "") -> str:
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {font} {more}>{escape(text)}</text>'


def _picture(body: Sequence[str], said: str) -> str:
    width, height = LEFT + WIDE + RIGHT, TOP + 2 * HIGH + BETWEEN + 30
    head = (
        f'<svg class="fits" viewBox="0 0 {width} {height}" role="img" aria-labelledby="versions-title '
        'versions-text" fill="currentColor" xmlns="http://www.w3.org/2000/svg">'
    )
    title = '<title id="versions-title">A hit and a miss of each op, by version of torch</title>'
    return "\n".join(
        (head, title, f'<desc id="versions-text">{escape(said)}</desc>', STYLE, *body, "</svg>", "")
    )
