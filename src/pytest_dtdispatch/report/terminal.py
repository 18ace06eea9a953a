"""Documents as lines of a terminal of limited width, with tones for colours."""

from __future__ import annotations

import os
import sys
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from pytest_dtdispatch.core.signatures import cut_name, cut_words
from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.report.document import (
    Column,
    Document,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    Verbatim,
    View,
    paragraph,
    plain,
)

NO_EDGE = sys.maxsize  # width of a pipe or a file
INDENT = "  "
MIN_LABEL = 30
T = TypeVar("T")


def page_width(is_terminal: bool, columns: int) -> int:
    """Return the width of a terminal; that of a pipe or a file is unlimited unless ``COLUMNS`` is set."""
    return columns if is_terminal or "COLUMNS" in os.environ else NO_EDGE


def document_lines(document: Document, width: int, view: View) -> Iterator[tuple[Span, ...]]:
    """Yield the lines of a document without its legend."""
    for block in document.blocks:
        match _escaped(block):
            case Paragraph() as escaped:
                yield from paragraph_lines(escaped, width)
            case Table() as escaped:
                yield from table_lines(escaped, width, view)
            case Verbatim() as escaped:
                yield from ((Span(INDENT * escaped.indent + line),) for line in escaped.lines)


def _escaped(part: T) -> T:
    """Escape control characters in all texts of a block, as names of tests and files may have them."""
    changed: Any = part
    if isinstance(part, str):
        changed = escape_controls(part)
    elif isinstance(part, (tuple, list)):
        changed = tuple(map(_escaped, part))
    elif isinstance(part, Mapping):
        changed = {_escaped(key): _escaped(value) for key, value in part.items()}
    elif is_dataclass(part) and not isinstance(part, type):
        changed = replace(part, **{of.name: _escaped(getattr(part, of.name)) for of in fields(part)})
    return changed  # type: ignore[no-any-return]


def brief_legend(documents: Iterable[Document], width: int) -> str:
    """Return explanations of visible columns, as many as fit into one line."""
    room, text, end = min(width, 120) - len(INDENT) - 1, "", "-v explains all."
    for document in documents:
        shown = _shown_titles(document, width)
        explained = [f"{title}: {meaning}" for title, meaning in document.meanings.items() if title in shown]
        for each in explained or [document.legend.rstrip(".")]:
            if len(f"{text}{each}; {end}") <= room:
                text += f"{each}; "
    return f"{text}{end}" if text else ""


def _shown_titles(document: Document, width: int) -> list[str]:
    tables = [block for block in document.blocks if isinstance(block, Table)]
    return [column.title for table in tables for column in _fit(table, width)[1]]


def plain_text(document: Document, width: int) -> str:
    """Render a document and its legend without colours."""
    legend = paragraph(document.legend_of(_shown_titles(document, width)), indent=1)
    whole = Document((*document.blocks, *((legend,) if plain(legend.spans) else ())))
    return "\n".join("".join(piece.text for piece in line) for line in document_lines(whole, width, View()))


def paragraph_lines(block: Paragraph, width: int) -> Iterator[tuple[Span, ...]]:
    """Yield the lines of a paragraph, wrapped only at spaces so that figures and paths stay intact.

    A name that is longer than a line is shortened, as in tables.
    """
    indent = INDENT * block.indent
    if block.is_whole:
        first, *others = block.spans
        yield (Span(indent + first.text, first.tone), *others)
        return
    room = max(width - 1 - len(indent + INDENT * block.hanging), MIN_LABEL)
    lines = textwrap.wrap(
        cut_words(plain(block.spans), room),
        width - 1,
        initial_indent=indent,
        subsequent_indent=indent + INDENT * block.hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    yield from ((Span(line, block.spans[0].tone),) for line in lines)


def _fit(table: Table, width: int) -> tuple[int, dict[Column, int]]:
    """Return the width of labels, and the widths of the columns that fit.

    Columns are omitted only if labels would have less than half of the width.
    """
    lines = list(table.lines)
    longest = max(map(len, (table.label_title, *(line.label for line in lines))))
    widths = {
        column: 2 + max(map(len, (column.head, *(plain(line.cells[column]) for line in lines))))
        for column in table.columns
    }
    status = max(len(table.status_title), *(len(line.status) for line in lines), 0)
    beside = len(INDENT) + (2 + min(status, table.status_room) if status else 0)
    least = min(max(width // 2, MIN_LABEL), 52, longest)
    for titles, room in ((table.optional, least), (table.omitted_last, min(least, MIN_LABEL))):
        for column in [column for title in titles for column in widths if column.title == title]:
            if width - beside - sum(widths.values()) >= room:
                break
            del widths[column]
    return min(max(width - beside - sum(widths.values()), table.min_label), longest), widths


def table_lines(table: Table, width: int, view: View) -> Iterator[tuple[Span, ...]]:
    """Yield the lines of a table; a verbose view has the omitted cells of each line below it."""
    label_width, widths = _fit(table, width)
    heads = "".join(column.head.rjust(size) for column, size in widths.items())
    yield (Span(f"{INDENT}{table.label_title.ljust(label_width)}{heads}  {table.status_title}".rstrip()),)
    omitted = [column for column in table.columns if column not in widths]
    titles = Counter(column.title for column in table.columns)
    repeated = {title for title, count in titles.items() if count > 1}
    for group in table.groups:
        if group.title:
            yield from paragraph_lines(paragraph(group.title, Tone.STRONG, hanging=1), width)
        for line in group.lines:
            label = cut_name(line.label, label_width).ljust(label_width)
            cells = "".join(plain(line.cells[column]).rjust(size) for column, size in widths.items())
            if line.status:
                yield Span(f"{INDENT}{label}{cells}"), Span(f"  {line.status}", line.tone)
            else:
                yield (Span(f"{INDENT}{label}{cells}".rstrip()),)
            if view.verbose or (table.lists_omitted and line.tone in (Tone.NOTICE, Tone.BAD)):
                figures = _figures_text(line, omitted, repeated)
                yield from paragraph_lines(paragraph(figures, indent=2, hanging=1), width)
            for tone, texts in ((Tone.NOTICE, line.notes), (Tone.PLAIN, line.details)):
                for text in texts:
                    yield from paragraph_lines(paragraph(text, tone, indent=2, hanging=1), width)
        if group.more:
            yield from paragraph_lines(paragraph(group.more, indent=1, hanging=1), width)


def _figures_text(line: Line, columns: Iterable[Column], repeated: Collection[str]) -> str:
    """Format cells of a line as a sentence; a repeated title is preceded by that of its main column."""
    texts = []
    for column in columns:
        cell = plain(line.cells[column])
        if cell != "-":
            title = f"{column.of} {column.title}" if column.title in repeated else column.title
            texts.append(f"{title} {cell} {column.unit}".strip())
    return ", ".join(texts)
