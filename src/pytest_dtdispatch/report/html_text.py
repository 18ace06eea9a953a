"""A document as HTML that may stand in a page of someone else's: no styles but alignment, no scripts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.report.document import (
    Block,
    Bullets,
    Cell,
    Document,
    Folded,
    Group,
    Heading,
    Listing,
    Paragraph,
    Span,
    Table,
    Tone,
    Verbatim,
    spans_of,
)

TAGS = {Tone.STRONG: "strong", Tone.CODE: "code", Tone.NOTICE: "em", Tone.BAD: "strong"}
RIGHT = "right"


def html_text(document: Document) -> str:
    """Write a document, its legend below its blocks; whatever its texts hold, none of it is markup."""
    parts = [part for block in document.blocks for part in _block_parts(block)]
    told = document.legend_of(document.meanings)
    return "\n".join([*parts, *([_tagged("p", _inline(told))] if told else [])])


def _block_parts(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield _tagged(f"h{block.level}", _inline(block.text))
        case Paragraph():
            yield _tagged("p", _inline(block.spans))
        case Bullets():
            yield _tagged("ul", "".join(_tagged("li", _inline(item)) for item in block.items))
        case Verbatim():
            yield _tagged("pre", "\n".join(map(_escaped, block.lines)))
        case Table():
            yield _tagged("table", "\n".join(_table_rows(block)))
        case Listing():
            rows = (_row("td", entry, len(entry) - 1) for entry in block.entries)
            yield _tagged("table", "\n".join((_row("th", block.titles), *rows)))
        case Folded():
            inner = "\n".join(part for each in block.blocks for part in _block_parts(each))
            yield _tagged("details", f"{_tagged('summary', _escaped(block.title))}\n{inner}")


def _table_rows(table: Table) -> Iterator[str]:
    last = (table.proof_title,) if table.proof_title else ()
    titles = (table.label_title, *(column.head for column in table.columns), *last)
    yield _row("th", titles)
    for group in table.groups:
        yield from _group_rows(table, group, len(titles), bool(last))


def _group_rows(table: Table, group: Group, width: int, has_proof: bool) -> Iterator[str]:
    if group.title:
        yield _wide(_inline((Span(group.title, Tone.STRONG),)), width)
    for line in group.lines:
        label, proof = (Span(line.label, table.label_tone),), (Span(line.proof, line.tone),)
        yield _row("td", (label, *line.cells, *((proof,) if has_proof else ())), 0, len(line.cells) + 1)
        for note in line.notes:
            yield _wide(_escaped(note), width)
    if group.more:
        yield _wide(_escaped(group.more), width)


def _row(tag: str, cells: Sequence[Cell], *left: int) -> str:
    """Write a row: its cells to the right, but for those at these places."""
    parts = [_tagged(tag, _inline(cell), "left" if i in left else RIGHT) for i, cell in enumerate(cells)]
    return _tagged("tr", "".join(parts))


def _wide(inner: str, width: int) -> str:
    return _tagged("tr", f'<td colspan="{width}" style="text-align: left">{inner}</td>')


def _tagged(tag: str, inner: str, align: str = "") -> str:
    style = f' style="text-align: {align}"' if align else ""
    return f"<{tag}{style}>{inner}</{tag}>"


def _inline(cell: Cell) -> str:
    return "".join(
        _tagged(TAGS[span.tone], _escaped(span.text)) if span.tone in TAGS else _escaped(span.text)
        for span in spans_of(cell)
    )


def _escaped(text: str) -> str:
    return html.escape(printable(text))
