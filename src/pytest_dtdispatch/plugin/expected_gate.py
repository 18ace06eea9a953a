"""The gate that holds the numbers of a run against a file of expected ones."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.core.metrics import MetricValue, row_key
from pytest_dtdispatch.core.verdicts import Judgement, Verdict, not_judged
from pytest_dtdispatch.gates.expected import judge_results
from pytest_dtdispatch.gates.expected_file import ExpectedFile, read_expected
from pytest_dtdispatch.plugin.gate import Gate
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.plugin.resolve import row_nodeid, why_not_measured

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.plugin.settings import Settings


class ExpectedGate(Gate):
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

    def _results_file(self) -> Path | None:
        """Name the file that this run writes its results to, which corrections are taken from."""
        exported = (export.path for export in self._settings.export if export.format == "csv")
        return next(exported, None)

    def judge(self) -> dict[str, Judgement]:
        """Hold the results against each file, unless tests are only listed."""
        if self._config.getoption("collectonly"):
            return {}
        if why_not := why_not_measured(self._config):
            return {file.where: not_judged(Verdict.DISABLED, why_not) for file in self._expected}
        left_out = tuple(self._left_out)
        results = [result for of_test in self._by_test.values() for result in of_test]
        known = [{(row.name, row.metric) for row in file.rows} for file in self._expected]
        new = [each for each in results if not any((each.name, each.metric) in rows for rows in known)]
        judged = {}
        for file, own in zip(self._expected, known, strict=True):
            rows = [row for row in file.rows if not row.name.startswith(left_out)]
            found = [each for each in results if (each.name, each.metric) in own]
            judgement = judge_results(rows, [*found, *new], self._settings.improved == "fail")
            judged[file.where] = self._with_command(judgement, file.where)
            new = []  # what no file expects is new once
        return judged

    def _with_command(self, judgement: Judgement, where: str) -> Judgement:
        """Add the command that takes corrections over."""
        results = str(self._results_file() or "RESULTS.csv")
        command = shlex.join(["dtdispatch", "expected", "update", where, "--results", results, "--reason"])
        return replace(judgement, command=f'{command} "..."')
