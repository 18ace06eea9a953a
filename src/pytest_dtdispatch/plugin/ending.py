"""Registration of the plugins of a run, and its end after other plugins: exit status and section."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest

from pytest_dtdispatch.core.measurement import NOISY
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import first_of
from pytest_dtdispatch.core.verdicts import LIMITS, RowVerdict, Verdict
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected import read_expected
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.finish import MOST_NAMES, file_targets
from pytest_dtdispatch.plugin.gates import Gates
from pytest_dtdispatch.plugin.guard import described, note_problem, problems, register
from pytest_dtdispatch.plugin.kinds import MEASURED, metric_names
from pytest_dtdispatch.plugin.limits import Limits
from pytest_dtdispatch.plugin.pytest_benchmark import Bridge, is_loaded, read_baseline
from pytest_dtdispatch.plugin.pytest_internals import add_to_last_line, terminal_width
from pytest_dtdispatch.plugin.session import Session
from pytest_dtdispatch.plugin.settings import SETTINGS, UNMEASURED
from pytest_dtdispatch.plugin.workers import Workers
from pytest_dtdispatch.report.document import Document, Span, Tone, View, notice, one_line, paragraph
from pytest_dtdispatch.report.judgements import comparison_blocks, judgement_document, worst_text
from pytest_dtdispatch.report.notes import proved
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.screen import print_text
from pytest_dtdispatch.report.terminal import NO_EDGE, brief_legend, document_lines, page_width


class Ending:
    """Plugin object that ends a run after other plugins: its exit status and its section.

    Args:
        config: pytest's configuration.
        session: session of the run.
    """

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session
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
        if self._session.failures() and session.exitstatus == pytest.ExitCode.OK:
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
                self._session.finish()
                self.pytest_sessionfinish(self._unfinished)
            if self._awaits_summary and reporter:
                self._summarize(reporter)
        if reporter:
            reporter.ensure_newline()
            self._print_problems(reporter)
        print_text("".join(self._session.log.printed))

    def _summarize(self, reporter: Any) -> None:
        """Print the section."""
        self._awaits_summary = False
        reporter.ensure_newline()
        reporter.section("dtdispatch")
        try:
            _print_section(reporter, self._session, self._config.get_verbosity())
        except (Exception, SystemExit) as error:  # pytest's own summary follows
            note_problem(self._config, f"this section was not printed: {described(error)}")
            print_lines(reporter, document_lines(self._session.log.document(), NO_EDGE, View()))
        self._print_problems(reporter)

    def _print_problems(self, reporter: Any) -> None:
        """Print the problems that were not printed before."""
        new = problems(self._config)[self._printed :]
        self._printed += len(new)
        document = Document(tuple(one_line(Span(f"failed: {problem}", Tone.BAD)) for problem in new))
        print_lines(reporter, document_lines(document, NO_EDGE, View()))


def _print_section(reporter: Any, session: Session, verbosity: int) -> None:
    """Print the section of a run, and add counts to pytest's last line; ``-v`` is verbosity 1."""
    run = session.run
    view = replace(run.view, verbose=verbosity > 0, each_layer=verbosity > 0)
    width = page_width(reporter.isatty, terminal_width(reporter))
    nothing = ""
    if not any(session.results.records.values()):
        nothing = _reason_for_nothing(session.gates.settings.measure_all, "passed" in reporter.stats)
    for document in _documents(session, view, width, nothing, verbosity):
        print_lines(reporter, document_lines(document, width, view))
    add_failures(reporter, session.failures())
    verdicts = [row.verdict for gate in run.gates for row in gate.verdicts]
    undecided = [verdict for verdict in verdicts if verdict is Verdict.INCONCLUSIVE]
    unmeasured = reporter.stats.get("passed", ()) if nothing else session.results.unmeasured()
    for word, rows in ((str(Verdict.INCONCLUSIVE), undecided), ("not measured", unmeasured)):
        if rows:
            add_to_last_line(reporter, word, rows)


def _documents(session: Session, view: View, width: int, nothing: str, verbosity: int) -> Iterator[Document]:
    """Yield results (not with ``-qq``), notices, judgements of gates, written files and the worst row."""
    run, gates = session.run, session.gates
    compared = gates.compared(run, session.selection)
    shown = run.documents(view) if verbosity >= -1 and not nothing else {}
    unmatched = [*_unmatched_globs(session.results.records.values())]
    if nothing:
        yield notice(f"nothing was measured: {gates.skip_reason or '; '.join(unmatched) or nothing}")
    elif verbosity >= -1:
        if compared and MEASURED.name in shown:  # one row has one figure
            shown[MEASURED.name] = _comparison(run, compared, view)
        yield from shown.values()
        if verbosity >= 0:
            yield _legends(session, shown.values(), view, width)
        yield notice(*unmatched)
    yield notice(*first_of([f"not measured: {text}" for text in session.results.unmeasured()], MOST_NAMES))
    yield run.notices
    has_thresholds = gates.settings.threshold or run.thresholds
    if gates.settings.judges and has_thresholds and gates.baseline is None:
        yield notice(
            "gate: thresholds are set, but --benchmark-compare names no saved run: nothing was compared"
        )
    elif not run.gates and (reason := gates.reason_not_compared(run)):
        yield notice(f"not compared with the saved run: {reason}")
    yield from (judgement_document(gate, view) for gate in run.gates)
    yield session.log.document()
    # Rows over their limits were listed by the gate.
    judged = [row for gate in run.gates if gate.where != LIMITS for row in gate.verdicts]
    of_tables = next((document.worst for document in shown.values() if document.worst), "")
    if text := worst_text(compared or judged) if compared or run.gates else of_tables:
        yield Document((paragraph(text, Tone.STRONG, hanging=1),))


