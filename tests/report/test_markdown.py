"""Documents as Markdown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    Verbatim,
    one_line,
    paragraph,
)
from pytest_dtdispatch.report.markdown import code, document_text, escaped, folded

HIT, WHY = Column("hit", "us"), Column("why")
MM = Line("mm(f32[8]S0)@4", {HIT: "7.0", WHY: "a|b"}, "proved", ("a note",))
TABLE = Table((Group("test_a (from Python)", (MM,)),), status_title="proof")
NAMED = one_line("gate: ", Span("off", Tone.STRONG), " in ", Span("a_b", Tone.CODE))
# Neither a label nor a dash is a number.
LINES = (Line("4", {HIT: "-", WHY: "-"}), Line("8", {HIT: "1,000", WHY: "-"}))
PLAIN = Table((Group("", LINES),), "mesh", label_tone=Tone.PLAIN)


def written(*blocks: Block) -> str:
    return document_text(Document(blocks))


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (paragraph("2 of *these*", Tone.NOTICE, indent=2), r"2 of \*these\*"),
        (NAMED, "gate: **off** in `a_b`"),
        (Verbatim(("a,*b*", "c")), "```\na,*b*\nc\n```"),
        (Verbatim(("a ``` b",)), "````\na ``` b\n````"),
        (
            TABLE,
            "**test\\_a (from Python)**\n\n| signature | hit us | why | proof |\n| --- | --: | --- | --- |\n"
            "| `mm(f32[8]S0)@4` | 7.0 | a\\|b | proved |\n\n* `mm(f32[8]S0)@4`: a note",
        ),
        (PLAIN, "| mesh | hit us | why |\n| --- | --: | --- |\n| 4 | - | - |\n| 8 | 1,000 | - |"),
        (Paragraph((Span("a "), Span("b", Tone.STRONG), Span(" c"))), "a **b** c"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_blocks_are_rendered_by_type(block: Block, text: str) -> None:
    assert written(block) == text + "\n"


@pytest.mark.parametrize("text", ["- no list", "+5 %", "1. no list", "=== no title", "2) no list"])
def test_paragraph_text_is_not_parsed_as_markup(text: str) -> None:
    assert not re.match(r"[-+=]|\d+[.)]", written(paragraph(text)))
    assert re.sub(r"\\(.)", r"\1", written(paragraph(text))).strip() == text


def test_details_are_folded_below_their_title() -> None:
    text = document_text(Document((paragraph("one"), paragraph("two"))))
    expected = "<details>\n<summary>All &lt;2&gt;</summary>\n\none\n\ntwo\n\n</details>\n"
    assert folded("All\n<2>", text) == expected


def test_legend_is_below_all_blocks() -> None:
    assert document_text(Document((paragraph("one"),), "what *one* is")) == "one\n\nwhat \\*one\\* is\n"


@given(st.text())
def test_text_does_not_break_tables(message: str) -> None:
    text = escaped(message)
    assert "\n" not in text
    assert "|" not in re.sub(r"\\.", "", text)
    assert not set("`*_[]<>#$~&{}") & set(re.sub(r"\\.", "", text))
    assert re.sub(r"\\(.)", r"\1", text) == escape_controls(" ".join(message.split()))


@given(st.text(alphabet="a|`<\\", min_size=1))
def test_code_does_not_break_tables(text: str) -> None:
    assert not re.search(r"(?<!\\)\|", code(text))


def test_long_names_are_shortened_in_tables() -> None:
    test, label = f"t.py::test_a[{'x' * 300}]", "n" * 300
    line = Line(label, {HIT: "7.0"}, "proved", ("a note",))
    text = document_text(Document((Table((Group(f"{test} (counts)", (line,)),)),)))
    assert max(map(len, text.splitlines())) < 180
    assert text.count("#") == 3, "the title, the line and its note have a digest"
