"""Torch's profiler: recorded events, and ranges of this package."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.core.environment import environment_with
from pytest_dtdispatch.core.events import CodePlace, Event
from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.errors import MeasurementError, first_line
from pytest_dtdispatch.torchapi.observe import (
    FSDP_POINTS,
    Conversion,
    Converter,
    around,
    missing_fsdp_name,
    observe_conversions,
    outside_of_torch,
)

__tracebackhide__ = True  # a test that fails here shows its own line
Function = Callable[..., Any]

is_profiling: Callable[[], bool] = torch._C._autograd._profiler_enabled  # in this thread
# Creates a range in profiles. The fast class calls no op; the public class, its fallback, does.
new_range: Any = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)


class ProfilerRange:
    """A range of a program that is recorded if a profiler is running.

    Args:
        kind: first word of its name.
        name: function that returns the rest of its name; called only if a profiler is running.
        args: arguments of this function.
    """

    __slots__ = ("_args", "_kind", "_name", "_range")

    def __init__(self, kind: str, name: Callable[..., str], *args: Any) -> None:
        self._kind, self._name, self._args = kind, name, args
        self._range: Any = None

    def show(self) -> None:
        """Begin the range if a profiler is running in this thread."""
        if is_profiling() and self._range is None:
            self._range = new_range(f"{self._kind} {self._name(*self._args)}")
            self._range.__enter__()

    def end(self, *exception: Any) -> None:
        """End the range, even if the profiler has stopped."""
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    __enter__, __exit__ = show, end


@contextmanager
def profiling() -> Iterator[list[Event]]:
    """Profile CPU ops with ``torch.autograd.profiler.profile``.

    The list is filled on exit, sorted by the start of events, outer events first. Events in gloo's threads
    are excluded: these run concurrently with the program, whose waits for them are separate events.
    """
    events: list[Event] = []
    profile = torch.autograd.profiler.profile(use_cpu=True, use_kineto=False)
    with _quiet_start(), _only_profiler(profile, "a budget") as profiler:
        yield events
    found = profiler.kineto_results.events()
    gloo = {one.start_thread_id() for one in found if one.name().startswith("gloo:")}
    own = []
    for one in found:
        if one.start_thread_id() in gloo:
            continue
        if hasattr(one, "start_ns"):
            begin_ns, length_ns = one.start_ns(), one.duration_ns()
        else:  # torch 2.5 and older
            begin_ns, length_ns = one.start_us() * 1000, one.duration_us() * 1000
        is_user_scope = one.scope() == 7  # in torch's RecordScope
        own.append(Event(one.name(), begin_ns, begin_ns + length_ns, one.sequence_nr(), is_user_scope))
    # Outer events precede inner ones that begin with them.
    events += sorted(own, key=lambda event: (event.begin_ns, -event.end_ns))


@contextmanager
def recording_trace(name: str, keep: Callable[[str], None]) -> Iterator[None]:
    """Record a region with torch's profiler.

    Args:
        name: name of the region, which is a range in the trace.
        keep: function that is called with torch's JSON of the trace, unless the region raises.
    """
    refuse_another_profiler("a trace")
    profile = torch.profiler.profile(acc_events=True)
    with _quiet_start(), _only_profiler(profile, "a trace") as profiler, new_range(escape_controls(name)):
        yield
    with tempfile.TemporaryDirectory(prefix="dtdispatch-trace-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        keep(path.read_text(encoding="utf-8", errors="replace"))


def _quiet_start() -> AbstractContextManager[None]:
    """Silence the profiler's log: some builds write two lines at each start and stop.

    Its library reads the log level at the first profile. A program such as torchtitan may have set another
    one.
    """
    return environment_with({"KINETO_LOG_LEVEL": "6"})


def refuse_another_profiler(purpose: str) -> None:
    """Raise an error if a profiler is running: torch supports one at a time."""
    if is_profiling():
        raise MeasurementError(f"a profiler of torch is running, and {purpose} needs it: close it first")


@contextmanager
def _only_profiler(profile: Any, purpose: str) -> Iterator[Any]:
    """Run a profiler until the program opens another one: torch supports one at a time.

    If both ran, this profiler would lose its events, and its export would crash (torch 2.13).

    Raises:
        MeasurementError: on entry, if the profiler cannot start; on exit, if the program opened another.
    """
    opened_at: list[str] = []
    with ExitStack() as ours:

        def start(inner: Function, profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if profiler.enabled and not opened_at:
                frame = outside_of_torch(sys._getframe(1))
                line = CodePlace(frame.f_code.co_filename, frame.f_lineno).line_text if frame else ""
                opened_at.append(line or "an unknown line")
                ours.close()
                if inner.__name__ == "_start_trace":  # starting this profiler discarded its preparation
                    profiler._prepare_trace()  # torch 2.9 does not prepare twice
            return inner(profiler, *args, **kwargs)

        try:
            profiler = ours.enter_context(profile)
        except RuntimeError as error:  # torch 2.9, if the program has prepared a profiler
            message = f"torch's profiler, which {purpose} needs, does not start: close any prepared profiler"
            raise MeasurementError(f"{message} ({first_line(error)})") from error
        with around(dict.fromkeys(("profiler", "itt", "nvtx"), start)):
            yield profiler
    for line in opened_at:
        raise MeasurementError(
            f"{line} opens a profiler of torch, and {purpose} needs the only one: remove it"
        )


class Marks:
    """Ranges around functions of torch: ``dtdispatch::redistribution 3``, with an index into the notes.

    Args:
        new_range: function that creates a range by name; by default for torch's profiler.

    Attributes:
        notes: details of ranges: the specs before and after a redistribution, and whether a lookup in the
            Python cache missed.
    """

    def __init__(self, new_range: Function = new_range) -> None:
        self.notes: list[Any] = []
        self._new_range = new_range

    def marked(self, name: str) -> Any:
        """Return a new range, which is not entered yet."""
        return self._new_range(f"dtdispatch::{name}")

    def _ranged(self, name: str, inner: Function, *args: Any, **kwargs: Any) -> Any:
        """Call a function in a range."""
        with self.marked(name):
            return inner(*args, **kwargs)

    def on_conversion(self, converter: Converter, function: Function, *args: Any, **kwargs: Any) -> Any:
        """Mark a wrap or an unwrap."""
        return self._ranged(f"wrapping {converter.name}", function, *args, **kwargs)

    @contextmanager
    def in_place(self) -> Iterator[Marks]:
        """Temporarily patch the functions with ranges."""
        methods: dict[str, Function] = {
            "native_miss": partial(self._ranged, "propagation"),
            "propagation": partial(self._ranged, "propagation"),
            "python_cache": self._python_lookup,
            "planning": partial(self._ranged, "planning"),
            "redistribution": self._redistribution,
            "backward": partial(self._ranged, "backward"),
            "async_tensor": partial(self._ranged, "async tensor"),
        }
        if not missing_fsdp_name():
            methods.update(dict.fromkeys(FSDP_POINTS, self._fsdp_hook))
        if hasattr(DTensor._op_dispatcher, "dispatch"):  # Python dispatch; native dispatch has events
            methods["dispatch"] = partial(self._ranged, "dispatch")
        with observe_conversions(self, (Conversion.WRAP, Conversion.UNWRAP)), around(methods):
            yield self

    def _fsdp_hook(self, inner: Function, *args: Any, **kwargs: Any) -> Any:
        """Mark a call of FSDP2, named as FSDP2 names ranges of its own."""
        return self._ranged(f"fsdp FSDP::{inner.__name__.strip('_')}", inner, *args, **kwargs)

    def _redistribution(self, inner: Function, *args: Any, **kwargs: Any) -> Any:
        """Mark a redistribution, and record its specs, which are formatted later."""
        self.notes.append(args[1:3])
        return self._ranged(f"redistribution {len(self.notes) - 1}", inner, *args, **kwargs)

    def _python_lookup(self, cache: Any, *args: Any, **kwargs: Any) -> Any:
        """Mark a lookup in the propagator's Python cache, and record whether it missed."""
        info, number = cache.cache.cache_info, len(self.notes)
        self.notes.append(False)
        before = info().misses
        try:
            return self._ranged(f"look-up {number}", cache, *args, **kwargs)
        finally:
            self.notes[number] = info().misses > before
