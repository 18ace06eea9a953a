"""A function compiled by torch.compile: cold and warm compiles, calls, and the same call uncompiled."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pytest_dtdispatch.compiled.compile_rounds import CompilePlan, CompileRounds
from pytest_dtdispatch.compiled.model import (
    CompileCounts,
    Compiled,
    CompiledVariant,
    GraphBreak,
    Recompile,
    variant_name,
)
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement
from pytest_dtdispatch.errors import CompileError, first_line
from pytest_dtdispatch.measuring.calls import RanCall, run_call
from pytest_dtdispatch.measuring.interrupts import nothing_warned
from pytest_dtdispatch.measuring.preconditions import Setup
from pytest_dtdispatch.measuring.repeating import synchronizer
from pytest_dtdispatch.measuring.rounds import Subject
from pytest_dtdispatch.torchapi import compiler as compilerapi
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import release_of, wait_for


@dataclass(frozen=True)
class Compilation:
    """What is compiled, and how.

    Args:
        fn: the function.
        args: of its first call.
        others: arguments of further calls, a tuple each.
        setup: called before each call; what it returns, if anything, are the arguments.
        backend: of torch.compile: a name, or a function that compiles a graph.
        dynamic: as torch.compile takes it.
        fullgraph: as torch.compile takes it.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    others: Sequence[tuple[Any, ...]] = ()
    setup: Setup | None = None
    backend: str | Callable[..., Any] = "inductor"
    dynamic: bool | None = None
    fullgraph: bool = True

    @property
    def backend_name(self) -> str:
        """Name of the backend."""
        return self.backend if isinstance(self.backend, str) else getattr(self.backend, "__name__", "custom")

    def check(self) -> None:
        """Look whether the backend is there."""
        __tracebackhide__ = True
        if isinstance(self.backend, str) and self.backend not in compilerapi.backends():
            valid = ", ".join(compilerapi.backends())
            raise CompileError(f"backend={self.backend!r} is none of torch.compile's: {valid}")
        if self.backend == "inductor" and not torch.cuda.is_initialized():
            compilerapi.check_cpp_compiler()

    def run(self) -> tuple[tuple[Any, ...], RanCall]:
        """Make every call for the program, uncompiled."""
        __tracebackhide__ = True

        def every_call(*args: Any) -> tuple[Any, ...]:
            __tracebackhide__ = True
            return (self.fn(*args), *(self.fn(*other) for other in self.others))

        return run_call(every_call, self.args, self.setup)


class TorchCompiler:
    """Compiles a function in one setting of the FakeTensor cache; see :class:`Compiler` for its methods.

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
        self._has_counted = False
        self._has_counted_calls = False

    def compile(self) -> Callable[..., Any]:
        """Make the compiled function; its first call compiles."""
        how = self._compilation
        made: Callable[..., Any] = torch.compile(
            how.fn, backend=how.backend, dynamic=how.dynamic, fullgraph=how.fullgraph
        )
        return made

    @contextmanager
    def cold(self) -> Iterator[None]:
        """Use an empty folder, with caches switched off, and count propagations."""
        with ExitStack() as stack:
            enter = stack.enter_context
            folder = enter(_temporary_folder())
            enter(compilerapi.fake_tensor_cache(self._fake_tensor_cache))
            enter(compilerapi.cache_folder(Path(folder)))
            enter(compilerapi.caches_disabled())
            self._uncached = enter(self._caches.counting_uncached())
            yield

    @contextmanager
    def warm(self) -> Iterator[None]:
        """Use the run's own folder, which the first compile fills, with caches as the user set them."""
        with compilerapi.fake_tensor_cache(self._fake_tensor_cache), compilerapi.cache_folder(self._folder):
            yield

    def forget(self) -> None:
        """Forget compiled programs."""
        compilerapi.reset()
        self._compiles_before = compilerapi.compilations()

    def forget_all(self) -> bool:
        """Forget compiled programs, and empty the caches of sharding propagation and of FakeTensors."""
        self.forget()
        self._caches.clear_all()
        self._uncached[0] = 0
        self._graphs_before = self.graphs()
        return not self._caches.cold_entries()

    def note_cold(self, compiled: Callable[..., Any]) -> None:
        """Count what the compile did, then call with the other arguments, and count their recompiles."""
        if self._has_counted:
            return
        self._has_counted = True
        self.counts = self._counted()
        wait_for(self.call_others(compiled))
        self._add_recompiles()

    def begin_calls(self) -> None:
        """Leave out what is compiled by now: it was counted at the cold compile."""
        self._compiles_before = compilerapi.compilations()

    def note_calls(self) -> None:
        """Count recompiles of the first calls after a compile."""
        if not self._has_counted_calls:
            self._has_counted_calls = True
            self._add_recompiles()

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

    def _add_recompiles(self) -> None:
        compiles, known = compilerapi.compilations_since(self._compiles_before), self.counts.recompiles
        recompiles = None
        if compiles is not None and known is not None:
            recompiles = (*known, *(Recompile(*each) for each in compilerapi.recompiles_of(compiles)))
        self.counts = replace(self.counts, recompiles=recompiles)


