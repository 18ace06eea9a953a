"""Tables as lines of a terminal: what of them a width has room for, and how the rest is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.signatures import digest_name, fit_name
from pytest_dtdispatch.report.document import Line, Span, Table, Tone, View, paragraph, plain
from pytest_dtdispatch.report.paragraph_lines import INDENT, Text, paragraph_lines, text_of

MIN_LABEL, ROOMY_LABEL = 30, 52


@dataclass(frozen=True)
class TableFit:
    """What of a table a width has room for.

    Args:
        columns: by their index.
        widths: of these.
        labels: what is shown of each label.
        label_width: of all labels.
    """

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    labels: Mapping[str, str]
    label_width: int


def _fit(table: Table, width: int) -> TableFit:
    columns = tuple(columns_that_fit(table, width))
    widths = tuple(_column_width(table, i) for i in columns)
    room = width - len(INDENT) - sum(widths) - _proof_width(table)
    label_width = min(max(room, MIN_LABEL), _longest_label(table))
    return TableFit(columns, widths, _cut_labels(table, label_width), label_width)


def _cut_labels(table: Table, width: int) -> dict[str, str]:
    """Cut what is too long; no two of a table come out alike."""
    cut = {line.label: fit_name(line.label, width) for line in _lines_of(table)}
    often = Counter(cut.values())
    return {label: text if often[text] == 1 else digest_name(label, width) for label, text in cut.items()}


def table_lines(table: Table, width: int, view: View) -> Iterator[tuple[Text, ...]]:
    """Lay out a table; a verbose view tells below each line what has no room in it."""
    fit = _fit(table, width)
    heads = "".join(
        table.columns[i].head.rjust(size) for i, size in zip(fit.columns, fit.widths, strict=True)
    )
    yield (Text(f"{INDENT}{table.label_title.ljust(fit.label_width)}{heads}  {table.proof_title}".rstrip()),)
    left_out = [i for i in range(len(table.columns)) if view.verbose and i not in fit.columns]
    for group in table.groups:
        if group.title:
            yield (text_of(Span(group.title, Tone.STRONG)),)
        for line in group.lines:
            yield _row(line, fit)
            if figures := _figures_text(table, line, left_out):
                yield from paragraph_lines(paragraph(figures, indent=2, hanging=1), width)
            for note in line.notes:
                yield from paragraph_lines(paragraph(note, Tone.NOTICE, indent=2, hanging=1), width)
        if group.more:
            yield from paragraph_lines(paragraph(group.more, indent=1, hanging=1), width)


def _row(line: Line, fit: TableFit) -> tuple[Text, ...]:
    label = fit.labels[line.label].ljust(fit.label_width)
    cells = "".join(plain(line.cells[i]).rjust(size) for i, size in zip(fit.columns, fit.widths, strict=True))
    if not line.proof:
        return (Text(f"{INDENT}{label}{cells}".rstrip()),)
    return (Text(f"{INDENT}{label}{cells}"), text_of(Span(f"  {line.proof}", line.tone)))


def _figures_text(table: Table, line: Line, columns: Sequence[int]) -> str:
    """Write cells of a line in running text; a title that stands twice with the one that it belongs to."""
    titles = [column.title for column in table.columns]
    texts = []
    for i in columns:
        owner = next((title for title in titles[i::-1] if titles.count(title) == 1), "")
        title = titles[i] if owner == titles[i] else f"{owner} {titles[i]}"
        cell = plain(line.cells[i])
        texts += [f"{title} {cell} {table.columns[i].unit}".strip()] * (cell != "-")
    return ", ".join(texts)


def columns_that_fit(table: Table, width: int) -> list[int]:
    """Choose the columns that a width has room for, by their index."""
    keep = list(range(len(table.columns)))
    least = _least_label(table, width)
    for titles, room in ((table.expendable, least), (table.kept_longest, min(least, MIN_LABEL))):
        for column in (i for title in titles for i in keep.copy() if table.columns[i].title == title):
            used = sum(_column_width(table, i) for i in keep) + _proof_width(table)
            if width - len(INDENT) - used >= room:
                break
            keep.remove(column)
    return keep


def _lines_of(table: Table) -> Iterator[Line]:
    return (line for group in table.groups for line in group.lines)


def _longest_label(table: Table) -> int:
    return max(map(len, (table.label_title, *(line.label for line in _lines_of(table)))))


def _least_label(table: Table, width: int) -> int:
    """Width that labels are never cut below, and columns are left out for: half of the terminal's."""
    return min(max(width // 2, MIN_LABEL), ROOMY_LABEL, _longest_label(table))


def _column_width(table: Table, index: int) -> int:
    cells = (plain(line.cells[index]) for line in _lines_of(table))
    return 2 + max(map(len, (table.columns[index].head, *cells)))


def _proof_width(table: Table) -> int:
    """Width of the last column; a long refusal may run over the edge."""
    longest = max((len(line.proof) for line in _lines_of(table)), default=0)
    return 2 + min(longest, len("unpropagated, noisy")) if longest else 0
