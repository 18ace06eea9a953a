"""Kinds of results, and gates on a run: limits, a saved run, expected results."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pytest_dtdispatch.core.environment import cpu_model
from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.results import TestResults, row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.core.verdicts import (
    LIMITS,
    MAX_BLOCKS,
    Judgement,
    Outlook,
    RowVerdict,
    Threshold,
    Verdict,
    complaint,
    not_judged,
    over,
    thresholds_of,
    unjudged,
)
from pytest_dtdispatch.errors import GateError, RanksError
from pytest_dtdispatch.gates.expected import ExpectedFile, by_name, judge_results, parse_row, read_expected
from pytest_dtdispatch.gates.saved_run import (
    StateRow,
    compare_rows,
    control_shift,
    control_shifts,
    environment_differences,
    judge_run,
    outlook_of,
    state_rows,
)
from pytest_dtdispatch.gates.selection import EVERYTHING, Selection
from pytest_dtdispatch.plugin import PluginObject, resolve
from pytest_dtdispatch.plugin.kinds import KINDS, STEPS, metric_names
from pytest_dtdispatch.plugin.resolve import row_nodeid
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.report.document import Kind
from pytest_dtdispatch.report.run import NotComparableError, ReportedRun, Results, read_run
from pytest_dtdispatch.rounds.sampler import SAMPLERS

# How a test that exceeds a limit may end: it fails by it, is expected to fail, or the run ends.
ENDS = (
    *(GateError, RanksError, pytest.fail.Exception, pytest.xfail.Exception),
    *(pytest.exit.Exception, KeyboardInterrupt),
)
ANY_MACHINE = "save a run on this machine, or compare all the same with --dtdispatch-any-machine"
MAX_CONFIRMED = 10  # rows, 3.5 s each: by then the run fails, and other rows are not measured again
NO_COMPARE = "--benchmark-compare of pytest-benchmark must name the saved run to compare with"


@dataclass(eq=False)
class Gates(PluginObject):
    """The plugin object that fails tests by their limits, and judges the run.

    Args:
        config: of pytest.
        settings: of the run.
        results: of each test, by its name in rows.
        why_not: why nothing is measured although it was requested; empty if it is.

    Attributes:
        compares: whether the run is compared with a saved one, if a threshold is set.
        thresholds: that markers of measured tests have, by the name of the test in rows.
        marks: markers that measured tests were set by, likewise.
        passed_over: newer saved runs than the one compared with, each with the reason.
    """

    _config: pytest.Config
    _settings: Settings
    _results: dict[str, TestResults]
    _why_not: str
    compares: bool = False
    thresholds: dict[str, tuple[Threshold, ...]] = field(default_factory=dict)
    marks: dict[str, list[pytest.Mark]] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    _tests: set[str] = field(default_factory=set)  # that were collected, deselected ones too
    _deselected: set[str] = field(default_factory=set)
    _xfailed: set[str] = field(default_factory=set)
    _expected: list[ExpectedFile] = field(default_factory=list)
    _base: ReportedRun | None = None
    _shifts: dict[RowId, float] = field(default_factory=dict)  # of control rows measured so far
    _confirmed: set[RowId] = field(default_factory=set)
    _why_no_base: str = "--benchmark-compare finds no saved run"

    def read(self) -> None:
        """Read the baselines of the run before anything is measured.

        Raises:
            ValueError: a file cannot be read.
            DtDispatchError: likewise.
        """
        named = self._config.getoption("benchmark_compare", None)
        flags = resolve.requested_flags(self._config, ("threshold", "any_machine"))
        if flags and not named:
            raise pytest.UsageError(f"{flags[0]}: {NO_COMPARE}")
        self._expected = [read_expected(path, metric_names()) for path in self._settings.expected]
        if not named:
            return
        from pytest_dtdispatch.plugin.pytest_benchmark import saved_runs

        self.compares = True
        try:
            paths = saved_runs(self._config)
            self._base = self._newest(paths) if named is True else read_run(paths[0]) if paths else None
        except NotComparableError as error:
            self._why_no_base = str(error)
            if self._settings.threshold:
                raise

    def _newest(self, paths: Sequence[Path]) -> ReportedRun | None:
        """Return the newest saved run of this machine, and note those that were passed over."""
        for path in paths:
            cpu, why = cpu_model(), "it is empty"
            if path.stat().st_size:
                try:
                    run = read_run(path)
                except NotComparableError as error:
                    why = str(error)
                else:
                    if self._settings.any_machine or run.environment.get("CPU", cpu) == cpu:
                        return run
                    why = f"its CPU is {shown(run.environment['CPU'])}, not {cpu}"
            self.passed_over.append(f"--benchmark-compare passed over {path}: {why}")
        return None

    def judges_captures(self, settings: Settings) -> bool:
        """Whether what captures find is judged in a test with these settings."""
        of_counts = settings.metric == "counts" and _texts(settings.limits, STEPS.limits)
        return bool(settings.expected or (settings.threshold and self.compares) or of_counts)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Record deselected tests, whose rows are not missing."""
        self._deselected.update(row_key(row_nodeid(item)) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the names of all tests, by which names of rows in files are parsed."""
        self._tests = {row_key(row_nodeid(item)) for item in session.items} | self._deselected

    @functools.cached_property
    def reported(self) -> tuple[Judgement, ...]:
        """What each gate found; not in a worker, nor where tests are only listed."""
        if self._config.getoption("collectonly") or hasattr(self._config, "workerinput"):
            return ()
        return (*self._judge_limits(), *self._judge_saved_run(), *self._judge_expected())

    # Limits

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around what makes a failure an expected one
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a part of a test that swallowed what a limit raised."""
        test = row_nodeid(item)
        results = self._results.get(test)
        if results is not None and results.unraised:
            error = GateError("\n".join(map(str, results.unraised)))
            error.__traceback__ = results.unraised[0].__traceback__
            results.unraised.clear()
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
        result = yield
        self._refuse_late_marker(item)
        test = row_nodeid(item)
        if nothing_judged := [*self._nothing_judged(item, self._results.get(test, TestResults(test)))]:
            verdicts = self._results.setdefault(test, TestResults(test)).verdicts
            verdicts += [each for each in nothing_judged if each not in verdicts]  # a test may run again
            raise pytest.fail.Exception(complaint(nothing_judged), pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around what fixtures and conftests do as the test ends
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test whose marker changed as it ended."""
        result = yield
        self._refuse_late_marker(item)
        return result

    def _refuse_late_marker(self, item: pytest.Item) -> None:
        """Fail a test whose marker changed after its settings were read: nothing would apply the change."""
        test, marks = row_nodeid(item), resolve.marks(item)
        if self.marks.get(test, marks) != marks:
            self.marks[test] = marks
            late = f"{resolve.test_line(item)}: the marker dtdispatch changed after measuring began"
            raise pytest.fail.Exception(
                f"{late}: set it on the test, or as tests are collected", pytrace=False
            )

    def _nothing_judged(self, item: pytest.Item, results: TestResults) -> Iterator[RowVerdict]:
        """Name the limits of a test that judged nothing in it."""
        limits, of_marker = resolve.test_settings(item).limits, resolve.marker_values(item)
        for kind in KINDS.values():
            raised = sorted(name for of, name in results.uncounted if of == kind.name)
            if criterion := _texts(limits, kind.limits):
                for name in raised:
                    why = "it raised before it left counts"
                    yield unjudged(RowId(results.test, name), criterion, why, Verdict.MISSING)
            marked = _texts(of_marker.get("max", {}), kind.limits)
            if marked and not raised and not results.of(kind.name):
                yield self._judged_nothing(RowId(results.test), marked, kind)
        if self._why_not and self._config.getoption("benchmark_compare", None):
            for threshold in of_marker.get("threshold", ()):
                yield unjudged(RowId(results.test), str(threshold), self._why_not)

    def _judged_nothing(self, row: RowId, criterion: str, kind: Kind) -> RowVerdict:
        verdict = Verdict.DISABLED if self._why_not else Verdict.MISSING
        return unjudged(row, criterion, self._why_not or kind.nothing, verdict)

    def _judge_limits(self) -> Iterator[Judgement]:
        """Gather what limits found in tests, and those of the run that judged nothing in all of it."""
        verdicts: list[RowVerdict] = []
        for kind in KINDS.values():
            if kind.limits and not any(results.of(kind.name) for results in self._results.values()):
                own = {name: most for name, most in self._settings.limits.items() if name in kind.limits}
                limits = [f"--dtdispatch-max {name}={most}" for name, most in own.items()]
                verdicts += [self._judged_nothing(RowId("", limit), limit, kind) for limit in limits]
        failed = over(verdicts)
        for test, results in self._results.items():
            of_test = results.verdicts
            if test in self._xfailed:
                of_test = [_quarantined(each) if over([each]) else each for each in of_test]
            failed += over(of_test)
            verdicts += of_test
        if verdicts:
            yield Judgement(tuple(verdicts), LIMITS, tuple(failed))

    # A saved run

    def earlier(self, results: Results) -> tuple[Results, str]:
        """Return results of the saved run that those of this one are shown beside, and when it was taken."""
        if self._base is None:
            return {}, ""
        found = {}
        for kind in KINDS.values():
            before, now = (each.get(kind.name, {}) for each in (self._base.results, results))
            if kind.shows_earlier and (of_kind := {test: before[test] for test in now if test in before}):
                found[kind.name] = of_kind
        if not found:
            return {}, ""
        differ = environment_differences(self._base.environment, self._settings.environment_texts())
        return found, self._base.as_earlier("".join(f"; {each}" for each in differ))

    @functools.cached_property
    def _saved_rows(self) -> list[StateRow]:
        if self._base is None:
            return []
        return [
            row
            for test, rows in self._base.rows_by_test().items()
            for row in state_rows(test, rows, self._base.thresholds.get(test, ()))
        ]

    @property
    def _rows(self) -> list[StateRow]:
        found = self._results.items()
        return [row for test, results in found for row in state_rows(test, results.measurements())]

    @functools.cached_property
    def _judged_while_measured(self) -> dict[RowId, StateRow]:
        """Rows of the saved run by identity; empty if nothing is compared with them."""
        if not self.compares or self._why_not_judged(self._saved_rows):
            return {}
        return {row.row: row for row in self._saved_rows}

    def outlook(self, test: str, row: Measurement) -> dict[State, Outlook]:
        """Judge the compared states of a row in its test, by the control rows measured so far."""
        then, now = self._judged_while_measured, {each.row: each for each in state_rows(test, [row])}
        self._shifts |= control_shifts(then, now)
        shift, outlooks = control_shift(self._shifts.values()), dict[State, Outlook]()
        for row_id, head in now.items():
            if (base := then.get(row_id)) is None or head.state is State.LOCAL:
                continue
            if not (limits := self._thresholds_of(base)):
                continue
            outlook = max(outlook_of(base, head, limit, shift) for limit in limits)
            if outlook is Outlook.FAILING and head.blocks == MAX_BLOCKS:
                self._confirmed.add(row_id)
            elif outlook is Outlook.FAILING and len(self._confirmed) >= MAX_CONFIRMED:
                outlook = Outlook.DECIDED
            outlooks[head.state] = outlook
        return outlooks

    def _judge_saved_run(self) -> Iterator[Judgement]:
        """Hold the run against the saved one, if there is any threshold."""
        if not self.compares:
            return
        has_own = self._settings.threshold or any(self.thresholds.values())
        if has_own or any(map(self._thresholds_of, self._saved_rows)):
            base, rows = self._base or ReportedRun("no saved run"), self._rows
            judgement = self._why_not_judged(rows) or judge_run(self._saved_rows, rows, self._thresholds_of)
            rest = [row for row in self._saved_rows if not self._selection.has(row.row.test)]
            excluded = sum(row.state is not State.LOCAL for row in rest)
            yield replace(judgement, where=base.where, since=base.taken[:10], excluded=excluded)

    @functools.cached_property
    def compared(self) -> tuple[RowVerdict, ...]:
        """How rows moved since the saved run: those that a gate judged, and all others."""
        if not self.compares:
            return ()
        judged = tuple(row for gate in self.reported for row in gate.verdicts if row.row.state)
        ids = {row.row for row in judged}
        free = [row for row in self._saved_rows if row.row not in ids]
        base = [row for row in free if self._selection.has(row.row.test)]
        head = [row for row in self._rows if row.row not in ids]
        others = [] if self.why_not_compared else compare_rows(base, head)
        return (*judged, *others)

    @property
    def why_not_compared(self) -> str:
        """Why rows stand beside no saved run although one was named; empty where they do."""
        refused = self._why_not_judged(self._rows) if self.compares else None
        return refused.verdicts[0].row.label if refused else ""

    def _why_not_judged(self, rows: Sequence[StateRow]) -> Judgement | None:
        """Refuse to compare runs that measure different things, or none."""
        settings = self._settings
        takes_times = settings.metric in SAMPLERS and SAMPLERS[settings.metric].unit.is_time
        times_nothing = "" if takes_times else f"--dtdispatch-metric {settings.metric} times nothing"
        if why_not := self._why_not or times_nothing:
            return not_judged(Verdict.DISABLED, why_not)
        if self._base is None:
            remedy = "save one with --benchmark-save=NAME or --benchmark-autosave"
            return not_judged(Verdict.MISSING, self._why_no_base, remedy)
        if stopped := self._base.stopped:
            return not_judged(
                Verdict.MISMATCHED, f"the saved run is incomplete: {stopped}", "save a whole run"
            )
        if not rows:  # where nothing was measured, it may be because there is no such place
            return None
        then, now = self._base.environment, settings.environment_texts()
        if then.get("metric") != now["metric"]:
            metrics = f"metric: {then.get('metric')} then, {now['metric']} now"
            return not_judged(Verdict.MISMATCHED, metrics, "save a run with the same --dtdispatch-metric")
        if not settings.any_machine and (differ := environment_differences(then, now)):
            return not_judged(Verdict.MISMATCHED, "; ".join(differ), ANY_MACHINE)
        return None

    def _thresholds_of(self, row: StateRow) -> tuple[Threshold, ...]:
        test = row.row.test
        if not self._selection.has(test):
            return ()
        limits = self.thresholds.get(test, self._settings.threshold or ())
        return thresholds_of(str(row.state), limits) or thresholds_of(str(row.state), row.thresholds)

    @property
    def _selection(self) -> Selection:
        """Tests that this run selects."""
        return Selection(self._beginnings, self._deselected)

    @functools.cached_property
    def _beginnings(self) -> tuple[str, ...]:
        """Beginnings of the names of tests that the command line names; of all if that is unknown."""
        starts, args = [], self._config.args
        is_ini = self._config.args_source is pytest.Config.ArgsSource.TESTPATHS
        if is_ini or {*args} <= {*self._config.getini("addopts")}:  # a file that is gone is in no ini value
            return EVERYTHING
        for arg in args:
            path, colons, names = arg.partition("::")
            within = os.path.relpath(self._config.invocation_params.dir / path, self._config.rootpath)
            if within.startswith(".") or self._config.getoption("pyargs"):
                return EVERYTHING
            starts += [f"{Path(within).as_posix()}{colons}{names}{end}" for end in ("/", "::", "[")]
        return tuple(map(row_key, starts))

    # Files of expected results

    def _judge_expected(self) -> Iterator[Judgement]:
        """Hold the results against each file; what none of them expects is new once."""
        if self._why_not:
            disabled = not_judged(Verdict.DISABLED, self._why_not)
            yield from (replace(disabled, where=file.where) for file in self._expected)
            return
        results = [one for of_test in self._results.values() for one in of_test.metrics(KINDS)]
        found = by_name(results)
        known = [{(row.name, row.metric) for row in file.rows} for file in self._expected]
        new = [one for key, one in found.items() if not any(key in rows for rows in known)]
        csv = (str(export.path) for export in self._settings.export if export.format == "csv")
        written = next(csv, "RESULTS.csv")
        for file, own in zip(self._expected, known, strict=True):
            rows = [row for row in file.rows if self._selection.has(parse_row(row.name, self._tests).test)]
            of_file = [one for key, one in found.items() if key in own]
            improved_fails = self._settings.improved == "fail"
            judgement = judge_results(rows, [*of_file, *new], improved_fails, self._tests)
            command = shlex.join(["dtdispatch", "expected", "update", file.where, "--results", written])
            yield replace(judgement, where=file.where, command=f'{command} --reason "..."')
            new = []


def _quarantined(row: RowVerdict) -> RowVerdict:
    details = (*row.details, "its test is marked to fail (xfail)")
    return replace(row, verdict=Verdict.QUARANTINED, details=details)


def _texts(limits: Mapping[str, int], names: Iterable[str]) -> str:
    """Write those limits that have these names."""
    return ", ".join(f"{name}={limits[name]}" for name in names if name in limits)
