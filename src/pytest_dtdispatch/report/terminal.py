"""The table as lines of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.signature import shorten
from pytest_dtdispatch.report.measurements import Group, Line, Table

MIN_LABEL, ROOMY_LABEL = 32, 60
INDENT = "  "
LEGEND = (
    "Medians. miss: first call after the sharding caches were cleared; hit: a later call; local: the same op "
    "on plain local shards; overhead: hit - local. samples: misses + hits recorded, each of them proved by "
    "the cache counters. More columns and notes with -v."
)


@dataclass(frozen=True)
class Text:
    """A piece of a line, and the colour that it has where colours are wanted."""

    text: str
    color: str = ""


def table_lines(table: Table, width: int) -> Iterator[tuple[Text, ...]]:
    """Lay a table out."""
    every_line = [line for group in table.groups for line in group.lines]
    keep = _columns_that_fit(table, every_line, width)
    titles = [table.titles[i] for i in keep]
    widths = [_column_width(table, every_line, i) for i in keep]
    room = width - len(INDENT) - sum(widths) - _proof_width(every_line)
    label_width = max(min(room, _longest_label(table)), _least_label(table, width))
    head = "".join(title.rjust(size) for title, size in zip(titles, widths, strict=True))
    yield (Text(INDENT + table.label_title.ljust(label_width) + head + f"  {table.proof_title}"),)
    for group in table.groups:
        yield from _group_lines(group, keep, widths, label_width, width)


def legend_lines(width: int, legend: str = LEGEND) -> list[str]:
    """Say what the columns are, in lines of a terminal of this width."""
    return textwrap.wrap(legend, width - 1, initial_indent=INDENT, subsequent_indent=INDENT)


def _group_lines(
    group: Group, keep: Sequence[int], widths: Sequence[int], label_width: int, width: int
) -> Iterator[tuple[Text, ...]]:
    yield (Text(group.title, "bold"),)
    for line in group.lines:
        place = len(line.label) - line.label.rfind("@") if "@" in line.label else 0
        label = shorten(line.label, keep_end=place, limit=label_width)
        cells = "".join(line.cells[i].rjust(size) for i, size in zip(keep, widths, strict=True))
        color = "green" if line.is_proved else "red" if line.proof != "not measured" else "yellow"
        yield Text(INDENT + label.ljust(label_width)), Text(cells), Text(f"  {line.proof}", color)
        for note in line.notes:
            for text in textwrap.wrap(
                note, width - 1, initial_indent=INDENT * 2, subsequent_indent=INDENT * 3
            ):
                yield (Text(text, "yellow"),)


def _columns_that_fit(table: Table, lines: Sequence[Line], width: int) -> list[int]:
    keep = list(range(len(table.titles)))
    names = [title.split()[0] for title in table.titles]
    for column in (i for name in table.expendable for i in keep.copy() if names[i] == name):
        used = sum(_column_width(table, lines, i) for i in keep) + _proof_width(lines)
        if width - len(INDENT) - used >= _least_label(table, width):
            break
        keep.remove(column)
    return keep


def _longest_label(table: Table) -> int:
    labels = (line.label for group in table.groups for line in group.lines)
    return max(map(len, (table.label_title, *labels)))


def _least_label(table: Table, width: int) -> int:
    """Width that labels are never cut below, and columns are left out for: two fifths of the terminal's."""
    return min(max(width * 2 // 5, MIN_LABEL), ROOMY_LABEL, _longest_label(table))


def _column_width(table: Table, lines: Sequence[Line], index: int) -> int:
    return 2 + max(len(text) for text in (table.titles[index], *(line.cells[index] for line in lines)))


def _proof_width(lines: Sequence[Line]) -> int:
    """Width of the last column; a long refusal may run over the edge."""
    return 2 + min(max((len(line.proof) for line in lines), default=0), len("unpropagated"))
