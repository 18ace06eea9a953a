"""A function compiled by torch.compile: cold and warm compiles, calls, and the same call uncompiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from pytest_dtdispatch.compiled.compile_rounds import CompileRounds, TorchCompiler, temporary_folder
from pytest_dtdispatch.compiled.model import (
    Compilation,
    CompileCounts,
    Compiled,
    CompiledVariant,
    CompilePlan,
    GraphBreak,
    variant_name,
)
from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement
from pytest_dtdispatch.errors import CompileError, first_line
from pytest_dtdispatch.measuring.calls import run_call
from pytest_dtdispatch.measuring.repeating import nothing_warned, synchronizer
from pytest_dtdispatch.measuring.timing import Subject
from pytest_dtdispatch.torchapi import compiler as compilerapi
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import release_of, wait_for


def run_and_measure_compile(
    compilation: Compilation, name: str, caches: ShardingCaches, plan: CompilePlan
) -> Compiled:
    """Call a function for the program, uncompiled; then compile it again and again, and measure that.

    What the program's own call left behind is left behind.
    """
    __tracebackhide__ = True
    backend = compilation.backend or plan.backend
    compilation = replace(compilation, backend=backend)
    _check_backend(backend)
    eager_results, ran = run_call(compilation.call_all, compilation.args, compilation.setup)
    release = release_of(eager_results)
    wait_for(eager_results)  # nobody need look at them: without us they would not have been made

    def variant(is_on: bool | None, counts: CompileCounts, figures: Figures) -> CompiledVariant:
        is_one_of_several = is_on is not None and len(plan.fake_tensor_cache) > 1
        own = variant_name(name, bool(is_on)) if is_one_of_several else name
        measurement = Measurement(own, own, name, ran.place, Contains.COMPILED, 1, figures)
        backend_name = backend if isinstance(backend, str) else getattr(backend, "__name__", "custom")
        return CompiledVariant(own, name, backend_name, is_on, counts, measurement)

    if ran.once:
        only = variant(None, CompileCounts(), Figures(notes=(ran.once,)))
        return Compiled(name, eager_results, eager_results, (only,))
    with ExitStack() as stack:
        prepare = stack.enter_context(ran.repeating())
        folder = stack.enter_context(temporary_folder())
        stack.callback(compilerapi.reset)  # what was compiled for us must not answer the program
        settings = plan.fake_tensor_cache or (None,)
        compilers = [TorchCompiler(compilation, caches, is_on, folder) for is_on in settings]
        subject = Subject(compilation.fn, prepare, release=release)
        rounds = [CompileRounds(compiler, subject, plan, synchronizer()) for compiler in compilers]
        results = _rehearse(rounds)
        notes = _take_rounds(rounds, plan.rounds)
    variants = (
        variant(is_on, compiler.counts, each.figures(*notes))
        for is_on, compiler, each in zip(settings, compilers, rounds, strict=True)
    )
    return Compiled(name, results, eager_results, tuple(variants))


def _check_backend(backend: str | Callable[..., Any]) -> None:
    """Look whether a backend is there."""
    __tracebackhide__ = True
    if isinstance(backend, str) and backend not in compilerapi.backends():
        raise CompileError(
            f"backend={backend!r} is none of torch.compile's: {', '.join(compilerapi.backends())}"
        )
    if backend == "inductor" and not torch.cuda.is_initialized():
        compilerapi.check_cpp_compiler()


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
