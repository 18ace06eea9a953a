"""Format-independent report blocks, which the terminal, Markdown and HTML render."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pytest_dtdispatch.core.measurement import Contains
from pytest_dtdispatch.core.plain_data import Indent, Natural, Share
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import first_of
from pytest_dtdispatch.core.verdicts import RowVerdict


class Tone(Enum):
    """What a piece of text is, from which each format takes its colour or its marks."""

    PLAIN = "plain"
    STRONG = "strong"
    CODE = "code"
    GOOD = "good"
    NOTICE = "notice"
    BAD = "bad"


@dataclass(frozen=True)
class View:
    """Options of a view of results, and the run that they belong to.

    Args:
        verbose: with every column and note.
        counted: what its samples count; empty where they are times.
        is_many: whether it ran on many ranks.
        over: results that are over their limits.
        each_layer: whether lines that differ by the index of a layer alone are not one.
        before: results of an earlier run.
        about_before: where and when that run was taken.
    """

    verbose: bool = False
    counted: str = ""
    is_many: bool = False
    over: frozenset[RowId] = frozenset()
    each_layer: bool = False
    before: Mapping[RowId, Any] = field(default_factory=dict)
    about_before: str = ""

    def listed(self, notes: Sequence[str]) -> list[str]:
        """Choose the notes that are shown, and say how many are left out.

        Example:
            >>> View().listed(list("abcdefg"))[-2:]
            ['e', 'and 2 more; -v lists them']
        """
        return [*notes] if self.verbose else first_of(notes, 5, "; -v lists them")


@dataclass(frozen=True)
class Span:
    """A piece of text in one tone."""

    text: str
    tone: Tone = Tone.PLAIN


Cell = str | tuple[Span, ...]


@dataclass(frozen=True)
class Paragraph:
    """Running text.

    Args:
        spans: its pieces; one where it is wrapped.
        indent: steps from the left edge.
        hanging: steps more for every line after the first.
        is_whole: whether it is never wrapped.
    """

    spans: tuple[Span, ...]
    indent: Indent = 0
    hanging: Indent = 0
    is_whole: bool = False


@dataclass(frozen=True)
class Verbatim:
    """Lines that stay as they are: to paste, or printed by someone else."""

    lines: tuple[str, ...]
    indent: Indent = 0


@dataclass(frozen=True)
class Column:
    """A column of cells: its title, and the unit of all of them."""

    title: str
    unit: str = ""

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title} {self.unit}".strip()


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Args:
        label: what it is about: a signature, a step.
        cells: one for each column.
        proof: what the last column says: what was proved, a state, a verdict.
        notes: what is written below the line.
        tone: of the last column.
        row: the row that it shows, and where its clock starts; None if it shows none.
    """

    label: str
    cells: tuple[Cell, ...]
    proof: str = ""
    notes: tuple[str, ...] = ()
    tone: Tone = Tone.PLAIN
    row: tuple[RowId, Contains] | None = None


@dataclass(frozen=True)
class Group:
    """Lines under one title, such as those of one test; without a title they stand alone.

    Args:
        title: of all lines.
        lines: those that are shown.
        more: line on omitted lines; empty if there are none.
    """

    title: str
    lines: tuple[Line, ...]
    more: str = ""


@dataclass(frozen=True)
class Table:
    """Groups of lines under columns.

    Args:
        columns: between the label and the proof.
        groups: of lines.
        label_title: of the first column.
        proof_title: of the last column; empty where there is none.
        expendable: titles of columns that may be left out, the first of them first.
        widest_kept: titles of those that go after them, and only where labels have no room at all.
        label_tone: of all labels.
        proof_room: columns of the terminal that the last column has: a longer text runs over the edge.
        spells_out: whether a line in a tone that warns has below it what there is no room for.
    """

    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    label_title: str = "signature"
    proof_title: str = "proof"
    expendable: tuple[str, ...] = ()
    widest_kept: tuple[str, ...] = ()
    label_tone: Tone = Tone.CODE
    proof_room: Indent = 24  # of "unpropagated, noisy call"; a refusal may be longer
    spells_out: bool = False


