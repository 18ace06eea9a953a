"""Samples by state, proved by cache counters, and reasons of refused ones. Does not import torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import MIN_SAMPLES, TIME, Profile, Refused, Samples, State, Unit
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.rounds.timing import TimedCalls


class ProvedCall(NamedTuple):
    """Sample of a call, with the increase of the counters of hits and misses."""

    sample: int
    hits: int
    misses: int


def increase(before: Sequence[Any], after: Sequence[Any]) -> tuple[int, int]:
    """Return the increase of hits and misses between two readings of one cache or of several."""
    if isinstance(before[0], int):
        return after[0] - before[0], after[1] - before[1]
    each = [increase(old, new) for old, new in zip(before, after, strict=True)]
    return sum(hits for hits, _ in each), sum(misses for _, misses in each)


def proved_calls(calls: TimedCalls) -> list[ProvedCall]:
    """Return each sample with the increase of the counters during its call."""
    return [ProvedCall(sample, *increase(before, after)) for sample, before, after in calls]


class SampleRecorder:
    """Samples of one subject by state, in the order of their calls, and reasons of refused ones.

    Example:
        >>> recorder = SampleRecorder()
        >>> recorder.record(State.CALL, 7)
        >>> recorder.record(State.CALL, 9, "it compiled")
        >>> recorder.recorded(State.CALL), str(*recorder.refused(State.CALL))
        ([7], 'it compiled (1x)')
    """

    def __init__(self, unit: Unit = TIME, is_slow: Callable[[State, float], bool] | None = None) -> None:
        self.unit = unit
        self._is_slow = is_slow
        self._recorded: defaultdict[State, list[int]] = defaultdict(list)
        self._refused: Counter[tuple[State, str]] = Counter()
        self._off_core_ns, self._wall_ns = Counter[State](), Counter[State]()
        self._speeds = defaultdict[State, list[int]](list)  # one for each recorded sample
        self.counts_waits = True
        self.preempted = Counter[State]()  # recorded samples during which another thread took the core

    def record(self, state: State, sample: int, reason: str | None = None, speed_ns: int = 0) -> None:
        """Record a sample and the core's speed around its call, or refuse it if there is a reason."""
        if type(sample) is not int:
            raise MeasurementError(f"a sample of {self.unit.name} is {shown(sample)}: it must be an int")
        if reason or not self.unit.holds(sample):
            self._refused[state, reason or "the meter did not count"] += 1
        else:
            self._recorded[state].append(sample)
            self._speeds[state].append(speed_ns)

    def record_block(self, state: State, off_core_ns: int, wall_ns: int) -> None:
        """Record the wall time of a block of calls, and its time off the core.

        Samples of blocks that waited are not refused, because the quietest block excludes them anyway: at a
        load of 15, excluding half of these blocks changed 91 of 108 figures of hits by at most 1 %, and their
        scatter over processes from 13.6 % to 13.1 %. In blocks of 10 calls the first call takes twice as
        long, and every block of misses waited.
        """
        self._off_core_ns[state] += off_core_ns
        self._wall_ns[state] += wall_ns

    def off_core(self, state: State) -> float:
        """Return the share of the time of all blocks in which the thread was not on a core."""
        return min(self._off_core_ns[state] / max(self._wall_ns[state], 1), 1.0)

    def recorded(self, state: State) -> Sequence[int]:
        """Return the samples of a state, without those of a slow core if enough others remain."""
        return self._at_full_speed(state)[0]

    def _at_full_speed(self, state: State) -> tuple[list[int], list[int]]:
        """Return the samples of a state and the core's speeds, of calls at full speed if enough are."""
        values, speeds = self._recorded[state], self._speeds[state]
        if self._is_slow is None:
            return values, speeds
        fast = [number for number, speed in enumerate(speeds) if not self._is_slow(state, speed)]
        if not MIN_SAMPLES <= len(fast) < len(values):
            return values, speeds
        return [values[number] for number in fast], [speeds[number] for number in fast]

    def refused(self, state: State) -> tuple[Refused, ...]:
        """Return the numbers of refused samples of a state, by reason."""
        return tuple(Refused(why, count) for (of, why), count in self._refused.items() if of is state)

    def samples(self, profile: Callable[[State], Profile | None] = lambda state: None) -> tuple[Samples, ...]:
        """Return recorded and refused samples by state, with a profile of each recorded state."""
        samples = []
        for state in State:
            values, speeds = self._at_full_speed(state)
            refused = self.refused(state)
            preempted = self.preempted[state] / max(len(self._recorded[state]), 1)
            if values or refused:
                samples.append(
                    Samples(
                        state,
                        tuple(values),
                        refused,
                        self.unit,
                        profile(state) if values else None,
                        waited=self.off_core(state) * self.counts_waits,
                        preempted=min(preempted, 1.0),
                        speed_ns=round(fmean(speeds or [0])),
                    )
                )
        return tuple(samples)
