"""Files that are written at the end of a run: each is a row of a table, with what renders it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.core.forms import REPORT, SUMMARY
from pytest_dtdispatch.core.parsing import AUTO, Export
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin.flags import FILE
from pytest_dtdispatch.plugin.job_summary import JobSummary, is_job_summary
from pytest_dtdispatch.plugin.last_line import FILE_LOST
from pytest_dtdispatch.plugin.options import with_role
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line
from pytest_dtdispatch.report.formats import FORMATS, Format, result_count
from pytest_dtdispatch.report.html_page import html_page, report_size
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.summary import summary

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.options import Settings

# Options that name one file each, and what is written there.
FILES = {
    "csv": FORMATS["csv"],
    "oss_json": FORMATS["oss-json"],
    "markdown": Format(SUMMARY, summary, lambda run: result_count(run) or report_size(run)),
    "report": Format(REPORT, lambda run: html_page([run]), report_size),
}


@dataclass(frozen=True)
class Target:
    """A file that was asked for."""

    asked: str  # as the command line names it
    path: Path


class WrittenFiles:
    """The plugin object that writes files when all of a run is measured."""

    def __init__(self, config: pytest.Config, settings: Settings, report: Callable[[], ReportedRun]) -> None:
        _check_that_files_differ(settings)
        self._config = config
        self._report = report
        self._ended: set[str] = set()
        self._notes: list[Span] = []
        self.failures: list[str] = []
        self._files = [(_checked(path, each.form), each) for path, each in _asked(settings)]
        self._job_summary = JobSummary() if is_job_summary(settings.markdown) else None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Remember which tests came to their end, however that was."""
        self._ended.add(nodeid)

    def write(self, items: Sequence[pytest.Item], why_not: str) -> None:
        """Write the files that were asked for, when all of a run is measured: a part replaces no whole."""
        if self._config.getoption("collectonly"):
            return
        ended = sum(item.nodeid in self._ended for item in items)
        if ended < len(items):
            why_not = why_not or f"the run stopped after {ended:,} of {len(items):,} tests"
        run = ReportedRun() if why_not else self._report()
        why_not = why_not or ("" if run else "nothing was measured")
        for path, each in self._files:
            self._write(path, partial(each.render, run, path), why_not)
        if self._job_summary:
            self._append(self._job_summary, run, why_not)

    def document(self) -> Document:
        """Say what was written, and what was not."""
        return Document(tuple(map(one_line, self._notes)))

    def _write(self, path: Path, render: Callable[[], tuple[str, str]], why_not: str) -> None:
        try:
            if why_not:
                raise DtDispatchError(f"{path} was not written: {why_not}")
            text, said = render()
            write_whole(path, text)
            self._notes.append(Span(said))
        except DtDispatchError as error:
            self._lose(error)

    def _append(self, job_summary: JobSummary, run: ReportedRun, why_not: str) -> None:
        try:
            self._notes.append(job_summary.append(run, why_not))
        except DtDispatchError as error:
            self._lose(error)

    def _lose(self, error: DtDispatchError) -> None:
        self.failures.append(FILE_LOST)
        self._notes.append(Span(f"failed: {error}", Tone.BAD))


def _asked(settings: Settings) -> Iterator[tuple[Path, Format]]:
    """Give every file that a run is rendered to, with its format."""
    for field, each in FILES.items():
        path = getattr(settings, field)
        if path is not None and not (field == "markdown" and is_job_summary(path)):
            yield path, each
    yield from ((export.path, FORMATS[export.format]) for export in settings.export)


def _named(settings: Settings) -> Iterator[Target]:
    """Give every file that the run reads or writes, as it was asked for."""
    for option in with_role(FILE):
        given = getattr(settings, option.field)
        if isinstance(given, Path):
            yield Target(option.flag, given)
        elif given and given != AUTO:
            exports = (each for each in given if isinstance(each, Export))
            yield from (Target(f"{option.flag} {export.format}", export.path) for export in exports)
            yield from (Target(option.flag, each) for each in given if isinstance(each, Path))


def _check_that_files_differ(settings: Settings) -> None:
    seen: dict[str, Target] = {}
    for target in _named(settings):
        if (other := seen.setdefault(os.path.realpath(target.path), target)) is not target:
            raise DtDispatchError(
                f"{target.asked}: {target.path} is the file of {other.asked} too: name another"
            )


def _checked(path: Path, form: str) -> Path:
    """Check a file, and give its whole path: a test may change the working directory."""
    checked_target(path, form)
    return path.absolute()
