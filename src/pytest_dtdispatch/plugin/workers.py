"""Transfer of test records from pytest-xdist workers to the process that started them.

A record is an attribute of the report of its test's teardown, because workers send reports.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import GenericAlias
from typing import Any

import pytest

from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.plugin.guard import note_problem
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.results import RunResults
from pytest_dtdispatch.ranks.merge import merge_records

RECORD = "dtdispatch_record"  # on a report
SELECTED, PROBLEMS = "dtdispatch_selected", "dtdispatch_problems"  # in the output of a worker


def encode_record(record: TestRecord) -> str:
    """Encode a record.

    Raises:
        MeasurementError: its results cannot be decoded, or their kind has no type.
    """
    if untyped := [kind for kind in record.results if KINDS[kind].type is None]:
        raise MeasurementError(
            f"results of the kind {untyped[0]!r} cannot leave a worker of pytest-xdist: "
            "register the kind with the type= of its results"
        )
    try:
        decode_record(text := json.dumps(encode(record)))
    except (ValueError, TypeError) as error:
        raise MeasurementError(f"results cannot leave a worker of pytest-xdist: {shown(error)}") from None
    return text


def decode_record(text: str) -> TestRecord:
    """Decode a record, with results by the types of their kinds."""
    plain = json.loads(text)
    of_kinds = plain.pop("results", {})
    record: TestRecord = decode(TestRecord, plain)
    if unknown := [kind for kind in of_kinds if kind not in KINDS]:
        why = f"the kind {unknown[0]!r} is registered in workers only: register it in conftest.py"
        record = replace(record, unmeasured=why)
    results = {
        kind: decode(GenericAlias(tuple, (KINDS[kind].type, ...)), of_kind)
        for kind, of_kind in of_kinds.items()
        if kind in KINDS
    }
    return replace(record, results=results)


class Workers:
    """Plugin object that receives the records of workers.

    Args:
        results: results of the tests of all workers.
        rank_stat: statistic of a row that several workers measured.
    """

    def __init__(self, results: RunResults, rank_stat: str) -> None:
        self._results = results
        self._rank_stat = rank_stat
        self._by_test: dict[str, dict[str, TestRecord]] = {}

    @pytest.hookimpl(tryfirst=True)  # before plugins that write reports
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the record of a report; another worker may have run the same test."""
        if (text := vars(report).pop(RECORD, None)) is None:
            return
        record = decode_record(text)
        by_worker = self._by_test.setdefault(record.test, {})
        by_worker[report.worker_id] = record
        merged = merge_records(dict(enumerate(by_worker.values())), self._rank_stat)
        self._results.records[record.test] = merged

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Record the tests of the run."""
        self._results.nodeids = tuple(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Read the tests that a worker selected; a worker that died fails the gate of limits."""
        output = getattr(node, "workeroutput", {})
        for problem in output.get(PROBLEMS, ()):
            note_problem(node.config, f"{node.gateway.id}: {problem}")
        if text := output.get(SELECTED):
            self._results.lines, self._results.deselected, self._results.skipped = json.loads(text)
        elif error:
            self._lose(node.gateway.id, RowId("", node.gateway.id), f"{node.gateway.id} died")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Record the test in which a worker died."""
        worker = report.node.gateway.id
        self._results.records.pop(worker, None)
        self._lose(crashitem, RowId(crashitem), f"{worker} died in this test")

    def _lose(self, name: str, row: RowId, how: str) -> None:
        why = f"the pytest-xdist worker {how}"
        lost = RowVerdict(row, Verdict.MISSING, None, "run the test with -n 0", details=(why,))
        self._results.records[name] = TestRecord(row.test, verdicts=(lost,), unmeasured=why)
