"""The object behind the ``dtdispatch`` fixture where something is measured: it keeps what it measures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_dtdispatch import api
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.compare.model import Compared, Variants
from pytest_dtdispatch.compiled.model import Compilation, Compiled, CompiledFunction, CompilePlan
from pytest_dtdispatch.core.files import TRACE_EXPORT
from pytest_dtdispatch.core.measurement import Figures, merge
from pytest_dtdispatch.core.results import (
    Finding,
    NamedCall,
    TestResults,
    Unseen,
    number_name,
    row_key,
    row_name,
)
from pytest_dtdispatch.core.text import own_name
from pytest_dtdispatch.core.verdicts import RowVerdict, complaint, unjudged
from pytest_dtdispatch.errors import CaptureError, GateError
from pytest_dtdispatch.plugin.gates import KINDS
from pytest_dtdispatch.scaling import Make, Scaling, fit_scaling, run_and_measure_sizes, run_sizes
from pytest_dtdispatch.steps.model import StepCalls, Steps

if TYPE_CHECKING:
    from pytest_dtdispatch.measuring.guard import Measuring, Setup
    from pytest_dtdispatch.measuring.plan import Plan
    from pytest_dtdispatch.measuring.sampler import Sampler
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.ranks.exchange import Lockstep

T = TypeVar("T")
NOT_TIMED = "latencies are not taken"


class OpenRegions:
    """What is open in a test, and so keeps other things from being measured.

    Attributes:
        captures: open captures, the outermost first.
        unused: where captures were made that nobody entered yet.
        idle: where captures were closed in which no op on DTensors ran.
        step: says which step is counted or timed, and what would change; empty where none is.
    """

    def __init__(self) -> None:
        self.captures: list[OpenCapture] = []
        self.unused: list[str] = []
        self.idle: list[str] = []
        self.step = ""

    def refuse(self, what: str, in_capture: str = "") -> None:
        """Refuse what cannot be measured here: beside a measuring thread, in a counted step, in a capture."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import refuse_elsewhere

        refuse_elsewhere()
        if self.captures and in_capture:
            raise CaptureError(in_capture)
        if self.step:
            raise CaptureError(f"{what} inside {self.step}: take it out of the step")

    @contextmanager
    def running(self, step: str, is_timed: bool) -> Iterator[None]:
        """Run a step, in which nothing else may be measured."""
        done, figures = ("timed", "times") if is_timed else ("counted", "counts")
        self.step = f"{step!r}, which is being {done}, would change its {figures}"
        try:
            yield
        finally:
            self.step = ""

    def close(self) -> None:
        """Close captures that were entered and never left, and refuse those that nobody entered."""
        if left_open := [*self.captures]:
            for capture in reversed(left_open):
                capture.__exit__(None, None, None)
            where, what = left_open[0].where, "entered and never left"
        elif self.unused:
            where, what = self.unused[0], "never entered, so nothing was measured"
        else:
            return
        raise CaptureError(f"{where}: this capture was {what}; use it in a with")


class OpenCapture(AbstractContextManager[TestResults]):
    """A dispatch mode, or a counted region, that is open between enter and exit."""

    def __init__(
        self, mode: AbstractContextManager[Any], results: TestResults, regions: OpenRegions, kind: str = ""
    ) -> None:
        caller = sys._getframe(3)  # who called what makes this
        self.where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        self._mode = mode
        self._results = results
        self._calls = results.seen_calls
        self._regions = regions
        self._kind = kind  # of what it counts, if it does
        regions.unused.append(self.where)

    def __enter__(self) -> TestResults:
        __tracebackhide__ = True
        if self.where in self._regions.unused:
            self._regions.unused.remove(self.where)
        self._mode.__enter__()
        self._regions.captures.append(self)
        return self._results

    def __exit__(self, *raised: Any) -> None:
        __tracebackhide__ = True
        self._regions.captures.remove(self)
        if self._kind and raised[0] is not None:
            self._results.uncounted.add((self._kind, f"capture at {self.where}"))
        self._mode.__exit__(*raised)
        if self._results.seen_calls == self._calls and not any(raised):
            self._regions.idle.append(self.where)


@contextmanager
def failing_plainly(capture: AbstractContextManager[None]) -> Iterator[None]:
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


