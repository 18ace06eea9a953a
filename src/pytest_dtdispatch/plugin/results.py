"""Results of the tests of a run, in the process that runs them or that started its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_dtdispatch.core.store import ResultStore, TestRecord
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, over

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True)
class Location:
    """The first line of a test.

    Args:
        test: its name in rows.
        path: of its file.
        line: from 1.
    """

    test: str
    path: str
    line: int


@dataclass(frozen=True)
class Selected:
    """The tests of a run.

    Args:
        locations: of tests, in the order they run.
        deselected: names in rows of tests that the run deselected.
    """

    locations: tuple[Location, ...] = ()
    deselected: tuple[str, ...] = ()


class RunResults:
    """Results of the tests of a run.

    Attributes:
        records: of tests that were measured or judged, by name in rows; of many ranks merged ones.
        store: of the test that runs.
        marks: its markers when it was measured; None if it was not.
        selected: tests of the run, those of workers of pytest-xdist too.
        nodeids: of these tests.
    """

    def __init__(self) -> None:
        self.records: dict[str, TestRecord] = {}
        self.store = ResultStore()
        self.marks: list[pytest.Mark] | None = None
        self.selected = Selected()
        self.nodeids: tuple[str, ...] = ()
        self._own: dict[str, TestRecord] = {}  # of this process, before those of ranks were merged

    def begin(self, test: str) -> None:
        """Begin an attempt of a test."""
        self.store, self.marks = ResultStore(test), None

    def add(self, record: TestRecord, merge: Callable[[TestRecord], TestRecord]) -> TestRecord:
        """Add the record of a test and what only earlier attempts measured; return it merged over ranks."""
        if earlier := self._own.get(record.test):
            record = record.with_earlier(earlier)
        self._own[record.test] = self.records[record.test] = record
        self.records[record.test] = merged = merge(record)
        return merged

    def add_verdicts(self, verdicts: Sequence[RowVerdict]) -> None:
        """Add verdicts on the test that runs, whether its record exists yet or not."""
        test = self.store.test
        self.store.verdicts += verdicts
        record = self.records.get(test, TestRecord(test))
        new = [verdict for verdict in verdicts if verdict not in record.verdicts]  # a test may run again
        self.records[test] = replace(record, verdicts=(*record.verdicts, *new))

    def quarantine(self, test: str) -> None:
        """Let limits that a test exceeds not fail the run: the test is expected to fail."""
        if record := self.records.get(test):
            verdicts = [
                replace(
                    verdict,
                    verdict=Verdict.QUARANTINED,
                    details=(*verdict.details, "its test is marked to fail (xfail)"),
                )
                if over([verdict])
                else verdict
                for verdict in record.verdicts
            ]
            self.records[test] = replace(record, verdicts=tuple(verdicts))
