"""The gate that holds the numbers of a run against a file of expected ones."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.core.metrics import MetricValue, row_key
from pytest_dtdispatch.gates.expected_file import ExpectedFile, read_expected
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.plugin.last_line import GATE_FAILED
from pytest_dtdispatch.plugin.options import row_nodeid, why_not_measured
from pytest_dtdispatch.plugin.plugin_object import PluginObject
from pytest_dtdispatch.report.document import Document

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.gates.expected import ExpectedJudgement
    from pytest_dtdispatch.plugin.options import Settings
    from pytest_dtdispatch.report.reported_run import ReportedGate


class ExpectedGate(PluginObject):
    """The plugin object that holds results against every file of expected ones."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._by_test: dict[str, tuple[MetricValue, ...]] = {}
        self._left_out: set[str] = set()
        names = metric_names()
        self._expected: list[ExpectedFile] = [read_expected(path, names) for path in settings.expected]

    def enter(self, item: pytest.Item, results: TestResults) -> None:
        """Enter every number that was found in a test."""
        self._by_test[results.test] = tuple(results.metrics(KINDS))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Remember what the user left out: its rows are not missing."""
        self._left_out.update(f"{row_key(row_nodeid(item))}::" for item in items)

    @property
    def failures(self) -> list[str]:
        """Why the run must fail, as pytest's last line says it."""
        return [GATE_FAILED for judged in self._judgements if judged.has_failed]

    def reported(self) -> ReportedGate | None:
        """Give what was judged, if there is a file of expected results."""
        from pytest_dtdispatch.report.judgements import expected_document
        from pytest_dtdispatch.report.reported_run import ReportedGate

        if not self._judgements:
            return None
        results = str(self._results_file() or "RESULTS.csv")
        files = [each.where for each in self._expected]
        said = [
            expected_document(judged, where, results)
            for judged, where in zip(self._judgements, files, strict=True)
        ]
        return ReportedGate(
            ", ".join(files),
            tuple(row for judged in self._judgements for row in judged.verdicts),
            bool(self.failures),
            Document(tuple(block for document in said for block in document.blocks)),
            tuple(row for judged in self._judgements for row in judged.failed),
        )

    def _results_file(self) -> Path | None:
        """Name the file that this run writes its results to, which corrections are taken from."""
        exported = (export.path for export in self._settings.export if export.format == "csv")
        return self._settings.csv or next(exported, None)

    def document(self) -> Document:
        """Say what was judged."""
        said = self.reported()
        return said.document if said else Document()

    @functools.cached_property
    def _judgements(self) -> list[ExpectedJudgement]:
        """Judge each file when all is measured, unless tests are only listed."""
        if self._config.getoption("collectonly"):
            return []
        from pytest_dtdispatch.gates.expected import judge_results, not_judged

        if why_not := why_not_measured(self._config):
            return [not_judged(why_not) for _ in self._expected]
        left_out = tuple(self._left_out)
        results = [result for of_test in self._by_test.values() for result in of_test]
        known = [{(row.name, row.metric) for row in file.rows} for file in self._expected]
        new = [each for each in results if not any((each.name, each.metric) in rows for rows in known)]
        judged = []
        for file, own in zip(self._expected, known, strict=True):
            rows = [row for row in file.rows if not row.name.startswith(left_out)]
            found = [each for each in results if (each.name, each.metric) in own]
            judged.append(judge_results(rows, [*found, *new], self._settings.improved == "fail"))
            new = []  # what no file expects is new once
        return judged
