"""Series of calls that passes make in turn, and when a measurement ends. Does not import torch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pytest_dtdispatch.core.measurement import TIME, Profile, Refused, Samples, State, Unit
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.rounds.plan import Agreement
from pytest_dtdispatch.rounds.sampler import Clock, Meter
from pytest_dtdispatch.rounds.timing import Subject

T = TypeVar("T")


@dataclass
class Series:
    """Calls of one subject in one state, as each pass makes them, and their samples in the order of calls.

    Args:
        state: state of the recorded calls.
        subject: the call.
        meter: meter that is read right before and right after each call.
        unit: unit of the samples.
        warmup: number of discarded calls before the recorded ones.
        calls: number of recorded calls.
        blocks: number of times that a pass makes all of these calls.
        warmup_meter: meter of discarded calls; None for that of the others.

    Attributes:
        values: recorded samples.
        refused: numbers of refused samples, by reason.
        profile: instructions of a call by function, if requested.

    Example:
        >>> series = Series(State.CALL, Subject(int, tuple), Meter(int, int))
        >>> series.record(7)
        >>> series.record(9, "it compiled")
        >>> series.values, dict(series.refused)
        ([7], {'it compiled': 1})
    """

    state: State
    subject: Subject
    meter: Meter
    unit: Unit = TIME
    warmup: int = 0
    calls: int = 1
    blocks: int = 1
    warmup_meter: Meter | None = None
    values: list[int] = field(default_factory=list, init=False)
    refused: Counter[str] = field(default_factory=Counter, init=False)
    profile: Profile | None = field(default=None, init=False)
    _cpu: list[int] = field(default_factory=list, init=False)  # of the same calls, if it was read
    _lengths: list[int] = field(default_factory=list, init=False)  # of passes
    _off_core_ns: int = field(default=0, init=False)
    _wall_ns: int = field(default=0, init=False)

    def record(self, sample: int, reason: str | None = None, cpu_ns: int | None = None) -> None:
        """Record a sample, or refuse it if there is a reason."""
        if type(sample) is not int:
            raise MeasurementError(f"a sample of {self.unit.name} is {shown(sample)}: it must be an int")
        if reason or not self.unit.holds(sample):
            self.refused[reason or "the meter did not count"] += 1
        else:
            self.values.append(sample)
            if cpu_ns is not None:
                self._cpu.append(cpu_ns)

    def record_block(self, off_core_ns: int, wall_ns: int) -> None:
        """Record the wall time of a block of calls, and its time off the core."""
        self._off_core_ns += off_core_ns
        self._wall_ns += wall_ns

    def end_pass(self) -> None:
        """End a pass: samples that follow belong to the next one."""
        self._lengths.append(len(self.values) - sum(self._lengths))

    @property
    def off_core(self) -> float:
        """Share of the time of all blocks in which the thread was not on a core."""
        return min(self._off_core_ns / max(self._wall_ns, 1), 1.0)

    def samples(self, counts_waits: bool = True) -> Samples:
        """Return recorded and refused samples.

        Args:
            counts_waits: whether time off the core is waiting for one.
        """
        return Samples(
            self.state,
            tuple(self.values),
            tuple(Refused(reason, count) for reason, count in self.refused.items()),
            self.unit,
            self.profile,
            waited=self.off_core if counts_waits else 0.0,
            lengths=tuple(length for length in self._lengths if length),
            cpu=tuple(self._cpu),
        )


def samples_of(every: Iterable[Series], counts_waits: bool = True) -> tuple[Samples, ...]:
    """Return the samples of all series that have recorded or refused ones."""
    return tuple(series.samples(counts_waits) for series in every if series.values or series.refused)


class Deadline:
    """Time limit of a measurement, which begins now.

    Args:
        limit_s: time limit in seconds, as of ``--dtdispatch-max-time``; may be infinite.
        clock: clock in nanoseconds.
    """

    def __init__(self, limit_s: float, clock: Clock = time.perf_counter_ns) -> None:
        self.limit_ns = limit_s * 1e9
        self.clock = clock
        self._end_ns = clock() + self.limit_ns

    @property
    def left_ns(self) -> float:
        """Nanoseconds until the deadline; negative after it."""
        return self._end_ns - self.clock()


class Stop:
    """When a measurement ends: after its last pass, or if no other pass fits before the deadline.

    Args:
        deadline: time limit of all passes; None for no limit.
        most: number of passes without a time limit.
        least: number of passes that the deadline does not prevent.
        pass_ns: estimated duration of a pass in nanoseconds.

    Attributes:
        done: number of completed passes.

    Example:
        >>> stop = Stop(Deadline(0.0), most=8, least=2)
        >>> ["".join(names) for names in take("ab", stop)], stop.done
        (['ab', 'ab'], 2)
    """

    def __init__(self, deadline: Deadline | None, most: int, least: int = 0, pass_ns: float = 0.0) -> None:
        self.most, self.done = most, 0
        self._deadline, self._least, self._pass_ns = deadline, least, pass_ns

    def settle(self, agreement: Agreement | None, step: str, passes: int, *calls: int) -> tuple[int, ...]:
        """Agree with other ranks on the number of passes, which then does not depend on time, and of calls.

        Args:
            agreement: agreement of the plan; None in a run without ranks.
            step: name of the decision.
            passes: number of passes that this rank proposes.
            calls: numbers of calls in a pass that this rank proposes.

        Returns:
            The agreed numbers of calls; those of this rank if there are no other ranks.
        """
        settled = agreement.minimum(step, (passes, *calls)) if agreement is not None else None
        if settled is None:
            return calls
        self.most, *_ = settled
        self._deadline = None
        return settled[1:]

    def add(self) -> None:
        """Count a completed pass."""
        self.done += 1

    def is_finished(self) -> bool:
        """Return whether no other pass begins."""
        if self.done >= self.most:
            return True
        if self._deadline is None or self.done < self._least:
            return False
        return self._deadline.left_ns < self._pass_ns


def take(series: Sequence[T], stop: Stop, rotates: bool = False) -> Iterator[Sequence[T]]:
    """Yield the series of each pass in their order, until the measurement ends.

    Args:
        series: series of calls, or names for them.
        stop: when it ends.
        rotates: whether the order changes, so that a machine that becomes slower affects all series equally:
            each is first equally often, and every second pass reverses the order of the pass before.

    Example:
        >>> ["".join(names) for names in take("abc", Stop(None, 6), rotates=True)]
        ['abc', 'cba', 'bca', 'acb', 'cab', 'bac']
    """
    while not stop.is_finished():
        first = stop.done // 2 % len(series) if rotates else 0
        order = [*series[first:], *series[:first]]
        yield order[::-1] if rotates and stop.done % 2 else order
        stop.add()
