"""Output at the end of a run: files, properties of the JUnit file, annotations."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.files import checked_target, write_atomic
from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.core.text import escape_controls, shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin import PluginObject
from pytest_dtdispatch.plugin.pytest_internals import junit_xml
from pytest_dtdispatch.plugin.resolve import row_nodeid
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line
from pytest_dtdispatch.report.exports import FORMATS, check_export
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.summary import (
    MOST_BYTES,
    error_commands,
    stopped_summary,
    summary,
    verdict_text,
)

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.settings import Settings

FILE_LOST = "file not written"
JOB_SUMMARY = "GITHUB_STEP_SUMMARY"
NO_JOB = f"no summary was written: --dtdispatch-export markdown:auto finds no {JOB_SUMMARY} here"
Write = Callable[[Export, ReportedRun, str], str]


class Outputs(PluginObject):
    """The plugin object that writes the output of a run at its end.

    Args:
        config: of pytest.
        settings: of the run.
        report: gives the run, when it is over.

    Raises:
        DtDispatchError: a file cannot be written, or two are the same.
    """

    def __init__(self, config: pytest.Config, settings: Settings, report: Callable[[], ReportedRun]) -> None:
        _check_that_files_differ(settings)
        self.failures: list[str] = []
        self._config = config
        self._annotates = settings.annotations
        self._report = report
        self._targets = [target for export in settings.export if (target := _checked_target(export))]
        lacks_job = len(self._targets) < len(settings.export)
        self._notes = [Span(NO_JOB, Tone.NOTICE)] if lacks_job else []
        self._ended: set[str] = set()
        self._annotations: list[str] = []

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record finished tests, whatever their outcome."""
        self._ended.add(nodeid)

    @pytest.hookimpl(tryfirst=True)  # before pytest writes its file
    def pytest_sessionfinish(self) -> None:
        """Add properties to the suite in the JUnit file."""
        if (xml := junit_xml(self._config)) is not None:
            with self.refusing(f"our part of {self._config.getoption('xmlpath')}"):
                for name, value in [*properties(self._report())]:
                    xml.add_global_property(name, value)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # below the output for people
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Print annotations of failed rows; the runner of GitHub Actions parses the beginnings of lines."""
        try:
            return (yield)
        finally:
            for line in self._annotations:
                terminalreporter.ensure_newline()
                terminalreporter.write_line(line)

    def write(self, items: Sequence[pytest.Item], skip_reason: str) -> None:
        """Write the requested files; an incomplete run never overwrites a complete file."""
        if os.environ.get("GITHUB_ACTIONS") == "true" and self._annotates:
            with self.refusing("the list of annotations"):
                self._annotations = error_commands(self._report(), self._code_lines(items))
        if self._config.getoption("collectonly"):
            return
        skip_reason = skip_reason or self.why_stopped(items)
        for export, write in self._targets:
            with self.refusing(str(export.path)):
                run = ReportedRun() if skip_reason else self._report()
                message = write(export, run, skip_reason or ("" if run else "nothing was measured"))
                self._notes.append(Span(message))

    def why_stopped(self, items: Sequence[pytest.Item]) -> str:
        """Return after how many tests the run stopped; empty if it did not."""
        ended = sum(item.nodeid in self._ended for item in items)
        return f"the run stopped after {ended:,} of {len(items):,} tests" if ended < len(items) else ""

    @contextmanager
    def refusing(self, target: str) -> Iterator[None]:
        """Report anything a writer raises as one line that names its target; other writers still run."""
        try:
            yield
        except Exception as error:
            is_ours = isinstance(error, DtDispatchError)
            reason = str(error) if is_ours else f"{target} was not written: {shown(error)}"
            self.failures.append(FILE_LOST)
            self._notes.append(Span(f"failed: {reason}", Tone.BAD))

    def _code_lines(self, items: Sequence[pytest.Item]) -> dict[str, tuple[str, int]]:
        """Return the first lines of tests, with paths relative to the repository."""
        repository = Path(os.environ.get("GITHUB_WORKSPACE") or self._config.rootpath)
        return {
            row_nodeid(item): (item.path.relative_to(repository).as_posix(), (item.location[1] or 0) + 1)
            for item in items
            if item.path.is_relative_to(repository)  # others belong to an installed suite
        }

    def document(self) -> Document:
        """Report which files were written, and which were not."""
        return Document(tuple(map(one_line, self._notes)))


def properties(run: ReportedRun) -> Iterator[tuple[str, Any]]:
    """Yield every number of a run, the outcomes of its gates, and its environment, for the JUnit file.

    They belong to the suite: ``junit-10.xsd`` of Jenkins' xunit plugin has properties nowhere else.

    Example:
        >>> list(properties(ReportedRun(environment={"torch version": "2.13.0"})))
        [('dtdispatch.outcome', 'nothing was measured'), ('dtdispatch.environment.torch version', '2.13.0')]
    """
    yield "dtdispatch.outcome", verdict_text(run)
    for gate in run.gates:
        yield f"dtdispatch.gate.{escape_controls(gate.where)}", "failed" if gate.has_failed else "passed"
    for name, text in run.environment.items():
        yield f"dtdispatch.environment.{escape_controls(name)}", text
    for number in run.metrics():
        yield f"dtdispatch.{number.metric}.{name_in_files(number.row)}", number.value


def _write_whole(export: Export, run: ReportedRun, skip_reason: str) -> str:
    if skip_reason:
        raise DtDispatchError(f"{export.path} was not written: {skip_reason}")
    text, message = FORMATS[export.format].render(run, export.path)
    write_atomic(export.path, text)
    return message


def _append_summary(export: Export, run: ReportedRun, skip_reason: str) -> str:
    """Append the sections that fit to the summary of a job, or the reason for an empty one."""
    path = export.path
    try:
        there = path.stat().st_size if path.exists() else 0
        has_results = not skip_reason or run.gates  # which report why they judged nothing
        text = summary(run, MOST_BYTES - there) if has_results else stopped_summary(skip_reason)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"\n{text}" if there else text)
    except OSError as error:
        raise DtDispatchError(f"{path} cannot be written: {error.strerror}") from None
    return f"a summary was appended to {path}"


def _checked_target(export: Export) -> tuple[Export, Write] | None:
    """Check that a file can be written, before a long run whose results would be lost, and choose its writer.

    The path is whole, as a test may change the directory.

    Returns:
        None where no job has a summary.
    """
    if not export.is_auto:
        check_export(export)
        return export._replace(path=export.path.absolute()), _write_whole
    if not (job := os.environ.get(JOB_SUMMARY)):
        return None
    checked_target(Path(job))
    return export._replace(path=Path(job).absolute()), _append_summary


def _check_that_files_differ(settings: Settings) -> None:
    """Reject writing one file twice, or over a file that the run reads."""
    files = [("--dtdispatch-expected", path) for path in settings.expected]
    for export in settings.export:
        files += [] if export.is_auto else [(f"--dtdispatch-export {export.format}", export.path)]
    seen: dict[str, str] = {}
    for flag, path in files:
        if other := seen.get(os.path.realpath(path)):
            raise DtDispatchError(f"{flag}: {path} is the file of {other} too: name another")
        seen[os.path.realpath(path)] = flag
