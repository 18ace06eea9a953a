"""Plan of a measurement, when it ends, and agreement of ranks on its numbers. Does not import torch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from pytest_dtdispatch.core.measurement import MIN_PASSES, PASSES
from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.rounds.sampler import SAMPLERS, Clock, Sampler

T = TypeVar("T")
WARMUP_HITS = 10  # the second call after a miss costs 3 to 6 times a steady hit


class Effort(NamedTuple):
    """Numbers of passes of one subject, and of calls in each.

    Args:
        passes: number of passes.
        misses: number of recorded misses in a pass.
        hits: number of recorded hits in a pass.
        warmup: number of discarded hits before them.
    """

    passes: int
    misses: int
    hits: int
    warmup: int

    def ns(self, miss_ns: float, hit_ns: float) -> float:
        """Estimate the duration of one pass."""
        return self.misses * miss_ns + (self.hits + self.warmup) * hit_ns


def fitted(planned: Effort, miss_ns: float, hit_ns: float, left_ns: float) -> Effort:
    """Reduce the calls of a pass until all passes and a discarded one fit, then the passes to at least four.

    Hits that take at most a tenth of the time stay: fewer would save nothing, and the first ones are slow.

    Example:
        >>> fitted(Effort(8, 5, 50, 10), 1e6, 1e4, 1e9)
        Effort(passes=8, misses=5, hits=50, warmup=10)
        >>> fitted(Effort(8, 5, 50, 10), 44e6, 1e6, 1e9)
        Effort(passes=8, misses=1, hits=19, warmup=3)
        >>> fitted(Effort(8, 5, 50, 10), 300e6, 1e5, 1e9)
        Effort(passes=4, misses=1, hits=50, warmup=10)
    """
    left_ns = max(left_ns, 0)
    room_ns, hits_ns = left_ns / (planned.passes + 1), planned.ns(0, hit_ns)
    share = room_ns / max(planned.ns(miss_ns, hit_ns), 1)
    if share >= 1:
        return planned
    misses, hits, warmup = planned.misses * share, planned.hits, planned.warmup
    if 10 * hits_ns <= max(room_ns, miss_ns):
        misses = (room_ns - hits_ns) / miss_ns
    else:
        hits, warmup = max(int(hits * share), 1), int(warmup * share)
    effort = Effort(planned.passes, max(int(misses), 1), hits, warmup)
    passes = int(left_ns / effort.ns(miss_ns, hit_ns)) - 1
    return effort._replace(passes=min(planned.passes, max(passes, MIN_PASSES)))


class Agreement(Protocol):
    """Agreement on numbers between ranks that repeat collectives together."""

    def sync(self, subject: str) -> None:
        """Wait for all ranks at the start of the next subject."""

    def minimum(self, step: str, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """Return the minimum of each number over all ranks; None without a real process group."""

    def note(self, trail: Trail) -> None:
        """Add collectives and ops of this rank, to compare them with those of other ranks."""


def agreed(agreement: Agreement | None, step: str, *numbers: int) -> tuple[int, ...]:
    """Return the minimum of each number over all ranks; without other ranks, the numbers themselves.

    Clocks, load and free memory differ between ranks. A decision that depends on them, such as the number of
    repetitions, must be agreed on here: otherwise ranks enter different collectives and wait until the
    timeout.

    Every rank must call this with the same ``step`` and the same number of values; otherwise all ranks raise
    RanksError. It takes 1 to 20 ms: do not call it between timed calls. Pass a decision as 0 or 1, and negate
    numbers to get their maximum.

    Args:
        agreement: agreement of the plan; None in a run without ranks.
        step: name of the decision, such as ``"the rounds"``.
        numbers: this rank's proposals.

    Example:
        >>> agreed(None, "the passes", 8)
        (8,)
    """
    settled = agreement.minimum(step, numbers) if agreement is not None else None
    return numbers if settled is None else settled


@dataclass(frozen=True)
class Plan:
    """Options of measurements.

    Args:
        rounds: number of proved misses of each signature, spread over eight passes.
        repeat: number of recorded hits per miss.
        max_time_s: time limit in seconds; calls that do not fit are left out of each pass, and no pass begins
            after it, once there are four.
        cold: whether to measure cold calls too.
        sampler: sampler of each call.
        agreement: agreement with other ranks; None without other ranks.
        warmup: number of discarded hits before those of a pass.
        one_thread: whether to repeat calls in one intra-op thread instead of the program's number of threads.
    """

    rounds: int = 40
    repeat: int = 10
    max_time_s: float = 1.0
    cold: bool = False
    sampler: Sampler = field(default_factory=lambda: SAMPLERS["time"])
    agreement: Agreement | None = None
    warmup: int = WARMUP_HITS
    one_thread: bool = True

    @property
    def effort(self) -> Effort:
        """Numbers of passes and calls without a time limit."""
        passes = min(PASSES, self.rounds)
        misses = math.ceil(self.rounds / passes)
        return Effort(passes, misses, misses * self.repeat, self.warmup)


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
        stop.done += 1
