"""The kinds of results that tests can have, each a line here, and what is shown of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_dtdispatch.budget.table import KIND as BUDGET
from pytest_dtdispatch.compare.table import KIND as COMPARED
from pytest_dtdispatch.compiled.table import KIND as COMPILED
from pytest_dtdispatch.core.measurement import UNITS
from pytest_dtdispatch.core.results import MetricNames, NamedCall, TestResults
from pytest_dtdispatch.core.verdicts import over
from pytest_dtdispatch.report.document import Document, Kind, View, one_line, paragraph
from pytest_dtdispatch.report.notes import explained_lines
from pytest_dtdispatch.report.rows import document as of_rows
from pytest_dtdispatch.report.terminal import legend_text
from pytest_dtdispatch.scaling import KIND as SCALING
from pytest_dtdispatch.steps.table import KIND as STEPS

MEASURED = Kind(NamedCall.kind, of_rows)
# In the order they are shown and written in.
KINDS = {kind.name: kind for kind in (BUDGET, MEASURED, SCALING, STEPS, COMPILED, COMPARED)}


def register(kind: Kind) -> None:
    """Add a kind of result, or replace the one of its name."""
    KINDS[kind.name] = kind


def metric_names() -> MetricNames:
    """Give every metric that files of results may have."""
    of_rows = {metric: False for unit in UNITS for metric in unit.metrics}
    return of_rows | {metric: True for kind in KINDS.values() for metric in kind.metrics}


def documents(found: Mapping[str, TestResults], view: View) -> dict[str, Document]:
    """Lay out every kind of result that was found, by the name of the kind."""
    over_limits = (row.row for each in found.values() for row in over(each.verdicts))
    view, shown = replace(view, over=frozenset(over_limits)), {}
    for kind in KINDS.values():
        if by_test := {test: those for test, each in found.items() if (those := each.of(kind.name))}:
            document = kind.document(by_test, view)
            if kind is MEASURED:
                document = replace(document, blocks=(*document.blocks, *explained_lines(found, view)))
            shown[kind.name] = document
    return shown


def legends(shown: Iterable[Document], stands_on: Sequence[str], width: int, view: View) -> Document:
    """Say on what figures stand, what the columns mean that are shown, and how to see more."""
    told = [text for document in shown if (text := legend_text(document, width, view))]
    more = [] if view.verbose or not told else ["-v shows every column, and more notes."]
    explained = [paragraph(text, indent=1) for text in (*told, *more)]
    return Document((*(one_line(summary, indent=1) for summary in stands_on), *explained))


def numbers(found: Mapping[str, TestResults]) -> Document:
    """Say of each kind how many results there are."""
    lines = {"signatures and calls measured: {}": sum(len(each.measurements()) for each in found.values())}
    for kind in KINDS.values():
        if kind.number:
            lines[kind.number] = sum(len(each.of(kind.name)) for each in found.values())
    return Document(tuple(one_line(text.format(number)) for text, number in lines.items() if number))
