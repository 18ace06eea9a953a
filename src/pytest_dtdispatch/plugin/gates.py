"""The gates of a run: each judges once, when all is measured, and hands its verdicts to every output."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.core.environment import read_world
from pytest_dtdispatch.core.results import MetricValue, TestResults, number_name, row_key
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict, not_judged
from pytest_dtdispatch.errors import GateError, RanksError
from pytest_dtdispatch.gates.expected import ExpectedFile, judge_results, read_expected
from pytest_dtdispatch.gates.limits import complaint, over, unjudged
from pytest_dtdispatch.plugin import PluginObject, resolve
from pytest_dtdispatch.plugin.endings import GATE_FAILED
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.plugin.resolve import (
    limits_given,
    marker_values,
    row_nodeid,
    test_settings,
    why_not_measured,
)
from pytest_dtdispatch.report.document import Document

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.core.verdicts import Judgement, Threshold
    from pytest_dtdispatch.gates.saved_run import StateRow
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.report.run import ReportedGate, ReportedRun

WHERE = "limits"
XFAIL = "its test is marked to fail (xfail)"
RAISED = "it raised before it left counts"
# What a test may end with although a limit is broken: it fails by it, was told to fail, or the run ends.
ENDS = (
    *(GateError, RanksError, pytest.fail.Exception, pytest.xfail.Exception),
    *(pytest.exit.Exception, KeyboardInterrupt),
)
PLUGIN = "dtdispatch-saved-run"
ANY_MACHINE = "save a run on this machine, or compare all the same with --dtdispatch-any-machine"
ANOTHER_METRIC = "save a run with the same --dtdispatch-metric"
SAVE_ONE = "save one with --benchmark-save=NAME or --benchmark-autosave"


class Gate(PluginObject):
    """The plugin object that judges a run."""

    def judge(self) -> dict[str, Judgement]:
        """Judge the run, by what it is held against."""
        raise NotImplementedError

    @functools.cached_property
    def judgements(self) -> dict[str, Judgement]:
        """What was judged, by what the run was held against; nothing where nothing was asked for."""
        return self.judge()

    @property
    def failures(self) -> list[str]:
        """Why the run must fail, as pytest's last line says it."""
        return [GATE_FAILED for judged in self.judgements.values() if judged.has_failed]

    def reported(self) -> ReportedGate | None:
        """Give what was judged; None where nothing was asked for."""
        from pytest_dtdispatch.report.run import ReportedGate

        if not self.judgements:
            return None
        judged = self.judgements.values()
        return ReportedGate(
            ", ".join(self.judgements),
            tuple(row for one in judged for row in one.verdicts),
            bool(self.failures),
            self.document(),
            tuple(row for one in judged for row in one.failed),
        )

    def document(self) -> Document:
        """Say what was judged."""
        from pytest_dtdispatch.report.judgements import judgement_document

        said = [judgement_document(judged, where) for where, judged in self.judgements.items()]
        return Document(tuple(block for document in said for block in document.blocks))


