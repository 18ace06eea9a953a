"""Implementation of the ``dtdispatch`` fixture in a run that measures."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_dtdispatch import api
from pytest_dtdispatch.advice import advise, with_advice
from pytest_dtdispatch.budget.model import Budget, MeasuredBudget
from pytest_dtdispatch.comparing.model import Compared, Variants
from pytest_dtdispatch.comparing.scaling import Make, Scaling, fit_scaling, run_and_measure_sizes, run_sizes
from pytest_dtdispatch.compiled.model import Compilation, Compiled, CompiledFunction
from pytest_dtdispatch.core.checks import Setup, call_arguments, check_result
from pytest_dtdispatch.core.measurement import Figures, merge
from pytest_dtdispatch.core.results import CALLS, Finding, row_key, row_name
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import device_of
from pytest_dtdispatch.core.store import ResultStore, Uncaptured
from pytest_dtdispatch.core.text import nearest, own_name, shown
from pytest_dtdispatch.core.verdicts import RowVerdict, complaint, unjudged
from pytest_dtdispatch.errors import GateError, MeasurementError, UnequalError
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.replay.guard import MeasurementLock, refuse_elsewhere
from pytest_dtdispatch.report.findings import check_finding, check_written
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.steps.model import StepCalls, Steps
from pytest_dtdispatch.verify.model import Verified

if TYPE_CHECKING:
    from pytest_dtdispatch.core.trail import Trail
    from pytest_dtdispatch.plugin.settings import Settings
    from pytest_dtdispatch.verify.mode import Verifier

__tracebackhide__ = True  # a test that fails here shows its own line
T = TypeVar("T")
NOT_TIMED = "latencies are not taken"


class OpenCapture(AbstractContextManager[ResultStore]):
    """A capture of a test, and checks of its use.

    Args:
        mode: dispatch mode, or counted region.
        results: results of the test.

    Attributes:
        where: file and line of its creation.
        misuse: how it was misused; empty if it was not.
        is_open: whether it was entered and not exited yet.
        is_idle: whether no op on DTensors ran in it.
    """

    def __init__(self, mode: AbstractContextManager[Any], results: ResultStore) -> None:
        caller = sys._getframe(2)  # the caller of capture()
        self.where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        self.misuse = "never entered, so nothing was measured"
        self.is_open = self.is_idle = False
        self._mode = mode
        self._results = results
        self._calls = results.seen_calls

    def __enter__(self) -> ResultStore:
        self.misuse = ""
        self._mode.__enter__()
        self.is_open, self.misuse = True, "entered and never left"
        return self._results

    def __exit__(self, *raised: Any) -> None:
        self.is_open, self.misuse = False, ""
        self._mode.__exit__(*raised)
        self.is_idle = self._results.seen_calls == self._calls and not any(raised)


class Recorder(api.DtDispatch):
    """Recorder of measurements in the results of a test.

    In a run that counts or verifies, a capture and a call are one step each, and nothing is repeated.

    Args:
        settings: settings of the test.
        plan: options of measurements.
        test: name of the test in rows.
    """

    enabled = True

    def __init__(self, settings: Settings, plan: Plan, test: str = "") -> None:
        self.results = ResultStore(test)
        self._settings = settings
        self._plan = plan
        self._counts = settings.metric in ("counts", "verify")
        self._is_timed = not self._counts and plan.sampler.unit.is_time
        self._captures: list[OpenCapture] = []
        self._step = ""  # clause about the running step for errors; empty if no step is running
        self._threads: dict[str, threading.Thread] = {}  # the first to measure under each name

    def close(self) -> list[str]:
        """Close captures that were left open.

        Returns:
            File and line of captures without any op on DTensors.

        Raises:
            MeasurementError: a capture was misused.
        """
        misused = [f"{one.where}: this capture was {one.misuse}" for one in self._captures if one.misuse]
        for capture in reversed(self._captures):
            if capture.is_open:
                capture.__exit__(None, None, None)
        if misused:
            raise MeasurementError(f"{misused[0]}; use it in a with")
        return [capture.where for capture in self._captures if capture.is_idle]

    def record(self, *results: Finding) -> None:
        """See :meth:`DtDispatch.record`."""
        for result in results:
            kind = getattr(result, "kind", None)
            if kind not in KINDS:
                unknown = f"no kind of results is registered as {kind!r}"
                message = unknown if kind else f"{shown(result)} has no kind"
                valid = f"{', '.join(KINDS)}{nearest(kind, KINDS)}"
                raise MeasurementError(f"record(): {message}; valid: {valid}")
            check_finding(KINDS[result.kind], result)
        self._record(*results)

    def _record(self, *results: Finding) -> None:
        """Record valid results, and judge them."""
        for result in results:
            self._refuse_used(result.name, kind=result.kind)
            self.results.add(result)
        limits = self._settings.limits
        verdicts = [verdict for each in results for verdict in KINDS[each.kind].judge(each, limits)]
        self._add_verdicts(verdicts)

    # Captures

    def capture(self) -> AbstractContextManager[ResultStore]:
        """See :meth:`DtDispatch.capture`."""
        self._refuse("a capture")
        mode: AbstractContextManager[Any]
        if self._counts:
            mode = self._counted_region(f"capture {len(self._captures) + 1}", self._record_ops)
        else:
            from pytest_dtdispatch.replay.capture import SignatureCapture

            mode = SignatureCapture(self.results, self._plan, self._settings.ops)
        capture = OpenCapture(mode, self.results)
        self._captures.append(capture)
        return capture

    @contextmanager
    def whole_test(self) -> Iterator[None]:
        """Capture, count or time all ops in the thread of a test, and count the processes that it starts."""
        if self._settings.budget:
            from pytest_dtdispatch.budget.measure import budgeted_region

            with self._running("test", is_timed=True), budgeted_region("test", self._record_budget):
                yield
            return
        from pytest_dtdispatch.torchapi.patches import around_start

        def note_process(start: Callable[[Any], Any], process: Any) -> Any:
            self.results.uncaptured += Uncaptured(processes=1)
            return start(process)

        counts = self._settings.metric == "counts"
        processes = self._counting_processes() if counts else around_start(note_process)
        with processes, self.capture():
            yield

    def note(self, message: str) -> None:
        """Record a warning, which is printed with the results."""
        self.results.uncaptured += Uncaptured(notes=(message,))

    @contextmanager
    def _counting_processes(self) -> Iterator[None]:
        """Count in processes that the test starts; merge equal counts."""
        from pytest_dtdispatch.steps.measure import counting_in_processes

        with counting_in_processes() as processes:
            yield
            counted = dict(processes.found())
        self.results.uncaptured += Uncaptured(processes=processes.started - len(counted))
        for number, counts in counted.items():
            if next(first for first, others in counted.items() if others == counts) == number:
                self._record_ops(Steps(f"process {number}", (), (counts,)))

    # Calls and steps

    def _call(self, fn: Callable[..., T], args: tuple[Any, ...], name: str | None, setup: Setup | None) -> T:
        """Measure a call; in a run that counts, it is one step, and not repeated."""
        from pytest_dtdispatch.replay.repeat import run_and_measure_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches
        from pytest_dtdispatch.torchapi.tensors import group_backend

        name = self._begin("call", self._name_of(fn, name, "call"))
        if self._counts:
            arguments = call_arguments(args, setup)
            with self._counted_region(name, self._record):
                result = fn(*arguments)
                check_result("call", result)
                return result
        with self._measuring("call", name):
            result, mesh, figures = run_and_measure_call(fn, args, setup, ShardingCaches(), self._plan)
        self.results.enter_call(name, mesh, figures, group_backend(device_of(mesh)))
        return result

    def _steps(self, calls: StepCalls) -> Steps:
        from pytest_dtdispatch.steps.measure import run_and_count

        if self._settings.metric == "verify":
            with self._counted_region(calls.name, self._record):
                return calls.run_once()
        with self._counted(Steps.kind, calls.name):
            self._begin("steps", calls.name, kind=Steps.kind)
            self._sync(calls.name)
            with self._running(calls.name, is_timed=False), self._recording(calls.name):
                counted = run_and_count(calls, self._note)
        recorded = counted.warmup[-1] if counted.warmup else None
        counted = replace(counted, advice=advise(counted.steps, recorded))
        self._record(counted)
        return counted

    def _verify(self, step_fn: Callable[[], object], steps: int, name: str) -> Verified:
        from pytest_dtdispatch.torchapi.tensors import is_group_fake
        from pytest_dtdispatch.verify.mode import FLAGS

        self._begin("verify", name, kind=Verified.kind)
        if is_group_fake():
            raise MeasurementError(f"verify: collectives of a fake process group move no data: {FLAGS}")
        self._sync(name)
        with self._running(name, is_timed=False), self._verifying(name) as verifier:
            verifier.run_steps(step_fn, steps)
        verified = verifier.result(name, steps)
        self._record(verified)
        return verified

    def _budget(self, step_fn: Callable[[], object], warmup: int, steps: int, name: str) -> Budget:
        from pytest_dtdispatch.budget.measure import run_and_measure_budget

        if not self._is_timed:
            return replace(super()._budget(step_fn, warmup, steps, name), note=NOT_TIMED)
        self._begin("budget", name, kind=Budget.kind)
        self._sync(name)
        with self._running(name, is_timed=True):
            measured = run_and_measure_budget(step_fn, warmup, steps, name, self._plan.agreement)
        return self._record_budget(measured)

    def _record_budget(self, measured: MeasuredBudget) -> Budget:
        budget = with_advice(measured)
        self._record(budget)
        return budget

    # Scalings, compiles, comparisons

    def _scaling(
        self, make: Make, sizes: tuple[int, ...], name: str | None, max_exponent: float | None
    ) -> Scaling:
        from pytest_dtdispatch.replay.repeat import run_call
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches
        from pytest_dtdispatch.torchapi.tensors import group_backend

        if not self._is_timed:  # a limit that cannot be judged fails
            scaling = run_sizes(make, sizes, name)
            if max_exponent is not None:
                criterion = f"max_exponent={max_exponent:g}"
                self._add_verdicts([unjudged(RowId("", scaling.name), criterion, NOT_TIMED)])
            return scaling
        name = self._name_of(make, name, "scaling")
        self._begin("scaling", name, *(row_name(name, size) for size in sizes))
        with self._measuring("scaling", name):
            caches = ShardingCaches()
            run = partial(run_call, agreement=self._plan.agreement)
            measured, meshes = run_and_measure_sizes(run, make, sizes, caches, self._plan)
        for size, passes in measured.items():
            backend = group_backend(device_of(meshes[size]))
            self.results.enter_call(row_name(name, size), meshes[size], merge(passes), backend)
        scaling = fit_scaling(name, measured, max_exponent)
        self._record(scaling)
        return scaling

    def _compile(self, compilation: Compilation, name: str | None) -> Compiled:
        from pytest_dtdispatch.compiled.measure import run_and_measure_compile
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        settings, plan = self._settings, self._plan
        rounds = 1 if self._counts else settings.compile_rounds
        calls = 1 if self._counts else max(1, plan.rounds * plan.repeat // rounds)
        compiles = replace(plan, rounds=rounds, repeat=calls)
        name = self._begin("compile", self._name_of(compilation.fn, name, "compile"))
        with self._counted(CompiledFunction.kind, name), self._measuring("compile", name):
            compiled = run_and_measure_compile(compilation, name, ShardingCaches(), compiles)
        function = compiled.function
        if function:
            row = function.measurement
            if self._counts:  # no latencies
                row = replace(row, figures=Figures(row.figures.rounds, notes=row.figures.notes))
            self._record(replace(function, measurement=row))
        return compiled

    def _first_wrong(self, variants: Variants) -> str:
        """Run unequal variants again, and describe the first wrong op; return an empty string without one."""
        from pytest_dtdispatch.torchapi.tensors import is_group_fake

        for label, fn in variants.functions.items() if not is_group_fake() else ():
            with suppress(Exception), self._verifying(label) as verifier:
                fn()
            found = verifier.result(label).wrong_ops
            if found:
                return f"; the first wrong op of {label!r}: {found[0]}"
        return ""

    def _compare(self, requested: Variants) -> Compared:
        from pytest_dtdispatch.comparing.equality import call_variants
        from pytest_dtdispatch.comparing.measure import run_and_measure_variants
        from pytest_dtdispatch.torchapi.propagator import ShardingCaches

        def count(label: str, fn: Callable[[], Any]) -> Any:
            with self._counted_region(row_name(requested.name, label), self._record):
                return fn()

        rows = (row_name(requested.name, label) for label in requested.functions)
        self._begin("compare", requested.name, *rows)
        try:
            if self._is_timed:
                with self._measuring("compare", requested.name):
                    compared = run_and_measure_variants(requested, ShardingCaches(), self._plan)
            else:  # a claim that cannot be judged fails
                call_variants(requested, count if self._counts else None)
                labels, is_gate = tuple(requested.functions), self._settings.judges
                compared = Compared(requested.name, labels, reason=NOT_TIMED, is_gate=is_gate)
        except UnequalError as error:
            raise UnequalError(f"{error}{self._first_wrong(requested)}") from None
        self._record(*compared.variants)
        return compared

    # Checks

    def _begin(self, method: str, name: str, *rows: str, kind: str = CALLS) -> str:
        """Check that a measurement is possible now and that its name is unused; return the name."""
        self._refuse(f"{method}(name={name!r})")
        self._refuse_used(name, *rows, kind=kind)
        self._threads.setdefault(name, threading.current_thread())
        return name

    def _refuse(self, measurement: str) -> None:
        """Raise if a measurement in another thread, a step or a capture is running."""
        refuse_elsewhere()
        if self._step:
            raise MeasurementError(f"{measurement} inside {self._step}: move it out of the step")
        if any(capture.is_open for capture in self._captures):
            why = "inside a capture would be measured twice"
            raise MeasurementError(f"{measurement} {why}: close the capture first")

    def _refuse_used(self, *names: str, kind: str) -> None:
        if not self.results.names_beside(kind).isdisjoint(map(row_key, names)):
            current = threading.current_thread()
            first = self._threads.get(names[0], current)
            if first is not current:
                why = f"the name {names[0]!r} is used in thread {first.name!r}"
                remedy = "two threads would measure each other, so measure in one of them"
                raise MeasurementError(f"{why}: {remedy}")
            why = f"the name {names[0]!r} is used by another call of this test"
            raise MeasurementError(f"{why}: pass another name=")

    @contextmanager
    def _running(self, step: str, is_timed: bool) -> Iterator[None]:
        """Prevent other measurements while a step runs."""
        done, figures = ("timed", "times") if is_timed else ("counted", "counts")
        with MeasurementLock(f"the step {step!r} is {done}"):  # between its parts too
            self._step = f"{step!r}, which is being {done}, would change its {figures}"
            try:
                yield
            finally:
                self._step = ""

    def _measuring(self, method: str, name: str) -> MeasurementLock:
        """Synchronize with other ranks, and return a lock against measurements in other threads."""
        self._sync(name)
        return MeasurementLock(f"the {method} {name!r} is measured")

    def _note(self, trail: Trail) -> None:
        """Record what this rank ran, to compare it with other ranks."""
        if self._plan.agreement is not None:
            self._plan.agreement.note(trail)

    def _sync(self, name: str) -> None:
        if self._plan.agreement is not None:
            self._plan.agreement.sync(name)

    # Names and records

    def _name_of(self, fn: Callable[..., Any], name: str | None, method: str) -> str:
        """Return the name of a callable; a lambda is named after its test."""
        name = name or own_name(fn)
        return name if not name.startswith("<") else self.results.test.rpartition("::")[2] or method

    @contextmanager
    def _verifying(self, name: str) -> Iterator[Verifier]:
        """Compare the ops of a region; an error of the program has a note with the last op."""
        from pytest_dtdispatch.verify.mode import Verifier

        disagree = getattr(self._plan.agreement, "difference", None)
        verifier = Verifier(self.results, self._settings.ops, disagree)
        try:
            with self._counted(Verified.kind, name), verifier:
                yield verifier
        except Exception as error:
            verifier.annotate(error)
            raise

    @contextmanager
    def _counted_region(self, name: str, keep: Callable[[Any], None]) -> Iterator[None]:
        """Count or verify a region as one step, without a warm-up."""
        if self._settings.metric == "verify":
            with self._verifying(name) as verifier:
                yield
            keep(verifier.result(name))
            return
        from pytest_dtdispatch.steps.counter import StepCounter

        with self._counted(Steps.kind, name), self._recording(name), StepCounter(note=self._note) as counter:
            yield
            counts = counter.lap()
        keep(Steps(name, (), (counts,), advice=advise([counts])))

    def _record_ops(self, region: Steps | Verified) -> None:
        """Record a region, unless it ran no op on DTensors, as in most tests of a run."""
        if isinstance(region, Verified):
            has_run = region.calls > 0
        else:
            has_run = any(counts.calls or counts.events for counts in region.steps)
        if has_run:
            self._record(region)

    @contextmanager
    def _counted(self, kind: str, name: str) -> Iterator[None]:
        """Record a result as uncounted if its region raises, until a region of the same name succeeds."""
        self.results.uncounted.add((kind, name))
        yield
        self.results.uncounted.discard((kind, name))

    def _add_verdicts(self, verdicts: Sequence[RowVerdict]) -> None:
        """Add verdicts of limits. A failing one fails the test, even if the test catches the error.

        Raises:
            GateError: a limit is exceeded, or could not be judged.
        """
        for verdict in verdicts:
            check_written(verdict, RowVerdict, "record(): a verdict of judge")
        if not self._settings.judges:
            return
        test = self.results.test
        self.results.verdicts += [replace(each, row=RowId(test, each.row.label)) for each in verdicts]
        message = complaint(verdicts)
        if message:
            frame: FrameType = sys._getframe(1)  # then that of the test, which called this plugin
            while frame.f_back and (
                "__tracebackhide__" in frame.f_globals or frame.f_globals.get("__name__") == "contextlib"
            ):
                frame = frame.f_back
            error = GateError(message)
            error.at = TracebackType(None, frame, frame.f_lasti, frame.f_lineno)
            self.results.unraised.append(error)
            raise error

    @contextmanager
    def _recording(self, name: str) -> Iterator[None]:
        """Record a region with torch's profiler, if a trace is requested."""
        if not any(export.format == "trace" for export in self._settings.export):
            yield
            return
        from pytest_dtdispatch.torchapi.profiling import recording_trace

        with recording_trace(f"{self.results.test}: {name}", self.results.traces.append):
            yield
