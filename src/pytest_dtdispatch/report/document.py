"""Format-independent report blocks, rendered for the terminal, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any

from pytest_dtdispatch.core.measurement import Contains
from pytest_dtdispatch.core.plain_data import Indent, Natural, Share
from pytest_dtdispatch.core.results import Advice
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import first_of
from pytest_dtdispatch.core.verdicts import RowVerdict


class Tone(Enum):
    """Meaning of a piece of text; each format maps it to a colour or to markup."""

    PLAIN = "plain"
    STRONG = "strong"
    CODE = "code"
    SOFT = "soft"
    GOOD = "good"
    NOTICE = "notice"
    BAD = "bad"


@dataclass(frozen=True)
class View:
    """Options for rendering results, and properties of their run.

    Args:
        verbose: whether all columns and notes are shown.
        counted: plural of the counted things, such as ``instructions``; empty if samples are times.
        is_many: whether the run had many ranks.
        over: results that exceed their limits.
        each_layer: whether each layer has its own line; by default, lines that differ only in the layer index
            are folded.
        for_page: whether a page or a summary shows the results, which has a section for all advice.
        before: results of an earlier run.
        about_before: file and time of the earlier run.
    """

    verbose: bool = False
    counted: str = ""
    is_many: bool = False
    over: frozenset[RowId] = frozenset()
    each_layer: bool = False
    for_page: bool = False
    before: Mapping[RowId, Any] = field(default_factory=dict)
    about_before: str = ""

    def listed(self, notes: Sequence[str], noun: str = "", most: int = 5) -> list[str]:
        """Return the visible notes, and a text with the number of the others.

        Example:
            >>> View().listed(list("abcdefg"), " misses")[-2:]
            ['e', 'and 2 more misses; -v lists them']
        """
        return [*notes] if self.verbose else first_of(notes, most, f"{noun}; -v lists them")


@dataclass(frozen=True)
class Span:
    """A piece of text in one tone."""

    text: str
    tone: Tone = Tone.PLAIN


CellContent = str | tuple[Span, ...]


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text.

    Args:
        spans: pieces of text; exactly one if the paragraph is wrapped.
        indent: indentation of the first line, in steps.
        hanging: additional indentation of all other lines, in steps.
        is_whole: whether it is never wrapped.
    """

    spans: tuple[Span, ...]
    indent: Indent = 0
    hanging: Indent = 0
    is_whole: bool = False


@dataclass(frozen=True)
class Verbatim:
    """Lines that are never reformatted: text to paste, or output of another program."""

    lines: tuple[str, ...]
    indent: Indent = 0


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: its title.
        unit: unit of its cells; empty for none.
        of: column that it describes, if several columns of a table have its title.
    """

    title: str
    unit: str = ""
    of: str = ""

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title} {self.unit}".strip()


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Args:
        label: text of the first column, such as a signature.
        cells: cell of each column, in the order of the columns.
        status: text of the last column: a proof, a state or a verdict.
        notes: warnings and advice below the line.
        tone: tone of the last column.
        row: identity and scope of the displayed row; None if it displays none.
        details: lists of events below the notes.
        chart: figure of each run of a series, for graphical formats; None in a run without one.
        marked: position in the chart at which the row changed; None if it did not.
    """

    label: str
    cells: Mapping[Column, CellContent]
    status: str = ""
    notes: Sequence[str] = ()
    tone: Tone = Tone.PLAIN
    row: tuple[RowId, Contains] | None = None
    details: Sequence[str] = ()
    chart: Sequence[float | None] = ()
    marked: Natural | None = None


@dataclass(frozen=True)
class Group:
    """Lines of a table under one title, such as those of one test.

    Args:
        title: common title; empty for none.
        lines: visible lines.
        more: text about omitted lines; empty if there are none.
    """

    title: str
    lines: Sequence[Line]
    more: str = ""


