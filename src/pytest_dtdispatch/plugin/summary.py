"""The section of the terminal that a run has at its end: tables, and what they stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_dtdispatch.core.measurement import Contains, Measurement
from pytest_dtdispatch.report.document import Document, View, one_line, paragraph

if TYPE_CHECKING:
    from pytest_dtdispatch.compiled.model import CompiledVariant
    from pytest_dtdispatch.plugin.options import Settings
    from pytest_dtdispatch.plugin.rank_tests import RankSession
    from pytest_dtdispatch.scaling.model import Scaling
    from pytest_dtdispatch.steps.model import Steps


@dataclass
class Found:
    """What a run found, by test: of each the last run of it.

    Args:
        measured: rows.
        scalings: fits of how rows grow.
        counted: counts of steps.
        compiled: compiled functions, whose rows are measured too.
    """

    measured: dict[str, tuple[Measurement, ...]] = field(default_factory=dict)
    scalings: dict[str, tuple[Scaling, ...]] = field(default_factory=dict)
    counted: dict[str, tuple[Steps, ...]] = field(default_factory=dict)
    compiled: dict[str, tuple[CompiledVariant, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.measured.values()) or any(self.counted.values())


class Section:
    """The plugin's section of the terminal."""

    def __init__(self, terminalreporter: Any, verbosity: int) -> None:
        self._reporter = terminalreporter
        self._verbosity = verbosity
        self._view = View(verbose=verbosity > 0)

    def open(self) -> None:
        """Print its title."""
        self._reporter.ensure_newline()
        self._reporter.section("dtdispatch")

    def print(self, document: Document) -> None:
        """Print a document in the width of the terminal."""
        from pytest_dtdispatch.report.terminal import document_lines

        for line in document_lines(document, self._reporter._tw.fullwidth, self._view):
            for piece in line:
                self._reporter.write(piece.text, **({piece.color: True} if piece.color else {}))
            self._reporter.write("\n")

    def print_found(
        self, found: Found, settings: Settings, meter: Sequence[str], ranks: RankSession | None
    ) -> None:
        """Print tables, or with ``-qq`` only how much there is."""
        if self._verbosity < -1:
            self.print(_numbers(found))
            return
        shown = [*_documents(found, settings, ranks is not None, self._view)]
        for document in shown:
            self.print(document)
        if self._verbosity < 0:
            return
        from pytest_dtdispatch.plugin.environment import run_environment

        summaries = (run_environment(settings).summary, *meter, *([ranks.summary] if ranks else []))
        legends = [paragraph(document.legend, indent=1) for document in shown if document.legend]
        self.print(Document((*(one_line(summary, indent=1) for summary in summaries), *legends)))


def _numbers(found: Found) -> Document:
    numbers = {
        "signatures and calls were measured": sum(map(len, found.measured.values())),
        "steps were counted": sum(map(len, found.counted.values())),
    }
    return Document(tuple(one_line(f"{number} {what}") for what, number in numbers.items() if number))


def _documents(found: Found, settings: Settings, is_many: bool, view: View) -> Iterator[Document]:
    """Lay out every kind of result that was found."""
    from pytest_dtdispatch.compiled import table as compiled
    from pytest_dtdispatch.scaling import table as scaling
    from pytest_dtdispatch.steps import table as steps

    if measured := {test: rest for test, rows in found.measured.items() if (rest := _uncompiled(rows))}:
        yield _of_measured(settings, is_many)(measured, view)
        yield scaling.document(found.scalings, view)
    if any(found.counted.values()):
        yield steps.document(found.counted, view)
    if any(found.compiled.values()):
        yield compiled.document(found.compiled, view, of_instructions=settings.metric == "instructions")


def _of_measured(
    settings: Settings, is_many: bool
) -> Callable[[Mapping[str, Sequence[Measurement]], View], Document]:
    from pytest_dtdispatch.instructions import table as instructions
    from pytest_dtdispatch.ranks import table as ranks
    from pytest_dtdispatch.report import measurements

    if is_many:
        return ranks.document
    return instructions.document if settings.metric == "instructions" else measurements.document


def _uncompiled(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    return tuple(row for row in rows if row.contains is not Contains.COMPILED)
