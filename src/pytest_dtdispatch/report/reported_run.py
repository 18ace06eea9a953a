"""A run as every written format takes it: one that has just ended, or one that was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_dtdispatch.core.measurement import TIME, Measurement, Unit
from pytest_dtdispatch.core.results import OWN_TABLES, MetricValue, row_key, row_metrics
from pytest_dtdispatch.core.verdicts import RowVerdict, Threshold
from pytest_dtdispatch.report.document import Document, View


@dataclass(frozen=True)
class ReportedDocument:
    """What is said of all results of one kind.

    Args:
        kind: its name, as it is registered.
        document: of all tests.
    """

    kind: str
    document: Document


@dataclass(frozen=True)
class ReportedGate:
    """What a gate said of the run.

    Args:
        where: what the run was held against: a file.
        verdicts: of each row.
        has_failed: whether the run failed by it.
        document: all that it said.
        failed: rows that the run failed by; none where it failed because nothing could be judged.
    """

    where: str
    verdicts: tuple[RowVerdict, ...]
    has_failed: bool
    document: Document
    failed: tuple[RowVerdict, ...] = ()


@dataclass(frozen=True)
class ReportedRun:
    """All that is reported of a run.

    Args:
        where: the file it was read from; empty of a run that has just ended.
        taken: when, as ISO 8601 has it.
        environment: where it was taken, by name.
        build: the same, as records of databases have it.
        measured: every row that was measured, those of compiles and comparisons too, by test.
        thresholds: that the markers of tests had, by test.
        documents: what is said of each other kind of result, in the order they are shown.
        numbers: those that results have beside rows, such as counts of steps.
        gates: what they said.
        explained: what part of the calls the rows explain.
        notices: what must be known beside the figures: what was not seen, what ranks said.
        traces: of its steps, each as torch's profiler writes it; a saved run has none.
    """

    where: str = ""
    taken: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str | int] = field(default_factory=dict)
    measured: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    thresholds: Mapping[str, tuple[Threshold, ...]] = field(default_factory=dict)
    documents: tuple[ReportedDocument, ...] = ()
    numbers: tuple[MetricValue, ...] = ()
    gates: tuple[ReportedGate, ...] = ()
    explained: Document = field(default_factory=Document)
    notices: Document = field(default_factory=Document)
    traces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(any(self.measured.values()) or self.documents or self.numbers)

    @property
    def has_failed(self) -> bool:
        """Whether a gate failed."""
        return any(gate.has_failed for gate in self.gates)

    @property
    def unit(self) -> Unit:
        """What samples are in."""
        every = (samples.unit for row in self.rows() for samples in row.samples)
        return next(every, TIME)

    @property
    def is_many(self) -> bool:
        """Whether it ran on many ranks."""
        return any(samples.by_rank for row in self.rows() for samples in row.samples)

    def view(self, verbose: bool = True) -> View:
        """Say how documents of its rows are laid out."""
        return View(verbose, "" if self.unit.is_time else self.unit.name, self.is_many)

    @property
    def calls(self) -> dict[str, tuple[Measurement, ...]]:
        """Rows of signatures and named calls, by test: those without a table of another kind."""
        of_tests = {
            test: tuple(row for row in rows if row.contains not in OWN_TABLES)
            for test, rows in self.measured.items()
        }
        return {test: rows for test, rows in of_tests.items() if rows}

    def rows(self) -> Iterator[Measurement]:
        """Every row."""
        return (row for of_test in self.measured.values() for row in of_test)

    def metrics(self) -> tuple[MetricValue, ...]:
        """Every number, test by test: those of rows, then those beside them."""
        found: list[MetricValue] = []
        for test, rows in self.measured.items():
            found += row_metrics(test, rows)
            found += (number for number in self.numbers if number.name.startswith(f"{row_key(test)}::"))
        known = set(found)
        return (*found, *(number for number in self.numbers if number not in known))
