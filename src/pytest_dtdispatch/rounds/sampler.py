"""Samplers: readings right before and right after a call. Does not import torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import TIME, UNITS, Profile, Unit
from pytest_dtdispatch.errors import MeterError

Clock = Callable[[], int]
# Returns the instructions of a call by function. Arguments: the callable, its preparation, its keywords.
Profiler = Callable[[Callable[..., Any], Callable[[], "tuple[Any, ...]"], "dict[str, Any]"], Profile]


class Meter(NamedTuple):
    """Readings right before and right after each call; the difference is the call's sample.

    Args:
        begin: function that starts counting, and returns the number to subtract.
        end: function that stops counting, and returns the count.
        cpu: CPU time of the calling thread, read around both; None to read no CPU time.
    """

    begin: Clock
    end: Clock
    cpu: Clock | None = None


class Pace(NamedTuple):
    """Numbers of warm-up calls and blocks, for samplers that need more warm-up than times.

    Args:
        warmup_misses: number of discarded misses before consecutive ones.
        blocks: number of blocks of hits, between which the sampler is refreshed.
        warmup: number of warm-up calls before each block.
        repeat: number of recorded calls in each block.
    """

    warmup_misses: int
    blocks: int
    warmup: int
    repeat: int


class Sampler:
    """Readings for each call, selected by ``--dtdispatch-metric NAME``.

    A custom sampler defines a name, a unit, ``begin`` and ``end``; register an instance of it. ``begin`` and
    ``end`` take no arguments and return integers. Their own work between the two readings is part of the
    sample.

    Attributes:
        name: name of the metric, on the command line.
        unit: unit of the samples.
        begin: reading right before a call.
        end: reading right after a call.
        clock: clock in nanoseconds for time limits.
        cpu: CPU time of the calling thread in nanoseconds, which is read too for long calls; None for none.
        is_exact: whether equal calls have equal samples; rounds then have no time limit, and there are no
            warm compiles.
        why_not_on_ranks: why it works in only one process, in one line; empty if it works on many ranks.
        profiler: function that returns the instructions of a call by function; None if not requested.

    Example:
        >>> class ThreadTime(Sampler):
        ...     name, unit = "thread-time", Unit(hit="thread_hit_ns", miss="thread_miss_ns")
        ...     begin = end = time.thread_time_ns
        >>> meter = ThreadTime().meter
        >>> -meter.begin() + meter.end() >= 0
        True
    """

    name: str
    unit: Unit = TIME
    begin: Clock
    end: Clock
    clock: Clock = time.perf_counter_ns
    cpu: Clock | None = None
    is_exact = False
    why_not_on_ranks = ""
    profiler: Profiler | None = None

    @property
    def meter(self) -> Meter:
        """Meter of calls on DTensors, and of calls on plain tensors, the control of comparisons."""
        return Meter(self.begin, self.end)

    def why_not(self) -> str:
        """Return why it cannot run in this environment, in one line; empty if it can."""
        return ""

    def start(self) -> None:
        """Prepare before the first measured test."""

    def refresh(self) -> None:
        """Reset the state that earlier calls left in the interpreter, before each subject and each block."""

    def pace(self, miss: int, hit: int, rounds: int, repeat: int) -> Pace | None:
        """Plan warm-up calls from samples of a first miss and a later call; None to use those of times."""
        del miss, hit, rounds, repeat
        return None

    def remarks(self) -> tuple[str, ...]:
        """Return remarks on the figures."""
        return ()


class WallClock(Sampler):
    """Sampler of latencies in nanoseconds, with the CPU time of long calls."""

    name = "time"

    def __init__(self, clock: Clock = time.perf_counter_ns, cpu: Clock | None = None) -> None:
        self.begin = self.end = self.clock = clock
        self.cpu = cpu


SAMPLERS: dict[str, Sampler] = {}


def register_sampler(sampler: Sampler) -> None:
    """Register a sampler for ``--dtdispatch-metric``, or replace the sampler of the same name."""
    SAMPLERS[sampler.name] = sampler
    if sampler.unit not in UNITS:
        UNITS.append(sampler.unit)


def start_sampler(name: str) -> Sampler:
    """Start the sampler with this name, and return it."""
    sampler = SAMPLERS.get(name)
    if sampler is None:
        raise MeterError(f"--dtdispatch-metric {name}: no sampler of this name is registered in this process")
    sampler.start()
    return sampler


# A coarse clock, such as that of Windows, reads 0 for most calls.
_is_fine = time.get_clock_info("thread_time").resolution <= 1e-6
register_sampler(WallClock(cpu=time.thread_time_ns if _is_fine else None))