@dataclass(frozen=True)
class Table:
    """A table of grouped lines.

    Args:
        groups: groups of lines.
        label_title: title of the first column.
        status_title: title of the last column; empty if the table has none.
        optional: titles of columns that are omitted in a narrow terminal, in this order.
        omitted_last: titles of columns that are omitted after these, and only to preserve the minimum width
            of labels.
        label_tone: tone of all labels.
        status_room: width that is reserved for the last column; a longer text exceeds the terminal's width.
        has_total: whether the lines of each group add up to the last one; such a table is never folded.
        min_label: minimum width of labels; less than 30 for names that users choose.
        lists_omitted: whether the omitted cells of a line with a warning are written below it.

    Example:
        >>> hit = Line("mm", {Column("hit", "us"): "7.0"})
        >>> [column.head for column in Table((Group("", (hit,)),)).columns]
        ['hit us']
    """

    groups: Sequence[Group]
    label_title: str = "signature"
    status_title: str = ""
    optional: tuple[str, ...] = ()
    omitted_last: tuple[str, ...] = ()
    label_tone: Tone = Tone.CODE
    status_room: Indent = 24  # length of "unpropagated, noisy call"; reasons of refusals may be longer
    has_total: bool = False
    min_label: Indent = 30
    lists_omitted: bool = False

    @property
    def lines(self) -> Iterator[Line]:
        """The lines of all groups."""
        return (line for group in self.groups for line in group.lines)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Columns between the label and the status: those of its lines, which all have the same."""
        return tuple(dict.fromkeys(column for line in self.lines for column in line.cells))


@dataclass(frozen=True)
class StackedBar:
    """A bar with the parts of a whole, for graphical formats; a table near it has the same figures.

    Args:
        title: name of the whole.
        whole: size of the whole, as text.
        parts: name and size, share from 0 to 1, and number of the colour of each part, in drawing order.
        has_rest: whether the last part is the unexplained remainder.
    """

    title: str
    whole: str
    parts: tuple[tuple[str, Share, Natural], ...]
    has_rest: bool = False


Block = Paragraph | Verbatim | Table | StackedBar


@dataclass(frozen=True)
class Document:
    """Report on one kind of result.

    Args:
        blocks: blocks in their order.
        legend: explanation of the figures; it may be printed far below them.
        meanings: explanations of columns by title, sorted by importance.
        worst: text that names the most expensive or worst row; empty if there is none.
    """

    blocks: tuple[Block, ...] = ()
    legend: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict)
    worst: str = ""

    def legend_of(self, titles: Collection[str] | None = None) -> str:
        """Return the legend with the meanings of all columns, or of the columns with these titles."""
        if titles is None:
            tables = (block for block in self.blocks if isinstance(block, Table))
            titles = {column.title for table in tables for column in table.columns}
        texts = [f"{title}: {meaning}" for title, meaning in self.meanings.items() if title in titles]
        return f"{self.legend} {'; '.join(texts)}.".lstrip() if texts else self.legend


def _nothing(*args: object) -> tuple[()]:
    """Return no items: the default of a kind's functions."""
    return ()


@dataclass(frozen=True)
class Kind:
    """A kind of result, as tables, files and gates use it.

    Args:
        name: ``kind`` of its results.
        document: function that renders results by test.
        metrics: names of the numbers of its results that are not part of rows.
        judge: function of a result and the limits of its test by name; yields a verdict for each limit.
        limits: names of its limits, which ``--dtdispatch-max`` and the marker accept.
        nothing: reason why a limit could not judge a test without such a result.
        title: title of its section; by default the name.
        type: frozen dataclass of its results, for decoding saved runs; None if they are not decoded.
        has_own_table: whether ``document`` renders its rows; if not, the table of calls does.
        shows_earlier: whether ``document`` renders the result of the compared saved run next to each result.
        advice: function that returns the advice of a result.
        data: function that returns the fields of a test's results in JSON; None for the fields of their
            class.
    """

    name: str
    document: Callable[[Mapping[str, Sequence[Any]], View], Document]
    metrics: tuple[str, ...] = ()
    judge: Callable[[Any, Mapping[str, int]], Iterable[RowVerdict]] = _nothing
    limits: tuple[str, ...] = ()
    nothing: str = ""
    title: str = ""
    type: Any = None
    has_own_table: bool = False
    shows_earlier: bool = False
    advice: Callable[[Any], Iterable[Advice]] = _nothing
    data: Callable[[Sequence[Any]], Sequence[Mapping[str, Any]]] | None = None


KINDS: dict[str, Kind] = {}  # in the order of tables and files


def register_kind(kind: Kind) -> None:
    """Register a kind of result, or replace the kind of the same name."""
    KINDS[kind.name] = kind


def paragraph(text: str, tone: Tone = Tone.PLAIN, indent: int = 0, hanging: int = 0) -> Paragraph:
    """Return a paragraph in one tone."""
    return Paragraph((Span(text, tone),), indent, hanging)


def one_line(*parts: str | Span, indent: int = 0) -> Paragraph:
    """Return a line that is never wrapped; strings become plain spans."""
    spans = tuple(part if isinstance(part, Span) else Span(part) for part in parts)
    return Paragraph(spans, indent, is_whole=True)


def notice(*texts: str) -> Document:
    """Return a document of warnings."""
    return Document(tuple(one_line(Span(text, Tone.NOTICE)) for text in texts))


def spans_of(cell: CellContent) -> tuple[Span, ...]:
    """Return a cell as spans."""
    return (Span(cell),) if isinstance(cell, str) else cell


def plain(cell: CellContent) -> str:
    """Return the text of a cell without its tones.

    Example:
        >>> plain((Span("mm", Tone.CODE), Span(" (2x)")))
        'mm (2x)'
    """
    return "".join(span.text for span in spans_of(cell))