class LimitGate(Gate):
    """The plugin object that fails tests and the run by limits."""

    def __init__(self, config: pytest.Config, results: Mapping[str, TestResults], why_not: str) -> None:
        self._config = config
        self._results = results
        self._why_not = why_not
        self._unjudged: dict[str, list[RowVerdict]] = {}
        self._xfailed: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around what makes a failure an expected one
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a part of a test that swallowed what a limit raised."""
        test = row_nodeid(item)
        results = self._results.get(test)
        if results is not None and results.untold:
            error = GateError("\n".join(map(str, results.untold)))
            error.__traceback__ = results.untold[0].__traceback__
            results.untold.clear()
            if call.excinfo is None or not isinstance(call.excinfo.value, ENDS):
                error.__context__ = call.excinfo and call.excinfo.value
                call.excinfo = pytest.ExceptionInfo.from_exception(error)
        report = yield
        if hasattr(report, "wasxfail") and report.skipped:
            self._xfailed.add(test)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that passed, and left a limit nothing to judge."""
        unjudged_in_test = self._unjudged[row_nodeid(item)] = []
        result = yield
        unjudged_in_test += self._nothing_judged(item)
        if why := complaint(unjudged_in_test):
            raise pytest.fail.Exception(why, pytrace=False)
        return result

    def _nothing_judged(self, item: pytest.Item) -> Iterator[RowVerdict]:
        """Name the limits of a test that judged nothing in it."""
        test, held_to = row_nodeid(item), test_settings(item).limits
        results = self._results.get(test, TestResults(test))
        of_marker = marker_values(item).get("max", {})
        for kind in KINDS.values():
            limits = ", ".join(f"{limit}={held_to[limit]}" for limit in kind.limits if limit in held_to)
            raised = sorted(name for of, name in results.uncounted if limits and of == kind.name)
            for name in raised:
                yield unjudged(number_name(test, name), limits, RAISED, Verdict.MISSING)
            marked = ", ".join(f"{limit}={of_marker[limit]}" for limit in kind.limits if limit in of_marker)
            if marked and self._why_not:
                yield unjudged(test, marked, self._why_not)
            elif marked and not raised and not results.of(kind.name):
                yield unjudged(test, marked, kind.nothing, Verdict.MISSING)

    def judge(self) -> dict[str, Judgement]:
        """Gather what limits said of tests; not in a worker, nor where tests are only listed."""
        if self._config.getoption("collectonly") or hasattr(self._config, "workerinput"):
            return {}
        verdicts = [*self._idle()]
        failed = over(verdicts)
        for test in dict.fromkeys((*self._results, *self._unjudged)):
            of_test = [*self._results[test].verdicts] if test in self._results else []
            of_test += self._unjudged.get(test, [])
            if test in self._xfailed:
                of_test = [replace(each, details=(*each.details, XFAIL)) for each in of_test]
            else:
                failed += over(of_test)
            verdicts += of_test
        return {WHERE: Judgement(tuple(verdicts), tuple(failed))} if verdicts else {}

    def _idle(self) -> Iterator[RowVerdict]:
        """Name the limits of the command line and the ini file that judged nothing in the whole run."""
        verdict = Verdict.DISABLED if self._why_not else Verdict.MISSING
        for kind in KINDS.values():
            if not any(results.of(kind.name) for results in self._results.values()):
                for given in limits_given(self._config, kind.limits):
                    yield unjudged(given, given, self._why_not or kind.nothing, verdict)


def prepare(config: pytest.Config) -> None:
    """Read the saved run to compare with, where anything is measured."""
    if hasattr(config, "workerinput") or not read_world(os.environ).is_first:
        return  # the process that started the workers judges, and the first rank
    settings = resolve.valid_settings(config)
    if settings is None:
        return
    asked = resolve.flags_given(config, ("threshold", "any_machine"))
    if asked and settings.measure and (why := _why_idle(config)):
        raise pytest.UsageError(f"{asked[0]}: {why}")
    if settings.measure and config.getoption("benchmark_compare", None):
        config.pluginmanager.register(SavedRunGate(config, settings), PLUGIN)


def _why_idle(config: pytest.Config) -> str:
    if not config.pluginmanager.hasplugin("benchmark"):
        return "it compares with a run that pytest-benchmark saved, and that plugin is off"
    if not config.getoption("benchmark_compare"):
        return "--benchmark-compare must name the saved run to compare with"
    return ""


