"""Samples by state, proved by cache counters, and reasons of refused ones. Does not import torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import TIME, Profile, Refused, Samples, State, Unit
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.rounds.timing import TimedCalls


class ProvedCall(NamedTuple):
    """Sample of a call, its CPU time if it was read, and the increase of the counters of hits and misses."""

    sample: int
    cpu_ns: int | None
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
    return [ProvedCall(sample, cpu_ns, *increase(before, after)) for sample, cpu_ns, before, after in calls]


class SampleRecorder:
    """Samples of one subject by state, in the order of their calls, and reasons of refused ones.

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
        self._cpu: defaultdict[State, list[int]] = defaultdict(list)  # of the same calls, if it was read
        self._refused: Counter[tuple[State, str]] = Counter()
        self._off_core_ns, self._wall_ns = Counter[State](), Counter[State]()
        self._ended: defaultdict[State, list[int]] = defaultdict(list)  # numbers of samples after each pass
        self.counts_waits = True

    def record(self, state: State, sample: int, reason: str | None = None, cpu_ns: int | None = None) -> None:
        """Record a sample, or refuse it if there is a reason."""
        if type(sample) is not int:
            raise MeasurementError(f"a sample of {self.unit.name} is {shown(sample)}: it must be an int")
        if reason or not self.unit.holds(sample):
            self._refused[state, reason or "the meter did not count"] += 1
        else:
            self._recorded[state].append(sample)
            if cpu_ns is not None:
                self._cpu[state].append(cpu_ns)

    def end_pass(self) -> None:
        """End a pass: samples that follow belong to the next one."""
        for state, values in self._recorded.items():
            self._ended[state].append(len(values))

    def record_block(self, state: State, off_core_ns: int, wall_ns: int) -> None:
        """Record the wall time of a block of calls, and its time off the core."""
        self._off_core_ns[state] += off_core_ns
        self._wall_ns[state] += wall_ns

    def off_core(self, state: State) -> float:
        """Return the share of the time of all blocks in which the thread was not on a core."""
        return min(self._off_core_ns[state] / max(self._wall_ns[state], 1), 1.0)

    def recorded(self, state: State) -> Sequence[int]:
        """Return the samples of a state."""
        return self._recorded[state]

    def refused(self, state: State) -> tuple[Refused, ...]:
        """Return the numbers of refused samples of a state, by reason."""
        return tuple(Refused(why, count) for (of, why), count in self._refused.items() if of is state)

    def samples(self, profile: Callable[[State], Profile | None] | None = None) -> tuple[Samples, ...]:
        """Return recorded and refused samples by state, with a profile of each recorded state, if any."""
        samples = []
        for state in State:
            values, refused, ended = self._recorded[state], self.refused(state), self._ended[state]
            if values or refused:
                lengths = tuple(end - begin for begin, end in pairwise([0, *ended]) if end > begin)
                found = Samples(
                    state,
                    tuple(values),
                    refused,
                    self.unit,
                    profile(state) if profile is not None and values else None,
                    waited=self.off_core(state) if self.counts_waits else 0.0,
                    lengths=lengths,
                    cpu=tuple(self._cpu[state]),
                )
                samples.append(found)
        return tuple(samples)
