"""The object behind the ``dtdispatch`` fixture, where something is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.compare.claims import Compared
from pytest_dtdispatch.compare.model import Variants
from pytest_dtdispatch.compare.model import row_name as row_name_of
from pytest_dtdispatch.compiled.model import Compilation, Compiled, CompiledFunction, CompilePlan
from pytest_dtdispatch.core.callables import step_name
from pytest_dtdispatch.core.forms import TRACE_EXPORT
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.results import TestResults, Unseen
from pytest_dtdispatch.gates.limits import unjudged
from pytest_dtdispatch.plugin.keeping import KeepingDtDispatch
from pytest_dtdispatch.plugin.open_capture import OpenCapture
from pytest_dtdispatch.scaling import (
    Make,
    Scaling,
    fit_scaling,
    merge,
    row_name,
    run_and_measure_sizes,
    run_sizes,
)
from pytest_dtdispatch.steps.model import Steps

if TYPE_CHECKING:
    from pytest_dtdispatch.measuring.guard import Setup
    from pytest_dtdispatch.measuring.sampler import Sampler
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.ranks.exchange import Lockstep

T = TypeVar("T")
NOT_TIMED = "latencies are not taken"


class MeasuringDtDispatch(KeepingDtDispatch):
    """Measure, and keep what was measured in the results of the test."""

    def _capture(self) -> AbstractContextManager[TestResults]:
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.capture import SignatureCapture

        self._open.refuse("a capture")
        capture = SignatureCapture(self.results, self._plan, self._ops)
        return OpenCapture(capture, self.results, self._open)

    @contextmanager
    def whole_test(self) -> Iterator[None]:
        """Capture what the thread of a test runs, and notice what processes it starts."""
        from pytest_dtdispatch.measuring.capture import watching_processes

        def notice(process: Any, start: Callable[[Any], Any]) -> Any:
            self.results.unseen += Unseen(processes=1)
            return start(process)

        with watching_processes(notice), self.capture():
            yield

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """See :meth:`DtDispatch.call`."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.repeat import run_and_measure_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        name = self._row_name("call(fn, name=...)", fn, name)
        with self._measuring("call", name):
            result, place, figures = run_and_measure_call(fn, args, setup, ShardingCaches(), self._plan)
        self.results.enter_call(name, place, figures)
        return result  # type: ignore[no-any-return]

    def steps(
        self,
        step_fn: Callable[..., object],
        warmup: int | None = None,
        steps: int | None = None,
        *,
        inputs: Iterable[Any] | None = None,
        name: str | None = None,
    ) -> Steps:
        """See :meth:`DtDispatch.steps`."""
        __tracebackhide__ = True
        from pytest_dtdispatch.steps.measure import run_and_count
        from pytest_dtdispatch.steps.model import read_calls

        with self._counted(Steps.kind, str(name or step_name(step_fn))):
            calls = read_calls(step_fn, warmup, steps, inputs, name)
            self._open.refuse(
                "steps()", "steps() inside a capture would count what the capture does: close it first"
            )
            self._refuse_taken(calls.name, kind=Steps.kind)
            with self._open.running(calls.name, is_timed=False), self._recording(calls.name):
                counted = run_and_count(calls)
            self.record(counted)
        return counted

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        __tracebackhide__ = True
        from pytest_dtdispatch.budget.measure import run_and_measure_budget

        self._open.refuse("budget()", "budget() inside a capture would time what the capture does: close it")
        self._refuse_taken(name, kind=Budget.kind)
        with self._open.running(name, is_timed=True):
            budget = run_and_measure_budget(step_fn, warmup, steps, name)
        self.record(budget)
        return budget

    def _scaling(
        self, make: Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.repeat import run_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        name = self._row_name("scaling(make, name=...)", make, name)
        with self._measuring("scaling", name, *(row_name(name, size) for size in sizes)):
            caches = ShardingCaches()
            measured, places = run_and_measure_sizes(run_call, make, sizes, caches, self._plan)
        for size, passes in measured.items():
            self.results.enter_call(row_name(name, size), places[size], merge(passes))
        scaling = fit_scaling(name, measured, max_exponent)
        self.record(scaling)
        return scaling

    def _compile(self, compilation: Compilation, name: str | None) -> Compiled:
        __tracebackhide__ = True
        from pytest_dtdispatch.compiled.measure import run_and_measure_compile
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        name = self._row_name("compile(fn, name=...)", compilation.fn, name)
        with self._counted(CompiledFunction.kind, name):
            with self._measuring("compile", name):
                compiled = run_and_measure_compile(compilation, name, ShardingCaches(), self._compile_plan)
            if compiled.function:
                self.record(self._kept(compiled.function))
        return compiled

    def _compare(self, asked: Variants) -> Compared:
        __tracebackhide__ = True
        from pytest_dtdispatch.compare.measure import run_and_measure_variants
        from pytest_dtdispatch.plugin.call_counts import count_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        name = self._comparison_name(asked)
        with self._measuring("compare", name, *asked.row_names):
            compared = run_and_measure_variants(asked, ShardingCaches(), self._plan, count_call)
        self.record(*compared.variants)
        return compared

    def _kept(self, function: CompiledFunction) -> CompiledFunction:
        """What is kept of a compiled function."""
        return function


class BudgetingDtDispatch(MeasuringDtDispatch):
    """Take the budget of whole tests."""

    @contextmanager
    def whole_test(self) -> Iterator[None]:
        """Time what the thread of a test runs, once, as it is."""
        from pytest_dtdispatch.budget.measure import BudgetedRegion

        with self._open.running("test", is_timed=True), BudgetedRegion("test", self.record):
            yield


class UntimedDtDispatch(MeasuringDtDispatch):
    """Measure counts, such as instructions, in place of times."""

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        """Run the step once: nothing is timed."""
        __tracebackhide__ = True
        step_fn()
        return Budget(name, note=NOT_TIMED)

    def _scaling(
        self, make: Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        """Run each size once: nothing is timed, and a limit that cannot be judged fails."""
        __tracebackhide__ = True
        scaling = run_sizes(make, sizes, name)
        if max_exponent is not None:
            self._hold([unjudged(scaling.name, f"max_exponent={max_exponent:g}", NOT_TIMED)])
        return scaling

    def _compare(self, asked: Variants) -> Compared:
        """Run each variant once: nothing is timed, and a claim that cannot be judged fails."""
        __tracebackhide__ = True
        from pytest_dtdispatch.compare.equality import call_and_hold

        name = self._comparison_name(asked)
        call_and_hold(asked)
        return Compared(name, tuple(asked.functions), why_not=NOT_TIMED, is_gate=True)


class CountingDtDispatch(UntimedDtDispatch):
    """Count instead of timing: a capture and a call are one step each, and nothing is repeated."""

    def _capture(self) -> AbstractContextManager[TestResults]:
        """Count a region; it is counted as one step, without a warm-up."""
        __tracebackhide__ = True
        self._open.refuse(
            "a capture", "a capture is open already: captures cannot be nested, close the outer one"
        )
        name = f"capture {len(self.results.counts()) + 1}"
        return OpenCapture(self._region(name, self._keep), self.results, self._open, Steps.kind)

    @contextmanager
    def _region(self, name: str, keep: Callable[[Steps], None]) -> Iterator[None]:
        """Count a region as one step."""
        __tracebackhide__ = True
        from pytest_dtdispatch.steps.measure import CountedRegion

        with self._recording(name), CountedRegion(name, keep):
            yield

    @contextmanager
    def whole_test(self) -> Iterator[None]:
        """Count what the thread of a test does, and the processes that it starts anew."""
        from pytest_dtdispatch.steps.processes import counting_in_processes

        with counting_in_processes() as processes:
            with self.capture():
                yield
            told = dict(processes.found())
        self.results.unseen += Unseen(processes=processes.started - len(told))
        for number, counts in told.items():
            if next(first for first, others in told.items() if others == counts) == number:
                self._keep(Steps(f"process {number}", (), (counts,)))

    def _keep(self, steps: Steps) -> None:
        __tracebackhide__ = True
        [counts] = steps.steps
        of_dtensors = counts.calls, counts.collectives, counts.redistributions, counts.wraps, counts.unwraps
        if any(of_dtensors):  # most tests of a run have none
            self.record(steps)

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """See :meth:`DtDispatch.call`; the call is counted as one step, and not repeated."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import given_arguments

        name = self._row_name("call(fn, name=...)", fn, name)
        given = given_arguments(args, setup)
        with self._counted(Steps.kind, name), self._region(name, self.record):
            return fn(*given)

    def _compare(self, asked: Variants) -> Compared:
        """Count each variant as one step, and time none."""
        __tracebackhide__ = True

        def counted(label: str, fn: Callable[[], Any]) -> Callable[[], Any]:
            def run() -> Any:
                __tracebackhide__ = True
                name = row_name_of(asked.name, label)
                with self._counted(Steps.kind, name), self._region(name, self.record):
                    return fn()

            return run

        functions = {label: counted(label, fn) for label, fn in asked.functions.items()}
        return super()._compare(replace(asked, functions=functions))

    def _kept(self, function: CompiledFunction) -> CompiledFunction:
        """Keep counts alone: a run that counts has no latencies."""
        kept = Figures(function.measurement.rounds, notes=function.measurement.notes)
        return replace(function, measurement=replace(function.measurement, figures=kept))


def make_measurer(
    settings: Settings, sampler: Sampler, agreement: Lockstep | None, test: str
) -> MeasuringDtDispatch:
    """Make what is behind the fixture in a test that is measured, and plan how much it measures."""
    from pytest_dtdispatch.measuring.plan import WITHIN, Plan

    rounds, repeat = settings.most_rounds, settings.repeat
    within = WITHIN if settings.stops_when_enough else None
    one_thread = settings.threads == "one"
    plan = Plan(rounds, repeat, settings.max_time, settings.cold, within=within)
    plan = replace(plan, sampler=sampler, agreement=agreement, one_thread=one_thread)
    compile_rounds, calls = settings.compile_rounds, max(1, rounds * repeat // settings.compile_rounds)
    kind = MeasuringDtDispatch if sampler.unit.is_time else UntimedDtDispatch
    if settings.budget:
        kind = BudgetingDtDispatch
    if settings.metric == "counts":
        kind, compile_rounds, calls = CountingDtDispatch, 1, 1
    compile_plan = CompilePlan(settings.compile_backend, compile_rounds, calls, sampler, one_thread)
    is_traced = any(export.format == TRACE_EXPORT for export in settings.export)
    return kind(plan, settings.ops, settings.limits, compile_plan, test, is_traced)
