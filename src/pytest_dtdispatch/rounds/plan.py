"""Plan of a measurement: the number of passes and of calls in each, which a time limit may reduce.

Does not import torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol

from pytest_dtdispatch.core.measurement import MIN_PASSES, PASSES
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.rounds.sampler import SAMPLERS, Clock, Pace, Sampler

LONG_S = 2.0  # rows that take longer report their duration
WARMUP_HITS = 10  # the second call after a miss costs 3 to 6 times a steady hit
# A hit of 8 us is 3 % slower until the code that reads the counters is warm too, after about 200 calls.
QUICK_WARMUP, QUICK_WARMUP_NS = 200, 2_000_000


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
    room_ns, hits_ns = max(left_ns, 0) / (planned.passes + 1), planned.ns(0, hit_ns)
    if (share := room_ns / max(planned.ns(miss_ns, hit_ns), 1)) >= 1:
        return planned
    if 10 * hits_ns <= max(room_ns, miss_ns):
        effort = planned._replace(misses=max(int((room_ns - hits_ns) / miss_ns), 1))
    else:
        misses, hits = (max(int(count * share), 1) for count in (planned.misses, planned.hits))
        effort = Effort(planned.passes, misses, hits, int(planned.warmup * share))
    affordable = int(max(left_ns, 0) / effort.ns(miss_ns, hit_ns)) - 1
    return effort._replace(passes=min(planned.passes, max(affordable, MIN_PASSES)))


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


class Schedule:
    """Numbers of calls of one subject, from the duration of its rehearsal.

    Attributes:
        plan: requested plan, but without a time limit if the sampler is exact.
        effort: numbers of passes and calls.
        pace: warm-up and blocks, if the sampler needs more warm-up than times; else None.
    """

    def __init__(self, plan: Plan, has_local: bool, clock: Clock | None = None) -> None:
        if plan.sampler.is_exact:
            # With a time limit, the number of calls and so the minimum of a count would depend on the time.
            plan = replace(plan, max_time_s=math.inf)
        self.plan = plan
        self.clock = clock or plan.sampler.clock
        self.effort = plan.effort
        self.pace: Pace | None = None
        self._has_local = has_local
        self._miss_ns = self._hit_ns = 0  # in the rehearsal, including all work around a call
        self._longest_ns = 0  # of both, without those that do not occur
        self._pass_ns = 0.0  # estimate of one pass
        self._deadline = self.clock() + plan.max_time_s * 1e9

    def rehearsed_miss(self, began: int) -> None:
        """Record the duration of the first miss, and report the duration of the row if it is long."""
        self._miss_ns = max(self.clock() - began, 1)
        in_time = min(self.plan.max_time_s * 1e9 / self._miss_ns, self.plan.rounds)
        misses = 1 if in_time < 1 else max(int(in_time), min(self.plan.rounds, MIN_PASSES))
        if (left_s := misses * (1 + self.plan.cold) * self._miss_ns / 1e9) >= LONG_S:
            show_progress(
                "a miss takes {:.1f} s: its row takes about {:.0f} s more", self._miss_ns / 1e9, left_s
            )

    def has_time_to_rehearse(self, began: int) -> bool:
        """Record the duration of a warm call; return whether another one fits."""
        self._hit_ns = min(self.clock() - began, self._hit_ns or sys.maxsize)
        # Ranks must make the same number of calls, regardless of their duration.
        least_ns = MIN_PASSES * (self._miss_ns + self._hit_ns)
        return self.plan.agreement is not None or least_ns <= self.plan.max_time_s * 1e9

    def rehearsed(self, miss: int, hit: int) -> None:
        """Plan the warm-up from the samples of a first miss and of a later call."""
        plan = self.plan
        self.pace = plan.sampler.pace(miss, hit, plan.rounds, plan.repeat)
        if self.pace is not None:
            self.pace = Pace(*agreed(plan.agreement, "the pace", *self.pace))
            self.effort = Effort(1, plan.rounds, plan.rounds * plan.repeat, plan.warmup)

    def settle(self, propagation: Propagation) -> None:
        """Reduce the numbers of calls to the time limit, and to the minimum of all ranks."""
        has_miss, has_hit = propagation is not Propagation.NONE, propagation is not Propagation.NEVER_CACHED
        miss_ns = self._miss_ns * (2 if self.plan.cold else 1) if has_miss else 0
        hit_ns = self._hit_ns * (2 if self._has_local else 1) if has_hit else 0
        left_ns = self._deadline - self.clock()
        if self.pace is None:
            quick = min(self.plan.warmup, QUICK_WARMUP_NS // max(self._hit_ns, 1))
            self.effort = self.effort._replace(warmup=max(quick, min(self.plan.warmup, WARMUP_HITS)))
            self.effort = fitted(self.effort, miss_ns, hit_ns, left_ns)
            self._longest_ns = max(self._miss_ns * has_miss, self._hit_ns * has_hit)
            if self._longest_ns > self.plan.max_time_s * 1e9:
                self.effort = self.effort._replace(passes=1)
        if self.plan.agreement is not None:
            settled = self.plan.agreement.minimum(
                f"the calls (propagation: {propagation.value})", self.effort
            )
            if settled is not None:
                self.effort, self._deadline = Effort(*settled), math.inf
        self._pass_ns = self.effort.ns(miss_ns, hit_ns)

    @property
    def has_first_pass(self) -> bool:
        """Whether a pass is discarded before the others; few passes and exact samplers need none."""
        return self.pace is None and self.effort.passes >= MIN_PASSES

    def has_time(self, done: int) -> bool:
        """Return whether another pass begins."""
        if done < min(self.effort.passes, MIN_PASSES):
            return True
        return done < self.effort.passes and self.clock() + self._pass_ns <= self._deadline

    def notes(self, done: int) -> tuple[str, ...]:
        """Return a note if the time limit left too few passes."""
        if self.pace is not None or done >= min(self.plan.rounds, MIN_PASSES):
            return ()
        took_s, most_s = self._longest_ns / 1e9, self.plan.max_time_s
        here = f" ({took_s:.1f} s here)" if took_s > most_s else ""  # otherwise on another rank
        return (f"few passes: one call takes longer than the time limit of {most_s:g} s{here}",)

    def warmup_misses(self) -> int:
        """Return the number of misses to discard before consecutive ones."""
        return self.pace.warmup_misses if self.pace is not None else 0


class Propagation(Enum):
    """Use of the sharding propagator by a subject, determined in its rehearsal."""

    CACHED = "cached"
    NEVER_CACHED = "never cached"
    NONE = "none"


# Notes are always printed, remarks only in verbose output.
NOTES = {Propagation.NEVER_CACHED: ("never hits: torch does not cache this op, and each call propagates",)}
REMARKS = {Propagation.NONE: ("unpropagated: it never queries the sharding propagator, so it has no miss",)}
