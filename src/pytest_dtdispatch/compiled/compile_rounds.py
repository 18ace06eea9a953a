"""Rounds of compiles: cold, warm, then calls; and what torch's counters prove of each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pytest_dtdispatch.compiled.model import Compilation, CompileCounts, CompilePlan, GraphBreak, Recompile
from pytest_dtdispatch.core.measurement import Figures, State
from pytest_dtdispatch.measuring.plan import WARMUP_HITS
from pytest_dtdispatch.measuring.timing import (
    SampleRecorder,
    Subject,
    gc_paused,
    nothing_to_do,
    time_row,
)
from pytest_dtdispatch.torchapi import compiler as compilerapi
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import wait_for

NO_GRAPH = "no graph was compiled"
FROM_CACHE = "a cache of compiled code answered"
NOT_EMPTY = "a cache was not empty"
COMPILED_AGAIN = "something was compiled"


def temporary_folder() -> AbstractContextManager[str]:
    """Give a folder for a while."""
    return tempfile.TemporaryDirectory(prefix="dtdispatch-", ignore_cleanup_errors=True)


class TorchCompiler:
    """Compiles a function in one setting of the FakeTensor cache, and tells what torch counted.

    Attributes:
        counts: of the first cold compile, and recompiles of the first calls after a compile.
    """

    look_ups = staticmethod(compilerapi.look_ups)
    graphs = staticmethod(compilerapi.graphs_compiled)

    def __init__(
        self, compilation: Compilation, caches: ShardingCaches, fake_tensor_cache: bool | None, folder: str
    ) -> None:
        self.counts = CompileCounts()
        self._compilation = compilation
        self._caches = caches
        self._fake_tensor_cache = fake_tensor_cache
        self._folder = Path(folder, str(fake_tensor_cache))
        self._folder.mkdir()
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
            compilerapi.fake_tensor_cache(self._fake_tensor_cache),
            compilerapi.cache_folder(Path(folder)),
            compilerapi.caches_disabled(),
            self._caches.counting_uncached() as self._uncached,
        ):
            yield

    @contextmanager
    def warm(self) -> Iterator[None]:
        """Use the run's own folder, which the first compile fills, with caches as the user set them."""
        with compilerapi.fake_tensor_cache(self._fake_tensor_cache), compilerapi.cache_folder(self._folder):
            yield

    def forget(self) -> None:
        """Forget compiled programs."""
        compilerapi.reset()
        self.begin_calls()

    def forget_all(self) -> bool:
        """Forget compiled programs, and empty the caches of sharding propagation and of FakeTensors."""
        self.forget()
        self._caches.clear_all()
        self._uncached[0] = 0
        self._graphs_before = self.graphs()
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
            graphs=self.graphs() - self._graphs_before,
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
    """Take rounds of one function in one setting."""

    def __init__(
        self,
        compiler: TorchCompiler,
        subject: Subject,
        plan: CompilePlan,
        synchronize: Callable[[], None] = nothing_to_do,
    ) -> None:
        self._compiler = compiler
        self._subject = subject
        self._plan = plan
        self._meter = plan.sampler.meter
        self._synchronize = synchronize
        self._compiled: Callable[..., Any] = subject.fn
        self._recorder = SampleRecorder(plan.sampler.unit)
        self._why_no_program = NO_GRAPH
        self._warm_look_ups = (0, 0)
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
        with self._compiler.cold():
            self._cold()
            if self._plan.sampler.is_exact:
                self._compiled_calls()
        if not self._plan.sampler.is_exact:
            with self._compiler.warm():
                self._warm()
                self._compiled_calls()
        self._calls(State.EAGER, self._subject.fn)
        self._rounds += 1

    def figures(self, *notes: str) -> Figures:
        """What the rounds gave."""
        return Figures(self._rounds, self._recorder.samples(), (*self._warm_notes(), *notes))

    def _first_call(self, *args: Any) -> Any:
        __tracebackhide__ = True
        self._compiled = self._compiler.compile()
        return self._compiled(*args)

    def _cold(self) -> None:
        emptied: list[bool] = []
        figure, (graphs, hits, _) = self._compile(lambda: emptied.append(self._compiler.forget_all()))
        if not self._rounds:
            self._compiler.note_cold(self._compiled)
        why_not = NO_GRAPH if not graphs else FROM_CACHE if hits else "" if emptied[0] else NOT_EMPTY
        self._recorder.record(State.COMPILE_COLD, figure, why_not)

    def _warm(self) -> None:
        figure, (graphs, hits, misses) = self._compile(self._compiler.forget)
        self._recorder.record(State.COMPILE_WARM, figure, "" if graphs else NO_GRAPH)
        self._warm_look_ups = (hits, misses)

    def _compile(self, forget: Callable[[], None]) -> tuple[int, tuple[int, int, int]]:
        """Time one compile, and tell how far torch's counters moved."""
        with gc_paused() as collect:

            def prepare() -> tuple[Any, ...]:
                args = self._subject.prepare()
                collect()
                forget()
                return args

            self._synchronize()
            subject = replace(self._subject, fn=self._first_call)
            row = subject.row(self._meter, prepare, self._compiler.look_ups, 1)
            [(figure, before, after)] = time_row(row)
        graphs, hits, misses = (new - old for old, new in zip(before, after, strict=True))
        self._why_no_program = "" if graphs else NO_GRAPH
        return figure, (graphs, hits, misses)

    def _compiled_calls(self) -> None:
        self._compiler.begin_calls()
        self._calls(State.CALL, self._compiled, self._why_no_program)
        if not self._rounds:
            self._compiler.note_calls()

    def _calls(self, state: State, fn: Callable[..., Any], why_not: str = "") -> None:
        def read() -> tuple[int]:
            return (self._compiler.graphs(),)

        subject = replace(self._subject, fn=fn)
        with gc_paused():
            for calls in (WARMUP_HITS, self._plan.calls):
                self._synchronize()
                timed = time_row(subject.row(self._meter, subject.prepare, read, calls))
            for figure, before, after in timed:
                self._recorder.record(state, figure, why_not or (COMPILED_AGAIN if after != before else ""))

    def _warm_notes(self) -> tuple[str, ...]:
        hits, misses = self._warm_look_ups
        if hits or not self._recorder.recorded(State.COMPILE_WARM):
            return ()
        asked = f"{misses} look-ups found nothing" if misses else "none was asked"
        return (f"compile-warm: no cache of compiled code answered: {asked}",)
