"""The table as lines of a terminal: what fits, what is left out, what is cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_dtdispatch.report.document import (
    Block,
    Bullets,
    Column,
    Document,
    Folded,
    Group,
    Heading,
    Line,
    Listing,
    Paragraph,
    Span,
    Table,
    Tone,
    Verbatim,
    View,
    Wrap,
    one_line,
    paragraph,
)
from pytest_dtdispatch.report.rows import MEANINGS, TIMES
from pytest_dtdispatch.report.terminal import (
    MIN_LABEL,
    NO_EDGE,
    Text,
    document_lines,
    legend_text,
    page_width,
)

# A busy machine is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

WIDTHS = (60, 80, 120, 200)
TITLES = (
    *("calls", "share %", "total %", "cold ms", "miss ms", "hit us", "local us", "overhead us"),
    *("miss/hit", "samples", "rounds"),
)
CELLS = ("3", "98.1", "100.0", "1.90", "1.20", "6.5", "1.5", "5.0", "185", "20+200", "20")
LABEL = "add.Tensor(f32[512,512]S0, f32[512,512]S0)@4"
INDISPENSABLE = ["signature", "cold", "miss", "hit", "proof"]
# Below this a terminal has no room for what is never left out.
LEAST = len("  ") + MIN_LABEL + sum(2 + len(title) for title in ("cold ms", "miss ms", "hit us", "proved"))


LONG_PROOF = "unpropagated, noisy"  # a longer one may run over the edge
EVIL, WRITTEN = "\x1b[31mred\r\u202e", r"\x1b[31mred\r\u202e"
COLUMNS = tuple(Column(*title.split()) for title in TITLES)


def line(label: str = LABEL, proof: str = "proved", *notes: str, tone: Tone = Tone.GOOD) -> Line:
    return Line(label, CELLS, proof, notes, tone)


def table(*lines: Line, title: str = "test_a") -> Table:
    return Table(COLUMNS, (Group(title, lines),), expendable=TIMES.expendable, kept_longest=("share",))


def plain(line: tuple[Text, ...]) -> str:
    return "".join(piece.text for piece in line)


def laid_out(of: Block, width: int) -> list[tuple[Text, ...]]:
    return [*document_lines(Document((of,)), width, View())]


def texts(of: Block, width: int) -> list[str]:
    return [plain(line) for line in laid_out(of, width)]


def columns(of: Table, width: int) -> list[str]:
    """Names of the columns that are shown, without their units."""
    return re.sub(r" (?:(?:ns|us|ms)\b|%)", "", texts(of, width)[0]).split()


@pytest.mark.parametrize("width", WIDTHS)
def test_only_a_long_proof_runs_over_the_edge(width: int) -> None:
    proof = "propagation ran again (3x), no cache counter moved (20x)"
    head, _, row, short = texts(table(line(proof=proof), line()), width)
    fits = max(width, LEAST + len(LONG_PROOF) - len("proved"))
    assert row.endswith(f"  {proof}")
    assert len(row) - len(proof) + len(LONG_PROOF) <= fits
    assert len(head) <= fits
    assert len(short) <= fits
    assert head == texts(table(line(proof=LONG_PROOF), line()), width)[0], "it takes no room from others"


def test_a_wide_terminal_shows_every_column_and_the_whole_label() -> None:
    head, title, row = texts(table(line()), 200)
    assert columns(table(line()), 200) == ["signature", *(t.split()[0] for t in TITLES), "proof"]
    assert title == "test_a"
    assert row.split("@4")[0].strip() + "@4" == LABEL
    assert row.split()[-len(CELLS) - 1 :] == [*CELLS, "proved"]
    assert head.startswith("  signature ")


NAMES_OF_COLUMNS = [*TIMES.expendable, "share"]


def test_columns_are_left_out_in_one_order_as_the_terminal_narrows() -> None:
    dropped: list[str] = []
    for width in range(200, 50, -1):
        shown = columns(table(line()), width)
        dropped += [name for name in NAMES_OF_COLUMNS if name not in shown and name not in dropped]
        assert not set(shown) & set(dropped), "a column that is gone does not come back"
        assert [name for name in shown if name in INDISPENSABLE] == INDISPENSABLE
    assert dropped == ["rounds", "samples", "total", "miss/hit", "local", "calls", "overhead", "share"]


def test_no_column_is_left_out_while_labels_have_half_of_the_width() -> None:
    widest = len("  ") + len(LABEL) + sum(2 + len(title) for title in TITLES) + len("  proved")
    assert "rounds" in columns(table(line()), widest)
    assert "rounds" not in columns(table(line()), widest - 1)
    assert "samples" in columns(table(line()), widest - 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_cells_stand_under_their_titles_flush_right(width: int) -> None:
    head, _, row, other = texts(table(line(), line("mm@4")), width)
    for title, cell in zip(TITLES, CELLS, strict=True):
        at = head.find(f"  {title}")
        if at >= 0:
            end = at + 2 + len(title)
            assert row[:end].endswith(f" {cell}")
            assert other[:end].endswith(f" {cell}")
    assert head.index("proof") == row.index("proved") == other.index("proved")


def test_a_label_that_has_no_room_is_cut_and_keeps_its_beginning_and_its_mesh() -> None:
    named = "addmm.default(f32[512]S0, f32[512,512]R, f32[512,512]R)@2x4:cuda"
    rows = [texts(table(line(named)), width)[2] for width in (80, 90, 120)]
    assert rows[0].startswith("  addmm.default(...)@2x4:cuda ")
    assert rows[1].startswith("  addmm.default(f32[512]S0, ...)@2x4:cuda ")
    assert rows[2].startswith("  addmm.default(f32[512]S0, ..., f32[512,512]R)@2x4:cuda ")


def test_labels_that_are_cut_alike_keep_a_digest_each() -> None:
    lines = [line(f"add.Tensor(f32[512,512]S0, f32[{size},512]S0, f32[512,512]S0)@4") for size in (1, 2)]
    rows = texts(table(*lines, line("mm.default(f32[512,512]S0, f32[512,512]S0, f32[512,512]S0)@4")), 100)
    first, second, other = (re.split(r"  +", row.strip())[0] for row in rows[2:])
    assert re.fullmatch(r"add\.Tensor\(f32\[512,512\]S0, .*\.\.\.#[0-9a-f]{8}@4", first)
    assert re.fullmatch(r"add\.Tensor\(f32\[512,512\]S0, .*\.\.\.#[0-9a-f]{8}@4", second)
    assert first != second
    alike = [line(f"f32[512,512]S0, f32[{size},512]S0, f32[512,512]S0)@4") for size in range(100, 200)]
    assert len(set(texts(table(*alike), 80)[2:])) == 100
    assert other == "mm.default(f32[512,512]S0, ..., f32[512,512]S0)@4"


def test_a_brief_legend_stands_for_the_long_one_unless_all_is_asked_for() -> None:
    lines = Group("test_a", (Line("add@4", ("10",)),))
    of_hits = Table((Column("hit", "us"),), (lines,))
    document = Document((of_hits,), "A figure.", {"hit": "a later call, and more"}, {"hit": "a later call"})
    assert legend_text(document, 30, View()) == "A figure. hit: a later call."
    assert legend_text(document, 30, View(verbose=True)) == "A figure. hit: a later call, and more."


def test_a_group_stands_under_its_title_and_notes_below_their_line() -> None:
    noted = line("add@4", "proved", "it runs once", "and again")
    rows = texts(Table(COLUMNS, (Group("test_a", (noted,)), Group("test_b", (line("mm@4"),)))), 120)
    firsts = ["signature", "test_a", "add@4", "it", "and", "test_b", "mm@4"]
    assert [row.split()[0] for row in rows] == firsts
    assert rows[3] == "    it runs once"


@pytest.mark.parametrize("groups", [(), (Group("test_a", ()),)])
def test_a_table_without_lines_has_its_head(groups: tuple[Group, ...]) -> None:
    head, *rest = texts(Table(COLUMNS, groups), 200)
    assert head.split()[0] == "signature"
    assert rest == [group.title for group in groups]


@pytest.mark.parametrize(
    ("tone", "color"),
    [(Tone.GOOD, "green"), (Tone.BAD, "red"), (Tone.NOTICE, "yellow"), (Tone.PLAIN, "")],
)
def test_the_proof_has_a_colour_of_its_own(tone: Tone, color: str) -> None:
    _, title, row, note = laid_out(table(line("add@4", "a proof", "a note", tone=tone)), 120)
    assert row[-1] == Text("  a proof", color)
    assert [piece.color for piece in row[:-1]] == [""]
    assert title == (Text("test_a", "bold"),)
    assert note == (Text("    a note", "yellow"),)


LABELS = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=150)


@unhurried
@given(st.lists(LABELS, min_size=1), st.integers(40, 250))
@example(["add@4", LABEL, LABEL * 4, "a @ b, then its backward pass, then a step of the optimizer"], 60)
def test_any_label_is_cut_until_its_line_fits(labels: list[str], width: int) -> None:
    rows = texts(table(*map(line, labels)), width)
    assert len(rows) == 2 + len(labels)
    assert max(len(row) for row in (rows[0], *rows[2:])) <= max(width, LEAST)
    assert len({len(row) for row in rows[2:]}) == 1, "all lines are as long"


@pytest.mark.parametrize("width", [60, *WIDTHS, NO_EDGE])
def test_the_legend_explains_the_columns_that_are_shown(width: int) -> None:
    document = Document((table(line()),), TIMES.legend, MEANINGS)
    told = legend_text(document, width, View())
    shown = columns(table(line()), width)
    explained = [name for name in MEANINGS if f"{name}: " in told]
    assert explained == [name for name in MEANINGS if name in shown] != []
    verbose = legend_text(document, width, View(verbose=True))
    every = columns(table(line()), NO_EDGE)
    assert all(f"{name}: {meaning}" in verbose for name, meaning in MEANINGS.items() if name in every)


def test_a_legend_without_columns_stays_as_it_is() -> None:
    assert legend_text(Document((table(line()),), "Blocks: what a model is of."), 80, View()) == (
        "Blocks: what a model is of."
    )


def test_a_page_without_an_edge_has_every_column_and_whole_names() -> None:
    long = "x" * 500
    head, _, row, note = texts(table(line(long, "proved", long)), NO_EDGE)
    assert head.split() == ["signature", *" ".join(TITLES).split(), "proof"]
    assert row.split()[0] == long
    assert note.strip() == long


@pytest.mark.parametrize(("is_terminal", "width"), [(True, 80), (False, NO_EDGE)])
def test_only_a_terminal_has_an_edge(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, width: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert page_width(is_terminal, 80) == width
    monkeypatch.setenv("COLUMNS", "80")
    assert page_width(is_terminal, 80) == 80


def test_a_verbose_view_writes_columns_that_do_not_fit_below_the_line() -> None:
    said = [plain(pieces) for pieces in document_lines(Document((table(line()),)), 80, View(verbose=True))]
    assert said[0] == texts(table(line()), 80)[0]
    below = " ".join(text.strip() for text in said[3:])
    assert (
        below
        == "calls 3, total 100.0 %, local 1.5 us, overhead 5.0 us, miss/hit 185, samples 20+200, rounds 20"
    )


def test_a_title_that_stands_twice_is_told_apart_below_the_line() -> None:
    titles = (("miss", "ms"), ("slowest", ""), ("hit", "us"), ("slowest", ""))
    twice = Table(
        tuple(Column(*title) for title in titles),
        (Group("", (Line("mm" * 30, ("1.2", "3.4 r1", "5.6", "-")),)),),
        expendable=("slowest",),
    )
    said = [plain(pieces) for pieces in document_lines(Document((twice,)), 40, View(verbose=True))]
    assert said[2:] == ["    miss slowest 3.4 r1"]


def test_a_table_may_have_no_titles_and_no_proof() -> None:
    line = Line("mm", ((Span("7"), Span("*")),))
    bare = Table((Column("hit", "us"),), (Group("", (line,)),), proof_title="")
    assert texts(bare, 80) == ["  signature  hit us", "  mm             7*"]


def test_a_paragraph_hangs_where_it_goes_on() -> None:
    text = paragraph("one two three four", Tone.BAD, indent=1, hanging=2)
    assert laid_out(text, 12) == [
        (Text("  one two", "red"),),
        (Text("      three", "red"),),
        (Text("      four", "red"),),
    ]


@pytest.mark.parametrize(
    ("wrap", "lines"),
    [
        (Wrap.ANYWHERE, ["a", "half-", "way l", "onges", "t"]),
        (Wrap.SPACES, ["a", "half-way", "longest"]),
        (Wrap.NEVER, ["a half-way longest"]),
    ],
)
def test_where_a_paragraph_may_break(wrap: Wrap, lines: list[str]) -> None:
    assert texts(paragraph("a half-way longest", wrap=wrap), 6) == lines


def test_pieces_keep_their_colours_where_a_paragraph_is_wrapped() -> None:
    mixed = Paragraph((Span("gate: "), Span("failed twice", Tone.BAD), Span(" today")), indent=1)
    assert laid_out(mixed, 17) == [
        (Text("  gate: "), Text("failed", "red")),
        (Text("  twice ", "red"), Text("today")),
    ]
    never = one_line(Span("new", Tone.NOTICE), " row", indent=1)
    assert laid_out(never, 5) == [(Text("  new", "yellow"), Text(" row"))]


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        (Verbatim(("a,1", " b,2"), indent=1), ["  a,1", "   b,2"]),
        (Heading("A title"), ["A title"]),
        (Bullets(("one two", (Span("four", Tone.CODE),))), ["  * one", "    two", "  * four"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_blocks(block: Block, lines: list[str]) -> None:
    assert texts(block, 10) == lines


def test_what_is_folded_is_shown_in_a_verbose_view_alone() -> None:
    inner = Folded("All 2", (paragraph("two"),))
    document = Document((paragraph("one"), Folded("All 3", (inner, paragraph("three")))))
    assert [plain(line) for line in document_lines(document, 80, View())] == ["one"]
    verbose = [*document_lines(document, 80, View(verbose=True))]
    assert [plain(line) for line in verbose] == ["one", "All 3", "All 2", "two", "three"]
    assert verbose[1] == (Text("All 3", "bold"),)


def test_a_listing_cuts_the_names_of_parts_and_not_of_the_whole() -> None:
    whole = ("1,000", "100.0 %", "the whole of the call")
    part = ("250", "25.0 %", f"first {'x' * 80} last (a.py:3)")
    first, second = texts(Listing(("count", "part", "name"), (whole, part)), 40)
    assert first == "           1,000 100.0 %  the whole of the call"
    assert len(second) == len(first)
    assert second.startswith("             250  25.0 %  ")
    assert second.endswith("(a.py:3)")


@pytest.mark.parametrize(
    "block",
    [
        one_line(Span(EVIL, Tone.BAD)),
        paragraph(EVIL),
        Heading(EVIL),
        Bullets((EVIL, (Span(EVIL),))),
        Verbatim((EVIL,)),
        Listing(("a", "b", "name"), (("1", "2", EVIL),)),
        table(line(EVIL, EVIL, EVIL), title=EVIL),
        Folded(EVIL, (paragraph(EVIL),)),
    ],
)
def test_names_reach_a_terminal_so_that_it_does_not_obey_them(block: Block) -> None:
    shown = [plain(line) for line in document_lines(Document((block,)), 120, View(verbose=True))]
    assert all(line.isprintable() for line in shown)
    assert WRITTEN in "".join(shown)


HOSTILE = (
    "\x1b[2J\x1b]0;title\x07" * 20,
    "one\ntwo\r\n\ttab",
    "\u202eright to left\u2066 and back\u200f",
    "op(" + "x, " * 5_000 + "y)@4",
    "".join(f"[{n}" for n in range(2_000)) + "]",
    "<script>alert(1)</script>|`\\",
)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_hostile_names_break_no_line_and_send_no_escape(width: int) -> None:
    lines = tuple(Line(name, ("1.5", "9"), name[:9]) for name in HOSTILE)
    hostile = Table((Column("hit", "us"), Column("samples")), (Group("test_a", lines),), proof_title="mark")
    head, _, *rows = texts(hostile, width)
    assert len(rows) == len(HOSTILE)
    assert all(row.isprintable() for row in rows)
    assert all(len(row) <= width + len(r"\u202e") * 9 for row in rows), "a proof may run over the edge"
    assert len({row.index("1.5  ") for row in rows}) == 1, "columns stay where they are"
    assert len({row[: head.index("hit")] for row in rows}) == len(HOSTILE), "names stay apart"
