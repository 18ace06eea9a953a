"""Torch's compiler: its caches, its counters, what it says of graph breaks and recompiles.

What an older torch lacks is None, and is reported as not counted.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pytest_dtdispatch.core.environment import environment_with
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.profiling import is_profiling, profiling

INSTALL = "install one (apt install g++, dnf install gcc-c++), or name one in the environment variable CXX"
NO_REASON = "this torch does not report why"
MOST_REASON = 200
EXPLANATION = "Explanation: "
PGO_WARNING = "dynamo_pgo force disabled"  # which caches are off is what was asked for
LOOK_UP, PROGRAM = "TorchDynamo Cache Lookup", "Torch-Compiled Region"  # events of torch's profiler
_left_uncompiled: set[str] = set()


class LookUps(NamedTuple):
    """Torch's counters, at one moment: only differences mean something.

    Args:
        graphs: compiled.
        hits: look-ups of caches of compiled code that were answered.
        misses: those that were not.
    """

    graphs: int
    hits: int
    misses: int


def is_tracing() -> bool:
    """Return whether torch's compiler traces in this thread."""
    context = importlib.import_module("torch._guards").TracingContext
    return context.try_get() is not None


def look_ups() -> LookUps:
    """Read torch's counters of graphs and of caches of compiled code."""
    counters = _utils().counters
    graphs = counters.get("stats", {}).get("unique_graphs", 0)
    hits = misses = 0
    for category in ("inductor", "aot_autograd", "dynamo_cache"):
        for name, count in counters.get(category, {}).items():
            hits += count * name.endswith("cache_hit")
            misses += count * name.endswith("cache_miss")
    return LookUps(graphs, hits, misses)


def graphs_compiled() -> tuple[int]:
    """Read the counter of compiled graphs alone: it is read around every call."""
    return (int(_utils().counters["stats"]["unique_graphs"]),)


def graph_breaks() -> tuple[str, ...]:
    """Return place and reason of each graph break since the last reset."""
    reasons = _utils().graph_break_reasons
    return tuple(f"{_place(each.user_stack)}: {_one_line(each.reason)}" for each in reasons)


def break_of(error: BaseException) -> str:
    """Return place and reason of the graph break that an error is about; empty where it is about none."""
    if not isinstance(error, importlib.import_module("torch._dynamo.exc").Unsupported):
        return ""
    return f"{_place(getattr(error, 'real_stack', ()))}: {_one_line(getattr(error, 'msg', str(error)))}"


def compilations() -> list[Any]:
    """Return what torch keeps of its latest compiles, the last one last."""
    return list(_utils().get_compilation_metrics())


def guards_since(seen: Sequence[Any]) -> int | None:
    """Count the guards of compiles that were not seen before; None where torch does not keep all of these."""
    compiles = _compilations_since(seen)
    return None if compiles is None else sum(compiled.guard_count or 0 for compiled in compiles)


def recompiles_since(seen: Sequence[Any]) -> tuple[str, ...] | None:
    """Return name, place and reason of each later compile of a function that had been compiled before."""
    compiles = _compilations_since(seen)
    if compiles is None:
        return None
    return tuple(
        f"{compiled.co_name} ({compiled.co_filename}:{compiled.co_firstlineno}): "
        + _one_line(getattr(compiled, "recompile_reason", None) or NO_REASON)
        for compiled in compiles
        if compiled.accumulated_cache_size
    )


def failure_since(seen: Sequence[Any]) -> str:
    """Return why torch gave up compiling since then; empty if it did not, or if it is not recorded.

    A frame that cannot be traced is a graph break, and is recorded with its name; one over a limit without.
    """
    for compiled in reversed(_compilations_since(seen) or ()):
        kind = getattr(compiled, "fail_type", None)
        if kind and (compiled.co_name is None or kind != "Unsupported"):
            return _one_line(compiled.fail_reason or kind)
    return ""


def runs_uncompiled(call: Callable[[], object]) -> bool:
    """Make a call, and return whether a frame that torch has programs for runs uncompiled, or every frame.

    No counter of torch moves where it gave up: it shows a profiler each look-up, and each program that runs.
    """
    if is_profiling():
        call()
        return False
    with ExitStack() as stack:
        try:
            events = stack.enter_context(profiling())
        except MeasurementError:  # no profiler starts: undecided, but all ranks make this call
            call()
            return False
        call()
    programs = sum(event.name.startswith(PROGRAM) for event in events)
    return not programs or sum(event.name == LOOK_UP for event in events) > programs


