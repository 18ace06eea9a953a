"""Hooks of a run that measures, from its header to the files that it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from itertools import zip_longest
from time import sleep as pause
from typing import Any
from unittest.mock import patch

import pytest

from pytest_dtdispatch import errors
from pytest_dtdispatch.core.environment import load_text
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import first_of, plural, show_progress
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict, complaint
from pytest_dtdispatch.errors import GateError, MeasurementError, RanksError
from pytest_dtdispatch.lines.wrappers import pass_over
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.guard import fail_report, note_problem, problems
from pytest_dtdispatch.plugin.pytest_benchmark import is_saved
from pytest_dtdispatch.plugin.pytest_internals import has_collected, run_again
from pytest_dtdispatch.plugin.ranks import reason_of
from pytest_dtdispatch.plugin.relaunch import METER
from pytest_dtdispatch.plugin.run import Run, is_fixture_used, shown_progress
from pytest_dtdispatch.plugin.settings import MARKER
from pytest_dtdispatch.plugin.workers import PROBLEMS, RECORD, SELECTED, decode_record, encode_record
from pytest_dtdispatch.ranks.merge import merge_records
from pytest_dtdispatch.report.judgements import slower_tests
from pytest_dtdispatch.report.run import FailedTest

# Pauses before tests run again: other machines may slow a core for seconds.
PAUSES_S = (1.0, 2.0, 4.0)
MAX_AGAIN = 20  # tests; if more became slower, the run fails without
# Exceptions that may end a test which exceeds a limit: the test fails, is expected to fail, or the run ends.
ENDS = (
    *(GateError, RanksError, pytest.fail.Exception, pytest.xfail.Exception),
    *(pytest.exit.Exception, KeyboardInterrupt),
)


class Session:
    """Plugin object whose hooks pass what happens in a session to its run.

    Args:
        config: pytest's configuration.
        run: the run.
    """

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self._config, self._run = config, run
        pass_over(run.settings.wrappers)
        self._collected: list[pytest.Item] = []
        self._is_xfailed = False

    def pytest_report_header(self) -> list[str]:
        """Return lines about the settings, as far as they are known without torch."""
        settings = self._run.settings
        ops = f" ops={','.join(settings.ops)}" if settings.ops else ""
        where = f"mesh={mesh_text(settings.mesh)} device={settings.device} backend={settings.backend}"
        counts = f"rounds={settings.rounds} repeat={settings.repeat} max_time={settings.max_time:g}s"
        lines = [
            f"{version('pytest-dtdispatch')}, metric={settings.metric} {where}",
            f"{counts}{ops}",
            load_text(),
            self._config.stash.get(METER, ""),
        ]
        return [f"dtdispatch: {line}" for line in lines if line]

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around all hooks that skip a path
    def pytest_ignore_collect(self, collection_path: Any) -> Generator[None, bool | None, bool | None]:
        """Record skipped files and folders, whose rows are not missing."""
        is_ignored = yield
        if is_ignored:
            self._run.skipped.append(str(collection_path))
        return is_ignored

    @pytest.hookimpl(wrapper=True, trylast=True)  # before other hooks remove tests, as that of --lf does
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Record all tests of a file, or that it was skipped."""
        report = yield
        if report.passed and not report.result and not has_collected(report):
            self._run.skipped.append(str(collector.path))
        self._collected += [node for node in report.result if isinstance(node, pytest.Item)]
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the tests of the run, and the collected ones that flags and plugins removed."""
        run, items = self._run, session.items
        run.nodeids = tuple(item.nodeid for item in items)
        run.lines = {resolve.row_nodeid(one): (str(one.path), (one.location[1] or 0) + 1) for one in items}
        names = dict.fromkeys(map(resolve.row_nodeid, self._collected))
        run.deselected = [name for name in names if name not in run.lines]
        self._collected.clear()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record why a file could not be collected, or was skipped."""
        if report.failed:
            self._run.fail(FailedTest(report.nodeid, "collect", reason_of(report)))
        elif report.skipped:
            self._run.skip_reasons[report.nodeid] = f"skipped: {reason_of(report)}"

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> list[str] | None:
        """List the counted events if an assertion on a count fails."""
        if not isinstance(left, Count) or not left.details:
            return None
        return [f"{left!r} {op} {right!r}", *left.details]

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin an attempt of a test."""
        self._run.begin_attempt(resolve.row_nodeid(item))
        self._is_xfailed = False

    @pytest.hookimpl(wrapper=True, trylast=True)  # closest to the test: only the test's ops are captured
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wrap a test in a capture if all tests are measured; fail it if its limits judged nothing."""
        run = self._run
        measures_all = run.settings.measure_all or run.settings.budget
        if not measures_all or is_fixture_used(item) or run.skip_reason(item):
            result = yield
        else:
            with run.measuring(item) as recorder, ExitStack() as region:
                region.enter_context(patch.object(errors, "listener", recorder.note))
                region.enter_context(recorder.whole_test())
                result = yield
                with resolve.plain_errors():  # these errors have no line in the test
                    region.close()
        run.has_passed = True
        self._refuse_late_marker(item)
        why = complaint(run.nothing_judged(item))
        if why:
            pytest.fail(why, pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around teardown by fixtures and conftest files
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test whose marker changed during teardown."""
        result = yield
        self._refuse_late_marker(item)
        return result

    def _refuse_late_marker(self, item: pytest.Item) -> None:
        """Fail a test whose marker changed after its settings were read, as the change has no effect."""
        context, markers = self._run.context, tuple(item.iter_markers(MARKER))
        if context is not None and context.markers != markers:
            self._run.context = replace(context, markers=markers)  # reported once
            late = f"{context.line}: the marker dtdispatch changed after measuring began"
            pytest.fail(f"{late}: set it on the test, or during collection", pytrace=False)

    @pytest.hookimpl(wrapper=True)  # around the hooks of xfail, but in that of ranks
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a phase by limits of the test; complete its record and its report."""
        run = self._run
        unraised = run.store.unraised
        if unraised:  # the test caught the error of a limit
            error = GateError("\n".join(map(str, unraised)))
            error.__traceback__ = unraised[0].__traceback__ or unraised[0].at  # assertRaises clears it
            unraised.clear()
            if call.excinfo is None or not isinstance(call.excinfo.value, ENDS):
                error.__context__ = call.excinfo and call.excinfo.value
                call.excinfo = pytest.ExceptionInfo.from_exception(error)
        report = yield
        raised = call.excinfo.value if call.excinfo is not None else None
        if isinstance(raised, Exception) and "torch" in sys.modules:
            from pytest_dtdispatch.torchapi.missing_api import missing_name

            report.longrepr = missing_name(raised) or report.longrepr  # instead of a traceback
        self._is_xfailed |= hasattr(report, "wasxfail") and report.skipped
        if call.when == "teardown":
            test = resolve.row_nodeid(item)
            if self._is_xfailed:
                run.quarantine(test)
            if run.is_worker and test in run.records:
                try:
                    setattr(report, RECORD, encode_record(run.records[test]))
                except MeasurementError as error:
                    fail_report(report, [str(error)])
        return report

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record finished tests, whatever their outcome."""
        self._run.ended.add(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Erase a progress line before pytest prints an outcome; record why a test failed or was skipped."""
        show_progress("")
        if report.failed:
            self._run.fail(FailedTest(report.nodeid, str(report.when), reason_of(report)))
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._run.skip_reasons[report.nodeid] = f"skipped: {reason_of(report)}"

    # The end

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Run tests again after all others, unless the run stopped or has many ranks.

        Tests of a run that is saved run again, and so do those with rows slower than in a saved run.
        """
        result, run = (yield), self._run
        if not run.reports or run.ranks or run.why_stopped():
            return result
        with shown_progress(self._config, delay_s=0.0):
            if is_saved(self._config):
                timed = [item for item in session.items if run.has_times(item)]
                for pause_s in PAUSES_S[:2]:
                    self._run_again(timed, pause_s, "as the run is saved")
            if run.gates.baseline:
                for pause_s in PAUSES_S:
                    slower = slower_tests(run.judged().gates)
                    again = [item for item in session.items if resolve.row_nodeid(item) in slower]
                    if not 0 < len(again) <= MAX_AGAIN:
                        break
                    self._run_again(again, pause_s, "as rows were slower than the saved ones")
        return result

    def _run_again(self, items: Sequence[pytest.Item], pause_s: float, why: str) -> None:
        """Run tests, if any, once more after a pause; each row has the samples of its faster run."""
        if not items:
            return
        names = ", ".join(first_of([item.nodeid for item in items], 3))
        show_progress("running {} again, {}: {}", plural(len(items), "test"), why, names)
        pause(pause_s)
        for item, next_item in zip_longest(items, items[1:]):
            earlier = self._run.records[resolve.row_nodeid(item)]
            if run_again(item, next_item):
                record = self._run.records[earlier.test].fastest(earlier)
            else:
                record = earlier
            self._run.put_again(item, record, why)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest and pytest-benchmark write their files
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Collect, judge and write the run; in a worker, only send its tests."""
        run = self._run
        if run.is_worker:
            output: dict[str, object] = self._config.workeroutput  # type: ignore[attr-defined]
            output[PROBLEMS] = problems(self._config)  # sent after all hooks of the worker
            output[SELECTED] = json.dumps([run.lines, run.deselected, run.skipped])
        run.end()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # below the output for people
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Print annotations of failed rows at the beginning of lines, where GitHub Actions parses them."""
        try:
            return (yield)
        finally:
            for line in self._run.annotations:
                terminalreporter.ensure_newline()
                terminalreporter.write_line(line)


class Workers:
    """Plugin object that receives the records of workers.

    Args:
        run: run that receives the results of the tests of all workers.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._by_test: dict[str, dict[str, TestRecord]] = {}

    @pytest.hookimpl(tryfirst=True)  # before plugins that write reports
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the record of a report; another worker may have run the same test."""
        text = vars(report).pop(RECORD, None)
        if text is None:
            return
        record = decode_record(text)
        by_worker = self._by_test.setdefault(record.test, {})
        by_worker[report.worker_id] = record
        merged = merge_records(dict(enumerate(by_worker.values())), self._run.settings.rank_stat)
        self._run.records[record.test] = merged

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Record the tests of the run."""
        self._run.nodeids = tuple(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Read the tests that a worker selected; a worker that died fails the gate of limits."""
        output = getattr(node, "workeroutput", {})
        for problem in output.get(PROBLEMS, ()):
            note_problem(node.config, f"{node.gateway.id}: {problem}")
        run = self._run
        if SELECTED in output:
            run.lines, run.deselected, run.skipped = json.loads(output[SELECTED])
        elif error:
            self._lose(node.gateway.id, RowId("", node.gateway.id), f"{node.gateway.id} died")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Record the test in which a worker died."""
        worker = report.node.gateway.id
        self._run.records.pop(worker, None)
        self._lose(crashitem, RowId(crashitem), f"{worker} died in this test")

    def _lose(self, name: str, row: RowId, how: str) -> None:
        why = f"the pytest-xdist worker {how}"
        lost = RowVerdict(row, Verdict.MISSING, None, "run the test with -n 0", details=(why,))
        self._run.records[name] = TestRecord(row.test, verdicts=(lost,), unmeasured=why)
