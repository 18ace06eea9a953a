"""One run: what is measured in each test, and what is said of it at the end."""

from __future__ import annotations

import functools
import os
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_dtdispatch.core.signature import mesh_text
from pytest_dtdispatch.core.world import read_world
from pytest_dtdispatch.errors import CaptureError, DtDispatchError, GateError
from pytest_dtdispatch.plugin import options
from pytest_dtdispatch.plugin.kinds import kinds
from pytest_dtdispatch.plugin.nodeids import row_nodeid
from pytest_dtdispatch.plugin.summary import Section
from pytest_dtdispatch.plugin.waiting import Waits
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line

if TYPE_CHECKING:
    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.measuring.sampler import Sampler
    from pytest_dtdispatch.plugin.expected_gate import NamedResults
    from pytest_dtdispatch.plugin.measurer import MeasuringDtDispatch
    from pytest_dtdispatch.plugin.options import Settings
    from pytest_dtdispatch.plugin.rank_tests import RankSession
    from pytest_dtdispatch.plugin.saved_run_gate import SavedRunGate
    from pytest_dtdispatch.report.document import View


SINKS = ("dtdispatch-bridge", "dtdispatch-saved-run", "dtdispatch-results")


class Sink(Protocol):
    """What takes the results of each test."""

    def enter(self, item: pytest.Item, results: TestResults) -> None:
        """Take what was found in a test; a later run of a test takes the place of an earlier one."""