def run_and_measure_compile(
    compilation: Compilation, name: str, caches: ShardingCaches, plan: CompilePlan
) -> Compiled:
    """Call a function for the program, uncompiled; then compile it again and again, and measure that.

    What the program's own call left behind is left behind.
    """
    __tracebackhide__ = True
    compilation.check()
    eager_results, ran = compilation.run()
    release = release_of(eager_results)
    wait_for(eager_results)  # nobody need look at them: without us they would not have been made

    def variant(is_on: bool | None, counts: CompileCounts, figures: Figures) -> CompiledVariant:
        is_one_of_several = is_on is not None and len(plan.fake_tensor_cache) > 1
        own = variant_name(name, bool(is_on)) if is_one_of_several else name
        measurement = Measurement(own, own, name, ran.place, Contains.COMPILED, 1, figures)
        return CompiledVariant(own, name, compilation.backend_name, is_on, counts, measurement)

    if ran.once:
        only = variant(None, CompileCounts(), Figures(notes=(ran.once,)))
        return Compiled(name, eager_results, eager_results, (only,))
    with ExitStack() as stack:
        prepare = stack.enter_context(ran.repeating())
        folder = stack.enter_context(_temporary_folder())
        stack.callback(compilerapi.reset)  # what was compiled for us must not answer the program
        settings = {
            is_on: TorchCompiler(compilation, caches, is_on, folder)
            for is_on in plan.fake_tensor_cache or (None,)
        }
        subject = Subject(compilation.fn, prepare, release=release)
        rounds = [CompileRounds(compiler, subject, plan, synchronizer()) for compiler in settings.values()]
        results = _rehearse(rounds)
        notes = _take_rounds(rounds, plan.rounds)
        taken = zip(settings.items(), (each.figures() for each in rounds), strict=True)
        variants = tuple(
            variant(is_on, compiler.counts, replace(figures, notes=(*figures.notes, *notes)))
            for (is_on, compiler), figures in taken
        )
    return Compiled(name, results, eager_results, variants)


def _temporary_folder() -> AbstractContextManager[str]:
    return tempfile.TemporaryDirectory(prefix="dtdispatch-", ignore_cleanup_errors=True)


def _rehearse(settings: Sequence[CompileRounds]) -> tuple[Any, ...]:
    """Compile in each setting for the first time; what goes wrong here is told to the program."""
    __tracebackhide__ = True
    try:
        first, *others = [rounds.rehearse() for rounds in settings]
    except Exception as error:
        graph_break = compilerapi.break_of(error)
        if graph_break is None:
            raise
        raise CompileError(
            f"fullgraph=True, and there is a graph break at {GraphBreak(*graph_break)}"
        ) from None
    wait_for((first, others))
    return first


def _take_rounds(settings: Sequence[CompileRounds], count: int) -> tuple[str, ...]:
    """Take rounds of every setting in turn, and note what ended them early."""
    try:
        with nothing_warned():  # the first compile has warned of what there is to warn of
            for number in range(count):
                for rounds in settings if number % 2 == 0 else settings[::-1]:
                    rounds.take_round()
    except Exception as error:  # the first compile succeeded: the program must not see this
        return (f"repeating it raised {first_line(error)}",)
    return ()
