"""A document as HTML, with no scripts: for a page of someone else's, or for one of our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pytest_dtdispatch.report.bars import BarPart, StackedBar
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
from pytest_dtdispatch.report.drawing import box, clipped, drawing
from pytest_dtdispatch.report.html_parts import Html, element, joined, scrolling

COLORS = 8
HEIGHT = 30
ROOM = 0.012  # share of the width that a letter takes on a small screen

TAGS = {Tone.STRONG: "strong", Tone.CODE: "code", Tone.NOTICE: "em", Tone.BAD: "strong"}


@dataclass(frozen=True)
class HtmlStyle:
    """How a page is told where the text of cells stands, and whether it has styles of ours.

    Args:
        left: attribute of cells whose text stands to the left.
        right: of those where it stands to the right.
        is_own_page: whether styles of ours are there: charts are drawn, wide tables scroll.
    """

    left: tuple[str, str] = ("style", "text-align: left")
    right: tuple[str, str] = ("style", "text-align: right")
    is_own_page: bool = False


ELSEWHERE = HtmlStyle()
OWN_PAGE = HtmlStyle(("class", "l"), ("class", "r"), is_own_page=True)


def html_text(document: Document, style: HtmlStyle = ELSEWHERE) -> Html:
    """Write a document, its legend below its blocks; whatever its texts hold, none of it is markup."""
    parts = [part for block in document.blocks for part in _block_parts(block, style)]
    told = document.legend_of(document.meanings)
    legend = [element("p", told, class_="hint" if style.is_own_page else "")] if told else []
    return Html("\n".join([*parts, *legend]))


def _block_parts(block: Block, style: HtmlStyle) -> Iterator[str]:
    match block:
        case Heading():
            yield element(f"h{block.level}", block.text)
        case Paragraph():
            yield element("p", _inline(block.spans, style))
        case Bullets():
            yield element("ul", *(element("li", _inline(item, style)) for item in block.items))
        case Verbatim():
            yield element("pre", Html("\n".join(joined([line]) for line in block.lines)))
        case Table():
            yield _table(_table_rows(block, style), style)
        case Listing():
            rows = (_row("td", entry, style, len(entry) - 1) for entry in block.entries)
            yield _table((_row("th", block.titles, style, len(block.titles) - 1), *rows), style)
        case Folded():
            inner = (part for each in block.blocks for part in _block_parts(each, style))
            yield element("details", element("summary", block.title), "\n", Html("\n".join(inner)))
        case StackedBar() if style.is_own_page:
            yield stacked_bar(block)


def _table(rows: Iterator[str] | Sequence[str], style: HtmlStyle) -> Html:
    table = element("table", Html("\n".join(rows)))
    return scrolling(table) if style.is_own_page else table


def _table_rows(table: Table, style: HtmlStyle) -> Iterator[str]:
    last = (table.proof_title,) if table.proof_title else ()
    titles = (table.label_title, *(column.head for column in table.columns), *last)
    yield _row("th", titles, style, 0, *([len(titles) - 1] if last else []))
    for group in table.groups:
        yield from _group_rows(table, group, len(titles), style)


def _group_rows(table: Table, group: Group, width: int, style: HtmlStyle) -> Iterator[str]:
    if group.title:
        yield _wide(_inline((Span(group.title, Tone.STRONG),), style), width, style)
    for line in group.lines:
        label, proof = (Span(line.label, table.label_tone),), (Span(line.proof, line.tone),)
        cells = (label, *line.cells, *((proof,) if table.proof_title else ()))
        yield _row("td", cells, style, 0, len(line.cells) + 1)
        for note in line.notes:
            yield _wide(note, width, style)
    if group.more:
        yield _wide(group.more, width, style)


def _row(tag: str, cells: Sequence[Cell], style: HtmlStyle, *left: int) -> Html:
    """Write a row: its cells to the right, but for those at these places."""
    parts = []
    for place, cell in enumerate(cells):
        name, value = style.left if place in left else style.right
        scope = "col" if tag == "th" else ""
        parts.append(element(tag, _inline(cell, style), scope=scope, **{name: value}))
    return element("tr", *parts)


def _wide(inner: str, width: int, style: HtmlStyle) -> Html:
    name, value = style.left
    return element("tr", element("td", inner, colspan=width, **{name: value}))


def _inline(cell: Cell, style: HtmlStyle) -> Html:
    return joined(_toned(span, style) for span in spans_of(cell))


def _toned(span: Span, style: HtmlStyle) -> str:
    if style.is_own_page and span.tone in (Tone.GOOD, Tone.NOTICE, Tone.BAD):
        return element("strong" if span.tone is Tone.BAD else "span", span.text, class_=span.tone.value)
    return element(TAGS[span.tone], span.text) if span.tone in TAGS else span.text


def stacked_bar(bar: StackedBar) -> Html:
    """Draw a bar; names stand in its parts where they have room, and all in the list below."""
    ends = list(accumulate(part.share for part in bar.parts))
    pieces: list[Html] = []
    for n, (part, end) in enumerate(zip(bar.parts, ends, strict=True)):
        pieces.append(box(end - part.share, end, 0, HEIGHT, _kind(n, part), element("title", _told(part))))
        if part.share > ROOM * len(part.name):
            pieces.append(
                clipped(
                    end - part.share, end, 0, HEIGHT, part.name, "" if part.is_rest else f"on{n % COLORS}"
                )
            )
    said = f"{bar.whole}: {', '.join(map(_told, bar.parts))}"
    key = (
        element("li", element("span", class_=f"swatch {_kind(n, part)}", aria_hidden="true"), _told(part))
        for n, part in enumerate(bar.parts)
    )
    caption = element("figcaption", element("strong", bar.title), f": {bar.whole}")
    note = element("p", bar.note, class_="notice") if bar.note else ""
    chart = drawing(said, HEIGHT, *pieces)
    return element("figure", caption, chart, element("ul", *key, class_="key"), note, class_="stack")


def _kind(place: int, part: BarPart) -> str:
    return "rest" if part.is_rest else f"p{place % COLORS}"


def _told(part: BarPart) -> str:
    return f"{part.name} {part.text}"