class SavedRunGate(Gate):
    """The plugin object that holds a run against a saved one."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._rows: dict[str, list[StateRow]] = {}
        self._held: dict[str, tuple[Threshold, ...]] = {}
        self._left_out: set[str] = set()
        self._base: ReportedRun | None = None
        self._saved: list[StateRow] = []
        self._why_no_base = ""
        self._read()

    def enter(self, item: pytest.Item, results: TestResults) -> None:
        """Enter what was measured in a test."""
        from pytest_dtdispatch.gates.saved_run import state_rows

        self._held[results.test] = resolve.test_settings(item).threshold or ()
        self._rows[results.test] = [*state_rows(results.test, results.measurements())]

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Remember what the user left out: its rows are not missing."""
        self._left_out.update(f"{resolve.row_nodeid(item)}::" for item in items)

    def judge(self) -> dict[str, Judgement]:
        """Hold the run against the saved one, where any threshold was asked for."""
        has_thresholds = (
            self._settings.threshold or any(self._held.values()) or any(map(self._thresholds, self._saved))
        )
        if not has_thresholds or self._config.getoption("collectonly"):
            return {}
        if self._base is None:
            return {"no saved run": self._judge()}
        return {self._base.where: replace(self._judge(), since=self._base.taken[:10])}

    def _judge(self) -> Judgement:
        from pytest_dtdispatch.core.verdicts import Verdict, not_judged
        from pytest_dtdispatch.gates.saved_run import environment_differences, judge_run

        if disabled := self._why_disabled():
            return not_judged(Verdict.DISABLED, disabled)
        if self._base is None:
            return not_judged(Verdict.MISSING, self._why_no_base, SAVE_ONE)
        rows = [row for of_test in self._rows.values() for row in of_test]
        if rows:  # where nothing was measured, it may be because there is no such place
            then, now = self._base.environment, self._settings.environment_texts()
            if then.get("metric") != now["metric"]:
                metrics = f"metric: {then.get('metric')} then, {now['metric']} now"
                return not_judged(Verdict.MISMATCHED, metrics, ANOTHER_METRIC)
            if not self._settings.any_machine and (differ := environment_differences(then, now)):
                return not_judged(Verdict.MISMATCHED, "; ".join(differ), ANY_MACHINE)
        return judge_run(self._saved, rows, self._thresholds)

    def _why_disabled(self) -> str:
        from pytest_dtdispatch.measuring.sampler import SAMPLERS

        metric = self._settings.metric
        takes_times = metric in SAMPLERS and SAMPLERS[metric].unit.is_time
        times_nothing = "" if takes_times else f"--dtdispatch-metric {metric} times nothing"
        return resolve.why_not_measured(self._config) or times_nothing

    def _thresholds(self, row: StateRow) -> tuple[Threshold, ...]:
        from pytest_dtdispatch.core.verdicts import thresholds_of

        if row.name.startswith(tuple(self._left_out)) or not row.name.startswith(self._named):
            return ()
        of_test = (held for test, held in self._held.items() if row.name.startswith(f"{test}::"))
        held = next(of_test, self._settings.threshold or ())
        return thresholds_of(str(row.state), held) or thresholds_of(str(row.state), row.thresholds)

    @functools.cached_property
    def _named(self) -> tuple[str, ...]:
        """Give how rows begin of tests that the command line names; of all where it cannot be told."""
        starts = []
        for arg in self._config.args:
            path, colons, names = arg.partition("::")
            within = os.path.relpath(self._config.invocation_params.dir / path, self._config.rootpath)
            if within.startswith(".") or self._config.getoption("pyargs"):
                return ("",)
            starts += [f"{Path(within).as_posix()}{colons}{names}{end}" for end in ("/", "::", "[")]
        return tuple(starts)

    def _read(self) -> None:
        from pytest_dtdispatch.gates.saved_run import state_rows
        from pytest_dtdispatch.plugin.pytest_benchmark import saved_run
        from pytest_dtdispatch.report.run import read_run

        named = self._config.getoption("benchmark_compare")
        asked = "--benchmark-compare" if named is True else f"--benchmark-compare={named}"
        try:
            path = saved_run(self._config)
            self._base = base = read_run(path) if path else None
            self._why_no_base = "" if path else f"{asked} finds no saved run"
            if base is not None:
                for test, rows in base.measured.items():
                    self._saved += state_rows(test, rows, base.thresholds.get(test, ()))
        except ValueError as error:
            self._why_no_base = str(error)
            if self._settings.threshold:
                raise pytest.UsageError(str(error)) from None


class ExpectedGate(Gate):
    """The plugin object that holds results against every file of expected ones."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._by_test: dict[str, tuple[MetricValue, ...]] = {}
        self._left_out: set[str] = set()
        names = metric_names()
        self._expected: list[ExpectedFile] = [read_expected(path, names) for path in settings.expected]

    def enter(self, item: pytest.Item, results: TestResults) -> None:
        """Enter every number that was found in a test."""
        self._by_test[results.test] = tuple(results.metrics(KINDS))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Remember what the user left out: its rows are not missing."""
        self._left_out.update(f"{row_key(row_nodeid(item))}::" for item in items)

    def _results_file(self) -> Path | None:
        """Name the file that this run writes its results to, which corrections are taken from."""
        exported = (export.path for export in self._settings.export if export.format == "csv")
        return next(exported, None)

    def judge(self) -> dict[str, Judgement]:
        """Hold the results against each file, unless tests are only listed."""
        if self._config.getoption("collectonly"):
            return {}
        if why_not := why_not_measured(self._config):
            return {file.where: not_judged(Verdict.DISABLED, why_not) for file in self._expected}
        left_out = tuple(self._left_out)
        results = [result for of_test in self._by_test.values() for result in of_test]
        known = [{(row.name, row.metric) for row in file.rows} for file in self._expected]
        new = [each for each in results if not any((each.name, each.metric) in rows for rows in known)]
        judged = {}
        for file, own in zip(self._expected, known, strict=True):
            rows = [row for row in file.rows if not row.name.startswith(left_out)]
            found = [each for each in results if (each.name, each.metric) in own]
            judgement = judge_results(rows, [*found, *new], self._settings.improved == "fail")
            judged[file.where] = self._with_command(judgement, file.where)
            new = []  # what no file expects is new once
        return judged

    def _with_command(self, judgement: Judgement, where: str) -> Judgement:
        """Add the command that takes corrections over."""
        results = str(self._results_file() or "RESULTS.csv")
        command = shlex.join(["dtdispatch", "expected", "update", where, "--results", results, "--reason"])
        return replace(judgement, command=f'{command} "..."')
