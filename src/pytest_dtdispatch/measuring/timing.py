"""A timed call, with as little as possible around it, and what cache counters prove of it. Without torch."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple, Protocol

from pytest_dtdispatch.core.measurement import TIME, Refused, Samples, State, Unit


class CallBlock(NamedTuple):
    """Calls to time, one after the other.

    Args:
        fn: what is called.
        prepare: called before each call, untimed; returns its positional arguments.
        kwargs: keyword arguments of each call.
        read: reads counters right before and right after each call.
        calls: how many.
        release: is given each result before it is dropped, untimed, where results are not just dropped.
        begin: is asked right before each call, and between it and the call nothing is done.
        end: is asked right after it; what it returns less what ``begin`` returned is the sample.
    """

    fn: Callable[..., Any]
    prepare: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any]
    read: Callable[[], Sequence[Any]]
    calls: int
    release: Callable[[Any], object] | None
    begin: Callable[[], int]
    end: Callable[[], int]


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Args:
        fn: the callable.
        prepare: called before each call, untimed; returns the positional arguments.
        kwargs: keyword arguments.
        prepare_propagates: whether ``prepare`` may itself ask the caches.
        release: is given each result before it is dropped, untimed, where results are not just dropped.
    """

    fn: Callable[..., Any]
    prepare: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any] = field(default_factory=dict)
    prepare_propagates: bool = False
    release: Callable[[Any], object] | None = None

    def row(
        self,
        meter: tuple[Callable[[], int], Callable[[], int]],
        prepare: Callable[[], tuple[Any, ...]],
        read: Callable[[], Sequence[Any]],
        calls: int,
    ) -> CallBlock:
        """Make the row of so many calls, each prepared as is said here."""
        return CallBlock(self.fn, prepare, self.kwargs, read, calls, self.release, *meter)

    def drop(self, result: Any) -> None:
        """Release a result of a call that is not timed."""
        if self.release is not None:
            self.release(result)


def nothing_to_do() -> None:
    """Stand in for a device to wait for, on a CPU, or for garbage that nobody wants collected."""


def _time_row(row: CallBlock) -> list[tuple[int, Sequence[Any], Sequence[Any]]]:
    """Time the calls of a row.

    Nothing but the call stands between two readings, and next to nothing between two calls: what
    runs there makes the next call slower. What the counters said is looked at when all are done.
    """
    fn, prepare, kwargs, read, calls, release, begin_call, end_call = row
    timed = []
    for _ in range(calls):
        args = prepare()
        before = read()
        start = begin_call()
        result = fn(*args, **kwargs)
        end = end_call()
        after = read()
        if release is not None:
            release(result)
        del result  # its release is not part of the call
        timed.append((end - start, before, after))
    return timed


# CPython keeps frames in chunks of 16 KiB. Where a chunk ends, every call maps a new one and frees it on
# return, and a hit there takes two to three times as long as one a few frames above or below. This function
# asks for a frame of 32 KiB: it gets a chunk of its own, with as much room again for what it calls.
time_row: Callable[[CallBlock], list[tuple[int, Sequence[Any], Sequence[Any]]]] = FunctionType(
    _time_row.__code__.replace(co_stacksize=4200), {"__builtins__": __builtins__}, "time_row"
)


@contextmanager
def gc_paused() -> Iterator[Callable[[], object]]:
    """Keep garbage collection out of a timed block, and collect the block's own garbage after it.

    Only the young generations are collected: a full collection takes 100 ms once torch is imported.
    """
    if not gc.isenabled():
        yield nothing_to_do
        return
    gc.disable()
    try:
        yield collect_young
    finally:
        gc.enable()
        collect_young()


def collect_young() -> None:
    """Collect the two young generations."""
    gc.collect(1)


NOT_PROPAGATED = "propagation did not run"
PROPAGATED_AGAIN = "propagation ran again"
NO_COUNTER_MOVED = "no cache counter moved"
A_COUNTER_MOVED = "a cache counter moved"
NOT_COLD = "a cache was not empty"
NOT_COUNTED = "the meter did not count"

# A cache's counters: hits first, misses second, and whatever else its owner appends.
Reader = Callable[[], Sequence[Any]]


class Caches(Protocol):
    """What the rounds ask of the sharding-propagation caches."""

    def clear(self) -> None:
        """Empty what a miss must find empty."""

    def clear_cold(self) -> None:
        """Empty what a cold call must find empty as well."""

    def cold_entries(self) -> int:
        """How many entries the caches hold that a cold call must find empty."""

    def readers(self) -> tuple[Reader, ...]:
        """Readers of this thread's counters, one for each cache."""

    def counting_uncached(self) -> AbstractContextManager[list[int]]:
        """Count propagations that ask no cache, in the one element of the list."""


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


class SampleRecorder:
    """Samples of one subject by state, in the order they were taken, and why others were refused.

    Example:
        >>> recorder = SampleRecorder()
        >>> recorder.record(State.CALL, 7)
        >>> recorder.record(State.CALL, 9, "it compiled")
        >>> [(samples.ns, str(samples.refused[0])) for samples in recorder.samples()]
        [((7,), 'it compiled (1x)')]
    """

    def __init__(self, unit: Unit = TIME) -> None:
        self._unit = unit
        self._recorded: dict[State, list[int]] = {}
        self._refused: Counter[tuple[State, str]] = Counter()

    def record(self, state: State, sample: int, why_not: str = "") -> None:
        """Record a sample, or where there is a reason against it, refuse it."""
        if why_not or not self._unit.holds(sample):
            self.refuse(state, why_not or NOT_COUNTED)
        else:
            self._recorded.setdefault(state, []).append(sample)

    def refuse(self, state: State, reason: str) -> None:
        """Count a sample that was taken and is not recorded."""
        self._refused[state, reason] += 1

    def recorded(self, state: State) -> Sequence[int]:
        """Give what was recorded of a state so far."""
        return self._recorded.get(state, ())

    def samples(self) -> tuple[Samples, ...]:
        """Give what was tried, state by state."""
        tried = {*self._recorded, *(state for state, _ in self._refused)}
        return tuple(
            Samples(
                state,
                tuple(self.recorded(state)),
                tuple(Refused(why, count) for (of, why), count in self._refused.items() if of is state),
                self._unit,
            )
            for state in State
            if state in tried
        )
