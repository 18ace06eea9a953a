"""End of a run after other plugins: its exit status and its section."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from pytest_dtdispatch.core.environment import environment_summary
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import first_of
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.plugin.finish import MAX_NAMES
from pytest_dtdispatch.plugin.guard import described, note_problem, problems
from pytest_dtdispatch.plugin.kinds import MEASURED
from pytest_dtdispatch.plugin.pytest_internals import add_to_last_line, terminal_width
from pytest_dtdispatch.plugin.run import Run
from pytest_dtdispatch.report.document import Document, Span, Tone, View, notice, one_line, paragraph
from pytest_dtdispatch.report.judgements import (
    comparison_document,
    inconclusive,
    judgement_documents,
)
from pytest_dtdispatch.report.notes import proved
from pytest_dtdispatch.report.screen import print_text
from pytest_dtdispatch.report.summary import worst_of
from pytest_dtdispatch.report.terminal import NO_EDGE, brief_legend, document_lines, page_width


class Ending:
    """Plugin object that ends a run after other plugins: its exit status and its section.

    Args:
        config: pytest's configuration.
        run: the run.
    """

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config = config
        self._run = run
        self._unfinished: pytest.Session | None = None
        self._awaits_summary = False  # whether tests are over, but the section is not printed yet
        self._printed = 0  # number of printed problems

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Record that the session must be finished."""
        self._unfinished = session

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run with failed gates or unwritten files."""
        self._unfinished = None
        if self._run.failures() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._awaits_summary = True

    @pytest.hookimpl(wrapper=True, trylast=True)  # below the tables of others, above pytest's own summary
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Print the section, even if the summary of another plugin raises."""
        try:
            return (yield)
        finally:
            self._summarize(terminalreporter)

    @pytest.hookimpl(trylast=True)  # below the lines of others
    def pytest_unconfigure(self) -> None:
        """Print results as data, the last lines of the run.

        If another plugin raised before, as pytest-benchmark may, write files and print the section first.
        """
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if sys.exc_info()[1] is not None:
            if self._unfinished is not None:
                self._run.end()
                self.pytest_sessionfinish(self._unfinished)
            if self._awaits_summary and reporter:
                self._summarize(reporter)
        if reporter:
            reporter.ensure_newline()
            self._print_problems(reporter)
        print_text("".join(self._run.log.printed))

    def _summarize(self, reporter: Any) -> None:
        """Print the section, and add counts to pytest's last line."""
        self._awaits_summary = False
        reporter.ensure_newline()
        reporter.section("dtdispatch")
        try:
            print_section(reporter, self._run, self._config.get_verbosity())
        except (Exception, SystemExit) as error:  # pytest's own summary follows
            note_problem(self._config, f"this section was not printed: {described(error)}")
            print_document(reporter, self._run.log.document())
        self._print_problems(reporter)

    def _print_problems(self, reporter: Any) -> None:
        """Print the problems that were not printed before."""
        new = problems(self._config)[self._printed :]
        self._printed += len(new)
        lines = [one_line(Span(f"failed: {problem}", Tone.BAD)) for problem in new]
        print_document(reporter, Document(tuple(lines)))


def print_section(reporter: Any, run: Run, verbosity: int) -> None:
    """Print the section of a run, and add counts to pytest's last line; ``-v`` is verbosity 1."""
    view = replace(run.reported.view, verbose=verbosity > 0, each_layer=verbosity > 1)
    width = page_width(reporter.isatty, terminal_width(reporter))
    nothing = ""
    if not any(run.records.values()):
        called = "made a call on DTensors through the dtdispatch fixture"
        nothing = f"no test that passed {called}; --dtdispatch-all measures every test"
        if run.settings.measure_all:
            nothing = "no capture received an op on DTensors in a test that passed"
        if "passed" not in reporter.stats:
            nothing = "no test passed"
    for document in _documents(run, view, width, nothing, verbosity):
        print_document(reporter, document, width, view)
    for failure, number in Counter(run.failures()).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        add_to_last_line(reporter, words, [words] * number, is_failure=True)
    undecided = inconclusive(run.reported.gates)
    if undecided:
        add_to_last_line(reporter, str(Verdict.INCONCLUSIVE), undecided)
    unmeasured = reporter.stats.get("passed", ()) if nothing else run.unmeasured()
    if unmeasured:
        add_to_last_line(reporter, "not measured", unmeasured)


def _documents(run: Run, view: View, width: int, nothing: str, verbosity: int) -> Iterator[Document]:
    """Yield results (not with ``-qq``), notices, judgements of gates, written files and the worst row."""
    reported, settings = run.reported, run.settings
    shown: dict[str, Document] = {}
    unmatched = [*_unmatched_globs(run.records.values())]
    if nothing:
        yield notice(f"nothing was measured: {run.gates.skip_reason or '; '.join(unmatched) or nothing}")
    elif verbosity >= -1:
        shown = reported.documents(view)
        if reported.compared and MEASURED.name in shown:  # one row has one figure
            proofs = proved([*reported.rows()])
            shown[MEASURED.name] = comparison_document(reported.compared, view, proofs)
        yield from shown.values()
        if verbosity >= 0:
            explained = [document for document in shown.values() if document.legend_of()]
            legends = [document.legend_of() for document in explained]
            if explained and not view.verbose:
                legends = [brief_legend(explained, width)]
            about = (environment_summary(settings.environment()), *run.about())
            lines = [one_line(text, indent=1) for text in about]
            yield Document((*lines, *(paragraph(text, indent=1) for text in legends if text)))
        yield notice(*unmatched)
    yield notice(*first_of([f"not measured: {text}" for text in run.unmeasured()], MAX_NAMES))
    yield reported.notices
    has_thresholds = settings.threshold or reported.thresholds
    if settings.judges and has_thresholds and run.gates.baseline is None:
        why = "--benchmark-compare names no saved run"
        yield notice(f"gate: thresholds are set, but {why}: nothing was compared")
    elif reported.uncompared and not reported.gates:
        yield notice(f"not compared with the saved run: {reported.uncompared}")
    yield from judgement_documents(reported.gates, view)
    yield run.log.document()
    worst = worst_of(reported, shown.values())
    if worst:
        yield Document((paragraph(worst, Tone.STRONG, hanging=1),))


def _unmatched_globs(records: Iterable[TestRecord]) -> Iterator[str]:
    """Yield a line for each glob that matches no op, with the ops that ran in its tests."""
    ran_by_glob: dict[str, set[str]] = {}
    for record in records:
        for glob in record.globs:
            ran_by_glob.setdefault(glob, set()).update(record.ops)
    for glob, ran in ran_by_glob.items():
        if ran and not any(fnmatchcase(op, glob) for op in ran):
            names = ", ".join(first_of(sorted(ran), MAX_NAMES))
            yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"


def print_document(reporter: Any, document: Document, width: int = NO_EDGE, view: View | None = None) -> None:
    """Print the lines of a document in their colours."""
    colors = {Tone.STRONG: "bold", Tone.GOOD: "green", Tone.NOTICE: "yellow", Tone.BAD: "red"}
    for line in document_lines(document, width, view or View()):
        for piece in line:
            color = colors.get(piece.tone)
            reporter.write(piece.text, **({color: True} if color else {}))
        reporter.write("\n")
