"""Measure a function compiled by torch.compile: cold and warm compiles, calls, and torch's counters."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pytest_dtdispatch.compiled.model import Compilation, CompileCounts, Compiled, CompiledFunction
from pytest_dtdispatch.core.environment import tracers
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, State
from pytest_dtdispatch.core.signatures import device_of
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.errors import DtDispatchError, MeasurementError, first_line
from pytest_dtdispatch.replay.repeat import run_call, synchronizer
from pytest_dtdispatch.replay.replay import agreed_reason
from pytest_dtdispatch.replay.results import Snapshot
from pytest_dtdispatch.replay.results import difference as difference_of
from pytest_dtdispatch.replay.storages import NoCopyError
from pytest_dtdispatch.rounds.plan import WARMUP_HITS, Plan
from pytest_dtdispatch.rounds.signals import nothing_warned
from pytest_dtdispatch.rounds.timing import Series, Subject, gc_paused, samples_of, time_row
from pytest_dtdispatch.torchapi import compiler as compilerapi
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import group_backend, release_of, wait_for

__tracebackhide__ = True  # a test that fails here shows its own line

temporary_folder = partial(tempfile.TemporaryDirectory[str], prefix="dtdispatch-", ignore_cleanup_errors=True)


class TimedCompile(NamedTuple):
    """Figure of a compile, and numbers of its graphs and of hits and misses of caches of compiled code."""

    figure: int
    graphs: int
    hits: int
    misses: int

    @property
    def refusal(self) -> str:
        """Why calls of this program are refused; empty if they are not."""
        return "" if self.graphs else "no graph was compiled"


class CompileRounds:
    """Measurement of rounds of one function, and counts of its first cold compile.

    Args:
        compilation: the function and its options.
        subject: the uncompiled function.
        caches: sharding caches, and the caches that they depend on.
        plan: numbers of compiles and calls: each round has a cold compile, a warm one unless the sampler is
            exact, and ``repeat`` calls of the compiled and of the uncompiled function.
        folder: folder of the code caches of warm compiles; the rehearsal fills them.

    Attributes:
        counts: counts of the first cold compile.
        gave_up: why torch gave up compiling, in any round; empty if it did not.
    """

    def __init__(
        self, compilation: Compilation, subject: Subject, caches: ShardingCaches, plan: Plan, folder: str
    ) -> None:
        self.counts = CompileCounts()
        self.gave_up = ""
        self._compilation = compilation
        self._subject = subject
        self._caches = caches
        self._plan = plan
        self._folder = Path(folder)
        self._synchronize = synchronizer()
        self._compiled: Callable[..., Any] = subject.fn
        meter, unit = plan.sampler.meter, plan.sampler.unit
        compiling = replace(subject, fn=self._first_call)
        self._cold = Series(State.COMPILE_COLD, compiling, meter, unit)
        self._warm = Series(State.COMPILE_WARM, compiling, meter, unit)
        self._calls = Series(State.CALL, subject, meter, unit, WARMUP_HITS, plan.repeat)
        self._eager = Series(State.EAGER, subject, meter, unit, WARMUP_HITS, plan.repeat)
        self._compiles_before: list[Any] = []
        self._last_warm: TimedCompile | None = None
        self._rounds = 0

    def rehearse(self) -> tuple[Any, ...]:
        """Compile once and discard the time, which includes imports; fill the caches of warm compiles."""
        show_progress("compiling")
        try:
            with compilerapi.cache_folder(self._folder):
                self._forget()
                result = self._first_call(*self._subject.prepare())
                results = (result, *self._call_others())
        except Exception as error:
            graph_break = compilerapi.break_of(error)
            if not graph_break:
                raise
            raise MeasurementError(f"fullgraph=True, and there is a graph break at {graph_break}") from None
        wait_for(results)
        return results

    def run(self) -> Figures:
        """Measure all rounds; if one raises, return the figures so far with a note."""
        notes: tuple[str, ...] = ()
        try:
            with nothing_warned():  # the first compile has already warned
                for number in range(self._plan.rounds):
                    show_progress("compiling: round {} of {}", number + 1, self._plan.rounds)
                    self._measure_round()
                    self._rounds += 1
        except Exception as error:  # the first compile succeeded: hide this from the program
            notes = (f"repeating it raised {first_line(error)}",)
        warm = self._last_warm
        if warm is not None and not warm.hits and self._warm.values:
            lookups = f"{warm.misses} lookups were misses" if warm.misses else "there was no lookup"
            notes = (f"compile-warm: no hit in a cache of compiled code: {lookups}", *notes)
        if self.gave_up:
            uncompiled = "torch gave up compiling"
            notes = (f"{uncompiled}: {self.gave_up}", *notes)
            if self._calls.values or self._calls.refused:
                # Some calls ran uncompiled, but no counter identifies them.
                self._calls.refused[uncompiled] += len(self._calls.values)
                self._calls.values.clear()
        every = (self._calls, self._cold, self._warm, self._eager)
        return Figures(self._rounds, samples_of(every), notes, tracers=tracers())

    def _measure_round(self) -> None:
        """Compile cold, compile warm, and call the compiled and the uncompiled function."""
        caches, entries_left = self._caches, list[int]()
        with (
            temporary_folder() as folder,
            compilerapi.cache_folder(Path(folder)),
            compilerapi.caches_disabled(),
            caches.counting_uncached() as uncached,
        ):

            def forget_all() -> None:
                self._forget()
                caches.clear_all()
                uncached[0] = 0
                entries_left.append(caches.cold_entries())

            cold = self._compile(self._cold, forget_all)
            if not self._rounds:
                self._count(cold.graphs, uncached[0])
            reason = cold.refusal
            if not reason and cold.hits:
                reason = "a hit in a cache of compiled code"
            elif not reason and any(entries_left):
                reason = "a cache was not empty"
            self._cold.record(cold.figure, reason)
            if self._plan.sampler.is_exact:
                self._call_compiled(cold.refusal)
        if not self._plan.sampler.is_exact:
            with compilerapi.cache_folder(self._folder):
                self._last_warm = warm = self._compile(self._warm, self._forget)
                self._warm.record(warm.figure, warm.refusal)
                self._call_compiled(warm.refusal)
        self._record_calls(self._eager)

    def _forget(self) -> None:
        """Reset torch.compile."""
        torch.compiler.reset()
        self._compiles_before = compilerapi.compilations()

    def _first_call(self, *args: Any) -> Any:
        how = self._compilation
        self._compiled = torch.compile(
            how.fn, backend=how.backend, dynamic=how.dynamic, fullgraph=how.fullgraph
        )
        return self._compiled(*args)

    def _call_others(self) -> tuple[Any, ...]:
        return tuple(self._compiled(*other) for other in self._compilation.others)

    def _compile(self, series: Series, forget: Callable[[], None]) -> TimedCompile:
        """Time one compile, after forgetting others."""
        with gc_paused() as collect:

            def prepare() -> tuple[Any, ...]:
                args = self._subject.prepare()
                collect()
                forget()
                return args

            self._synchronize()
            timed = time_row(series.subject, series.meter, prepare, compilerapi.cache_lookups, series.calls)
        [(figure, _, before, after)] = timed
        graphs, hits, misses = (new - old for old, new in zip(before, after, strict=True))
        return TimedCompile(figure, graphs, hits, misses)

    def _count(self, graphs: int, uncached: int) -> None:
        """Count a compile, then call with the other arguments, and count recompiles."""
        *_, python = self._caches.readers()
        fake = compilerapi.fake_tensor_counts()
        counts = CompileCounts(
            graphs=graphs,
            graph_breaks=compilerapi.graph_breaks(),
            guards=compilerapi.guards_since(self._compiles_before),
            # The Python cache wraps the method of the propagator that was bound at start.
            propagations=uncached + python()[1],
            fake_tensor_hits=fake and fake.hits,
            fake_tensor_misses=fake and fake.misses,
        )
        wait_for(self._call_others())
        self.counts = replace(counts, recompiles=compilerapi.recompiles_since(self._compiles_before))
        self.gave_up = compilerapi.failure_since(self._compiles_before)

    def _call_compiled(self, refusal: str) -> None:
        """Call compiled code, and check that it runs compiled: no counter changes if torch gave up."""

        def call() -> None:
            result = self._compiled(*self._subject.prepare())
            if self._subject.release is not None:
                self._subject.release(result)

        before = self._compiles_before
        self._compiles_before = compilerapi.compilations()  # earlier ones were counted at the cold compile
        self._calls.subject = replace(self._subject, fn=self._compiled)
        self._record_calls(self._calls, refusal)
        if not self._rounds:
            cold, new = self.counts.recompiles, compilerapi.recompiles_since(self._compiles_before)
            recompiles = None if cold is None or new is None else cold + new
            self.counts = replace(self.counts, recompiles=recompiles)
        uncompiled = not refusal and compilerapi.runs_uncompiled(call)
        gave_up = compilerapi.failure_since(before)
        if not gave_up and uncompiled:
            gave_up = "a call runs uncompiled"
        self.gave_up = self.gave_up or gave_up

    def _record_calls(self, series: Series, refusal: str = "") -> None:
        """Time calls after a warm-up; refuse those that compile, or all of them for a reason."""
        subject, read = series.subject, compilerapi.graphs_compiled
        with gc_paused():
            for calls in (series.warmup, series.calls):
                self._synchronize()
                timed = time_row(subject, series.meter, subject.prepare, read, calls)
            for figure, _, before, after in timed:
                reason = "something was compiled" if after != before else ""
                series.record(figure, refusal or reason)


def _copy(label: str, results: tuple[Any, ...]) -> Snapshot | None:
    """Copy results; return None if they cannot be compared."""
    try:
        return Snapshot.of(label, results)
    except DtDispatchError:  # a tensor without contents, or of a class without plain memory
        return None


def _assert_close(actual: Any, expected: Any) -> None:
    """Check with torch's tolerances, wider for f32: compilers reorder sums and fuse multiplications."""
    is_single = getattr(expected, "dtype", None) in (torch.float32, torch.complex64)
    rtol, atol = (1e-4, 1e-5) if is_single else (None, None)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def run_and_measure_compile(
    compilation: Compilation, name: str, caches: ShardingCaches, plan: Plan
) -> Compiled:
    """Call a function for the program, uncompiled, then measure compiles and restore its effects."""
    backend, counts, gave_up, difference = compilation.backend, CompileCounts(), "", ""
    compilerapi.check_backend(backend)
    eager_results, ran = run_call(compilation.call_all, compilation.args, compilation.setup, plan.agreement)
    results, release = eager_results, release_of(eager_results)
    wait_for(eager_results)  # the program may never wait for them: this plugin requested the call
    reason = agreed_reason(plan.agreement, ran.replay.skip_reason)
    if reason is not None:
        figures = Figures(notes=(reason,))
    else:
        with ExitStack() as stack:
            prepare = stack.enter_context(ran.repeating(plan.one_thread))
            subject = Subject(compilation.fn, prepare, release=release)
            folder = stack.enter_context(temporary_folder())
            stack.enter_context(compilerapi.own_trace_alone())
            stack.callback(torch.compiler.reset)  # the program must not get our compiled code
            rounds = CompileRounds(compilation, subject, caches, plan, folder)
            try:
                is_random = ran.replay.random.has_advanced
                uncompiled = None if is_random else _copy("uncompiled", results)
                results = rounds.rehearse()
                compiled = _copy("compiled", results)
                if uncompiled is not None and compiled is not None:
                    difference = difference_of(uncompiled, compiled, _assert_close)
                figures = rounds.run()
                if ran.is_compiled:
                    note = "eager: the function itself runs compiled code"
                    figures = replace(figures, notes=(*figures.notes, note))
            except NoCopyError as error:  # another thread freed a tensor that the function writes to
                figures = Figures(notes=(str(error),))
            counts, gave_up = rounds.counts, rounds.gave_up
    group = group_backend(device_of(ran.mesh))
    measurement = Measurement(name, name, name, ran.mesh, Contains.COMPILED, 1, figures, group)
    backend_name = backend if isinstance(backend, str) else getattr(backend, "__name__", "custom")
    function = CompiledFunction(name, backend_name, counts, measurement, gave_up, difference)
    return Compiled(results, eager_results, function)
