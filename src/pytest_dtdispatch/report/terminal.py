"""A document as lines of a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.report.document import (
    Block,
    Bullets,
    Document,
    Folded,
    Heading,
    Listing,
    Paragraph,
    Span,
    Table,
    Tone,
    Verbatim,
    View,
    paragraph,
    plain,
    spans_of,
)
from pytest_dtdispatch.report.paragraph_lines import COLORS, INDENT, NO_EDGE, Text, paragraph_lines
from pytest_dtdispatch.report.table_lines import columns_that_fit, table_lines

FIGURE_WIDTHS = (14, 8)  # of a listing: a count, its part of the whole
KEPT_OF_NAME = 16  # letters of its end: its beginning is what is looked for
T = TypeVar("T")


def page_width(is_terminal: bool, columns: int) -> int:
    """Columns of a terminal; a pipe or a file has no edge, unless ``COLUMNS`` gives it one."""
    return columns if is_terminal or "COLUMNS" in os.environ else NO_EDGE


def document_lines(document: Document, width: int, view: View) -> Iterator[tuple[Text, ...]]:
    """Lay out the blocks of a document; its legend stands elsewhere."""
    for block in document.blocks:
        yield from _block_lines(_printable(block), width, view)


def _printable(part: T) -> T:
    """Write what tests and files named so that a terminal shows it, and does not obey it."""
    changed: Any = part
    if isinstance(part, str):
        changed = printable(part)
    elif isinstance(part, tuple):
        changed = tuple(map(_printable, part))
    elif is_dataclass(part) and not isinstance(part, type):
        changed = replace(part, **{of.name: _printable(getattr(part, of.name)) for of in fields(part)})
    return changed  # type: ignore[no-any-return]


def legend_text(document: Document, width: int, view: View) -> str:
    """Say in short what those columns of a document mean that are shown; a verbose view says all of all."""
    tables = [block for block in document.blocks if isinstance(block, Table)]
    if view.verbose:
        return document.legend_of([column.title for table in tables for column in table.columns])
    fits = ((table, columns_that_fit(table, width)) for table in tables)
    return document.brief_of([table.columns[i].title for table, columns in fits for i in columns])


def plain_text(document: Document, width: int) -> str:
    """Write a document and its legend without colours."""
    legend = paragraph(legend_text(document, width, View()), indent=1)
    whole = Document((*document.blocks, *((legend,) if plain(legend.spans) else ())))
    return "\n".join("".join(piece.text for piece in line) for line in document_lines(whole, width, View()))


def _block_lines(block: Block, width: int, view: View) -> Iterator[tuple[Text, ...]]:
    match block:
        case Paragraph():
            yield from paragraph_lines(block, width)
        case Table():
            yield from table_lines(block, width, view)
        case Listing():
            yield from _listing_lines(block, width)
        case Verbatim():
            yield from ((Text(INDENT * block.indent + line),) for line in block.lines)
        case Heading():
            yield (Text(block.text, COLORS[Tone.STRONG]),)
        case Bullets():
            for item in block.items:
                bullet = Paragraph((Span("* "), *spans_of(item)), indent=1, hanging=1)
                yield from paragraph_lines(bullet, width)
        case Folded() if view.verbose:
            yield (Text(block.title, COLORS[Tone.STRONG]),)
            for inner in block.blocks:
                yield from _block_lines(inner, width, view)


def _listing_lines(listing: Listing, width: int) -> Iterator[tuple[Text, ...]]:
    whole = listing.entries[0][-1]
    room = max(width - len(INDENT) - sum(FIGURE_WIDTHS) - 2, len(whole))
    for *texts, name in listing.entries:
        figures = "".join(text.rjust(size) for text, size in zip(texts, FIGURE_WIDTHS, strict=True))
        yield (Text(f"{INDENT}{figures}  {shorten(name, keep_end=KEPT_OF_NAME, limit=room)}"),)
