"""What a sample is: what is read right before and right after a call. Without torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import TIME, UNITS, Profile, Unit
from pytest_dtdispatch.errors import MeterError

Clock = Callable[[], int]
# Tells where the instructions of a call went, given what is called, what prepares it, and its keywords.
Profiler = Callable[[Callable[..., Any], Callable[[], "tuple[Any, ...]"], "dict[str, Any]"], Profile]


class Meter(NamedTuple):
    """What is asked right before and right after each call; the difference is the call's sample.

    Args:
        begin: begins to count, and returns what to subtract.
        end: ends it, and returns what was counted.
    """

    begin: Clock
    end: Clock


class Pace(NamedTuple):
    """How calls are made steady, where a sampler asks for more than times do.

    Args:
        warmup_misses: misses that are discarded before those of a row.
        blocks: parts that the hits are taken in, the sampler refreshed between them.
        warmup: calls in front of each block, which are not even read.
        repeat: calls recorded in each block.
    """

    warmup_misses: int
    blocks: int
    warmup: int
    repeat: int


class Sampler:
    """What ``--dtdispatch-metric NAME`` reads of each call.

    One of your own has a name, a unit, ``begin`` and ``end``; register an instance of it. ``begin`` and
    ``end`` take nothing and return whole numbers: what runs in them inside the call is part of the sample.

    Attributes:
        name: of the metric, on the command line.
        unit: of the samples.
        begin: asked right before a call.
        end: asked right after it.
        clock: nanoseconds by which rounds keep to their time.
        is_exact: whether a call reads alike every time. Rounds are then not cut to a time, and no warm
            compile is taken.
        why_not_on_ranks: why it works in one process alone, in one line; empty where it does on many ranks.
        profiler: tells where the instructions of a call went, where that was asked for.

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
        """What reads calls, on DTensors and on plain tensors, which are the control of every comparison."""
        return Meter(self.begin, self.end)

    def why_not(self) -> str:
        """Return in one line why it cannot be had here; empty where it can."""
        return ""

    def start(self) -> None:
        """Get ready, before the first test that is measured."""

    def refresh(self) -> None:
        """Undo what earlier calls left in the interpreter, before each subject and each block."""

    def pace(self, miss: int, hit: int, rounds: int, repeat: int) -> Pace | None:
        """Plan warm-ups by what a first miss and a later call read; None where times' own are enough."""
        del miss, hit, rounds, repeat
        return None

    def remarks(self) -> tuple[str, ...]:
        """What explains the figures to who asks."""
        return ()


class WallClock(Sampler):
    """Latency in nanoseconds."""

    name = "time"

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self.begin = self.end = self.clock = clock


SAMPLERS: dict[str, Sampler] = {}


def register_sampler(sampler: Sampler) -> None:
    """Let ``--dtdispatch-metric`` name a sampler; one of the same name is replaced."""
    SAMPLERS[sampler.name] = sampler
    if sampler.unit not in UNITS:
        UNITS.append(sampler.unit)


def start_sampler(name: str) -> Sampler:
    """Make the sampler of a name ready."""
    sampler = SAMPLERS.get(name)
    if sampler is None:
        raise MeterError(f"--dtdispatch-metric {name}: no sampler of this name is registered in this process")
    sampler.start()
    return sampler


register_sampler(WallClock())
