"""The object behind the ``dtdispatch`` fixture, where something is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch import api
from pytest_dtdispatch.compiled.model import Compilation, Compiled, CompiledVariant, CompilePlan, variant_name
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.metrics import row_key
from pytest_dtdispatch.core.results import Finding, TestResults, Unseen
from pytest_dtdispatch.errors import CaptureError, GateError
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.open_capture import OpenCapture, OpenRegions
from pytest_dtdispatch.plugin.waiting import Waiting
from pytest_dtdispatch.scaling.judge import fit_scaling, merge
from pytest_dtdispatch.scaling.model import Scaling, row_name
from pytest_dtdispatch.steps.model import StepCounts, Steps

if TYPE_CHECKING:
    from pytest_dtdispatch.measuring.plan import Plan
    from pytest_dtdispatch.measuring.preconditions import Measuring, Setup
    from pytest_dtdispatch.measuring.sampler import Sampler
    from pytest_dtdispatch.plugin.options import Settings
    from pytest_dtdispatch.ranks.exchange import Lockstep

T = TypeVar("T")


class MeasuringDtDispatch(api.DtDispatch):
    """Measure, and keep what was measured in the results of the test.

    Attributes:
        waiting: says how long it takes.
    """

    enabled = True

    def __init__(
        self,
        plan: Plan,
        ops: tuple[str, ...],
        limits: Mapping[str, Any],
        compile_plan: CompilePlan,
        waiting: Waiting | None = None,
        test: str = "",
    ) -> None:
        self.results = TestResults(test)
        self.waiting = waiting or Waiting()
        self._plan = plan
        self._ops = ops
        self._limits = limits
        self._compile_plan = compile_plan
        self._open = OpenRegions()

    def capture(self) -> AbstractContextManager[TestResults]:
        """See :meth:`DtDispatch.capture`."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.capture import SignatureCapture

        self._open.refuse("a capture")
        self.waiting.begin_capture()
        capture = SignatureCapture(self.results, self._plan, self._ops, self.waiting.measured)
        return OpenCapture(capture, self.results, self._open)

    @contextmanager
    def whole_test(self) -> Iterator[None]:
        """Capture what the thread of a test runs, and notice what processes it starts."""
        from pytest_dtdispatch.measuring.unseen import watching_processes

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
        from pytest_dtdispatch.measuring.calls import run_and_measure_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        name = self._row_name("call(fn, name=...)", fn, name)
        foretell = partial(self.waiting.begin_call, name)
        with self._measuring("call", name):
            result, place, figures = run_and_measure_call(
                fn, args, setup, ShardingCaches(), self._plan, foretell
            )
        self.results.enter_call(name, place, figures)
        return result  # type: ignore[no-any-return]

    def steps(
        self, step_fn: Callable[[], object], warmup: int = 3, steps: int = 5, *, name: str | None = None
    ) -> Steps:
        """See :meth:`DtDispatch.steps`."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.preconditions import check_steps
        from pytest_dtdispatch.steps.measure import run_and_count_steps

        check_steps(step_fn, warmup, steps, name)
        self._open.refuse(
            "steps()", "steps() inside a capture would count what the capture does: close it first"
        )
        name = name or api.step_name(step_fn)
        self._refuse_taken(name)
        self._open.step = name
        try:
            counted = run_and_count_steps(step_fn, warmup, steps, name)
        finally:
            self._open.step = ""
        self.record(counted)
        return counted

    def _scaling(
        self, make: api.Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        __tracebackhide__ = True
        from pytest_dtdispatch.scaling.measure import run_and_measure_sizes
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        name = self._row_name("scaling(make, name=...)", make, name)
        foretell = partial(self.waiting.begin_call, name)
        with self._measuring("scaling", name, *(row_name(name, size) for size in sizes)):
            taken = run_and_measure_sizes(make, sizes, ShardingCaches(), self._plan, foretell)
        for size, at_size in taken.items():
            self.results.enter_call(row_name(name, size), at_size.place, merge(at_size.passes))
        scaling = fit_scaling(name, {size: at_size.passes for size, at_size in taken.items()}, max_exponent)
        self.record(scaling)
        return scaling

    def _compile(
        self, compilation: Compilation, fake_tensor_cache: tuple[bool, ...] | None, name: str | None
    ) -> Compiled:
        __tracebackhide__ = True
        from pytest_dtdispatch.compiled.measure import run_and_measure_compile
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        plan = self._compile_plan
        if fake_tensor_cache is not None:
            plan = replace(plan, fake_tensor_cache=fake_tensor_cache)
        name = self._row_name("compile(fn, name=...)", compilation.fn, name)
        variants = (variant_name(name, is_on) for is_on in plan.fake_tensor_cache)
        with self._measuring("compile", name, *variants):
            compiled = run_and_measure_compile(compilation, name, ShardingCaches(), plan)
        self.record(*map(self._kept, compiled.variants))
        return compiled

    def _kept(self, variant: CompiledVariant) -> CompiledVariant:
        """What is kept of a compiled function."""
        return variant

    def close(self) -> None:
        """Close captures that were entered and never left, and refuse those that nobody entered."""
        self._open.close()

    def record(self, *results: Finding) -> None:
        """See :meth:`DtDispatch.record`."""
        __tracebackhide__ = True
        for result in results:
            if result.kind not in KINDS:
                known = ", ".join(KINDS)
                raise CaptureError(f"no kind of results is registered as {result.kind!r}; valid: {known}")
            self._refuse_taken(result.name)
            self.results.add(result)
        for result in results:
            if against := KINDS[result.kind].complaint(result, self._limits):
                raise GateError(against)

    def _row_name(self, usage: str, fn: Callable[..., Any], name: str | None) -> str:
        """Name what a method measures, where it may be measured now and the name is free."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.preconditions import check_callable

        method = usage.partition("(")[0]
        check_callable(method, fn, name)
        what = f"{method}(name={name!r})"
        self._open.refuse(what, f"{what} inside a capture would be measured twice: close the capture")
        name = name or api.own_name(fn)
        if name.startswith("<"):
            raise CaptureError(f"a {method} of {name} needs a name: dtdispatch.{usage}")
        self._refuse_taken(name)
        return name

    def _refuse_taken(self, *names: str) -> None:
        __tracebackhide__ = True
        if not self.results.names().isdisjoint(map(row_key, names)):
            raise CaptureError(
                f"the name {names[0]!r} is taken by another call of this test: give another name="
            )

    def _measuring(self, method: str, name: str, *rows: str) -> Measuring:
        """Take names for rows, meet other ranks, where there are any, and keep other threads away."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.preconditions import Measuring

        self._refuse_taken(name, *rows)
        if self._plan.agreement is not None:
            self._plan.agreement.come_to(name)
        return Measuring(f"the {method} {name!r} is measured")


class UntimedDtDispatch(MeasuringDtDispatch):
    """Measure counts, such as instructions, in place of times."""

    def _scaling(
        self, make: api.Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        """Run each size once: nothing is timed, and a limit that cannot be judged fails."""
        __tracebackhide__ = True
        scaling = api.run_sizes(make, sizes, name)
        if max_exponent is not None:
            raise GateError(
                f"{scaling.name!r}: max_exponent={max_exponent:g} is disabled: latencies are not taken"
            )
        return scaling


class CountingDtDispatch(UntimedDtDispatch):
    """Count instead of timing: a capture and a call are one step each, and nothing is repeated."""

    def capture(self) -> AbstractContextManager[TestResults]:
        """See :meth:`DtDispatch.capture`; the region is counted as one step, without a warm-up."""
        __tracebackhide__ = True
        from pytest_dtdispatch.steps.measure import CountedRegion

        self._open.refuse(
            "a capture", "a capture is open already: captures cannot be nested, close the outer one"
        )
        name = f"capture {len(self.results.counts()) + 1}"

        return OpenCapture(CountedRegion(partial(self._keep, name)), self.results, self._open)

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
                self._keep(f"process {number}", counts)

    def _keep(self, name: str, counts: StepCounts) -> None:
        __tracebackhide__ = True
        if counts.calls or counts.collectives or counts.redistributions:  # most tests of a run have none
            self.record(Steps(name, (), (counts,)))

    def call(
        self, fn: Callable[..., T], *args: Any, name: str | None = None, setup: Setup | None = None
    ) -> T:
        """See :meth:`DtDispatch.call`; the call is counted as one step, and not repeated."""
        __tracebackhide__ = True
        from pytest_dtdispatch.measuring.preconditions import given_arguments
        from pytest_dtdispatch.steps.measure import CountedRegion

        name = self._row_name("call(fn, name=...)", fn, name)
        given = given_arguments(args, setup)
        with CountedRegion(lambda counts: self.record(Steps(name, (), (counts,)))):
            return fn(*given)

    def _kept(self, variant: CompiledVariant) -> CompiledVariant:
        """Keep counts alone: a run that counts has no latencies."""
        kept = Figures(variant.measurement.rounds, notes=variant.measurement.notes)
        return replace(variant, measurement=replace(variant.measurement, figures=kept))


def make_measurer(
    settings: Settings, sampler: Sampler, agreement: Lockstep | None, waiting: Waiting, test: str
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
    if settings.metric == "counts":
        kind, compile_rounds, calls = CountingDtDispatch, 1, 1
    cached = settings.fake_tensor_cache or ()
    compile_plan = CompilePlan(settings.compile_backend, compile_rounds, calls, cached, sampler, one_thread)
    limits = {limit: getattr(settings, limit, None) for each in KINDS.values() for limit in each.limits}
    return kind(plan, settings.ops, limits, compile_plan, waiting, test)