def _compilations_since(seen: Sequence[Any]) -> list[Any] | None:
    metrics = getattr(_utils(), "_compilation_metrics", None)
    if metrics is None:
        return None
    known = {id(each) for each in seen}
    new = [each for each in compilations() if id(each) not in known]
    return None if len(new) == metrics.maxlen else new


def leave_uncompiled(package: str) -> None:
    """Let the compiler, where it is loaded, pass over code of a package that runs among compiled code."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    add = getattr(rules, "add", None)
    if add is not None and package not in _left_uncompiled:
        _left_uncompiled.add(package)
        add(package)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function, and all that it calls, run as it is where compiled code is entered."""
    if "torch._dynamo" not in sys.modules:
        return function
    disabled: Callable[..., Any] = torch.compiler.disable(function)
    return disabled


def observe_compiled_code(note: Callable[[], None]) -> AbstractContextManager[None]:
    """Note when compiled code is entered; nothing is noted on a torch without the function that is hooked."""

    def entered(enter: Callable[..., Any], callback: Any) -> Any:
        if callback is not None:  # else code is entered that is not to be compiled
            note()
        return enter(callback)

    return observe.around({"compiled code": entered})


def fake_tensor_counts() -> Any:
    """Return hits and misses of the FakeTensor cache since it was cleared."""
    return importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode.cache_info()


def fake_tensor_cache(is_on: bool) -> AbstractContextManager[Any]:
    """Switch the FakeTensor cache on or off for a while."""
    config = importlib.import_module("torch._dynamo.config")
    patched: AbstractContextManager[Any] = config.patch(fake_tensor_cache_enabled=is_on)
    return patched


@contextmanager
def caches_disabled() -> Iterator[None]:
    """Switch off every cache of compiled code that torch can switch off, on disk and elsewhere."""
    config = importlib.import_module("torch._inductor.config")
    with warnings.catch_warnings(), config.patch(force_disable_caches=True):
        warnings.filterwarnings("ignore", message=PGO_WARNING)
        yield


@contextmanager
def cache_folder(path: Path) -> Iterator[None]:
    """Keep caches of compiled code in a folder, and nothing of them in memory, neither before nor after."""
    utils = importlib.import_module("torch._inductor.utils")
    clear = getattr(utils, "clear_caches", None) or utils.clear_inductor_caches
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(path), "TRITON_CACHE_DIR": str(path / "triton")}
    try:
        with environment_with(folders):
            clear()
            yield
    finally:
        clear()


@contextmanager
def own_trace_alone() -> Iterator[None]:
    """Temporarily detach handlers that are not torch's from its structured trace.

    pytest 9.1 attaches some: a failing test showed 472 lines of trace, and compiling included writing them.
    """
    log = logging.getLogger("torch.__trace")
    others = [each for each in log.handlers if not type(each).__module__.startswith("torch.")]
    for handler in others:
        log.removeHandler(handler)
    try:
        yield
    finally:
        for handler in others:
            log.addHandler(handler)


def check_backend(backend: str | Callable[..., Any]) -> None:
    """Look whether a backend is there."""
    __tracebackhide__ = True
    valid = torch.compiler.list_backends(exclude_tags=())
    if isinstance(backend, str) and backend not in valid:
        raise MeasurementError(f"backend={backend!r} is not one of torch.compile's: {', '.join(valid)}")
    if backend != "inductor" or torch.cuda.is_initialized():
        return
    find = getattr(importlib.import_module("torch._inductor.cpp_builder"), "get_cpp_compiler", None)
    try:
        if find is not None:
            find()
    except Exception as error:
        text = _one_line(str(error))
        raise MeasurementError(
            f"backend='inductor' needs a C++ compiler on a CPU: {text}; {INSTALL}"
        ) from None


@functools.cache
def _utils() -> Any:
    return importlib.import_module("torch._dynamo.utils")


def _one_line(text: str) -> str:
    """Take the first line, which names the thing, and the explanation where one follows."""
    first, *others = text.strip().splitlines() or [""]
    explained = (line.strip() for line in others if line.strip().startswith(EXPLANATION))
    line = " ".join(": ".join((first, *(each.removeprefix(EXPLANATION) for each in explained))).split())
    return line if len(line) <= MOST_REASON else f"{line[:MOST_REASON]}..."


def _place(stack: Sequence[Any]) -> str:
    return f"{stack[-1].filename}:{stack[-1].lineno}" if stack else "no place is known"
