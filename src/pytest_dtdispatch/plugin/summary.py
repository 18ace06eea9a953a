"""The section of the terminal that a run has at its end: tables, and what they stand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_dtdispatch.plugin.kinds import kinds
from pytest_dtdispatch.report.document import Document, View, one_line, paragraph
from pytest_dtdispatch.report.terminal import document_lines

if TYPE_CHECKING:
    from pytest_dtdispatch.core.results import TestResults


class Section:
    """The plugin's section of the terminal."""

    def __init__(self, terminalreporter: Any, verbosity: int, view: View) -> None:
        self._reporter = terminalreporter
        self._verbosity = verbosity
        self._view = view

    def open(self) -> None:
        """Print its title."""
        self._reporter.ensure_newline()
        self._reporter.section("dtdispatch")

    def print(self, document: Document) -> None:
        """Print a document in the width of the terminal."""
        for line in document_lines(document, self._reporter._tw.fullwidth, self._view):
            for piece in line:
                self._reporter.write(piece.text, **({piece.color: True} if piece.color else {}))
            self._reporter.write("\n")

    def print_found(self, found: Mapping[str, TestResults], stands_on: Callable[[], Sequence[str]]) -> None:
        """Print results by test, and on what they stand; with ``-qq`` only how many there are."""
        if self._verbosity < -1:
            self.print(_numbers(found))
            return
        shown = _documents(found, self._view)
        for document in shown:
            self.print(document)
        if self._verbosity < 0:
            return
        legends = [paragraph(document.legend, indent=1) for document in shown if document.legend]
        self.print(Document((*(one_line(summary, indent=1) for summary in stands_on()), *legends)))


def _numbers(found: Mapping[str, TestResults]) -> Document:
    numbers = {
        "{} signatures and calls were measured": sum(len(each.measurements()) for each in found.values())
    }
    for kind in kinds():
        if kind.number:
            numbers[kind.number] = sum(len(each.of(kind.name)) for each in found.values())
    return Document(tuple(one_line(text.format(number)) for text, number in numbers.items() if number))


def _documents(found: Mapping[str, TestResults], view: View) -> list[Document]:
    """Lay out every kind of result that was found."""
    documents = []
    for kind in kinds():
        if of_kind := {test: those for test, each in found.items() if (those := each.of(kind.name))}:
            documents.append(kind.document(of_kind, view))
    return documents
