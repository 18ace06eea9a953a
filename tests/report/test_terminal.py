"""Documents as lines on a terminal: width, omitted columns, shortened labels and colors."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Line,
    Span,
    Table,
    Tone,
    Verbatim,
    View,
    one_line,
    paragraph,
)
from pytest_dtdispatch.report.rows import MEANINGS, OPTIONAL
from pytest_dtdispatch.report.terminal import (
    MIN_LABEL,
    NO_EDGE,
    brief_legend,
    document_lines,
    page_width,
    plain_text,
)
from tests.reported_runs import HOSTILE

WIDTHS = (60, 80, 120, 200)
TITLES = (
    *("calls", "share %", "total %", "cold ms", "miss ms", "hit us", "local us", "overhead us"),
    *("miss/hit", "samples", "rounds"),
)
CELLS = ("3", "98.1", "100.0", "1.90", "1.20", "6.5", "1.5", "5.0", "185", "20+200", "20")
LABEL = "add.Tensor(f32[512,512]S0, f32[512,512]S0)@4"
INDISPENSABLE = ["signature", "cold", "miss", "hit", "proof"]
# The minimum width for columns that are never omitted.
MIN_WIDTH = (
    len("  ") + MIN_LABEL + sum(2 + len(title) for title in ("cold ms", "miss ms", "hit us", "proved"))
)
LONG_PROOF = "unpropagated, noisy call"
EVIL, WRITTEN = "\x1b[31mred\r\u202e", r"\x1b[31mred\r\u202e"
FILLED = {Column(*title.split()): cell for title, cell in zip(TITLES, CELLS, strict=True)}


def line(label: str = LABEL, proof: str = "proved", *notes: str, tone: Tone = Tone.GOOD) -> Line:
    return Line(label, FILLED, proof, notes, tone)


def table(*lines: Line, title: str = "test_a") -> Table:
    return Table((Group(title, lines),), status_title="proof", optional=OPTIONAL, omitted_last=("share",))


def laid_out(of: Block, width: int, view: View | None = None) -> list[tuple[Span, ...]]:
    return [*document_lines(Document((of,)), width, view or View())]


def texts(of: Block, width: int, view: View | None = None) -> list[str]:
    return ["".join(piece.text for piece in line) for line in laid_out(of, width, view)]


def columns(of: Table, width: int) -> list[str]:
    """Return the names of the shown columns, without units."""
    return re.sub(r" (?:(?:ns|us|ms)\b|%)", "", texts(of, width)[0]).split()


# Tables


@pytest.mark.parametrize("width", WIDTHS)
def test_cells_are_aligned_and_only_proofs_overflow(width: int) -> None:
    proof = "propagation ran again (3x), no cache counter moved (20x)"
    head, _, row, short = texts(table(line(proof=proof), line("mm@4")), width)
    fits = max(width, MIN_WIDTH + len(LONG_PROOF) - len("proved"))
    assert len(row) - len(proof) + len(LONG_PROOF) <= fits
    assert max(len(head), len(short)) <= fits
    assert head == texts(table(line(proof=LONG_PROOF), line()), width)[0], (
        "does not reduce the width of other columns"
    )
    for title, cell in zip(TITLES, CELLS, strict=True):
        if (at := head.find(f"  {title}")) >= 0:
            end = at + 2 + len(title)
            assert row[:end].endswith(f" {cell}")
            assert short[:end].endswith(f" {cell}")
    assert head.index("proof") == row.index(proof) == short.index("proved")


@pytest.mark.parametrize("width", [200, NO_EDGE])
def test_wide_terminal_shows_all_columns_and_full_labels(width: int) -> None:
    label = LABEL if width == 200 else "x" * 500
    head, title, row = texts(table(line(label)), width)
    assert head.split() == ["signature", *" ".join(TITLES).split(), "proof"]
    assert title == "test_a"
    assert row.startswith(f"  {label} ")
    assert row.split()[-len(CELLS) - 1 :] == [*CELLS, "proved"]


def test_columns_are_dropped_in_a_fixed_order() -> None:
    dropped: list[str] = []
    every = [name for name in (*OPTIONAL, "share") if name in columns(table(line()), NO_EDGE)]
    for width in range(200, 50, -1):
        shown = columns(table(line()), width)
        dropped += [name for name in every if name not in (*shown, *dropped)]
        assert not set(shown) & set(dropped), "a dropped column does not reappear"
        assert [name for name in shown if name in INDISPENSABLE] == INDISPENSABLE
    assert dropped == ["rounds", "samples", "total", "miss/hit", "local", "calls", "overhead", "share"]
    widest = len("  ") + len(LABEL) + sum(2 + len(title) for title in TITLES) + len("  proved")
    assert "rounds" in columns(table(line()), widest)
    assert "rounds" not in columns(table(line()), widest - 1)


def test_shortened_labels_retain_beginning_digest_and_mesh() -> None:
    label = "add.Tensor(f32[512,512]S0, f32[{},512]S0, f32[512,512]S0)@2x4:cuda"
    lines = [line(label.format(size)) for size in (1, 2)]
    first, second = (re.split(r"  +", row.strip())[0] for row in texts(table(*lines), 100)[2:])
    for cut in (first, second):
        assert re.fullmatch(r"add\.Tensor\(f32\[512,512\].*\.\.\.#[0-9a-f]{8}@2x4:cuda", cut)
    assert first != second


def test_groups_follow_titles_and_notes_follow_lines() -> None:
    noted = line("add@4", "proved", "it runs once", "and again")
    rows = texts(Table((Group("test_a", (noted,)), Group("test_b", (), "and 2 more"))), 120)
    assert [row.split()[0] for row in rows[:3]] == ["signature", "test_a", "add@4"]
    assert rows[3:] == ["    it runs once", "    and again", "test_b", "  and 2 more"]


@pytest.mark.parametrize("tone", [Tone.GOOD, Tone.BAD, Tone.NOTICE, Tone.PLAIN])
def test_proof_has_its_own_tone(tone: Tone) -> None:
    _, title, row, note = laid_out(table(line("add@4", "a proof", "a note", tone=tone)), 120)
    assert row[-1] == Span("  a proof", tone)
    assert [piece.tone for piece in row[:-1]] == [Tone.PLAIN]
    assert (title, note) == ((Span("test_a", Tone.STRONG),), (Span("    a note", Tone.NOTICE),))


LABELS = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=150)


@given(st.lists(LABELS, min_size=1, unique=True), st.integers(40, 250))
@example(["add@4", LABEL, LABEL * 4, "a @ b, then its backward pass, then a step of the optimizer"], 60)
@example([f"f32[512,512]S0, f32[{size},512]S0, f32[512,512]S0)@4" for size in range(100, 200)], 80)
def test_any_label_is_cut_until_its_line_fits(labels: list[str], width: int) -> None:
    head, _, *rows = texts(table(*map(line, labels)), width)
    assert len(set(rows)) == len(labels), "names stay distinct"
    assert max(map(len, (head, *rows))) <= max(width, MIN_WIDTH)
    assert len({*map(len, rows)}) == 1, "all lines have the same width"


def test_verbose_view_writes_dropped_columns_below_the_line() -> None:
    output = texts(table(line()), 80, View(verbose=True))
    assert output[0] == texts(table(line()), 80)[0]
    assert " ".join(text.strip() for text in output[3:]) == (
        "calls 3, total 100.0 %, local 1.5 us, overhead 5.0 us, miss/hit 185, samples 20+200, rounds 20"
    )
    miss, hit = Column("miss", "ms"), Column("hit", "us")
    slowest = Column("slowest", of="miss"), Column("slowest", of="hit")
    twice = Line("mm" * 30, {miss: "1.2", slowest[0]: "3.4 r1", hit: "5.6", slowest[1]: "-"})
    output = texts(Table((Group("", (twice,)),), optional=("slowest",)), 40, View(verbose=True))
    assert output[2:] == ["    miss slowest 3.4 r1"], "duplicate titles are distinguished"


def test_table_can_omit_group_titles_and_proof() -> None:
    one = Line("mm", {Column("hit", "us"): (Span("7"), Span("*"))})
    bare = Table((Group("", (one,)),))
    assert texts(bare, 80) == ["  signature  hit us", "  mm             7*"]


# Legends


@pytest.mark.parametrize("width", [*WIDTHS, NO_EDGE])
def test_brief_legend_explains_only_shown_columns(width: int) -> None:
    document = Document((table(line()),), "Each figure is a median.", MEANINGS)
    text = brief_legend([document], width)
    assert len(text) <= min(width, 120)
    *explained, end = text.split("; ")
    assert end == "-v explains all."
    assert explained
    assert explained == [one for one in shown_in(width) if one in explained]
    whole = plain_text(Document((table(line()),), "Blocks: all.", MEANINGS), NO_EDGE).splitlines()[-1]
    assert whole == f"  Blocks: all. {'; '.join(shown_in(NO_EDGE))}."


def shown_in(width: int) -> list[str]:
    return [f"{name}: {MEANINGS[name]}" for name in MEANINGS if name in columns(table(line()), width)]


@pytest.mark.parametrize(("is_terminal", "width"), [(True, 80), (False, NO_EDGE)])
def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch, is_terminal: bool, width: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert page_width(is_terminal, 80) == width
    monkeypatch.setenv("COLUMNS", "80")
    assert page_width(is_terminal, 80) == 80


# Other blocks

MIXED = one_line("gate: ", Span("failed twice", Tone.BAD), " today", indent=1)
HANGING = paragraph("one two three four", Tone.BAD, indent=1, hanging=2)
NEVER = one_line(Span("new", Tone.NOTICE), " row", indent=1)


@pytest.mark.parametrize(
    ("block", "width", "lines"),
    [
        (Verbatim(("a,1", " b,2"), indent=1), 10, ["  a,1", "   b,2"]),
        (paragraph("a half-way longest"), 6, ["a", "half-way", "longest"]),
        (one_line("a half-way longest"), 6, ["a half-way longest"]),
        (HANGING, 12, ["*  one two*", "*      three*", "*      four*"]),
        (MIXED, 17, ["  gate: *failed twice* today"]),
        (NEVER, 5, ["*  new* row"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Block) else "",
)
def test_each_block_is_laid_out_within_the_width(block: Block, width: int, lines: list[str]) -> None:
    found = laid_out(block, width)
    marked = (Tone.STRONG, Tone.GOOD, Tone.NOTICE, Tone.BAD)
    assert lines == [
        "".join(f"*{piece.text}*" if piece.tone in marked else piece.text for piece in line) for line in found
    ]


@pytest.mark.parametrize(
    "block", [one_line(Span(EVIL, Tone.BAD)), Verbatim((EVIL,)), table(line(EVIL, EVIL, EVIL), title=EVIL)]
)
def test_hostile_names_are_escaped_for_the_terminal(block: Block) -> None:
    shown = texts(block, 120, View(verbose=True))
    assert all(line.isprintable() for line in shown)
    assert WRITTEN in "".join(shown)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_hostile_names_break_no_line_and_stay_apart(width: int) -> None:
    cells = {Column("hit", "us"): "1.5", Column("samples"): "9"}
    lines = tuple(Line(name, cells) for name in (*HOSTILE, "op(" + "x, " * 5_000 + "y)@4"))
    hostile = Table((Group("test_a", lines),), status_title="mark")
    head, _, *rows = texts(hostile, width)
    assert len({row[: head.index("hit")] for row in rows}) == len(lines)
    assert all(row.isprintable() and len(row) <= width for row in rows)
    assert len({row.index("1.5  ") for row in rows}) == 1, "columns stay aligned"


@pytest.mark.parametrize("name", ["n" * 300, "word " * 60, f"t.py::test_a[{'x' * 300}]"])
@pytest.mark.parametrize("title", ["", "mark"])
def test_long_names_fit_a_terminal(name: str, title: str) -> None:
    """A name shorter than the line leaves room for these columns, so that a longer one must too."""
    cells = {Column(f"column {number}"): "1" for number in range(5)}
    line = Line(name, cells, title, ("a note",))
    group = Group(f"{name} (counts)", (line,), f"more of {name}")
    table = Table((group,), status_title=title, min_label=20)
    assert max(map(len, texts(table, 80))) <= 80
