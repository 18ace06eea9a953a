"""One run: measuring in each test, and the report at the end."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from pytest_dtdispatch import errors
from pytest_dtdispatch.core.environment import load_text, read_world, require_torch
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.core.text import NOTHING, first_of, progress_to, show_progress, shown
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.errors import DtDispatchError, MeasurementError
from pytest_dtdispatch.plugin import PluginObject, resolve
from pytest_dtdispatch.plugin.gates import Gates
from pytest_dtdispatch.plugin.kinds import KINDS, MEASURED
from pytest_dtdispatch.plugin.pytest_internals import add_to_last_line, terminal_file, terminal_width
from pytest_dtdispatch.plugin.ranks import rank_of
from pytest_dtdispatch.plugin.relaunch import METER
from pytest_dtdispatch.plugin.settings import SETTINGS, UNMEASURED
from pytest_dtdispatch.report.document import Document, Span, Tone, View, notice, one_line, paragraph
from pytest_dtdispatch.report.judgements import comparison_blocks, judgement_document, worst_text
from pytest_dtdispatch.report.notes import caveats, noise, proved
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.screen import ProgressLine, is_watched
from pytest_dtdispatch.report.terminal import NO_EDGE, brief_legend, document_lines, page_width
from pytest_dtdispatch.rounds.sampler import start_sampler

if TYPE_CHECKING:
    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.plugin.outputs import Outputs
    from pytest_dtdispatch.plugin.recorder import Recorder
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.rounds.sampler import Sampler

COMPARISON = "base and now: the median of all samples, or the statistic of the threshold."
COMPARISON_MEANINGS = {
    "change": "now against base",
    "99 % interval": "of the change, by bootstrap",
    "samples": "base + now",
}
# As pytest calls them.
COLORS = {Tone.STRONG: "bold", Tone.GOOD: "green", Tone.NOTICE: "yellow", Tone.BAD: "red"}
GATE_FAILED, NOT_MEASURED = "gate failed", "not measured"
MOST_NAMES = 10
NO_OPS = "no op on DTensors ran in the capture"
NO_SAVED_RUN = "thresholds are given, and --benchmark-compare names no saved run: nothing was compared"


class Session(PluginObject):
    """The plugin object of a run with ``--dtdispatch``.

    Attributes:
        why_not: why nothing is measured although it was requested; empty if it is.
        results: what the last run of each test found, by its name in rows.
        gates: what judges them.
        outputs: what writes them; None in processes that do not.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.why_not = resolve.why_not_measured(config)
        self._config = config
        self._settings = settings
        self._ran: dict[str, set[str]] = {}  # ops that ran where a glob was given, by the glob
        self._unmeasured: dict[str, str] = {}  # why tests that use the fixture have no result
        self._taken = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.results: dict[str, TestResults] = {}
        self.gates = Gates(config, settings, self.results, self.why_not)
        self.outputs: Outputs | None = None
        self._items: Sequence[pytest.Item] = ()
        self._unfinished: pytest.Session | None = None
        self._awaits_summary = False  # tests are over, and our section is not printed yet
        self._ranks = rank_of(config)
        self._meter = [config.stash[METER]] if METER in config.stash else []

    def pytest_report_header(self) -> list[str]:
        """Say how measuring is set, with what is known without torch."""
        settings = self._settings
        ops = f" ops={','.join(settings.ops)}" if settings.ops else ""
        where = f"mesh={mesh_text(settings.mesh)} device={settings.device} backend={settings.backend}"
        counts = f"rounds={settings.rounds} repeat={settings.repeat} max_time={settings.max_time:g}s"
        how = (
            f"{version('pytest-dtdispatch')}, metric={settings.metric} {where}",
            f"{counts}{ops}",
            load_text(),
        )
        return [f"dtdispatch: {line}" for line in (*how, *self._meter)]

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Note that the session has to be finished."""
        self._unfinished = session

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the tests of the run."""
        self._items = session.items

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """List what a count consists of, where an assertion on it fails."""
        if not isinstance(left, Count) or not left.details:
            return None
        return [f"{left!r} {op} {right!r}", *left.details]

    @functools.cached_property
    def _sampler(self) -> Sampler:
        """What reads calls, ready from the first test that needs it; a run that counts reads none."""
        metric = self._settings.metric
        return start_sampler("time" if metric == "counts" else metric)

    @contextmanager
    def measuring(self, item: pytest.Item) -> Iterator[Recorder]:
        """Measure in one test, and publish its rows when it is over, however it ended."""
        settings, test = resolve.test_settings(item), resolve.row_nodeid(item)
        self.gates.marks[test], earlier = resolve.marks(item), self.results.get(test)
        if of_marker := resolve.marker_values(item).get("threshold"):
            self.gates.thresholds[test] = of_marker
        self._unmeasured.pop(test, None)  # of an attempt before this one
        with resolve.plain_errors():
            require_torch()
            from pytest_dtdispatch.plugin.recorder import Recorder, make_plan
            from pytest_dtdispatch.torchapi.propagator import ShardingCaches

            agreement = self._ranks.agreement(item.config) if self._ranks else None
            is_kept = resolve.are_figures_kept(item.config, settings)
            gate = functools.partial(self.gates.outlook, test) if is_kept else None
            plan = make_plan(settings, self._sampler, agreement, gate)
            recorder = Recorder(settings, plan, test)
            ShardingCaches().clear_all()
        self.results[test] = recorder.results
        try:
            with shown_progress(self._config):
                yield recorder
        finally:
            self._publish(item, recorder, earlier)

    def _publish(self, item: pytest.Item, recorder: Recorder, earlier: TestResults | None) -> None:
        complaint = ""
        try:
            if (idle := recorder.close()) and _is_fixture_used(item):
                self._unmeasured[recorder.results.test] = f"{NO_OPS} at {idle[0]}"
                if self.gates.judges_captures(resolve.test_settings(item)):
                    complaint = f"{idle[0]}: {NO_OPS}, so the gate judged nothing"
        except MeasurementError as error:
            complaint = str(error)
        results = recorder.results
        if earlier is not None:
            results.add_unmeasured(earlier)
        if self._ranks:
            results = self._ranks.merged(results, KINDS, item.config)
        if not complaint and (key := results.key_of_two()):
            complaint = f"two rows of this test are called {key!r}: give the call another name="
        self.results[results.test] = results
        for glob in resolve.test_settings(item).ops:
            self._ran.setdefault(glob, set()).update(results.ops())
        if bridge := self._config.pluginmanager.get_plugin("dtdispatch-bridge"):
            bridge.enter(item, results)
        if complaint:
            pytest.fail(complaint, pytrace=False)

    @pytest.hookimpl(wrapper=True, trylast=True)  # closest to the test: only the test's ops are captured
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wrap every test in a capture, if all are measured; one with the fixture measures itself."""
        takes_all = self._settings.measure_all or self._settings.budget
        if self.why_not or _is_fixture_used(item) or not takes_all:
            result = yield
        else:
            with self.measuring(item) as recorder, ExitStack() as region:
                region.enter_context(patch.object(errors, "listener", recorder.note))
                region.enter_context(recorder.whole_test())
                result = yield
                with resolve.plain_errors():  # no line of the test raises them
                    region.close()
        results = self.results.get(test := resolve.row_nodeid(item))
        if results is not None and not results and not results.ops() and _is_fixture_used(item):
            self._unmeasured[test] = "it measured nothing with its dtdispatch fixture"
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace a traceback that ends in a missing name of torch."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, Exception) and "torch" in sys.modules:
            from pytest_dtdispatch.torchapi.missing_api import missing_name

            report.longrepr = missing_name(error) or report.longrepr
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        """Take progress away before the next dot is written."""
        show_progress(NOTHING)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write files, and fail a run whose gates failed."""
        self._unfinished = None
        if self.outputs is not None:
            self.outputs.write(session.items, self._ranks.why_stopped if self._ranks else "")
        if self._failures() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._awaits_summary = True

    def _failures(self) -> list[str]:
        """Name what failed beside tests."""
        gates = [GATE_FAILED for gate in self.gates.reported if gate.has_failed]
        return gates + (self.outputs.failures if self.outputs else [])

    @functools.cached_property
    def reported(self) -> ReportedRun:
        """What this run found, whole, and what gates and ranks say of it, once for every file."""
        found, settings = self.results, self._settings
        rows = [row for results in found.values() for row in results.measurements()]
        ranks = [self._ranks.document()] if self._ranks else []
        passed_over = notice(*first_of(self.gates.passed_over, MOST_NAMES))
        notices = (passed_over, caveats(found.values()), *ranks, noise(rows))
        other_kinds = [kind for kind in KINDS if kind != MEASURED.name]
        by_kind = {
            kind: {test: of for test, results in found.items() if (of := results.of(kind))}
            for kind in other_kinds
        }
        by_kind = {kind: of_kind for kind, of_kind in by_kind.items() if of_kind}
        earlier, about_earlier = self.gates.earlier(by_kind)
        # Where nothing was measured, it may be because there is no such place.
        has_found = any(found.values())
        return ReportedRun(
            taken=self._taken,
            environment=settings.environment_texts() if has_found else {},
            build=asdict(settings.environment()) if has_found else {},
            measured={test: results.calls() for test, results in found.items() if results},
            results=by_kind,
            earlier=earlier,
            about_earlier=about_earlier,
            thresholds=self.gates.thresholds,
            numbers=tuple(number for results in found.values() for number in results.rank_numbers),
            gates=self.gates.reported,
            stopped=self.outputs.why_stopped(self._items) if self.outputs else "",
            traces=tuple(trace for results in found.values() for trace in results.traces),
            notices=Document(tuple(block for notice in notices for block in notice.blocks)),
        )

    @pytest.hookimpl(wrapper=True, trylast=True)  # below the tables of others, above pytest's own summary
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Print our section, even if the summary of another plugin raises."""
        try:
            return (yield)
        finally:
            self._summarize(terminalreporter)

    def pytest_unconfigure(self) -> None:
        """Write files and print our section if another plugin raised first, as pytest-benchmark may."""
        if sys.exc_info()[1] is None:
            return
        if self._unfinished is not None:
            self.pytest_sessionfinish(self._unfinished)
        if self._awaits_summary and (reporter := self._config.pluginmanager.get_plugin("terminalreporter")):
            self._summarize(reporter)

    def _summarize(self, terminalreporter: Any) -> None:
        """Print our section, in the process that started workers, and on the first rank."""
        self._awaits_summary = False
        if hasattr(self._config, "workerinput") or not read_world(os.environ).is_first:
            return
        terminalreporter.ensure_newline()
        terminalreporter.section("dtdispatch")
        try:
            self._print_section(terminalreporter)
        except Exception as error:  # pytest's own summary follows
            terminalreporter.write_line(f"this section was not printed: {shown(error)}", red=True)
            if self.outputs is not None:
                _print_lines(terminalreporter, document_lines(self.outputs.document(), NO_EDGE, View()))

    def _print_section(self, terminalreporter: Any) -> None:
        verbose = self._config.get_verbosity() > 0
        view = replace(self.reported.view, verbose=verbose, each_layer=verbose)
        width = page_width(terminalreporter.isatty, terminal_width(terminalreporter))
        nothing = "" if any(self.results.values()) else self._why_nothing(terminalreporter)
        for document in self._documents(view, width, nothing):
            _print_lines(terminalreporter, document_lines(document, width, view))
        add_failures(terminalreporter, self._failures())
        verdicts = [row.verdict for gate in self.gates.reported for row in gate.verdicts]
        undecided = [verdict for verdict in verdicts if verdict is Verdict.INCONCLUSIVE]
        passed = terminalreporter.stats.get("passed", ())
        unmeasured = passed if nothing else [*self._unmeasured]
        for word, rows in ((str(Verdict.INCONCLUSIVE), undecided), (NOT_MEASURED, unmeasured)):
            if rows:
                add_to_last_line(terminalreporter, word, rows)

    def _documents(self, view: View, width: int, nothing: str) -> Iterator[Document]:
        """Lay out what was found, unless by ``-qq``, and what ranks and gates say; last what is worst."""
        verbosity, compared = self._config.get_verbosity(), self.gates.compared
        shown = self.reported.documents(view) if verbosity >= -1 and not nothing else {}
        unmatched = [*self._unmatched_globs()]
        if nothing:
            yield notice(f"nothing was measured: {self.why_not or '; '.join(unmatched) or nothing}")
        elif verbosity >= -1:
            if compared and MEASURED.name in shown:  # one row has one figure
                shown[MEASURED.name] = self._comparison(compared, view)
            yield from shown.values()
            if verbosity >= 0:
                yield self._legends(shown.values(), view, width)
            yield notice(*unmatched)
        unmeasured = [f"not measured: {test}: {why}" for test, why in self._unmeasured.items()]
        yield notice(*first_of(unmeasured, MOST_NAMES))
        yield self.reported.notices
        has_thresholds = self._settings.threshold or any(self.gates.thresholds.values())
        if has_thresholds and not self.gates.compares:
            yield notice(f"gate: {NO_SAVED_RUN}")
        elif self.gates.why_not_compared and not self.gates.reported:
            yield notice(f"not compared with the saved run: {self.gates.why_not_compared}")
        yield from (judgement_document(gate, view) for gate in self.gates.reported)
        if self.outputs is not None:
            yield self.outputs.document()
        judged = compared or [row for gate in self.gates.reported for row in gate.verdicts]
        of_tables = next((document.worst for document in shown.values() if document.worst), "")
        if text := worst_text(judged) if judged else of_tables:
            yield Document((paragraph(text, Tone.STRONG, hanging=1),))

    def _comparison(self, compared: Sequence[RowVerdict], view: View) -> Document:
        """Lay out how rows without a threshold moved since the saved run; a gate shows the others."""
        rows = [row for results in self.results.values() for row in results.measurements()]
        free = [row for row in compared if not row.criterion]
        return Document((*comparison_blocks(free, view), *proved(rows)), COMPARISON, COMPARISON_MEANINGS)

    def _legends(self, shown: Iterable[Document], view: View, width: int) -> Document:
        """Say on what figures stand, what the columns mean that are shown, and how to see more."""
        explained = [document for document in shown if document.legend_of()]
        legends = [document.legend_of() for document in explained]
        if explained and not view.verbose:
            legends = [brief] if (brief := brief_legend(explained, width)) else []
        ranks = [self._ranks.summary] if self._ranks else []
        summaries = [self._settings.environment().summary, *self._meter, *ranks]
        lines = (one_line(summary, indent=1) for summary in summaries)
        return Document((*lines, *(paragraph(text, indent=1) for text in legends)))

    def _why_nothing(self, reporter: Any) -> str:
        """Return why no test was measured."""
        if "passed" not in reporter.stats:
            return "no test passed"
        if self._settings.measure_all:
            return "no capture saw an op on DTensors in a test that passed"
        called = "made a call on DTensors through the dtdispatch fixture"
        return f"no test that passed {called}; --dtdispatch-all measures every test"

    def _unmatched_globs(self) -> Iterator[str]:
        """Name each glob that matches no op, and the ops that ran where it was given."""
        for glob, ran in self._ran.items():
            if ran and not any(fnmatchcase(op, glob) for op in ran):
                names = ", ".join(first_of(sorted(ran), MOST_NAMES))
                yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"


def add_failures(reporter: Any, failures: Iterable[str]) -> None:
    """Add each kind of failure with its number, and turn the line red."""
    for failure, number in Counter(failures).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        add_to_last_line(reporter, words, [words] * number, is_failure=True)


def load(config: pytest.Config, selects_benchmarks: bool) -> None:
    """Register the plugins that measure, judge and write, as requested."""
    settings, manager = resolve.run_settings(config), config.pluginmanager
    idle = resolve.requested_flags(config, SETTINGS.keys() - {*UNMEASURED})
    if idle and not settings.measure:
        raise pytest.UsageError(f"{idle[0]}: nothing is measured without --dtdispatch or --dtdispatch-all")
    if manager.hasplugin("benchmark") and (settings.measure or selects_benchmarks):
        from pytest_dtdispatch.plugin.pytest_benchmark import Bridge

        manager.register(Bridge(config, settings), "dtdispatch-bridge")
    if not settings.measure:
        return
    from pytest_dtdispatch.plugin.outputs import Outputs

    session = Session(config, settings)
    manager.register(session, "dtdispatch-session")
    manager.register(session.gates, "dtdispatch-gates")
    # Workers of pytest-xdist are judged, and write, in the process that started them; ranks in the first.
    if hasattr(config, "workerinput") or not read_world(os.environ).is_first:
        return
    try:  # what cannot be read or written is named before anything is measured
        session.gates.read()
        session.outputs = Outputs(config, settings, lambda: session.reported)
    except (ValueError, DtDispatchError) as error:
        raise pytest.UsageError(str(error)) from None
    manager.register(session.outputs, "dtdispatch-outputs")


def _is_fixture_used(item: pytest.Item) -> bool:
    return "dtdispatch" in getattr(item, "fixturenames", ())


def _print_lines(terminalreporter: Any, lines: Iterable[tuple[Span, ...]]) -> None:
    """Print lines in their colours."""
    for line in lines:
        for piece in line:
            color = COLORS.get(piece.tone)
            terminalreporter.write(piece.text, **({color: True} if color else {}))
        terminalreporter.write("\n")


@contextmanager
def shown_progress(config: pytest.Config) -> Iterator[None]:
    """Show progress while a block runs, where nobody else writes on the terminal at that time."""
    plugins = config.pluginmanager
    reporter: Any = plugins.get_plugin("terminalreporter")
    has_live_log = plugins.hasplugin("logging") and (
        config.getini("log_cli") or config.getoption("log_cli_level", None)
    )
    others_write = has_live_log or config.getoption("capture", None) != "fd"
    if reporter is None or not is_watched(reporter.isatty) or others_write:
        yield
        return
    capture: Any = plugins.get_plugin("capturemanager")
    uncaptured = capture.global_and_fixture_disabled  # else it would be part of what the test printed
    line = ProgressLine(*terminal_file(reporter), uncaptured)
    try:
        with progress_to(line.show):
            yield
    finally:
        line.clear()
