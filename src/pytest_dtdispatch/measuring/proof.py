"""What cache counters prove of each timed call, and the samples that are recorded by it. Without torch."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from pytest_dtdispatch.core.measurement import TIME, Refused, State, Unit

NOT_PROPAGATED = "propagation did not run"
PROPAGATED_AGAIN = "propagation ran again"
NO_COUNTER_MOVED = "no cache counter moved"
A_COUNTER_MOVED = "a cache counter moved"
NOT_COLD = "a cache was not empty"
NOT_COUNTED = "the meter did not count"
MOST_IN_A_PART = 10_000

# A cache's counters: hits first, misses second, and whatever else its owner appends.
Reader = Callable[[], Sequence[Any]]
# Of each call its sample, and the counters right before and right after it.
TimedCalls = list[tuple[int, Sequence[Any], Sequence[Any]]]


class ProvedCall(NamedTuple):
    """Sample of one call, and how far the counters moved during it."""

    sample: int
    hits: int
    misses: int

    def why_no_miss(self, was_clear: bool, not_propagated: str) -> str:
        """Say why it is no miss of cleared caches; empty where it is one."""
        if not was_clear:
            return NOT_COLD
        return "" if self.misses else not_propagated

    def why_no_hit(self, others_missed: bool) -> str:
        """Say why it is no hit; empty where it is one."""
        if others_missed or self.misses:
            return PROPAGATED_AGAIN
        return "" if self.hits else NO_COUNTER_MOVED

    def why_not_unpropagated(self) -> str:
        """Say why it is no call that asks no propagator; empty where it is one."""
        return A_COUNTER_MOVED if self.hits or self.misses else ""


def moved(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, int]:
    """How far hits and misses moved, between two readings of one cache or of several."""
    if isinstance(before[0], int):
        return after[0] - before[0], after[1] - before[1]
    each = [moved(old, new) for old, new in zip(before, after, strict=True)]
    return sum(hits for hits, _ in each), sum(misses for _, misses in each)


def proved(calls: TimedCalls) -> list[ProvedCall]:
    """Look how far the counters moved during each of the calls."""
    return [ProvedCall(sample, *moved(before, after)) for sample, before, after in calls]


class Caches(Protocol):
    """Caches whose hits and misses are measured."""

    def readers(self) -> tuple[Reader, ...]:
        """Readers of their counters, the cache that is asked first in front."""

    def clear(self) -> None:
        """Empty them."""

    def clear_cold(self) -> None:
        """Empty the caches that feed them too."""

    def cold_entries(self) -> int:
        """How many entries are left in those."""

    def counting_uncached(self) -> AbstractContextManager[list[int]]:
        """Count, in the one element of the list, what asks no cache."""


class Propagation(Enum):
    """How a subject uses the sharding propagator, as its rehearsal showed."""

    CACHED = "cached"
    NEVER_CACHED = "never cached"
    NONE = "none"

    @property
    def notes(self) -> tuple[str, ...]:
        """What every reader of the figures must know of it."""
        return ("never hits: propagation runs on every call",) if self is Propagation.NEVER_CACHED else ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """What explains the figures to who asks."""
        why_no_miss = "unpropagated: it never asks the sharding propagator, so it has no miss"
        return (why_no_miss,) if self is Propagation.NONE else ()


class SampleRecorder:
    """Samples of one subject by state, in the order they were taken, and why others were refused.

    Example:
        >>> recorder = SampleRecorder()
        >>> recorder.record(State.CALL, 7)
        >>> recorder.record(State.CALL, 9, "it compiled")
        >>> recorder.recorded(State.CALL), str(*recorder.refused(State.CALL))
        ([7], 'it compiled (1x)')
    """

    def __init__(self, unit: Unit = TIME) -> None:
        self.unit = unit
        self._recorded: defaultdict[State, list[int]] = defaultdict(list)
        self._refused: Counter[tuple[State, str]] = Counter()

    def record(self, state: State, sample: int, why_not: str = "") -> None:
        """Record a sample, or where there is a reason against it, refuse it."""
        if why_not or not self.unit.holds(sample):
            self._refused[state, why_not or NOT_COUNTED] += 1
        else:
            self._recorded[state].append(sample)

    def recorded(self, state: State) -> Sequence[int]:
        """Give what was recorded of a state so far; later samples are added to it."""
        return self._recorded[state]

    def refused(self, state: State) -> tuple[Refused, ...]:
        """Count what was taken of a state and not recorded."""
        return tuple(Refused(why, count) for (of, why), count in self._refused.items() if of is state)


def parts(calls: int) -> list[int]:
    """Split calls that are timed one after the other: what is read of one takes 400 bytes until it is proved.

    Example:
        >>> parts(25_000)
        [10000, 10000, 5000]
    """
    return [min(MOST_IN_A_PART, calls - first) for first in range(0, calls, MOST_IN_A_PART)]


def nothing_to_do() -> None:
    """Stand in for a device to wait for, on a CPU, or for garbage that nobody wants collected."""


@contextmanager
def gc_paused() -> Iterator[Callable[[], object]]:
    """Keep garbage collection out of a timed block, and collect the block's own garbage after it.

    Only the young generations are collected: a full collection takes 100 ms once torch is imported.
    """
    if not gc.isenabled():
        yield nothing_to_do
        return
    collect_young = partial(gc.collect, 1)
    gc.disable()
    try:
        yield collect_young
    finally:
        gc.enable()
        collect_young()
