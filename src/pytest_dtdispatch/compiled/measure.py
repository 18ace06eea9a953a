"""A function compiled by torch.compile: cold and warm compiles, calls, and what torch's counters prove."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pytest_dtdispatch.compiled.model import (
    Compilation,
    CompileCounts,
    Compiled,
    CompiledFunction,
    CompilePlan,
    GraphBreak,
    Recompile,
)
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, State
from pytest_dtdispatch.core.text import tell
from pytest_dtdispatch.errors import CompileError, first_line
from pytest_dtdispatch.measuring.plan import WARMUP_HITS
from pytest_dtdispatch.measuring.repeat import run_call, synchronizer
from pytest_dtdispatch.measuring.replay import NoCopyError
from pytest_dtdispatch.measuring.rounds import SampleRecorder, Subject, gc_paused, samples_of, time_row
from pytest_dtdispatch.measuring.signals import nothing_warned
from pytest_dtdispatch.torchapi import compiler as compilerapi
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import release_of, wait_for

NO_GRAPH = "no graph was compiled"
FROM_CACHE = "a cache of compiled code answered"
NOT_EMPTY = "a cache was not empty"
COMPILED_AGAIN = "something was compiled"
temporary_folder = partial(tempfile.TemporaryDirectory[str], prefix="dtdispatch-", ignore_cleanup_errors=True)


class TorchCompiler:
    """Compiles, and counts what the first cold compile did."""

    look_ups = staticmethod(compilerapi.look_ups)
    graphs = staticmethod(compilerapi.graphs_compiled)

    def __init__(self, compilation: Compilation, caches: ShardingCaches, folder: str) -> None:
        self.counts = CompileCounts()
        self._compilation = compilation
        self._caches = caches
        self._folder = Path(folder)
        self._uncached = [0]
        self._graphs_before = 0
        self._compiles_before: list[Any] = []

    def compile(self) -> Callable[..., Any]:
        """Make the compiled function; its first call compiles."""
        how = self._compilation
        return torch.compile(how.fn, backend=how.backend, dynamic=how.dynamic, fullgraph=how.fullgraph)

    @contextmanager
    def cold(self) -> Iterator[None]:
        """Use an empty folder, with caches switched off, and count propagations."""
        with (
            temporary_folder() as folder,
            compilerapi.cache_folder(Path(folder)),
            compilerapi.caches_disabled(),
            self._caches.counting_uncached() as self._uncached,
        ):
            yield

    @contextmanager
    def warm(self) -> Iterator[None]:
        """Use the run's own folder, which the first compile fills, with caches as the user set them."""
        with compilerapi.cache_folder(self._folder):
            yield

    def forget(self) -> None:
        """Forget compiled programs."""
        torch.compiler.reset()
        self.begin_calls()

    def forget_all(self) -> bool:
        """Forget compiled programs, and empty the caches of sharding propagation and of FakeTensors."""
        self.forget()
        self._caches.clear_all()
        self._uncached[0] = 0
        [self._graphs_before] = self.graphs()
        return not self._caches.cold_entries()

    def note_cold(self, compiled: Callable[..., Any]) -> None:
        """Count what the compile did, then call with the other arguments, and count their recompiles."""
        self.counts = self._counted()
        wait_for(self.call_others(compiled))
        self.note_calls()

    def begin_calls(self) -> None:
        """Leave out what is compiled by now: it was counted at the cold compile."""
        self._compiles_before = compilerapi.compilations()

    def call_others(self, compiled: Callable[..., Any]) -> tuple[Any, ...]:
        """Call with the other arguments."""
        __tracebackhide__ = True
        return tuple(compiled(*other) for other in self._compilation.others)

    def _counted(self) -> CompileCounts:
        *_, python = self._caches.readers()
        compiles = compilerapi.compilations_since(self._compiles_before)
        fake = compilerapi.fake_tensor_counts()
        breaks = compilerapi.graph_breaks()
        return CompileCounts(
            graphs=self.graphs()[0] - self._graphs_before,
            graph_breaks=None if breaks is None else tuple(GraphBreak(*each) for each in breaks),
            guards=None if compiles is None else compilerapi.guards_of(compiles),
            recompiles=None if compiles is None else (),
            # The Python cache holds the propagator's entry as it was bound at start.
            propagations=self._uncached[0] + python()[1],
            sharding_misses=sum(read()[1] for read in self._caches.readers()),
            fake_tensor_hits=fake and fake.hits,
            fake_tensor_misses=fake and fake.misses,
            fake_tensor_bypasses=fake and fake.bypasses,
        )

    def note_calls(self) -> None:
        """Count recompiles of the calls since."""
        compiles, known = compilerapi.compilations_since(self._compiles_before), self.counts.recompiles
        recompiles = None
        if compiles is not None and known is not None:
            recompiles = (*known, *(Recompile(*each) for each in compilerapi.recompiles_of(compiles)))
        self.counts = replace(self.counts, recompiles=recompiles)


