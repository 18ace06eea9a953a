"""Access to rendered documents: lines on a terminal, and the only table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_dtdispatch.report.document import Document, Line, Table, View
from pytest_dtdispatch.report.terminal import document_lines


def lines_of(document: Document, width: int = 200) -> list[str]:
    """Render a document as lines without colors."""
    return ["".join(piece.text for piece in line) for line in document_lines(document, width, View())]


def table_of(document: Document) -> Table:
    """Return the only table of a document."""
    [table] = [block for block in document.blocks if isinstance(block, Table)]
    return table


def line_of(document: Document) -> Line:
    """Return the only line of the only table of a document."""
    [[line]] = [group.lines for group in table_of(document).groups]
    return line


def titles_of(table: Table) -> tuple[str, ...]:
    """Return the titles of a table's columns, with their units."""
    return tuple(column.head for column in table.columns)


def assert_outputs_match(file: Path, outputs: Mapping[str, str]) -> None:
    """Compare outputs by name with a file; with UPDATE_OUTPUTS=1, the file is written first."""
    text = "".join(f"=== {name}\n{output}\n" for name, output in outputs.items())
    if os.environ.get("UPDATE_OUTPUTS"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
