"""Results of the tests of a run, in the process that runs them or that started the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_dtdispatch.core.store import ResultStore, TestRecord
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, over
from pytest_dtdispatch.report.run import FailedTest

if TYPE_CHECKING:
    import pytest


class RunResults:
    """Results of the tests of a run.

    Attributes:
        records: records of measured or judged tests, by name in rows; merged over the ranks.
        store: results of the running test.
        marks: markers of the running test when it was measured; None if it was not.
        nodeids: node ids of the tests of the run, including those of pytest-xdist workers.
        lines: path and line number, from 1, of each of these tests, by name in rows.
        deselected: names in rows of collected tests that the run does not select.
        skipped: paths of files and folders that a flag or a plugin skipped.
        failed: failures of tests by node id and phase.
    """

    def __init__(self) -> None:
        self.records: dict[str, TestRecord] = {}
        self.store = ResultStore()
        self.marks: list[pytest.Mark] | None = None
        self.nodeids: tuple[str, ...] = ()
        self.lines: dict[str, tuple[str, int]] = {}
        self.deselected: list[str] = []
        self.skipped: list[str] = []
        self.failed: dict[tuple[str, str], FailedTest] = {}
        self._own: dict[str, TestRecord] = {}  # records of this process before merging over the ranks

    def begin(self, test: str) -> None:
        """Begin an attempt of a test."""
        self.store, self.marks = ResultStore(test), None

    def fail(self, failure: FailedTest) -> None:
        """Record a failure, once for all attempts of a test."""
        self.failed.setdefault((failure.test, failure.phase), failure)

    def add(self, record: TestRecord) -> TestRecord:
        """Add the record of a test, with results only of earlier attempts; return it."""
        if earlier := self._own.get(record.test):
            record = record.with_earlier(earlier)
        self._own[record.test] = self.records[record.test] = record
        return record

    def put(self, record: TestRecord) -> None:
        """Replace the record of a test."""
        self._own[record.test] = self.records[record.test] = record

    def add_verdicts(self, verdicts: Sequence[RowVerdict]) -> None:
        """Add verdicts on the running test, even if its record does not exist yet."""
        test = self.store.test
        self.store.verdicts += verdicts
        record = self.records.get(test, TestRecord(test))
        new = [verdict for verdict in verdicts if verdict not in record.verdicts]  # a test may run again
        self.records[test] = replace(record, verdicts=(*record.verdicts, *new))

    def unmeasured(self) -> list[str]:
        """Return a line for each test without a result although it uses the fixture, with the reason."""
        unmeasured = [(test, record.unmeasured) for test, record in self.records.items()]
        return [f"{test}: {why}" for test, why in unmeasured if why]

    def quarantine(self, test: str) -> None:
        """Prevent exceeded limits of a test that is expected to fail from failing the run."""
        if record := self.records.get(test):
            verdicts = [*record.verdicts]
            for number, each in enumerate(verdicts):
                if over([each]):
                    details = (*each.details, "its test is marked to fail (xfail)")
                    verdicts[number] = replace(each, verdict=Verdict.QUARANTINED, details=details)
            self.records[test] = replace(record, verdicts=tuple(verdicts))
