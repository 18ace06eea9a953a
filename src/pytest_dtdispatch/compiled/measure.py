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
from pytest_dtdispatch.measuring.preconditions import Setup
from pytest_dtdispatch.measuring.repeating import nothing_warned, synchronizer
from pytest_dtdispatch.measuring.timing import Subject
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
        dynamic: as of torch.compile.
        fullgraph: as of torch.compile.
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

    def compiled(self) -> Callable[..., Any]:
        """Make the compiled function; its first call compiles."""
        made: Callable[..., Any] = torch.compile(
            self.fn, backend=self.backend, dynamic=self.dynamic, fullgraph=self.fullgraph
        )
        return made

    def run(self) -> tuple[tuple[Any, ...], RanCall]:
        """Make every call for the program, uncompiled."""
        __tracebackhide__ = True

        def every_call(*args: Any) -> tuple[Any, ...]:
            __tracebackhide__ = True
            return (self.fn(*args), *(self.fn(*other) for other in self.others))

        results, ran = run_call(every_call, self.args, self.setup)
        return results, ran


class TorchCompiler:
    """Compiles a function in one setting of the FakeTensor cache; counts what its first cold compile does.

    Attributes:
        counts: of the first cold compile, and recompiles of the first calls after a compile.
    """

    def __init__(
        self,
        compilation: Compilation,
        caches: ShardingCaches,
        fake_tensor_cache: bool | None,
        folder: Path,
    ) -> None:
        self.counts = CompileCounts()
        self._compilation = compilation
        self._caches = caches
        self._fake_tensor_cache = fake_tensor_cache
        self._folder = folder
        self._uncached = [0]
        self._graphs_before = 0
        self._compiles_before: list[Any] = []
        self._has_counted = False
        self._has_counted_calls = False

    def compile(self) -> Callable[..., Any]:
        """See :class:`Compiler`, as of every method here."""
        return self._compilation.compiled()

    @contextmanager
    def cold(self) -> Iterator[None]:
        """Use an empty folder, with caches switched off, and count propagations."""
        with ExitStack() as stack:
            enter = stack.enter_context
            folder = enter(tempfile.TemporaryDirectory(prefix="dtdispatch-", ignore_cleanup_errors=True))
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

    def look_ups(self) -> Sequence[int]:
        """Read torch's counters."""
        return compilerapi.look_ups()

    def graphs(self) -> int:
        """Read the counter of graphs."""
        return compilerapi.graphs_compiled()

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
        compiles = compilerapi.compilations_since(self._compiles_before)
        known = self.counts.recompiles
        if compiles is None or known is None:
            self.counts = replace(self.counts, recompiles=None)
            return
        self._compiles_before = compilerapi.compilations()
        new = (Recompile(*each) for each in compilerapi.recompiles_of(compiles))
        self.counts = replace(self.counts, recompiles=(*known, *new))


@dataclass(frozen=True)
class _Setting:
    name: str
    fake_tensor_cache: bool | None
    compiler: TorchCompiler
    rounds: CompileRounds


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
    if ran.once:
        figures = Figures(notes=(ran.once,))
        variant = _variant(compilation, name, name, None, CompileCounts(), ran.place, figures)
        return Compiled(name, eager_results, eager_results, (variant,))
    with ExitStack() as stack:
        prepare = stack.enter_context(ran.repeating())
        folder = stack.enter_context(_folder())
        stack.callback(compilerapi.reset)  # what was compiled for us must not answer the program
        subject = Subject(compilation.fn, prepare, release=release)
        settings = [
            _setting(compilation, name, subject, caches, plan, Path(folder, str(is_on)), is_on)
            for is_on in plan.fake_tensor_cache or (None,)
        ]
        results = _rehearse(settings)
        note = _take_rounds(settings, plan.rounds)
        variants = tuple(
            _variant(
                compilation,
                name,
                setting.name,
                setting.fake_tensor_cache,
                setting.compiler.counts,
                ran.place,
                _noted(setting.rounds.figures(), note),
            )
            for setting in settings
        )
    return Compiled(name, results, eager_results, variants)


def _folder() -> AbstractContextManager[str]:
    return tempfile.TemporaryDirectory(prefix="dtdispatch-", ignore_cleanup_errors=True)


def _setting(
    compilation: Compilation,
    name: str,
    subject: Subject,
    caches: ShardingCaches,
    plan: CompilePlan,
    folder: Path,
    fake_tensor_cache: bool | None,
) -> _Setting:
    folder.mkdir()
    compiler = TorchCompiler(compilation, caches, fake_tensor_cache, folder)
    is_one_of_several = len(plan.fake_tensor_cache) > 1 and fake_tensor_cache is not None
    return _Setting(
        variant_name(name, bool(fake_tensor_cache)) if is_one_of_several else name,
        fake_tensor_cache,
        compiler,
        CompileRounds(compiler, subject, plan, synchronize=synchronizer()),
    )


def _rehearse(settings: Sequence[_Setting]) -> tuple[Any, ...]:
    """Compile in each setting for the first time; what goes wrong here is told to the program."""
    __tracebackhide__ = True
    try:
        first, *others = [setting.rounds.rehearse() for setting in settings]
    except Exception as error:
        graph_break = compilerapi.break_of(error)
        if graph_break is None:
            raise
        raise CompileError(
            f"fullgraph=True, and there is a graph break at {GraphBreak(*graph_break)}"
        ) from None
    wait_for((first, others))
    return first


def _take_rounds(settings: Sequence[_Setting], rounds: int) -> str:
    """Take rounds of every setting in turn, and say what ended them early."""
    try:
        with nothing_warned():  # the first compile has warned of what there is to warn of
            for number in range(rounds):
                for setting in settings if number % 2 == 0 else settings[::-1]:
                    setting.rounds.take_round()
    except Exception as error:  # the first compile succeeded: the program must not see this
        return f"repeating it raised {first_line(error)}"
    return ""


def _noted(figures: Figures, note: str) -> Figures:
    return replace(figures, notes=(*figures.notes, note)) if note else figures


def _variant(
    compilation: Compilation,
    base_name: str,
    name: str,
    fake_tensor_cache: bool | None,
    counts: CompileCounts,
    place: str,
    figures: Figures,
) -> CompiledVariant:
    measurement = Measurement(name, name, base_name, place, Contains.COMPILED, 1, figures)
    return CompiledVariant(name, base_name, compilation.backend_name, fake_tensor_cache, counts, measurement)
