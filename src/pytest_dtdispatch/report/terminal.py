"""Documents as lines of a terminal of limited width, with tones for colours."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from pytest_dtdispatch.core.signatures import cut_name, cut_words
from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.report.document import (
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
    elif isinstance(part, tuple):
        changed = tuple(map(_escaped, part))
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
            text += f"{each}; " * (len(f"{text}{each}; {end}") <= room)
    return f"{text}{end}" if text else ""


def _shown_titles(document: Document, width: int) -> list[str]:
    tables = [block for block in document.blocks if isinstance(block, Table)]
    return [table.columns[i].title for table in tables for i in _fit(table, width)[1]]


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


def _fit(table: Table, width: int) -> tuple[int, dict[int, int]]:
    """Return the width of labels, and the widths of the columns that fit, by index.

    Columns are omitted only if labels would have less than half of the width.
    """
    lines = [line for group in table.groups for line in group.lines]
    longest = max(map(len, (table.label_title, *(line.label for line in lines))))
    widths = [
        2 + max(map(len, (column.head, *(plain(line.cells[i]) for line in lines))))
        for i, column in enumerate(table.columns)
    ]
    proof = max(len(table.proof_title), *(len(line.proof) for line in lines), 0)
    beside = len(INDENT) + (2 + min(proof, table.proof_room) if proof else 0)
    least = min(max(width // 2, MIN_LABEL), 52, longest)
    shown = list(range(len(widths)))
    for titles, room in ((table.expendable, least), (table.omitted_last, min(least, MIN_LABEL))):
        for i in [i for title in titles for i in shown if table.columns[i].title == title]:
            if width - beside - sum(widths[i] for i in shown) >= room:
                break
            shown.remove(i)
    room = width - beside - sum(widths[i] for i in shown)
    return min(max(room, table.least_label), longest), {i: widths[i] for i in shown}


def table_lines(table: Table, width: int, view: View) -> Iterator[tuple[Span, ...]]:
    """Yield the lines of a table; a verbose view has the omitted cells of each line below it."""
    label_width, widths = _fit(table, width)
    heads = "".join(table.columns[i].head.rjust(size) for i, size in widths.items())
    yield (Span(f"{INDENT}{table.label_title.ljust(label_width)}{heads}  {table.proof_title}".rstrip()),)
    left_out = [i for i in range(len(table.columns)) if i not in widths]
    for group in table.groups:
        if group.title:
            yield from paragraph_lines(paragraph(group.title, Tone.STRONG, hanging=1), width)
        for line in group.lines:
            yield _row(line, label_width, widths)
            warns = table.spells_out and line.tone in (Tone.NOTICE, Tone.BAD)
            if (view.verbose or warns) and (figures := _figures_text(table, line, left_out)):
                yield from paragraph_lines(paragraph(figures, indent=2, hanging=1), width)
            for note in line.notes:
                yield from paragraph_lines(paragraph(note, Tone.NOTICE, indent=2, hanging=1), width)
        if group.more:
            yield from paragraph_lines(paragraph(group.more, indent=1, hanging=1), width)


def _row(line: Line, label_width: int, widths: Mapping[int, int]) -> tuple[Span, ...]:
    label = cut_name(line.label, label_width).ljust(label_width)
    cells = "".join(plain(line.cells[i]).rjust(size) for i, size in widths.items())
    if not line.proof:
        return (Span(f"{INDENT}{label}{cells}".rstrip()),)
    return Span(f"{INDENT}{label}{cells}"), Span(f"  {line.proof}", line.tone)


def _figures_text(table: Table, line: Line, columns: Sequence[int]) -> str:
    """Format cells of a line as a sentence; a repeated title is preceded by that of its main column."""
    titles = [column.title for column in table.columns]
    texts = []
    for i in columns:
        owner = next((title for title in titles[i::-1] if titles.count(title) == 1), "")
        title = titles[i] if owner == titles[i] else f"{owner} {titles[i]}"
        cell = plain(line.cells[i])
        texts += [f"{title} {cell} {table.columns[i].unit}".strip()] * (cell != "-")
    return ", ".join(texts)
