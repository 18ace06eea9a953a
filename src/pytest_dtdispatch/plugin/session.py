"""A run that measures: its tests and its end."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from time import sleep as pause
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from pytest_dtdispatch import errors
from pytest_dtdispatch.core.environment import load_text, read_world, require_torch
from pytest_dtdispatch.core.results import Count, row_key
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.core.text import NOTHING, first_of, plural, progress_to, show_progress
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.gates.selection import Selection
from pytest_dtdispatch.lines.wrappers import pass_over
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.finish import MOST_NAMES, Target, WriteLog, collect, properties, write_files
from pytest_dtdispatch.plugin.gates import Gates
from pytest_dtdispatch.plugin.guard import fail_report, problems
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.pytest_internals import (
    has_collected,
    junit_xml,
    plugins_text,
    run_again,
    terminal_file,
)
from pytest_dtdispatch.plugin.ranks import rank_of, reason_of
from pytest_dtdispatch.plugin.relaunch import METER, uncaptured
from pytest_dtdispatch.plugin.results import RunResults
from pytest_dtdispatch.plugin.workers import PROBLEMS, RECORD, SELECTED, encode_record
from pytest_dtdispatch.report.document import notice
from pytest_dtdispatch.report.run import FailedTest, ReportedRun
from pytest_dtdispatch.report.screen import ProgressLine, is_watched
from pytest_dtdispatch.report.summary import error_commands
from pytest_dtdispatch.rounds.sampler import start_sampler

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.recorder import Recorder
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.rounds.sampler import Sampler

# Pauses before tests with slower rows run again: other machines may slow a core for seconds.
PAUSES_S = (1.0, 2.0, 4.0)
MOST_AGAIN = 20  # tests; if more became slower, the run fails without
NO_OPS = "no op on DTensors ran in the capture"


class Session:
    """Plugin object of a run with ``--dtdispatch``.

    Args:
        config: pytest's configuration.
        gates: gates of the run.

    Attributes:
        gates: gates of the run.
        results: results of its tests.
        run: data of all reports; empty until the end of the tests.
        log: log of written files.
        targets: files to write at the end, with their writers.
        reports: whether this process judges and writes: the one that started workers of pytest-xdist, and
            the first of many ranks.
    """

    def __init__(self, config: pytest.Config, gates: Gates) -> None:
        self.gates, self.log = gates, WriteLog()
        self.results = RunResults()
        self.run = ReportedRun()
        self._has_finished = False
        self._ran_again: dict[str, None] = {}
        self._config = config
        self._settings = gates.settings
        pass_over(self._settings.wrappers)
        self.targets: list[Target] = []
        self._started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._collected: list[pytest.Item] = []
        self._ended: set[str] = set()
        self._has_passed = False  # whether the call of the current test passed
        self._is_xfailed = False
        self._annotations: list[str] = []
        self._is_worker = hasattr(config, "workerinput")
        self.reports = not self._is_worker and read_world(os.environ).is_first
        self._ranks = rank_of(config)
        self._meter = [config.stash[METER]] if METER in config.stash else []
        self._sampler: Sampler | None = None

    def pytest_report_header(self) -> list[str]:
        """Return lines about the settings, as far as they are known without torch."""
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

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around all hooks that skip a path
    def pytest_ignore_collect(self, collection_path: Path) -> Generator[None, bool | None, bool | None]:
        """Record skipped files and folders, whose rows are not missing."""
        if is_ignored := (yield):
            self.results.skipped.append(str(collection_path))
        return is_ignored

    @pytest.hookimpl(wrapper=True, trylast=True)  # before other hooks remove tests, as that of --lf does
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Record all tests of a file, or that it was skipped."""
        report = yield
        if report.passed and not report.result and not has_collected(report):
            self.results.skipped.append(str(collector.path))
        self._collected += [node for node in report.result if isinstance(node, pytest.Item)]
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the tests of the run, and the collected ones that flags and plugins removed."""
        self.results.nodeids = tuple(item.nodeid for item in session.items)
        self.results.lines = {
            resolve.row_nodeid(item): (str(item.path), (item.location[1] or 0) + 1) for item in session.items
        }
        names = dict.fromkeys(map(resolve.row_nodeid, self._collected))
        self.results.deselected = [name for name in names if name not in self.results.lines]
        self._collected.clear()

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """List the counted events if an assertion on a count fails."""
        if not isinstance(left, Count) or not left.details:
            return None
        return [f"{left!r} {op} {right!r}", *left.details]

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin an attempt of a test."""
        self.results.begin(resolve.row_nodeid(item))
        self._has_passed = self._is_xfailed = False

    def skip_reason(self, item: pytest.Item) -> str:
        """Return why a test is not measured; empty if it is. A marker with limits may change the metric."""
        return self.gates.skip_reason and resolve.reason_not_measured(
            self._config, resolve.test_settings(item)
        )

    @contextmanager
    def measuring(self, item: pytest.Item) -> Iterator[Recorder]:
        """Measure in one test, and publish its rows at its end, whatever its outcome."""
        settings = resolve.test_settings(item)
        self.results.marks = resolve.marks(item)
        with resolve.plain_errors():
            require_torch()
            recorder = self._recorder(item, settings)
        self.results.store = recorder.results
        try:
            with shown_progress(self._config):
                yield recorder
        finally:
            self._publish(item, recorder)

    def _recorder(self, item: pytest.Item, settings: Settings) -> Recorder:
        from pytest_dtdispatch.plugin.recorder import Recorder, make_plan
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        if self._sampler is None:  # started by the first test that needs it
            metric = self._settings.metric
            self._sampler = start_sampler("time" if metric == "counts" else metric)
        agreement = self._ranks.agreement(item.config) if self._ranks else None
        plan = make_plan(settings, self._sampler, agreement)
        recorder = Recorder(settings, plan, resolve.row_nodeid(item))
        ShardingCaches().clear_all()
        return recorder

    def _publish(self, item: pytest.Item, recorder: Recorder) -> None:
        """Add the record of a test, merged over ranks, and its rows to pytest-benchmark."""
        complaint = unmeasured = ""
        settings = resolve.test_settings(item)
        try:
            if (idle := recorder.close()) and _is_fixture_used(item):
                unmeasured = f"{NO_OPS} at {idle[0]}"
                if self.gates.judges_captures(settings):
                    complaint = f"{idle[0]}: {NO_OPS}, so the gate judged nothing"
        except MeasurementError as error:
            complaint = str(error)
        record = replace(
            recorder.results.freeze(KINDS),
            thresholds=resolve.marker_values(item).get("threshold") or (),
            globs=settings.ops,
        )
        if not record and not record.ops and self._has_passed and _is_fixture_used(item):
            unmeasured = unmeasured or "it measured nothing with its dtdispatch fixture"
        record = self.results.add(replace(record, unmeasured=unmeasured))
        if self._ranks:
            record = self.results.records[record.test] = self._ranks.merged(record, item.config)
        if not complaint and (key := record.shared_key()):
            complaint = f"two rows of this test have the name {key!r}: pass another name="
        if bridge := self._config.pluginmanager.get_plugin("dtdispatch-bridge"):
            bridge.enter(item, record)
        if complaint:
            pytest.fail(complaint, pytrace=False)

    @pytest.hookimpl(wrapper=True, trylast=True)  # closest to the test: only the test's ops are captured
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wrap a test in a capture if all tests are measured, unless it uses the fixture."""
        measures_all = self._settings.measure_all or self._settings.budget
        if not measures_all or _is_fixture_used(item) or self.skip_reason(item):
            result = yield
        else:
            with self.measuring(item) as recorder, ExitStack() as region:
                region.enter_context(patch.object(errors, "listener", recorder.note))
                region.enter_context(recorder.whole_test())
                result = yield
                with resolve.plain_errors():  # these errors have no line in the test
                    region.close()
        self._has_passed = True
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run tests with slower rows again, after all others, unless the run stopped or has many ranks."""
        result = yield
        if self.gates.baseline and self.reports and not (self._ranks or self.why_stopped()):
            self._run_slower_again(session.items)
        return result

    def _run_slower_again(self, items: Sequence[pytest.Item]) -> None:
        """Run tests again whose rows fail the gate of the saved run; their faster run is judged."""
        for pause_s in PAUSES_S:
            run = self._collect(lists_only=True)
            slower = self.gates.slower_tests(run, self.selection)
            again = [item for item in items if resolve.row_nodeid(item) in slower]
            if not 0 < len(again) <= MOST_AGAIN:
                return
            pause(pause_s)
            for item, next_item in zip_longest(again, again[1:]):
                self._run_again(item, next_item)

    def _run_again(self, item: pytest.Item, next_item: pytest.Item | None) -> None:
        """Run a test again; each of its rows has the samples of the faster run."""
        test = resolve.row_nodeid(item)
        earlier = self.results.records[test]
        has_passed = run_again(item, next_item)
        record = self.results.records[test].fastest(earlier) if has_passed else earlier
        self.results.put(record)
        self._ran_again[test] = None
        if bridge := self._config.pluginmanager.get_plugin("dtdispatch-bridge"):
            bridge.enter(item, record)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace a traceback of a missing name of torch by one line; complete the record of a test."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, Exception) and "torch" in sys.modules:
            from pytest_dtdispatch.torchapi.missing_api import missing_name

            report.longrepr = missing_name(error) or report.longrepr
        self._is_xfailed |= hasattr(report, "wasxfail") and report.skipped
        if call.when == "teardown":
            test = resolve.row_nodeid(item)
            if self._is_xfailed:
                self.results.quarantine(test)
            if self._is_worker and (record := self.results.records.get(test)):
                try:
                    setattr(report, RECORD, encode_record(record))
                except MeasurementError as error:
                    fail_report(report, [str(error)])
        return report

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record finished tests, whatever their outcome."""
        self._ended.add(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Erase the progress line before pytest writes the outcome of a test, and record a failure."""
        show_progress(NOTHING)
        if report.failed:
            self.results.fail(FailedTest(report.nodeid, str(report.when), reason_of(report)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that could not be collected."""
        if report.failed:
            self.results.fail(FailedTest(report.nodeid, "collect", reason_of(report)))

    # The end

    def why_stopped(self) -> str:
        """Return a message with the number of tests after which the run stopped; empty if it did not."""
        total = len(self.results.nodeids)
        ended = len(self._ended.intersection(self.results.nodeids))
        return f"the run stopped after {ended:,} of {total:,} tests" if ended < total else ""

    @property
    def selection(self) -> Selection:
        """Tests of baselines that this run selects."""
        deselected = set(map(row_key, self.results.deselected))
        tests = set(map(row_key, self.results.lines))
        return Selection(
            resolve.selected_beginnings(self._config),
            deselected,
            tests | deselected,
            set(map(Path, self.results.skipped)),
            resolve.test_roots(self._config),
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest and pytest-benchmark write their files
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Finish the run."""
        self.finish()
        return (yield)

    def finish(self) -> None:
        """Collect, judge and write the run; in a worker, only send its tests."""
        if self._is_worker:
            output: dict[str, object] = self._config.workeroutput  # type: ignore[attr-defined]
            output[PROBLEMS] = problems(self._config)  # sent after all hooks of the worker
            output[SELECTED] = json.dumps([self.results.lines, self.results.deselected, self.results.skipped])
        if self._has_finished or not self.reports:
            return
        self._has_finished = True
        self.run = run = ReportedRun(stopped="its results could not be collected")
        lists_only = self._config.getoption("collectonly")
        with self.log.writing("the report of this run"):
            self.run = run = self._collect(lists_only)
        if (xml := junit_xml(self._config)) is not None:
            with self.log.writing(f"our part of {self._config.getoption('xmlpath')}"):
                for name, value in [*properties(run)]:
                    xml.add_global_property(name, value)
        if os.environ.get("GITHUB_ACTIONS") == "true" and self._settings.annotations:
            with self.log.writing("the list of annotations"):
                self._annotations = error_commands(run.gates, self._code_lines())
        if not lists_only:
            skip_reason = (self._ranks.why_stopped if self._ranks else "") or run.stopped
            write_files(run, self.targets, skip_reason, self.log)

    def _collect(self, lists_only: bool) -> ReportedRun:
        """Return the run, judged unless tests are only listed."""
        records, baseline = self.results.records, self.gates.baseline
        notices = [notice(*first_of(baseline.passed_over, MOST_NAMES))] if baseline else []
        notices += [self._ranks.document()] if self._ranks else []
        if self._ran_again:
            ran = plural(len(self._ran_again), "test")
            notices.append(
                notice(f"{ran} ran again, as rows were slower than the saved ones; the faster counts")
            )
        failed, plugins = self.results.failed.values(), plugins_text(self._config)
        stopped = self.why_stopped()
        run = collect(records, self._settings, self._started_at, stopped, notices, failed, plugins)
        return run if lists_only else self.gates.judge(run, records, self.selection)

    def _code_lines(self) -> dict[str, tuple[str, int]]:
        """Return the first lines of tests, with paths relative to the repository."""
        repository = Path(os.environ.get("GITHUB_WORKSPACE") or self._config.rootpath)
        return {
            test: (Path(path).relative_to(repository).as_posix(), line)
            for test, (path, line) in self.results.lines.items()
            if Path(path).is_relative_to(repository)  # others belong to an installed suite
        }

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # below the output for people
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Print annotations of failed rows at the beginning of lines, where GitHub Actions parses them."""
        try:
            return (yield)
        finally:
            for line in self._annotations:
                terminalreporter.ensure_newline()
                terminalreporter.write_line(line)

    def about(self) -> tuple[str, ...]:
        """Return lines about the meter and the ranks."""
        return (*self._meter, *([self._ranks.summary] if self._ranks else []))

    def failures(self) -> list[str]:
        """Return the kinds of failures other than of tests."""
        gates = ["gate failed" for gate in self.run.gates if gate.has_failed]
        return gates + ["hook failed"] * len(problems(self._config)) + self.log.failures


def _is_fixture_used(item: pytest.Item) -> bool:
    return "dtdispatch" in getattr(item, "fixturenames", ())


@contextmanager
def shown_progress(config: pytest.Config) -> Iterator[None]:
    """Temporarily show progress, unless other output may be written to the terminal at that time."""
    plugins = config.pluginmanager
    reporter: Any = plugins.get_plugin("terminalreporter")
    has_live_log = plugins.hasplugin("logging") and (
        config.getini("log_cli") or config.getoption("log_cli_level", None)
    )
    others_write = has_live_log or config.getoption("capture", None) != "fd"
    if reporter is None or not is_watched(reporter.isatty) or others_write:
        yield
        return
    # Otherwise progress would be captured as output of the test.
    line = ProgressLine(*terminal_file(reporter), functools.partial(uncaptured, config))
    try:
        with progress_to(line.show):
            yield
    finally:
        line.clear()
