"""The gate that compares this run with a saved one."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.core.world import read_world
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.gate import Gate

if TYPE_CHECKING:
    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.core.verdicts import Judgement, Threshold
    from pytest_dtdispatch.gates.saved_run import StateRow
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.report.reported_run import ReportedRun

PLUGIN = "dtdispatch-saved-run"
ANY_MACHINE = "save a run on this machine, or compare all the same with --dtdispatch-any-machine"
ANOTHER_METRIC = "save a run with the same --dtdispatch-metric"
SAVE_ONE = "save one with --benchmark-save=NAME or --benchmark-autosave"


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
        from pytest_dtdispatch.plugin.reported import environment_texts

        if disabled := self._why_disabled():
            return not_judged(Verdict.DISABLED, disabled)
        if self._base is None:
            return not_judged(Verdict.MISSING, self._why_no_base, SAVE_ONE)
        rows = [row for of_test in self._rows.values() for row in of_test]
        if rows:  # where nothing was measured, it may be because there is no such place
            then, now = self._base.environment, environment_texts(self._settings)
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
        from pytest_dtdispatch.plugin.bridge import saved_run
        from pytest_dtdispatch.report.saved_run import read_run

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