class Session:
    """The plugin object of a run with ``--dtdispatch``.

    Attributes:
        why_not: why nothing is measured although it was asked for; empty where it is.
        results: what the last run of each test found, by its name in rows.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.why_not = options.why_not_measured(config)
        self._config = config
        self._settings = settings
        self._waits = Waits(config)
        self.results: dict[str, TestResults] = {}

    def header(self) -> list[str]:
        """Say how measuring is set, with what is known without torch."""
        from importlib.metadata import version

        settings = self._settings
        ops = f" ops={','.join(settings.ops)}" if settings.ops else ""
        metric = f" metric={settings.metric}" if settings.metric != "time" else ""
        cold = " cold" if settings.cold else ""
        # The number of calls that are counted does not depend on the time they take.
        limit = "" if settings.metric == "instructions" else f" max_time={settings.max_time:g}s"
        how = (
            f"dtdispatch: {version('pytest-dtdispatch')} (mesh={mesh_text(settings.mesh)}"
            f" device={settings.device} backend={settings.backend} rounds={settings.rounds}"
            f" repeat={settings.repeat}{limit}{cold}{ops}{metric})"
        )
        return [how, *(f"dtdispatch: {summary}" for summary in self._meter_summary())]

    def _meter_summary(self) -> Iterator[str]:
        if self._settings.metric == "instructions":
            from pytest_dtdispatch.plugin.instruction_run import choice_of

            if choice := choice_of(self._config):
                yield choice.summary

    @functools.cached_property
    def _sampler(self) -> Sampler:
        """What reads calls, ready from the first test that needs it; a run that counts reads none."""
        from pytest_dtdispatch.measuring.sampler import start_sampler

        metric = self._settings.metric
        return start_sampler("time" if metric == "counts" else metric)

    @contextmanager
    def measuring(self, item: pytest.Item) -> Iterator[MeasuringDtDispatch]:
        """Measure in one test, and publish its rows when it is over, however it ended."""
        from pytest_dtdispatch.compiled.compile_rounds import CompilePlan
        from pytest_dtdispatch.measuring.plan import WITHIN, Plan
        from pytest_dtdispatch.plugin.measurer import measurer_type
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        settings = options.test_settings(item)
        within = WITHIN if settings.stops_when_enough else None
        plan = Plan(settings.most_rounds, settings.repeat, settings.max_time, settings.cold, within=within)
        try:
            plan = replace(plan, sampler=self._sampler)
            if self._ranks is not None:
                plan = replace(plan, agreement=self._ranks.agreement())
            ShardingCaches().clear_all()
        except DtDispatchError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        limits = {limit: getattr(settings, limit, None) for kind in kinds() for limit in kind.limits}
        compile_plan = CompilePlan(
            settings.compile_backend,
            settings.compile_rounds,
            max(1, settings.most_rounds * settings.repeat // settings.compile_rounds),
            settings.fake_tensor_cache or (),
            plan.sampler,
        )
        if settings.metric == "counts":
            compile_plan = replace(compile_plan, rounds=1, calls=1)
        waiting = self._waits.of(item.nodeid, settings)
        test = row_nodeid(item)
        measurer = measurer_type(settings.metric, plan.sampler.unit)(
            plan, settings.ops, limits, compile_plan, waiting, test
        )
        self.results[test] = measurer.results
        try:
            yield measurer
        finally:
            self._publish(item, measurer)

    @pytest.hookimpl(wrapper=True, trylast=True)  # closest to the test: only the test's ops are captured
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wrap every test in a capture, if all are measured; one with the fixture measures itself."""
        measures_itself = "dtdispatch" in getattr(item, "fixturenames", ())
        if self.why_not or measures_itself or not self._settings.measure_all:
            result = yield
        else:
            with self.measuring(item) as measurer, _whole_test(measurer.capture()):
                result = yield
        self._require_counts(item)
        return result

    def _require_counts(self, item: pytest.Item) -> None:
        """Fail a test that passed, and has a gate that judged nothing."""
        if self.why_not and options.is_held_to_saved_run(item):
            raise pytest.fail.Exception(f"gate threshold is disabled: {self.why_not}", pytrace=False)
        results = self.results.get(row_nodeid(item))
        for kind in kinds():
            gates = ", ".join(options.gate_keywords(item, options.limits_of(kind.limits)))
            if gates and self.why_not:
                raise pytest.fail.Exception(f"gate {gates} is disabled: {self.why_not}", pytrace=False)
            if gates and not (results and results.of(kind.name)):
                raise pytest.fail.Exception(f"gate {gates} judged nothing: {kind.nothing}", pytrace=False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run whose gates failed, or, as the command line gives them, judged nothing."""
        if self._named_results is not None:
            self._named_results.write(self._ranks.why_stopped if self._ranks else "")
        has_failed = any(gate.has_failed for gate in self._gates())
        if (has_failed or self._idle_gates()) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _sinks(self) -> Iterator[Sink]:
        """Give all that takes the results of a test, when it is over."""
        for name in SINKS:
            if (sink := self._config.pluginmanager.get_plugin(name)) is not None:
                yield sink

    def _gates(self) -> Iterator[SavedRunGate | NamedResults]:
        if self._saved_run_gate is not None:
            yield self._saved_run_gate
        if self._named_results is not None:
            yield self._named_results

    @property
    def _ranks(self) -> RankSession | None:
        ranks: RankSession | None = self._config.pluginmanager.get_plugin("dtdispatch-ranks")
        return ranks

    @property
    def _named_results(self) -> NamedResults | None:
        results: NamedResults | None = self._config.pluginmanager.get_plugin("dtdispatch-results")
        return results

    @property
    def _saved_run_gate(self) -> SavedRunGate | None:
        gate: SavedRunGate | None = self._config.pluginmanager.get_plugin("dtdispatch-saved-run")
        return gate

    def _idle_gates(self) -> str:
        """Say which gates of the command line judged nothing, and why; empty where there are none."""
        if hasattr(self._config, "workerinput"):
            return ""
        idle = [
            f"{', '.join(flags)} judged nothing: {self.why_not or kind.nothing}"
            for kind in kinds()
            if (flags := options.gate_flags(self._config, options.limits_of(kind.limits)))
            and not any(results.of(kind.name) for results in self.results.values())
        ]
        return "; ".join(idle)

    @pytest.hookimpl(wrapper=True, trylast=True)  # below the tables of others, above pytest's own summary
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Print the table, even where a gate of another plugin raises out of its own summary."""
        try:
            return (yield)
        finally:
            self._print_section(terminalreporter)

    def _print_section(self, terminalreporter: Any) -> None:
        if hasattr(self._config, "workerinput") or not read_world(os.environ).is_first:
            return
        section = Section(terminalreporter, self._config.get_verbosity(), self._view())
        section.open()
        if not any(self.results.values()):
            why = f"nothing was measured: {self.why_not or self._nothing()}"
            section.print(Document((one_line(Span(why, Tone.NOTICE)),)))
        else:
            section.print_found(self.results, self._summaries)
        if self._ranks is not None:
            section.print(self._ranks.document())
        for gate in self._gates():
            section.print(gate.document())
        if idle := self._idle_gates():
            section.print(Document((one_line(Span(f"failed: {idle}", Tone.BAD)),)))

    def _view(self) -> View:
        from pytest_dtdispatch.measuring.sampler import SAMPLERS
        from pytest_dtdispatch.report.document import View

        sampler = SAMPLERS.get(self._settings.metric)
        counted = "" if sampler is None or sampler.unit.is_time else sampler.unit.name
        return View(self._config.get_verbosity() > 0, counted, self._ranks is not None)

    def _summaries(self) -> list[str]:
        """Say on what the figures stand."""
        from pytest_dtdispatch.meshes.place import run_environment

        asked = self._settings
        environment = run_environment(asked.mesh, asked.device, asked.backend, asked.rank_stat)
        ranks = [self._ranks.summary] if self._ranks else []
        return [environment.summary, *self._meter_summary(), *ranks]

    def _nothing(self) -> str:
        if self._settings.measure_all:
            return "no test ran an op on DTensors"
        return (
            "no test that ran made a call on DTensors through the dtdispatch fixture; "
            "--dtdispatch-all measures every test"
        )

    def _publish(self, item: pytest.Item, measurer: MeasuringDtDispatch) -> None:
        complaint = ""
        try:
            measurer.close()
        except CaptureError as error:
            complaint = str(error)
        self._waits.remember(item.nodeid, measurer.waiting.captured_s)
        results = measurer.results
        if self._ranks is not None:
            results = self._ranks.merge(results)
        self.results[results.test] = results
        for sink in self._sinks():
            sink.enter(item, results)
        if complaint:
            pytest.fail(complaint, pytrace=False)


@contextmanager
def _whole_test(capture: AbstractContextManager[TestResults]) -> Iterator[None]:
    """Hold a capture open over a test; what it says of the test at its end is no traceback."""
    is_over = False
    try:
        with capture:
            yield
            is_over = True
    except (CaptureError, GateError) as error:
        if not is_over:
            raise
        raise pytest.fail.Exception(str(error), pytrace=False) from None
