"""Torch's own profiler: what ran, from when to when, and ranges of our own among it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pytest_dtdispatch.core.events import Event
from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.torchapi.profiler_ranges import is_profiling, new_range

LOG_LEVEL, SILENT = "KINETO_LOG_LEVEL", "6"
USER_SCOPE = 7  # of torch's RecordScope


class Profiling:
    """What was profiled.

    Attributes:
        events: by the time they began, each before those that ran inside of it.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []


@contextmanager
def profiling() -> Iterator[Profiling]:
    """Profile ops of the CPU, as ``torch.autograd.profiler.profile`` does."""
    profiled = Profiling()
    with _quiet_start(), torch.autograd.profiler.profile(use_cpu=True, use_kineto=False) as profiler:
        yield profiled
    found = map(_event, profiler.kineto_results.events())
    profiled.events = sorted(found, key=lambda event: (event.begin_ns, -event.end_ns))


@contextmanager
def recording_trace(name: str, keep: Callable[[str], None]) -> Iterator[None]:
    """Let torch's profiler record a region.

    Args:
        name: of the region, which is a range in its trace.
        keep: is given the trace, as the JSON that torch writes, unless the region raises.
    """
    __tracebackhide__ = True
    refuse_another_profiler("a trace")
    with _quiet_start(), torch.profiler.profile(acc_events=True) as profiler, new_range(name):
        yield
    with tempfile.TemporaryDirectory(prefix="dtdispatch-trace-") as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        keep(path.read_text(encoding="utf-8"))


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Keep the profiler from writing lines about itself: some builds write two whenever it starts and stops.

    Where the first profile is taken is where its library reads how much it is to say.
    """
    if LOG_LEVEL in os.environ:
        yield
        return
    os.environ[LOG_LEVEL] = SILENT
    try:
        yield
    finally:
        os.environ.pop(LOG_LEVEL, None)


def _event(one: Any) -> Event:
    if hasattr(one, "start_ns"):
        begin_ns, length_ns = one.start_ns(), one.duration_ns()
    else:  # of torch 2.5 and older
        begin_ns, length_ns = one.start_us() * 1000, one.duration_us() * 1000
    return Event(one.name(), begin_ns, begin_ns + length_ns, one.sequence_nr(), one.scope() == USER_SCOPE)


def refuse_another_profiler(what: str) -> None:
    """Refuse to profile where a profiler of torch runs already: torch has one at a time."""
    __tracebackhide__ = True
    if is_profiling():
        raise CaptureError(f"a profiler of torch runs already, and {what} needs it: close it first")
