"""Rows that failed, told to GitHub Actions where a run is a step of a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.report.annotations import CodeLine, error_commands
from pytest_dtdispatch.report.reported_run import ReportedRun

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_dtdispatch.core.results import TestResults

REPOSITORY = "GITHUB_WORKSPACE"


class AnnotatedRows:
    """The plugin object that knows where tests are, and writes workflow commands."""

    def __init__(self, rootpath: Path, report: Callable[[], ReportedRun]) -> None:
        self._report = report
        self._repository = Path(os.environ.get(REPOSITORY) or rootpath)
        self._places: dict[str, CodeLine] = {}

    def enter(self, item: pytest.Item, results: TestResults) -> None:
        """Remember where a test begins, by a path that GitHub knows."""
        _, line, _ = item.location
        try:
            file = item.path.relative_to(self._repository)
        except ValueError:  # an installed suite: no file of the repository
            return
        self._places[results.test] = CodeLine(file.as_posix(), (line or 0) + 1)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # below all that is said for people
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Write each command on a line of its own: the runner reads what a line begins with."""
        try:
            return (yield)
        finally:
            for line in error_commands(self._report(), self._places):
                terminalreporter.ensure_newline()
                terminalreporter.write_line(line)