class CompileRounds:
    """Take rounds of one function."""

    def __init__(self, compiler: TorchCompiler, subject: Subject, plan: CompilePlan) -> None:
        self._compiler = compiler
        self._subject = subject
        self._plan = plan
        self._synchronize = synchronizer()
        self._compiled: Callable[..., Any] = subject.fn
        self._recorder = SampleRecorder(plan.sampler.unit)
        self._why_no_program = NO_GRAPH
        self._warm_look_ups = [0, 0]
        self._rounds = 0

    def rehearse(self) -> tuple[Any, ...]:
        """Compile once and discard the figure: it pays for imports, and fills the caches of warm compiles."""
        __tracebackhide__ = True
        with self._compiler.warm():
            self._compiler.forget()
            result = self._first_call(*self._subject.prepare())
            return (result, *self._compiler.call_others(self._compiled))

    def take_round(self) -> None:
        """Compile cold, compile warm, call."""
        emptied: list[bool] = []
        with self._compiler.cold():
            figure, hits, _ = self._compile(lambda: emptied.append(self._compiler.forget_all()))
            if not self._rounds:
                self._compiler.note_cold(self._compiled)
            was_filled = FROM_CACHE if hits else "" if emptied[0] else NOT_EMPTY
            self._recorder.record(State.COMPILE_COLD, figure, self._why_no_program or was_filled)
            if self._plan.sampler.is_exact:
                self._compiled_calls()
        if not self._plan.sampler.is_exact:
            with self._compiler.warm():
                figure, *self._warm_look_ups = self._compile(self._compiler.forget)
                self._recorder.record(State.COMPILE_WARM, figure, self._why_no_program)
                self._compiled_calls()
        self._calls(State.EAGER, self._subject.fn)
        self._rounds += 1

    def figures(self, *notes: str) -> Figures:
        """What the rounds gave."""
        hits, misses = self._warm_look_ups
        if not hits and self._recorder.recorded(State.COMPILE_WARM):
            asked = f"{misses} look-ups found nothing" if misses else "none was asked"
            notes = (f"compile-warm: no cache of compiled code answered: {asked}", *notes)
        return Figures(self._rounds, samples_of(self._recorder), notes)

    def _first_call(self, *args: Any) -> Any:
        __tracebackhide__ = True
        self._compiled = self._compiler.compile()
        return self._compiled(*args)

    def _compile(self, forget: Callable[[], None]) -> tuple[int, int, int]:
        """Time one compile, and tell what caches of compiled code answered, and did not."""
        with gc_paused() as collect:

            def prepare() -> tuple[Any, ...]:
                args = self._subject.prepare()
                collect()
                forget()
                return args

            self._synchronize()
            subject = replace(self._subject, fn=self._first_call)
            look_ups = self._compiler.look_ups
            [(figure, before, after)] = time_row(subject, self._plan.sampler.meter, prepare, look_ups, 1)
        graphs, hits, misses = (new - old for old, new in zip(before, after, strict=True))
        self._why_no_program = "" if graphs else NO_GRAPH
        return figure, hits, misses

    def _compiled_calls(self) -> None:
        self._compiler.begin_calls()
        self._calls(State.CALL, self._compiled, self._why_no_program)
        if not self._rounds:
            self._compiler.note_calls()

    def _calls(self, state: State, fn: Callable[..., Any], why_not: str = "") -> None:
        subject = replace(self._subject, fn=fn)
        with gc_paused():
            for calls in (WARMUP_HITS, self._plan.calls):
                self._synchronize()
                meter, graphs = self._plan.sampler.meter, self._compiler.graphs
                timed = time_row(subject, meter, subject.prepare, graphs, calls)
            for figure, before, after in timed:
                self._recorder.record(state, figure, why_not or COMPILED_AGAIN * (after != before))


def run_and_measure_compile(
    compilation: Compilation, name: str, caches: ShardingCaches, plan: CompilePlan
) -> Compiled:
    """Call a function for the program, uncompiled, then measure compiles; leave what its own call left."""
    __tracebackhide__ = True
    backend = compilation.backend or plan.backend
    compilation = replace(compilation, backend=backend)
    compilerapi.check_backend(backend)
    eager_results, ran = run_call(compilation.call_all, compilation.args, compilation.setup)
    release = release_of(eager_results)
    wait_for(eager_results)  # nobody need look at them: without us they would not have been made

    def compiled(results: tuple[Any, ...], counts: CompileCounts, figures: Figures) -> Compiled:
        measurement = Measurement(name, name, name, ran.place, Contains.COMPILED, 1, figures)
        backend_name = backend if isinstance(backend, str) else getattr(backend, "__name__", "custom")
        return Compiled(results, eager_results, CompiledFunction(name, backend_name, counts, measurement))

    def not_compiled(why: str) -> Compiled:
        return compiled(eager_results, CompileCounts(), Figures(notes=(why,)))

    if ran.why_not_repeatable:
        return not_compiled(ran.why_not_repeatable)
    with ExitStack() as stack:
        prepare = stack.enter_context(ran.repeating(plan.one_thread))
        subject = Subject(compilation.fn, prepare, release=release)
        compiler = TorchCompiler(compilation, caches, stack.enter_context(temporary_folder()))
        stack.callback(torch.compiler.reset)  # what was compiled for us must not answer the program
        rounds = CompileRounds(compiler, subject, plan)
        try:
            results = _rehearse(rounds)
        except NoCopyError as error:  # another thread freed what the function writes to
            return not_compiled(str(error))
        notes = _take_rounds(rounds, plan.rounds)
    return compiled(results, compiler.counts, rounds.figures(*notes))


def _rehearse(rounds: CompileRounds) -> tuple[Any, ...]:
    """Compile for the first time; what goes wrong here is told to the program."""
    __tracebackhide__ = True
    try:
        tell("compiling")
        results = rounds.rehearse()
    except Exception as error:
        place = compilerapi.break_of(error)
        if place is None:
            raise
        raise CompileError(f"fullgraph=True, and there is a graph break at {GraphBreak(*place)}") from None
    wait_for(results)
    return results


def _take_rounds(rounds: CompileRounds, count: int) -> tuple[str, ...]:
    """Take rounds, and note what ended them early."""
    try:
        with nothing_warned():  # the first compile has warned of what there is to warn of
            for number in range(count):
                tell("compiling: round {} of {}", number + 1, count)
                rounds.take_round()
    except Exception as error:  # the first compile succeeded: the program must not see this
        return (f"repeating it raised {first_line(error)}",)
    return ()
