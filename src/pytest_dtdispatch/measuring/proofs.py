"""What cache counters prove of each call, and the samples that were proved. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from pytest_dtdispatch.core.measurement import TIME, Refused, Samples, State, Unit

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
