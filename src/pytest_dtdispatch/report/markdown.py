"""Documents in Markdown that both GitHub and Sphinx render."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from pytest_dtdispatch.core.signatures import cut_name, cut_words
from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.report.document import (
    CellContent,
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
    """Render a document as Markdown, with its legend below its blocks."""
    parts = []
    for block in document.blocks:
        match block:
            case Paragraph():
                # Escape the beginning of a text that Markdown would parse as a list item or a heading.
                parts.append(re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", _inline(block.spans)))
            case Verbatim():
                fence = "```"  # longer than any in the text
                while any(fence in line for line in block.lines):
                    fence += "`"
                parts.append("\n".join((fence, *map(escape_controls, block.lines), fence)))
            case Table():
                for group in block.groups:
                    parts += _group_parts(block, group)
    meanings = document.legend_of()
    if meanings:
        parts.append(_inline(meanings))
    return "\n\n".join(parts) + "\n"


def code(text: str) -> str:
    r"""Format a text as code that is also valid in a table cell.

    Example:
        >>> code("a|b")
        '`a\\|b`'
    """
    text = escape_controls(" ".join(text.split()))
    has_pipe_after_backslash = "\\" in text and "|" in text  # it ends a table cell, escaped or not
    if not text or "`" in text or has_pipe_after_backslash:
        return escaped(text)
    return f"`{text}`".replace("|", "\\|")


def escaped(text: str) -> str:
    r"""Escape all Markdown and HTML markup of a text, such as a message of torch.

    Example:
        >>> escaped("no rule for <x> | y")
        'no rule for \\<x\\> \\| y'
    """
    return MARKUP.sub(r"\\\1", escape_controls(" ".join(text.split())))


def folded(title: str, text: str) -> str:
    """Return a collapsed section with a title."""
    shown = html.escape(escape_controls(re.sub(r"\s+", " ", title)))
    return f"<details>\n<summary>{shown}</summary>\n\n{text}\n</details>\n"


def _group_parts(table: Table, group: Group) -> Iterator[str]:
    """Yield the title of a group, a grid with its lines, their notes, and the text about omitted lines."""
    if group.title:
        yield _inline((Span(cut_words(group.title), Tone.STRONG),))
    titles = [table.label_title, *(column.head for column in table.columns)]
    rows: list[list[CellContent]] = [
        [(Span(cut_name(line.label), table.label_tone),), *line.cells.values()] for line in group.lines
    ]
    if table.status_title:
        titles.append(table.status_title)
        for row, line in zip(rows, group.lines, strict=True):
            row.append(line.status)
    # Columns whose cells are all numbers in plain text are aligned right.
    rules, number = [], r"[-+~]*[\d,.]+( ?%)?"
    for i in range(len(titles)):
        filled = [row[i] for row in rows if row[i] != "-"]
        numbers = [cell for cell in filled if isinstance(cell, str) and re.fullmatch(number, cell)]
        rules.append("--:" if numbers and numbers == filled else "---")
    grid = (map(escaped, titles), rules, *(map(_inline, row) for row in rows))
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in grid)
    notes = [(line, note) for line in group.lines for note in (*line.notes, *line.details)]
    if notes:
        yield "\n".join(f"* {code(cut_name(line.label))}: {escaped(note)}" for line, note in notes)
    if group.more:
        yield escaped(group.more)


def _inline(cell: CellContent) -> str:
    return " ".join("".join(map(_marked, spans_of(cell))).split())


def _marked(span: Span) -> str:
    if span.tone is Tone.CODE:
        return code(span.text)
    text = MARKUP.sub(r"\\\1", escape_controls(re.sub(r"\s+", " ", span.text)))
    return f"**{text}**" if span.tone is Tone.STRONG else text
