"""The end of a run: collect the results of its tests, and write files. Does not import pytest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.files import checked_target
from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import escape_controls, shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line
from pytest_dtdispatch.report.exports import FORMATS, check_export
from pytest_dtdispatch.report.notes import caveats, noise
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.summary import MAX_BYTES, stopped_summary, summary, verdict_text

MAX_NAMES = 10  # in a notice
SUMMARY = "summary"  # format of a file that GITHUB_STEP_SUMMARY names


def collect(
    records: Mapping[str, TestRecord], settings: Settings, notices: Iterable[Document] = (), plugins: str = ""
) -> ReportedRun:
    """Collect the records of tests in a run.

    Args:
        records: records of tests, by name in rows.
        settings: settings of the run.
        notices: notices that precede those on the results.
        plugins: other plugins of pytest with their versions.
    """
    has_found = any(records.values())  # if not, the mesh may not exist, so that it has no environment
    rows = [row for record in records.values() for row in record.rows()]
    by_kind = {
        kind: {test: each.results[kind] for test, each in records.items() if each.results.get(kind)}
        for kind in KINDS
    }
    environment = settings.environment_texts() if has_found else {}
    environment |= {"plugins": plugins} if has_found and plugins else {}
    noticed = (*notices, caveats(records.values()), noise(rows))
    return ReportedRun(
        environment=environment,
        measured={test: record.measured for test, record in records.items() if record},
        results={kind: of_kind for kind, of_kind in by_kind.items() if of_kind},
        thresholds={test: record.thresholds for test, record in records.items() if record.thresholds},
        numbers=tuple(number for record in records.values() for number in record.merged_numbers or ()),
        traces=tuple(trace for record in records.values() for trace in record.traces),
        notices=Document(tuple(block for document in noticed for block in document.blocks)),
    )


class WriteLog:
    """Log of written and unwritten files.

    Attributes:
        failures: kind of failure of each failed writer.
        notes: lines for the user.
        printed: texts for standard output, after pytest's summary.
    """

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.printed: list[str] = []
        self.notes: list[Span] = []

    @contextmanager
    def writing(self, target: str) -> Iterator[None]:
        """Log any exception of a writer as one line with its target, so that other writers still run."""
        try:
            yield
        except (Exception, SystemExit) as error:  # raised by an extension
            is_ours = isinstance(error, DtDispatchError)
            reason = str(error) if is_ours else f"{target} was not written: {shown(error)}"
            self.failures.append("file not written")
            self.notes.append(Span(f"failed: {reason}", Tone.BAD))

    def document(self) -> Document:
        """Render the lines on written and unwritten files."""
        return Document(tuple(map(one_line, self.notes)))


def write_files(run: ReportedRun, targets: Sequence[Export], skip_reason: str, log: WriteLog) -> None:
    """Write the requested files; an incomplete run never overwrites a complete file.

    Args:
        run: finished run.
        targets: files of :func:`file_targets`.
        skip_reason: why the run is incomplete; empty if it is complete.
        log: log that receives a line for each file.
    """
    for export in targets:
        with log.writing(export.target):
            written = ReportedRun() if skip_reason else run
            has_data = run or (export.is_stdout and run.failed_tests)
            reason = skip_reason or ("" if has_data else "nothing was measured")
            if export.format == SUMMARY:
                message = _append_summary(export, written, reason)
            elif reason:
                raise DtDispatchError(f"{export.target} was not written: {reason}")
            else:
                text, message = FORMATS[export.format].render(written, export.target)
                if export.is_stdout:
                    log.printed.append(text)
                    continue
                FORMATS[export.format].write(export.path, text)
            log.notes += map(Span, message.split("\n"))


def file_targets(settings: Settings, log: WriteLog) -> list[Export]:
    """Check that files can be written, before a long run whose results would be lost.

    Paths are absolute, because a test may change the current directory. ``markdown:auto`` is a summary.

    Raises:
        DtDispatchError: a file cannot be written, or two are the same.
    """
    # No file is written twice, or is also read by the run.
    files = [("--dtdispatch-expected", path) for path in settings.expected]
    exports = [export for export in settings.export if not export.is_auto]
    files += [(f"--dtdispatch-export {export.format}", export.path) for export in exports]
    seen: dict[str, str] = {}
    for flag, path in files:
        real = os.path.realpath(path)
        if real in seen:
            raise DtDispatchError(f"{flag}: {path} is the file of {seen[real]} too: name another")
        seen[real] = flag
    targets: list[Export] = []
    for export in settings.export:
        if not export.is_auto:
            check_export(export)
            path = export.path if export.is_stdout else export.path.absolute()
            targets.append(export._replace(path=path))
        elif os.environ.get("GITHUB_STEP_SUMMARY"):
            path = Path(os.environ["GITHUB_STEP_SUMMARY"])
            checked_target(path)
            targets.append(Export(SUMMARY, path.absolute()))
        else:
            why = "--dtdispatch-export markdown:auto finds no GITHUB_STEP_SUMMARY here"
            log.notes.append(Span(f"no summary was written: {why}", Tone.NOTICE))
    return targets


def properties(run: ReportedRun) -> Iterator[tuple[str, Any]]:
    """Yield every number of a run, the outcomes of its gates, and its environment, for the JUnit file.

    They are properties of the suite: ``junit-10.xsd`` of Jenkins' xunit plugin permits them only there.

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


def _append_summary(export: Export, run: ReportedRun, skip_reason: str) -> str:
    """Append the sections that fit to the summary of a job, or the reason for an empty one."""
    path = export.path
    try:
        there = path.stat().st_size if path.exists() else 0
        has_results = not skip_reason or run.gates  # gates report why they judged nothing
        text = summary(run, MAX_BYTES - there) if has_results else stopped_summary(skip_reason)
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"\n{text}" if there else text)
    except OSError as error:
        raise DtDispatchError(f"{path} cannot be written: {error.strerror}") from None
    return f"a summary was appended to {path}"