class Recorder(api.DtDispatch):
    """Measure, and keep what was measured in the results of the test.

    In a run that counts, a capture and a call are one step each, and nothing is repeated.

    Args:
        settings: of the test.
        plan: how much is measured.
        test: its name in rows.
    """

    enabled = True

    def __init__(self, settings: Settings, plan: Plan, test: str = "") -> None:
        self.results = TestResults(test)
        self._settings = settings
        self._plan = plan
        self._counts = settings.metric == "counts"
        self._takes_times = not self._counts and plan.sampler.unit.is_time
        self._open = OpenRegions()

    def close(self) -> list[str]:
        """Close captures that were left open, and refuse those never entered; give where others saw no op."""
        self._open.close()
        return self._open.idle

    def record(self, *results: Finding) -> None:
        """See :meth:`DtDispatch.record`."""
        __tracebackhide__ = True
        for result in results:
            if (kind := getattr(result, "kind", None)) not in KINDS:
                known = ", ".join(KINDS)
                raise CaptureError(f"no kind of results is registered as {kind!r}; valid: {known}")
            self._refuse_used(result.name, kind=result.kind)
            self.results.add(result)
        limits = self._settings.limits
        self._hold([verdict for each in results for verdict in KINDS[each.kind].judge(each, limits)])

    # Captures

    def _capture(self) -> AbstractContextManager[TestResults]:
        __tracebackhide__ = True
        if self._counts:
            nested = "a capture is open already: captures cannot be nested, close the outer one"
            self._open.refuse("a capture", nested)
            region = self._counted_region(
                f"capture {len(self.results.of(Steps.kind)) + 1}", self._keep_counts
            )
            return OpenCapture(region, self.results, self._open, Steps.kind)
        from pytest_dtdispatch.measuring.capture import SignatureCapture

        self._open.refuse("a capture")
        return OpenCapture(
            SignatureCapture(self.results, self._plan, self._settings.ops), self.results, self._open
        )

    @contextmanager
    def whole_test(self) -> Iterator[None]:
        """Capture, count or time what the thread of a test runs, and notice what processes it starts."""
        if self._counts:
            with self._counting_processes(), self.capture():
                yield
        elif self._settings.budget:
            from pytest_dtdispatch.budget.measure import budgeted_region

            with self._open.running("test", is_timed=True), budgeted_region("test", self.record):
                yield
        else:
            from pytest_dtdispatch.measuring.capture import watching_processes

            with watching_processes(self._notice_process), self.capture():
                yield

    def _notice_process(self, process: Any, start: Callable[[Any], Any]) -> Any:
        self.results.unseen += Unseen(processes=1)
        return start(process)

    @contextmanager
    def _counting_processes(self) -> Iterator[None]:
        """Count what processes do that the test starts anew; equal ones once."""
        from pytest_dtdispatch.steps.measure import counting_in_processes

        with counting_in_processes() as processes:
            yield
            counted = dict(processes.found())
        self.results.unseen += Unseen(processes=processes.started - len(counted))
        for number, counts in counted.items():
            if next(first for first, others in counted.items() if others == counts) == number:
                self._keep_counts(Steps(f"process {number}", (), (counts,)))

    # Calls and steps

    def _call(self, fn: Callable[..., T], args: tuple[Any, ...], name: str | None, setup: Setup | None) -> T:
        """Measure a call; where counts are taken it is one step, and not repeated."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import call_arguments
        from pytest_dtdispatch.measuring.repeat import run_and_measure_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        name = self._row_name("call", fn, name)
        if self._counts:
            arguments = call_arguments(args, setup)
            with self._counted(Steps.kind, name), self._counted_region(name, self.record):
                return fn(*arguments)
        with self._measuring("call", name):
            result, place, figures = run_and_measure_call(fn, args, setup, ShardingCaches(), self._plan)
        self.results.enter_call(name, place, figures)
        return result  # type: ignore[no-any-return]

    def _steps(self, calls: StepCalls) -> Steps:
        __tracebackhide__ = True
        from pytest_dtdispatch.steps.measure import run_and_count

        with self._counted(Steps.kind, calls.name):
            in_capture = "steps() inside a capture would count what the capture does: close it first"
            self._open.refuse("steps()", in_capture)
            self._refuse_used(calls.name, kind=Steps.kind)
            with self._open.running(calls.name, is_timed=False), self._recording(calls.name):
                counted = run_and_count(calls)
            self.record(counted)
        return counted

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        __tracebackhide__ = True
        from pytest_dtdispatch.budget.measure import run_and_measure_budget

        if not self._takes_times:
            step_fn()
            return Budget(name, note=NOT_TIMED)
        self._open.refuse("budget()", "budget() inside a capture would time what the capture does: close it")
        self._refuse_used(name, kind=Budget.kind)
        with self._open.running(name, is_timed=True):
            budget = run_and_measure_budget(step_fn, warmup, steps, name)
        self.record(budget)
        return budget

    # Scalings, compiles, comparisons

    def _scaling(
        self, make: Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.repeat import run_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        if not self._takes_times:  # a limit that cannot be judged fails
            scaling = run_sizes(make, sizes, name)
            if max_exponent is not None:
                self._hold([unjudged(scaling.name, f"max_exponent={max_exponent:g}", NOT_TIMED)])
            return scaling
        name = self._row_name("scaling", make, name)
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

        settings, plan = self._settings, self._plan
        rounds = 1 if self._counts else settings.compile_rounds
        calls = 1 if self._counts else max(1, plan.rounds * plan.repeat // rounds)
        compiles = CompilePlan(rounds, calls, plan.sampler, plan.one_thread)
        name = self._row_name("compile", compilation.fn, name)
        with self._counted(CompiledFunction.kind, name):
            with self._measuring("compile", name):
                compiled = run_and_measure_compile(compilation, name, ShardingCaches(), compiles)
            if (function := compiled.function) and self._counts:  # a run that counts has no latencies
                row = function.measurement
                row = replace(row, figures=Figures(row.rounds, notes=row.notes))
                function = replace(function, measurement=row)
            if function:
                self.record(function)
        return compiled

    def _compare(self, requested: Variants) -> Compared:
        __tracebackhide__ = True
        from pytest_dtdispatch.compare.equality import call_variants
        from pytest_dtdispatch.compare.measure import run_and_measure_variants
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        functions, what = requested.functions, f"compare(name={requested.name!r})"
        self._open.refuse(what, f"{what} inside a capture would be measured twice: close the capture")
        self._refuse_used(requested.name, *requested.row_names)
        if not self._takes_times:  # a claim that cannot be judged fails
            counting = {
                label: self._counting(row_name(requested.name, label), fn) for label, fn in functions.items()
            }
            call_variants(replace(requested, functions=counting) if self._counts else requested)
            return Compared(requested.name, tuple(functions), why_not=NOT_TIMED, is_gate=True)
        with self._measuring("compare", requested.name, *requested.row_names):
            compared = run_and_measure_variants(requested, ShardingCaches(), self._plan)
        self.record(*compared.variants)
        return compared

    def _counting(self, name: str, fn: Callable[[], T]) -> Callable[[], T]:
        """Count a variant as one step."""

        def run() -> T:
            __tracebackhide__ = True
            with self._counted(Steps.kind, name), self._counted_region(name, self.record):
                return fn()

        return run

    # What is kept

    @contextmanager
    def _counted_region(self, name: str, keep: Callable[[Steps], None]) -> Iterator[None]:
        """Count a region as one step, without a warm-up."""
        __tracebackhide__ = True
        from pytest_dtdispatch.steps.measure import counted_region

        with self._recording(name), counted_region(name, keep):
            yield

    def _keep_counts(self, steps: Steps) -> None:
        __tracebackhide__ = True
        [counts] = steps.steps
        of_dtensors = counts.calls, counts.collectives, counts.redistributions, counts.wraps, counts.unwraps
        if any(of_dtensors):  # most tests of a run have none
            self.record(steps)

    @contextmanager
    def _counted(self, kind: str, name: str) -> Iterator[None]:
        """Remember what raises before it leaves counts, until one of its name leaves some."""
        try:
            yield
        except BaseException as error:
            if error not in self.results.untold:
                self.results.uncounted.add((kind, name))
            raise
        self.results.uncounted.discard((kind, name))

    def _hold(self, verdicts: Sequence[RowVerdict]) -> None:
        """Keep what limits say of results; what fails the test fails it also where it catches the error."""
        __tracebackhide__ = True
        test = self.results.test
        self.results.verdicts += [replace(each, row=number_name(test, each.row)) for each in verdicts]
        if against := complaint(verdicts):
            error = GateError(against)
            self.results.untold.append(error)
            raise error

    @contextmanager
    def _recording(self, name: str) -> Iterator[None]:
        """Let torch's profiler record a region, where a trace was asked for."""
        __tracebackhide__ = True
        if not any(export.format == TRACE_EXPORT for export in self._settings.export):
            yield
            return
        from pytest_dtdispatch.torchapi.profiling import recording_trace

        with recording_trace(f"{self.results.test}: {name}", self.results.traces.append):
            yield

    def _row_name(self, method: str, fn: Callable[..., Any], name: str | None) -> str:
        """Name what a method measures, where it may be measured now; a lambda after its test."""
        __tracebackhide__ = True
        what = f"{method}(name={name!r})"
        self._open.refuse(what, f"{what} inside a capture would be measured twice: close the capture")
        name = name or own_name(fn)
        if name.startswith("<"):
            name = self.results.test.rpartition("::")[2] or method
        self._refuse_used(name)
        return name

    def _refuse_used(self, *names: str, kind: str = NamedCall.kind) -> None:
        __tracebackhide__ = True
        if not self.results.names_beside(kind).isdisjoint(map(row_key, names)):
            raise CaptureError(
                f"the name {names[0]!r} is taken by another call of this test: give another name="
            )

    def _measuring(self, method: str, name: str, *names: str) -> Measuring:
        """Take names for rows, meet other ranks, where there are any, and keep other threads away."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.guard import Measuring

        self._refuse_used(name, *names)
        if self._plan.agreement is not None:
            self._plan.agreement.sync(name)
        return Measuring(f"the {method} {name!r} is measured")


def make_plan(settings: Settings, sampler: Sampler, agreement: Lockstep | None) -> Plan:
    """Plan how much a test measures."""
    from pytest_dtdispatch.measuring.plan import WITHIN, Plan

    return Plan(
        settings.most_rounds,
        settings.repeat,
        settings.max_time,
        settings.cold,
        within=WITHIN if settings.stops_when_enough else None,
        sampler=sampler,
        agreement=agreement,
        one_thread=settings.threads == "one",
    )
