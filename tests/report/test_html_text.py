"""Documents as HTML: every block, closed tags, and no markup from what others wrote."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.report.document import (
    Bullets,
    Column,
    Document,
    Folded,
    Group,
    Heading,
    Line,
    Listing,
    Span,
    Table,
    Tone,
    Verbatim,
    paragraph,
)
from pytest_dtdispatch.report.html_text import html_text

OURS = {
    *("h2", "p", "ul", "li", "pre", "table", "tr", "th", "td", "details", "summary"),
    *("code", "strong", "em"),
}


class Page(HTMLParser):
    """What a browser makes of it: the tags that are open, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        assert {name for name, _ in attrs} <= {"style", "colspan", "scope"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def every_block(text: str) -> Document:
    cell = (Span(text, Tone.CODE), Span(text, Tone.BAD))
    lines = (Line(text, (text, cell), text, (text,), Tone.NOTICE),)
    table = Table((Column(text, "us"), Column("why")), (Group(text, lines), Group("", lines)))
    plain = (paragraph(text), Bullets((text, cell)), Verbatim((text,)), Heading(text))
    listing = Listing(("count", "part", "name"), (("1", "100 %", text),))
    return Document((*plain, table, listing, Folded(text, (paragraph(text),))), text)


@given(st.text() | st.sampled_from(["<script>alert(1)</script>", "</td>&amp;\x1b[31m", "\" onload='x'"]))
def test_nothing_that_others_wrote_is_markup(text: str) -> None:
    page = Page(html_text(every_block(text)))
    assert page.open == []
    assert page.seen <= OURS
    if text.isprintable():
        assert page.text.count(text) >= 12


def test_a_table_has_a_row_a_line_and_numbers_to_the_right() -> None:
    table = Table((Column("hit", "us"),), (Group("test_a", (Line("mm(f32[8])@4", ("7.0",), "", ("why",)),)),))
    rows = html_text(Document((Table(table.columns, table.groups, proof_title=""),))).splitlines()
    left, right = '<td style="text-align: left">', '<td style="text-align: right">'
    assert rows[0].startswith("<table><tr><th ")
    assert "hit us</th></tr>" in rows[0]
    assert rows[2] == f"<tr>{left}<code>mm(f32[8])@4</code></td>{right}7.0</td></tr>"
    assert rows[3].endswith('<td colspan="2" style="text-align: left">why</td></tr></table>')
