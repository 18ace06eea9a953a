"""Torch's compiler: caches, counters, graph breaks and recompiles.

A value that an older torch lacks is None, which reports show as not counted.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode

from pytest_dtdispatch.core.environment import environment_with
from pytest_dtdispatch.core.text import nearest
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.torchapi import observe
from pytest_dtdispatch.torchapi.profiling import is_profiling, profiling

_left_uncompiled: set[str] = set()


def is_tracing() -> bool:
    """Return whether torch's compiler is tracing in this thread."""
    return TracingContext.try_get() is not None


def is_generated(frame: FrameType) -> bool:
    """Return whether a frame runs an instruction that Dynamo generated, such as a call of a graph.

    It has the first line of its function, and no columns, which Python 3.10 does not have.
    """
    code, dynamo = frame.f_code, sys.modules.get("torch._dynamo.convert_frame")
    if frame.f_lineno != code.co_firstlineno or dynamo is None or code not in dynamo.output_codes:
        return False
    positions = code.co_positions() if sys.version_info >= (3, 11) else ()
    return next(islice(positions, frame.f_lasti // 2, None), (None,) * 3)[2] is None


def cache_lookups() -> tuple[int, int, int]:
    """Read the counters of compiled graphs, and of hits and misses of caches of compiled code.

    Only differences are meaningful.
    """
    counters = _utils().counters
    graphs = counters.get("stats", {}).get("unique_graphs", 0)
    hits = misses = 0
    for category in ("inductor", "aot_autograd", "dynamo_cache"):
        for name, count in counters.get(category, {}).items():
            hits += count * name.endswith("cache_hit")
            misses += count * name.endswith("cache_miss")
    return graphs, hits, misses


def graphs_compiled() -> tuple[int]:
    """Read only the counter of compiled graphs, for readings around each call."""
    return (int(_utils().counters["stats"]["unique_graphs"]),)


def graph_breaks() -> tuple[str, ...]:
    """Return source line and reason of each graph break since the last reset."""
    reasons = _utils().graph_break_reasons
    return tuple(f"{_source_line(each.user_stack)}: {_one_line(each.reason)}" for each in reasons)


def break_of(error: BaseException) -> str:
    """Return source line and reason of the graph break that an error reports; empty if it reports none."""
    if not isinstance(error, importlib.import_module("torch._dynamo.exc").Unsupported):
        return ""
    return f"{_source_line(getattr(error, 'real_stack', ()))}: {_one_line(getattr(error, 'msg', str(error)))}"


def compilations() -> list[Any]:
    """Return torch's records of its latest compiles, in order."""
    return list(_utils().get_compilation_metrics())


def guards_since(seen: Sequence[Any]) -> int | None:
    """Count the guards of compiles after those in ``seen``; return None if torch discarded some records."""
    compiles = _compilations_since(seen)
    return None if compiles is None else sum(compiled.guard_count or 0 for compiled in compiles)


def recompiles_since(seen: Sequence[Any]) -> tuple[str, ...] | None:
    """Return function, source line and reason of each recompile after the compiles in ``seen``."""
    compiles = _compilations_since(seen)
    if compiles is None:
        return None
    return tuple(
        f"{compiled.co_name} ({compiled.co_filename}:{compiled.co_firstlineno}): "
        + _one_line(getattr(compiled, "recompile_reason", None) or "this torch does not report why")
        for compiled in compiles
        if compiled.accumulated_cache_size
    )


def failure_since(seen: Sequence[Any]) -> str:
    """Return why torch gave up compiling after the compiles in ``seen``; empty if unknown or if it did not.

    Torch records a frame that cannot be traced (a graph break) with its name, and a frame over a limit
    without.
    """
    for compiled in reversed(_compilations_since(seen) or ()):
        kind = getattr(compiled, "fail_type", None)
        if kind and (compiled.co_name is None or kind != "Unsupported"):
            return _one_line(compiled.fail_reason or kind)
    return ""


def runs_uncompiled(call: Callable[[], object]) -> bool:
    """Run a call and return whether any frame with compiled programs, or every frame, runs uncompiled.

    No counter changes if torch gives up, but a profile has each lookup and each program that runs.
    """
    if is_profiling():
        call()
        return False
    with ExitStack() as stack:
        try:
            events = stack.enter_context(profiling())
        except MeasurementError:  # no profiler starts: undecided, but all ranks must run this call
            call()
            return False
        call()
    programs = sum(event.name.startswith("Torch-Compiled Region") for event in events)
    return not programs or sum(event.name == "TorchDynamo Cache Lookup" for event in events) > programs


def _compilations_since(seen: Sequence[Any]) -> list[Any] | None:
    metrics = getattr(_utils(), "_compilation_metrics", None)
    if metrics is None:
        return None
    ids = {id(each) for each in seen}
    new = [each for each in compilations() if id(each) not in ids]
    return None if len(new) == metrics.maxlen else new


def leave_uncompiled(package: str) -> None:
    """Have the compiler, if it is loaded, skip code of a package."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    add = getattr(rules, "add", None)
    if add is not None and package not in _left_uncompiled:
        _left_uncompiled.add(package)
        add(package)


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Disable compilation of a function and of all its callees."""
    if "torch._dynamo" not in sys.modules:
        return function
    disabled: Callable[..., Any] = torch.compiler.disable(function)
    return disabled


def observe_compiled_code(callback: Callable[[], None]) -> AbstractContextManager[None]:
    """Call a function when compiled code is entered; a no-op if this torch lacks the patched function."""

    def entered(enter: Callable[..., Any], compiler: Any) -> Any:
        if compiler is not None:  # else compilation is disabled
            callback()
        return enter(compiler)

    return observe.around({"compiled_code": entered})


def fake_tensor_counts() -> Any:
    """Return hits and misses of the FakeTensor cache since it was cleared."""
    return FakeTensorMode.cache_info()


def fake_tensor_cache(is_on: bool) -> AbstractContextManager[Any]:
    """Temporarily enable or disable the FakeTensor cache."""
    config = importlib.import_module("torch._dynamo.config")
    patched: AbstractContextManager[Any] = config.patch(fake_tensor_cache_enabled=is_on)
    return patched


@contextmanager
def caches_disabled() -> Iterator[None]:
    """Temporarily disable all caches of compiled code that torch can disable."""
    config = importlib.import_module("torch._inductor.config")
    with warnings.catch_warnings(), config.patch(force_disable_caches=True):
        warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")  # intended
        yield


@contextmanager
def cache_folder(path: Path) -> Iterator[None]:
    """Use a folder for caches of compiled code, and clear their memory before and after."""
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
    """Temporarily detach handlers of others from torch's structured trace.

    pytest 9.1 attaches some: a failing test printed 472 lines of trace, and compile times included writing
    it.
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
    """Check that a backend is available."""
    __tracebackhide__ = True
    valid = torch.compiler.list_backends(exclude_tags=())
    if isinstance(backend, str) and backend not in valid:
        names = f"{', '.join(valid)}{nearest(backend, valid)}"
        raise MeasurementError(f"backend={backend!r} is not one of torch.compile's: {names}")
    if backend != "inductor" or torch.cuda.is_initialized():
        return
    find = getattr(importlib.import_module("torch._inductor.cpp_builder"), "get_cpp_compiler", None)
    try:
        if find is not None:
            find()
    except Exception as error:
        remedy = "install one (apt install g++, dnf install gcc-c++), or set the environment variable CXX"
        needs = f"backend='inductor' needs a C++ compiler on a CPU: {_one_line(str(error))}"
        raise MeasurementError(f"{needs}; {remedy}") from None


@functools.cache
def _utils() -> Any:
    return importlib.import_module("torch._dynamo.utils")


def _one_line(text: str) -> str:
    """Join the first line of a text with the explanation that follows, if any."""
    first, *others = text.strip().splitlines() or [""]
    parts = [line.partition("Explanation: ") for line in others if line.strip().startswith("Explanation: ")]
    line = " ".join(": ".join((first, *(explanation for _, _, explanation in parts))).split())
    return line if len(line) <= 200 else f"{line[:200]}..."


def _source_line(stack: Sequence[Any]) -> str:
    return f"{stack[-1].filename}:{stack[-1].lineno}" if stack else "an unknown line"
