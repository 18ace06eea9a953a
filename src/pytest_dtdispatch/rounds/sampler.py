"""Samplers: what is read right before and right after a call. Without torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import TIME, UNITS, Profile, Unit
from pytest_dtdispatch.errors import MeterError

Clock = Callable[[], int]
# Returns where the instructions of a call went. Arguments: the callable, its preparation, its keywords.
Profiler = Callable[[Callable[..., Any], Callable[[], "tuple[Any, ...]"], "dict[str, Any]"], Profile]


class Meter(NamedTuple):
    """Readings right before and right after each call; the difference is the call's sample.

    Args:
        begin: begins to count, and returns the number to subtract.
        end: ends counting, and returns the count.
    """

    begin: Clock
    end: Clock


class Pace(NamedTuple):
    """How calls become steady, if a sampler needs more warm-up than times do.

    Args:
        warmup_misses: misses that are discarded before those of a row.
        blocks: parts of the hits, between which the sampler is refreshed.
        warmup: calls before each block, which are not read.
        repeat: calls recorded in each block.
    """

    warmup_misses: int
    blocks: int
    warmup: int
    repeat: int


class Sampler:
    """What ``--dtdispatch-metric NAME`` reads for each call.

    Your own sampler has a name, a unit, ``begin`` and ``end``; register an instance of it. ``begin`` and
    ``end`` take no arguments and return integers: their own work inside the call is part of the sample.

    Attributes:
        name: of the metric, on the command line.
        unit: of the samples.
        begin: read right before a call.
        end: read right after it.
        clock: nanoseconds by which rounds are limited.
        is_exact: whether equal calls have equal samples. Rounds then have no time limit, and no compile is
            warm.
        why_not_on_ranks: why it works in one process only, in one line; empty if it works on many ranks.
        profiler: returns where the instructions of a call went; None if profiles are not requested.

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
    is_exact = False
    why_not_on_ranks = ""
    profiler: Profiler | None = None

    @property
    def meter(self) -> Meter:
        """Meter of calls on DTensors, and on plain tensors, which are the control of comparisons."""
        return Meter(self.begin, self.end)

    def why_not(self) -> str:
        """Return why it cannot run here, in one line; empty if it can."""
        return ""

    def start(self) -> None:
        """Prepare, before the first test that is measured."""

    def refresh(self) -> None:
        """Reset what earlier calls left in the interpreter, before each subject and each block."""

    def pace(self, miss: int, hit: int, rounds: int, repeat: int) -> Pace | None:
        """Plan warm-ups by samples of a first miss and a later call; None if those of times are enough."""
        del miss, hit, rounds, repeat
        return None

    def remarks(self) -> tuple[str, ...]:
        """Return remarks on the figures."""
        return ()


class WallClock(Sampler):
    """Latency in nanoseconds."""

    name = "time"

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self.begin = self.end = self.clock = clock


SAMPLERS: dict[str, Sampler] = {}


def register_sampler(sampler: Sampler) -> None:
    """Register a sampler for ``--dtdispatch-metric``; it replaces one of the same name."""
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


register_sampler(WallClock())
