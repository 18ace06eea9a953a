"""A run that measures: the results of its tests, their judgement, and its files. Hooks call its methods."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.environment import read_world, require_torch
from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.store import ResultStore, TestRecord
from pytest_dtdispatch.core.text import first_of, plural, progress_to
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, over, unjudged
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.gates.expected import read_expected
from pytest_dtdispatch.gates.selection import Selection
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.finish import (
    MAX_NAMES,
    WriteLog,
    collect,
    file_targets,
    properties,
    write_files,
)
from pytest_dtdispatch.plugin.gates import Gates, judged_nothing, limit_texts
from pytest_dtdispatch.plugin.guard import problems
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.plugin.pytest_internals import junit_xml, plugins_text, terminal_file
from pytest_dtdispatch.plugin.ranks import rank_of
from pytest_dtdispatch.plugin.relaunch import METER, uncaptured
from pytest_dtdispatch.plugin.resolve import TestContext, context_of
from pytest_dtdispatch.report.document import notice
from pytest_dtdispatch.report.judgements import failures
from pytest_dtdispatch.report.run import Baseline, FailedTest, ReportedRun
from pytest_dtdispatch.report.screen import ProgressLine, is_watched
from pytest_dtdispatch.report.summary import error_commands
from pytest_dtdispatch.rounds.sampler import start_sampler

if TYPE_CHECKING:
    from pytest_dtdispatch.core.parsing import Export
    from pytest_dtdispatch.plugin.pytest_benchmark import Bridge
    from pytest_dtdispatch.plugin.recorder import Recorder
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.rounds.sampler import Sampler


class Run:
    """A run with ``--dtdispatch``, in one process.

    Args:
        config: pytest's configuration.
        settings: settings of the run.

    Attributes:
        gates: gates of the run.
        bridge: integration with pytest-benchmark; None without it.
        log: log of written files.
        targets: files to write at the end.
        reports: whether this process judges and writes: the one that started workers of pytest-xdist, and
            the first of many ranks.
        records: records of measured or judged tests, by name in rows; merged over the ranks.
        store: results of the running test.
        context: settings with which the running test is measured; None if it is not.
        has_passed: whether the call of the running test passed.
        nodeids: node ids of the tests of the run, including those of pytest-xdist workers.
        ended: node ids of finished tests.
        lines: path and line number, from 1, of each test, by name in rows.
        deselected: names in rows of collected tests that the run does not select.
        skipped: paths of files and folders that a flag or a plugin skipped.
        skip_reasons: why tests and files were skipped, by node id.
        reported: data of all reports; empty until the end of the tests.
        annotations: commands of GitHub Actions for rows that failed.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.settings = settings
        self.gates = Gates(settings, resolve.reason_not_measured(config))
        self.bridge: Bridge | None = None
        self.log = WriteLog()
        self.targets: list[Export] = []
        self.is_worker = hasattr(config, "workerinput")
        self.reports = not self.is_worker and read_world(os.environ).is_first
        self.ranks = rank_of(config)
        self.records: dict[str, TestRecord] = {}
        self.store = ResultStore()
        self.context: TestContext | None = None
        self.has_passed = False
        self.nodeids: tuple[str, ...] = ()
        self.ended: set[str] = set()
        self.lines: dict[str, tuple[str, int]] = {}
        self.deselected: list[str] = []
        self.skipped: list[str] = []
        self.skip_reasons: dict[str, str] = {}
        self.reported = ReportedRun()
        self.annotations: list[str] = []
        self._config = config
        self._own: dict[str, TestRecord] = {}  # records of this process before merging over the ranks
        self._failed: dict[tuple[str, str], FailedTest] = {}  # by node id and phase
        self._ran_again: dict[str, set[str]] = {}  # tests by reason
        self._sampler: Sampler | None = None
        self._has_ended = False
        self._started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def check_files(self, baseline: Baseline | None) -> None:
        """Read the files that the run is compared with, and check that its files can be written.

        A run is not begun whose results would be lost.

        Raises:
            ValueError: a file is invalid.
            DtDispatchError: a file is invalid, or cannot be written.
        """
        self.gates.baseline = baseline
        self.gates.expected = [read_expected(path, metric_names()) for path in self.settings.expected]
        self.targets = file_targets(self.settings, self.log)

    # A test

    def begin_attempt(self, test: str) -> None:
        """Begin an attempt of a test."""
        self.store, self.context, self.has_passed = ResultStore(test), None, False

    def skip_reason(self, item: pytest.Item) -> str:
        """Return why a test is not measured; empty if it is. A marker with limits may change the metric."""
        return self.gates.skip_reason and context_of(item).skip_reason

    @contextmanager
    def measuring(self, item: pytest.Item) -> Iterator[Recorder]:
        """Measure in one test, and publish its rows at its end, whatever its outcome."""
        self.context = context = context_of(item)
        with resolve.plain_errors():
            recorder = self.begin(context)
        try:
            with shown_progress(self._config):
                yield recorder
        finally:
            self.finish(item, context, recorder)

    def begin(self, context: TestContext) -> Recorder:
        """Return the recorder of a test, with empty caches."""
        require_torch()
        from pytest_dtdispatch.plugin.recorder import Recorder
        from pytest_dtdispatch.rounds.plan import Plan
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        if self._sampler is None:  # started by the first test that needs it
            metric = self.settings.metric
            self._sampler = start_sampler("time" if metric in ("counts", "verify") else metric)
        agreement = self.ranks.agreement(self._config) if self.ranks else None
        settings = context.settings
        plan = Plan(  # the same whether figures are judged or not
            settings.rounds_of_row,
            settings.repeat,
            settings.max_time,
            settings.cold,
            sampler=self._sampler,
            agreement=agreement,
            one_thread=settings.threads == "one",
        )
        recorder = Recorder(settings, plan, context.test)
        ShardingCaches().clear_all()
        self.store = recorder.results
        return recorder

    def finish(self, item: pytest.Item, context: TestContext, recorder: Recorder) -> None:
        """Add the record of a test, merged over ranks, and its rows to pytest-benchmark."""
        complaint = unmeasured = ""
        idle: list[str] = []
        try:
            idle = recorder.close()
        except MeasurementError as error:
            complaint = str(error)
        uses_fixture = is_fixture_used(item)
        if idle and uses_fixture:
            unmeasured = f"no op on DTensors ran in the capture at {idle[0]}"
            if self.gates.judges_captures(context.settings):
                complaint = f"{idle[0]}: no op on DTensors ran in the capture, so the gate judged nothing"
        thresholds = context.marked.get("threshold", ())
        record = recorder.results.freeze(KINDS)
        record = replace(record, thresholds=thresholds, globs=context.settings.ops)
        if uses_fixture and self.has_passed and not (unmeasured or record or record.ops):
            unmeasured = "it measured nothing with its dtdispatch fixture"
        record = replace(record, unmeasured=unmeasured)
        if record.test in self._own:
            record = record.with_earlier(self._own[record.test])
        self._own[record.test] = self.records[record.test] = record
        if self.ranks:
            record = self.records[record.test] = self.ranks.merged(record, self._config)
        shared = record.shared_key()
        if shared and not complaint:
            complaint = f"two rows of this test have the name {shared!r}: pass another name="
        if self.bridge:
            self.bridge.enter(item, record)
        if complaint:
            pytest.fail(complaint, pytrace=False)

    def has_times(self, item: pytest.Item) -> bool:
        """Return whether a test measured signatures or calls with times."""
        record = self.records.get(resolve.row_nodeid(item))
        return record is not None and any(any(row.times()) for row in record.measured)

    def put_again(self, item: pytest.Item, record: TestRecord, why: str) -> None:
        """Replace the record of a test that ran again."""
        self._own[record.test] = self.records[record.test] = record
        self._ran_again.setdefault(why, set()).add(record.test)
        if self.bridge:
            self.bridge.enter(item, record)

    def fail(self, failure: FailedTest) -> None:
        """Record a failure, once for all attempts of a test."""
        self._failed.setdefault((failure.test, failure.phase), failure)

    def nothing_judged(self, item: pytest.Item) -> list[RowVerdict]:
        """Return verdicts on the limits of a test that judged nothing, and add them to its record."""
        context, store = context_of(item), self.store
        verdicts: list[RowVerdict] = []
        for kind in KINDS.values() if context.settings.judges else ():
            criterion = ", ".join(limit_texts(context.settings.limits, kind.limits))
            raised = sorted(name for of, name in store.uncounted if of == kind.name)
            for name in raised if criterion else ():
                why = "it raised before it left counts"
                verdicts.append(unjudged(RowId(context.test, name), criterion, why, Verdict.MISSING))
            marked = ", ".join(limit_texts(context.marked.get("max", {}), kind.limits))
            if marked and not raised and not store.of(kind.name):
                verdicts.append(judged_nothing(RowId(context.test), marked, kind, context.skip_reason))
        compares = self._config.getoption("benchmark_compare", None)
        if context.settings.judges and self.gates.skip_reason and compares:
            for threshold in context.marked.get("threshold", ()):
                verdicts.append(unjudged(RowId(context.test), str(threshold), self.gates.skip_reason))
        if verdicts:
            store.verdicts += verdicts
            record = self.records.get(context.test, TestRecord(context.test))
            new = [verdict for verdict in verdicts if verdict not in record.verdicts]  # a test may run again
            self.records[context.test] = replace(record, verdicts=(*record.verdicts, *new))
        return verdicts

    def quarantine(self, test: str) -> None:
        """Prevent exceeded limits of a test that is expected to fail from failing the run."""
        if test not in self.records:
            return
        verdicts = [*self.records[test].verdicts]
        for number, each in enumerate(verdicts):
            if over([each]):
                details = (*each.details, "its test is marked to fail (xfail)")
                verdicts[number] = replace(each, verdict=Verdict.QUARANTINED, details=details)
        self.records[test] = replace(self.records[test], verdicts=tuple(verdicts))

    # The end

    def why_stopped(self) -> str:
        """Return a message with the number of tests after which the run stopped; empty if it did not."""
        total = len(self.nodeids)
        ended = len(self.ended.intersection(self.nodeids))
        return f"the run stopped after {ended:,} of {total:,} tests" if ended < total else ""

    def unmeasured(self) -> list[str]:
        """Return a line for each test without a result although it uses the fixture, with the reason."""
        unmeasured = [(test, record.unmeasured) for test, record in self.records.items()]
        return [f"{test}: {why}" for test, why in unmeasured if why]

    def judged(self) -> ReportedRun:
        """Collect the results of all tests so far, and judge them, unless tests are only listed."""
        baseline, ranks = self.gates.baseline, self.ranks
        notices = [notice(*first_of(baseline.passed_over, MAX_NAMES))] if baseline else []
        notices += [ranks.document()] if ranks else []
        for why, tests in self._ran_again.items():
            notices.append(notice(f"{plural(len(tests), 'test')} ran again, {why}; the fastest run counts"))
        collected = collect(self.records, self.settings, notices, plugins_text(self._config))
        stopped, failed = self.why_stopped(), tuple(self._failed.values())
        run = replace(collected, started=self._started_at, stopped=stopped, failed_tests=failed)
        if self._config.getoption("collectonly"):
            return run
        beginnings, roots = resolve.selected_beginnings(self._config), resolve.test_roots(self._config)
        deselected, skipped = set(map(row_key, self.deselected)), set(map(Path, self.skipped))
        tests = deselected.union(map(row_key, self.lines))
        selection = Selection(beginnings, deselected, tests, skipped, roots)
        return self.gates.judge(run, self.records, selection)

    def end(self) -> None:
        """Collect, judge and write the run, once, in the process that reports."""
        if self._has_ended or not self.reports:
            return
        self._has_ended = True
        if self.ranks:
            self.ranks.outlive_others()
        self.reported = ReportedRun(stopped="its results could not be collected")
        with self.log.writing("the report of this run"):
            self.reported = self.judged()
        if self.bridge:
            self.bridge.reported = self.reported
        xml = junit_xml(self._config)
        if xml is not None:
            with self.log.writing(f"our part of {self._config.getoption('xmlpath')}"):
                for name, value in [*properties(self.reported)]:
                    xml.add_global_property(name, value)
        if os.environ.get("GITHUB_ACTIONS") == "true" and self.settings.annotations:
            with self.log.writing("the list of annotations"):
                repository = Path(os.environ.get("GITHUB_WORKSPACE") or self._config.rootpath)
                lines = {
                    test: (Path(path).relative_to(repository).as_posix(), line)
                    for test, (path, line) in self.lines.items()
                    if Path(path).is_relative_to(repository)  # others belong to an installed suite
                }
                self.annotations = error_commands(self.reported.gates, lines)
        if not self._config.getoption("collectonly"):
            skip_reason = (self.ranks.why_stopped if self.ranks else "") or self.reported.stopped
            write_files(self.reported, self.targets, skip_reason, self.log)

    def about(self) -> Sequence[str]:
        """Return lines about the meter and the ranks."""
        meter = self._config.stash.get(METER, "")
        return [*filter(None, (meter, self.ranks.summary if self.ranks else ""))]

    def failures(self) -> list[str]:
        """Return the kinds of failures other than of tests."""
        hooks = ["hook failed" for _ in problems(self._config)]
        return failures(self.reported.gates) + hooks + self.log.failures


def is_fixture_used(item: pytest.Item) -> bool:
    """Return whether a test requests the fixture ``dtdispatch``."""
    return "dtdispatch" in getattr(item, "fixturenames", ())


@contextmanager
def shown_progress(config: pytest.Config, **options: Any) -> Iterator[None]:
    """Temporarily show progress, unless other output may be written to the terminal at that time."""
    plugins = config.pluginmanager
    reporter: Any = plugins.get_plugin("terminalreporter")
    log_level = config.getoption("log_cli_level", None)
    has_live_log = plugins.hasplugin("logging") and (config.getini("log_cli") or log_level)
    others_write = has_live_log or config.getoption("capture", None) != "fd"
    if reporter is None or not is_watched(reporter.isatty) or others_write:
        yield
        return
    # Otherwise progress would be captured as output of the test.
    line = ProgressLine(*terminal_file(reporter), functools.partial(uncaptured, config), **options)
    try:
        with progress_to(line.show):
            yield
    finally:
        line.clear()