def _comparison(run: ReportedRun, compared: Sequence[RowVerdict], view: View) -> Document:
    """Render rows without a threshold next to the saved run; a gate renders the others."""
    free = [row for row in compared if not row.criterion]
    blocks = (*comparison_blocks(free, view), *proved([*run.rows()]))
    meanings = {
        "change": "now against base",
        "median": "its change",
        "wall": "change of wall time, where the figure is CPU time",
        "clock": "of the figures: cpu if both runs have CPU time, else wall",
        "samples": "compared in each run",
    }
    legend = f"base and now: least sample. slower, faster: by more than {NOISY:.0%}, without a threshold."
    return Document(blocks, legend, meanings)


def _legends(session: Session, shown: Iterable[Document], view: View, width: int) -> Document:
    """Render the environment, and explanations of visible columns."""
    explained = [document for document in shown if document.legend_of()]
    legends = [document.legend_of() for document in explained]
    if explained and not view.verbose:
        legends = [brief] if (brief := brief_legend(explained, width)) else []
    about = (session.gates.settings.environment().summary, *session.about())
    lines = (one_line(text, indent=1) for text in about)
    return Document((*lines, *(paragraph(text, indent=1) for text in legends)))


def _reason_for_nothing(measures_all: bool, has_passed: bool) -> str:
    """Return why no test was measured."""
    if not has_passed:
        return "no test passed"
    if measures_all:
        return "no capture received an op on DTensors in a test that passed"
    called = "made a call on DTensors through the dtdispatch fixture"
    return f"no test that passed {called}; --dtdispatch-all measures every test"


def _unmatched_globs(records: Iterable[TestRecord]) -> Iterator[str]:
    """Yield a line for each glob that matches no op, with the ops that ran in its tests."""
    ran_by_glob: dict[str, set[str]] = {}
    for record in records:
        for glob in record.globs:
            ran_by_glob.setdefault(glob, set()).update(record.ops)
    for glob, ran in ran_by_glob.items():
        if ran and not any(fnmatchcase(op, glob) for op in ran):
            names = ", ".join(first_of(sorted(ran), MOST_NAMES))
            yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"


def add_failures(reporter: Any, failures: Iterable[str]) -> None:
    """Add the number of each kind of failure to pytest's last line, and turn the line red."""
    for failure, number in Counter(failures).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        add_to_last_line(reporter, words, [words] * number, is_failure=True)


def print_lines(reporter: Any, lines: Iterable[tuple[Span, ...]]) -> None:
    """Print lines in their colours."""
    colors = {Tone.STRONG: "bold", Tone.GOOD: "green", Tone.NOTICE: "yellow", Tone.BAD: "red"}
    for line in lines:
        for piece in line:
            color = colors.get(piece.tone)
            reporter.write(piece.text, **({color: True} if color else {}))
        reporter.write("\n")


def load(config: pytest.Config, selects_benchmarks: bool) -> None:
    """Register the plugins that measure, judge and write, as requested."""
    settings = resolve.run_settings(config)
    idle = resolve.requested_flags(config, SETTINGS.keys() - {*UNMEASURED})
    if idle and not settings.measure:
        raise pytest.UsageError(f"{idle[0]}: nothing is measured without --dtdispatch or --dtdispatch-all")
    if is_loaded(config) and (settings.measure or selects_benchmarks):
        register(config, Bridge(config, settings), "dtdispatch-bridge")
    if not settings.measure:
        return
    gates = Gates(settings, resolve.reason_not_measured(config))
    session = Session(config, gates)
    if session.reports:
        try:  # report unreadable and unwritable files before anything is measured
            gates.baseline = read_baseline(config, settings)
            gates.expected = [read_expected(path, metric_names()) for path in settings.expected]
            session.targets = file_targets(settings, session.log)
        except (ValueError, DtDispatchError) as error:
            raise pytest.UsageError(str(error)) from None
    register(config, session, "dtdispatch-session")
    register(config, Limits(gates, session.results), "dtdispatch-limits")
    if session.reports:
        register(config, Ending(config, session), "dtdispatch-ending")
        if resolve.is_distributed(config):
            register(config, Workers(session.results, settings.rank_stat), "dtdispatch-workers")
