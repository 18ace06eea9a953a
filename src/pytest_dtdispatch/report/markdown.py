"""A document as Markdown, of the kind that Sphinx builds and GitHub shows."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.report.document import (
    Cell,
    Document,
    Group,
    Paragraph,
    Span,
    Table,
    Tone,
    Verbatim,
    spans_of,
)

MARKUP = re.compile(r"([\\`*_\[\]<>|#$~&{}!])")


def document_text(document: Document) -> str:
    """Write a document, its legend below its blocks."""
    parts = []
    for block in document.blocks:
        match block:
            case Paragraph():
                # Escape the beginning of a text that would read as an item of a list or as a heading.
                parts.append(re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", _inline(block.spans)))
            case Verbatim():
                parts.append(_fenced(block.lines))
            case Table():
                for group in block.groups:
                    parts += _group_parts(block, group)
    if meanings := document.legend_of():
        parts.append(_inline(meanings))
    return "\n\n".join(parts) + "\n"


def code(text: str) -> str:
    r"""Format a text as code that is also valid in a table cell.

    Example:
        >>> code("a|b")
        '`a\\|b`'
    """
    text = escape_controls(" ".join(text.split()))
    has_pipe_after_backslash = "\\" in text and "|" in text  # which ends a cell of a table, escaped or not
    if not text or "`" in text or has_pipe_after_backslash:
        return escaped(text)
    return f"`{text}`".replace("|", "\\|")


def escaped(text: str) -> str:
    r"""Write a text, such as a message of torch's, so that none of it is markup.

    Example:
        >>> escaped("no rule for <x> | y")
        'no rule for \\<x\\> \\| y'
    """
    return MARKUP.sub(r"\\\1", escape_controls(" ".join(text.split())))


def folded(title: str, text: str) -> str:
    """Write a text that few readers open, below its title."""
    shown = html.escape(escape_controls(re.sub(r"\s+", " ", title)))
    return f"<details>\n<summary>{shown}</summary>\n\n{text}\n</details>\n"


def _group_parts(table: Table, group: Group) -> Iterator[str]:
    if group.title:
        yield _inline((Span(group.title, Tone.STRONG),))
    last = (table.proof_title,) if table.proof_title else ()
    titles = (table.label_title, *(column.head for column in table.columns), *last)
    rows = [
        ((Span(line.label, table.label_tone),), *line.cells, *((line.proof,) if last else ()))
        for line in group.lines
    ]
    yield _grid(titles, rows)
    notes = [f"* {code(line.label)}: {escaped(note)}" for line in group.lines for note in line.notes]
    if notes:
        yield "\n".join(notes)
    if group.more:
        yield escaped(group.more)


def _grid(titles: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Format a table, with columns of numbers aligned right; only plain texts count as numbers."""
    rules = ["--:" if _is_number([row[i] for row in rows]) else "---" for i in range(len(titles))]
    lines = (map(escaped, titles), rules, *(map(_inline, row) for row in rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _is_number(cells: Sequence[Cell]) -> bool:
    filled = [cell for cell in cells if cell != "-"]
    number = r"[-+]?[\d,.]+( ?%)?"
    return bool(filled) and all(isinstance(cell, str) and re.fullmatch(number, cell) for cell in filled)


def _fenced(lines: Sequence[str]) -> str:
    """Write lines as code, in a fence that none of them can close."""
    fence = "```"
    while any(fence in line for line in lines):
        fence += "`"
    return "\n".join((fence, *map(escape_controls, lines), fence))


def _inline(cell: Cell) -> str:
    return " ".join("".join(map(_marked, spans_of(cell))).split())


def _marked(span: Span) -> str:
    if span.tone is Tone.CODE:
        return code(span.text)
    text = MARKUP.sub(r"\\\1", escape_controls(re.sub(r"\s+", " ", span.text)))
    return f"**{text}**" if span.tone is Tone.STRONG else text