@dataclass(frozen=True)
class StackedBar:
    """A whole and its parts side by side, for formats that can draw: a table near it has the same figures.

    Args:
        title: what it is of.
        whole: its size.
        parts: in the order they are drawn: of each its name with its size, its share from 0 to 1, and the
            number of its colour.
        note: what must be known of it; empty where nothing.
        has_rest: whether the last part is what no other explains.
    """

    title: str
    whole: str
    parts: tuple[tuple[str, Share, Natural], ...]
    note: str = ""
    has_rest: bool = False


Block = Paragraph | Verbatim | Table | StackedBar


@dataclass(frozen=True)
class Document:
    """The report of one kind of result.

    Args:
        blocks: from the first to the last.
        legend: what the figures are; it may stand far below them.
        meanings: what each column means, by its title, the most important first.
        worst: names what to look at first; empty where nothing stands out.
    """

    blocks: tuple[Block, ...] = ()
    legend: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict)
    worst: str = ""

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def legend_of(self, titles: Collection[str] | None = None) -> str:
        """Say what the figures are, and what its columns mean, or those of these titles alone."""
        if titles is None:
            tables = (block for block in self.blocks if isinstance(block, Table))
            titles = {column.title for table in tables for column in table.columns}
        texts = [f"{title}: {meaning}" for title, meaning in self.meanings.items() if title in titles]
        return f"{self.legend} {'; '.join(texts)}.".lstrip() if texts else self.legend


@dataclass(frozen=True)
class Kind:
    """A kind of result: everything that tables, files and gates must know of it.

    Args:
        name: the ``kind`` of its results.
        document: lays out results by test.
        metrics: names of the numbers that its results have beside rows.
        judge: compares a result with the limits of its test, by their names; yields a verdict for each.
        limits: names of its limits, which ``--dtdispatch-max`` and the marker accept.
        nothing: why a limit judged nothing, if there is no result.
        title: of its section; the name if empty.
        type: frozen dataclass of its results, as which a saved run is read; None if they are not read.
        has_own_table: whether ``document`` shows its rows, and the table of signatures and calls does not.
        shows_earlier: whether ``document`` shows a result beside that of the saved run it is compared with.
        largest: names the largest part of a result of a test, for the top of a page.
        advice: of a result.
        data: fields of the results of a test in JSON; None for those of their class.
    """

    name: str
    document: Callable[[Mapping[str, Sequence[Any]], View], Document]
    metrics: tuple[str, ...] = ()
    judge: Callable[[Any, Mapping[str, int]], Iterable[RowVerdict]] = lambda result, limits: ()
    limits: tuple[str, ...] = ()
    nothing: str = ""
    title: str = ""
    type: Any = None
    has_own_table: bool = False
    shows_earlier: bool = False
    largest: Callable[[str, Any], Iterable[Paragraph]] = lambda test, result: ()
    advice: Callable[[Any], Iterable[Advice]] = lambda result: ()
    data: Callable[[Sequence[Any]], Sequence[Mapping[str, Any]]] | None = None


KINDS: dict[str, Kind] = {}  # in the order of tables and files


def register_kind(kind: Kind) -> None:
    """Register a kind of result, or replace the one of its name."""
    KINDS[kind.name] = kind


def paragraph(text: str, tone: Tone = Tone.PLAIN, indent: int = 0, hanging: int = 0) -> Paragraph:
    """Make a paragraph in one tone."""
    return Paragraph((Span(text, tone),), indent, hanging)


def one_line(*parts: str | Span, indent: int = 0) -> Paragraph:
    """Make a line that is never wrapped, plain where it is not said otherwise."""
    spans = tuple(part if isinstance(part, Span) else Span(part) for part in parts)
    return Paragraph(spans, indent, is_whole=True)


def notice(*texts: str) -> Document:
    """Return lines that call for attention."""
    return Document(tuple(one_line(Span(text, Tone.NOTICE)) for text in texts))


def spans_of(cell: Cell) -> tuple[Span, ...]:
    """Read a cell as pieces."""
    return (Span(cell),) if isinstance(cell, str) else cell


def plain(cell: Cell) -> str:
    """Read a cell without its tones.

    Example:
        >>> plain((Span("mm", Tone.CODE), Span(" (2x)")))
        'mm (2x)'
    """
    return "".join(span.text for span in spans_of(cell))
