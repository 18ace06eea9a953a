"""Series of calls that passes make in turn, and when a measurement ends. Does not import torch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.rounds.plan import Agreement
from pytest_dtdispatch.rounds.sampler import Clock, Meter
from pytest_dtdispatch.rounds.timing import Subject

T = TypeVar("T")


@dataclass
class Series:
    """Calls of one subject in one state, as each pass makes them.

    Args:
        state: state of the recorded calls.
        subject: the call.
        meter: meter that is read right before and right after each call.
        warmup: number of discarded calls before the recorded ones.
        calls: number of recorded calls.
        blocks: number of times that a pass makes all of these calls.
        warmup_meter: meter of discarded calls; None for that of the others.
    """

    state: State
    subject: Subject
    meter: Meter
    warmup: int
    calls: int
    blocks: int = 1
    warmup_meter: Meter | None = None


class Deadline:
    """Time limit of a measurement, which begins now.

    Args:
        limit_s: time limit in seconds, as of ``--dtdispatch-max-time``; may be infinite.
        clock: clock in nanoseconds.
    """

    def __init__(self, limit_s: float, clock: Clock = time.perf_counter_ns) -> None:
        self.limit_s = limit_s
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
