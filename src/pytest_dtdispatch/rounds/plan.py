"""Plan of a measurement: the number of calls, which precision and a time limit determine.

Does not import torch.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol

from pytest_dtdispatch.core.measurement import FEW_SAMPLES, Measurement, State
from pytest_dtdispatch.core.text import show_progress
from pytest_dtdispatch.core.trail import Trail
from pytest_dtdispatch.core.verdicts import Outlook
from pytest_dtdispatch.rounds.core_speed import CORE, CoreSpeed
from pytest_dtdispatch.rounds.sampler import SAMPLERS, Pace, Sampler
from pytest_dtdispatch.stats.intervals import median_interval

FEWEST = 6  # minimum number of samples for a 95 % interval


def is_precise(values: Sequence[float], within: float = 0.1) -> bool:
    """Return whether the median's 95 % interval is within this fraction of it, by default 0.1.

    Example:
        >>> is_precise([100, 109, 92, 100, 102, 100]), is_precise([100] * 5)
        (True, False)
    """
    if (interval := median_interval(values)) is None:
        return False
    middle = statistics.median(values)
    return interval[0] >= middle * (1 - within) and interval[1] <= middle * (1 + within)


MIN_ROUNDS = 5
LONG_S = 2.0  # rows that take longer report their duration
WARMUP_HITS = 10  # the second call after a miss costs 3 to 6 times a steady hit
# A hit of 8 us is 3 % slower until the code that reads the counters is warm too, after about 200 calls.
QUICK_WARMUP, QUICK_WARMUP_NS = 200, 2_000_000
ROUNDS_TOGETHER = 10  # rounds on ranks that repeat collectives, and stop together if samples are precise
SLOW_NS = 3_000_000  # the number of faster hits is never reduced: 20 rounds of them fit into a second
# The first hit after a miss takes up to 0.5 ms more, regardless of its number of ops, and later ones do not.
# For a hit of 50 ms this is 1 %, so that no hit is discarded.
WARMUP_NS = 50_000_000
SHARE_OF_HITS = 0.1  # of the time limit, if misses alone would exceed it
MAX_PART_CALLS = 10_000  # until a call is proved, it takes 400 bytes
# The speed of a core that another machine uses too changes several times in a millisecond. Of longer calls,
# readings right before and after them tell little: misses of 0.9 ms between fast ones took up to 1.9 ms.
PART_NS, LEAST_PART_CALLS, SHORT_NS = 250_000, 4, 500_000
MAX_REPEATED = 4  # preempted calls that are repeated, for each planned one


class Effort(NamedTuple):
    """Numbers of calls of one subject.

    Args:
        rounds: maximum number of rounds.
        in_a_row: number of rounds whose misses are consecutive.
        repeat: number of recorded hits per round.
        warmup: number of discarded hits before consecutive hits.
        is_paced: whether rounds that would exceed the time limit are not started.
    """

    rounds: int
    in_a_row: int
    repeat: int
    warmup: int
    is_paced: bool = False

    def ns(self, miss_ns: float, hit_ns: float) -> float:
        """Estimate the duration of all rounds."""
        rows = math.ceil(self.rounds / self.in_a_row)
        return self.rounds * miss_ns + (self.rounds * self.repeat + rows * self.warmup) * hit_ns


def fitted(planned: Effort, miss_ns: int, hit_ns: int, left_ns: float, budget_ns: float) -> Effort:
    """Reduce a plan to the time limit if possible: first the warm-up, then hits, then rounds.

    At least five rounds remain, with one hit each. A plan with fast hits is unchanged: misses dominate its
    duration, and rounds check the time limit.

    Example:
        >>> fitted(Effort(20, 20, 10, 10), 145_000_000, 140_000_000, 715e6, 1e9)
        Effort(rounds=5, in_a_row=5, repeat=1, warmup=0, is_paced=True)
        >>> fitted(Effort(20, 20, 10, 10), 1_000_000, 10_000, 0.0, 1e9)
        Effort(rounds=20, in_a_row=20, repeat=10, warmup=10, is_paced=False)
    """
    if hit_ns < SLOW_NS or planned.ns(miss_ns, hit_ns) <= left_ns:
        return planned
    least = min(planned.rounds, MIN_ROUNDS)
    room = max(left_ns - least * (miss_ns + hit_ns), SHARE_OF_HITS * budget_ns)
    warmup = min(planned.warmup, WARMUP_NS // hit_ns, int(room / hit_ns))
    left_ns -= warmup * hit_ns
    for_hits = max(left_ns - least * miss_ns, SHARE_OF_HITS * budget_ns)
    repeat = max(1, min(planned.repeat, int(for_hits / (least * hit_ns))))
    rounds = max(least, min(planned.rounds, int(left_ns / (miss_ns + repeat * hit_ns))))
    return Effort(rounds, min(planned.in_a_row, rounds), repeat, warmup, is_paced=True)


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
        >>> agreed(None, "the blocks to repeat", 3)
        (3,)
    """
    settled = agreement.minimum(step, numbers) if agreement is not None else None
    return numbers if settled is None else settled


# Returns the outlook of each state of a row while its call can be repeated; empty for rows without a gate.
RowGate = Callable[[Measurement], dict[State, Outlook]]


@dataclass(frozen=True)
class Plan:
    """Options of measurements.

    Args:
        rounds: number of proved misses of each signature.
        repeat: number of recorded hits per miss.
        max_time_s: time limit in seconds; after at least five rounds, no round begins after it. If hits are
            slow, fewer are recorded and discarded, so that the subject meets the limit.
        cold: whether to measure cold calls too.
        in_a_row: number of rounds whose misses are consecutive, before their hits, if the misses take at most
            a tenth of the time limit; otherwise five. After hits, a miss is up to 20 % slower, as its code is
            no longer in the CPU caches.
        sampler: sampler of each call.
        agreement: agreement with other ranks; None without other ranks.
        fewest: minimum number of samples; no round is added after that if the median of each state is
            precise. None runs all rounds.
        warmup: number of discarded hits before consecutive hits.
        quick_warmup: maximum number of discarded hits if they are fast.
        one_thread: whether to repeat calls in one intra-op thread instead of the program's number of threads.
        gate: function that judges rows while they are measured; None if figures are neither saved nor judged.
        speed: readings of the core's speed.
    """

    rounds: int = 20
    repeat: int = 10
    max_time_s: float = 1.0
    cold: bool = False
    in_a_row: int = 20
    sampler: Sampler = field(default_factory=lambda: SAMPLERS["time"])
    agreement: Agreement | None = None
    fewest: int | None = None
    warmup: int = WARMUP_HITS
    quick_warmup: int = QUICK_WARMUP
    one_thread: bool = True
    gate: RowGate | None = None
    speed: CoreSpeed = CORE


class Schedule:
    """Numbers of calls of one subject, from the duration of its rehearsal.

    Attributes:
        plan: requested plan, but without a time limit if the sampler is exact.
        effort: numbers of calls.
        pace: warm-up and blocks, if the sampler needs more warm-up than times; else None.
        part_warmup: number of discarded calls at the start of each part.
        fewest: minimum number of samples, after which a precise median ends the rounds; None to run all
            rounds.
    """

    def __init__(self, plan: Plan, has_local: bool) -> None:
        if plan.sampler.is_exact:
            # With a time limit, the number of rounds and so the minimum of a count would depend on the time.
            plan = replace(plan, max_time_s=math.inf, in_a_row=plan.rounds)
        self.plan = plan
        self.clock = plan.sampler.clock
        self.effort = Effort(plan.rounds, plan.in_a_row, plan.repeat, plan.warmup)
        self.pace: Pace | None = None
        self.fewest = plan.fewest
        self._has_local = has_local
        # Ranks wait for each other, so that none may repeat calls or wait for its core.
        is_alone = plan.agreement is None and plan.sampler.unit.is_time
        self._is_selective = plan.gate is not None and plan.fewest is not None and is_alone
        # The first hit after a reading of the speed takes 1.3 times as long.
        self.part_warmup = 1 if self._is_selective else 0
        self._affordable = self._planned = plan.rounds
        self._miss_ns = self._hit_ns = 0  # in the rehearsal, including all work around a call
        self._first_sample = self._last_sample = 0  # of the rehearsal
        self._began = self.clock()
        self._deadline = self._began + self.plan.max_time_s * 1e9

    def rehearsed_miss(self, began: int) -> None:
        """Record the duration of the first miss, and report the duration of the row if it is long."""
        self._miss_ns = max(self.clock() - began, 1)
        in_time = min(self.plan.max_time_s * 1e9 / self._miss_ns, self.plan.rounds)
        rounds = 1 if in_time < 1 else max(int(in_time), min(self.plan.rounds, MIN_ROUNDS))
        if (left_s := rounds * (1 + self.plan.cold) * self._miss_ns / 1e9) >= LONG_S:
            show_progress(
                "a miss takes {:.1f} s: its row takes about {:.0f} s more", self._miss_ns / 1e9, left_s
            )

    def has_time_to_rehearse(self, began: int) -> bool:
        """Record the duration of a warm call; return whether another one fits."""
        self._hit_ns = min(self.clock() - began, self._hit_ns or sys.maxsize)
        least_ns = MIN_ROUNDS * (self._miss_ns + self._hit_ns)
        # Ranks must make the same number of calls, regardless of their duration.
        is_free = self.plan.agreement is not None or self._hit_ns < SLOW_NS
        return is_free or least_ns <= self.plan.max_time_s * 1e9

    def rehearsed(self, miss: int, hit: int) -> None:
        """Plan the numbers of calls from the samples of a first miss and of a later call."""
        plan = self.plan
        self._first_sample, self._last_sample = miss, hit
        self.pace = plan.sampler.pace(miss, hit, plan.rounds, plan.repeat)
        if self.pace is not None:
            self.pace = Pace(*agreed(plan.agreement, "the pace", *self.pace))
            return
        if not plan.sampler.unit.is_time:
            miss, hit = self._miss_ns, self._hit_ns
        budget_ns = min(plan.max_time_s, 1e9) * 1e9
        round_ns = (2 if plan.cold else 1) * miss + (plan.repeat + 1) * hit
        self._affordable = min(plan.rounds, max(int(budget_ns / max(round_ns, 1)), MIN_ROUNDS))
        in_a_row = max(int(budget_ns / 10 / max(miss, 1)), MIN_ROUNDS)
        warmup = max(plan.warmup, min(plan.quick_warmup, QUICK_WARMUP_NS // max(hit, 1)))
        self.effort = self.effort._replace(in_a_row=min(plan.in_a_row, in_a_row), warmup=warmup)

    def settle(self, propagation: Propagation) -> None:
        """Reduce the numbers of calls to the time limit, and to the minimum of all ranks."""
        has_miss, has_hit = propagation is not Propagation.NONE, propagation is not Propagation.NEVER_CACHED
        miss_ns = self._miss_ns * has_miss * (2 if self.plan.cold else 1)
        hit_ns = self._hit_ns * has_hit * (2 if self._has_local else 1)
        left_ns, budget_ns = self._deadline - self.clock(), self.plan.max_time_s * 1e9
        if self._miss_ns * has_miss > budget_ns:
            self.effort = self.effort._replace(rounds=1, in_a_row=1)
        self.effort = fitted(self.effort, miss_ns, hit_ns, left_ns, budget_ns)
        affordable = min(self._affordable, self.effort.rounds)
        if self.plan.agreement is not None:
            rounds = affordable
            if self.fewest is not None:
                rounds = min(affordable, max(ROUNDS_TOGETHER, self.fewest))
            step = f"the rounds (propagation: {propagation.value})"
            settled = self.plan.agreement.minimum(step, (rounds, *self.effort[1:4]))
            if settled is not None:
                self._planned, in_a_row, repeat, warmup = settled
                self.effort, self.fewest = Effort(self._planned, in_a_row, repeat, warmup), None
                self._deadline = math.inf
        self._began = self.clock()

    def next_rounds(self, done: int) -> int:
        """Return the number of rounds to run next; 0 if the time limit is reached."""
        count = min(self.effort.in_a_row, self._planned - done)
        # If the first miss took too long, the second one decides whether all do.
        is_slow = self.effort.rounds == 1 and self.clock() - self._began >= done * self.plan.max_time_s * 1e9
        if done < (1 if is_slow else MIN_ROUNDS):
            return count
        if (now := self.clock()) >= self._deadline:
            return 0
        if not self.effort.is_paced:
            return count
        return min(count, int((self._deadline - now) * done / max(now - self._began, 1)))

    def has_few_misses(self, done: int) -> bool:
        """Return whether there are too few rounds to judge misses."""
        return done < min(self.plan.rounds, MIN_ROUNDS)

    def notes(self, done: int) -> tuple[str, ...]:
        """Return a note if the time limit left too few rounds."""
        if not self.has_few_misses(done):
            return ()
        took_s, most_s = self._miss_ns / 1e9, self.plan.max_time_s
        here = f" ({took_s:.1f} s here)" * (took_s > most_s)  # otherwise on another rank
        return (f"{FEW_SAMPLES}: a miss takes longer{here} than the {most_s:g} s allowed",)

    def warmup_misses(self, count: int) -> int:
        """Return the number of misses to discard before consecutive ones: the first of many are slow."""
        if self.pace is not None:
            return self.pace.warmup_misses
        return count // 4 if self.effort.in_a_row == self.plan.in_a_row else 0

    def is_slow(self, state: State, speed_ns: float) -> bool:
        """Return whether a gate excludes a call at this speed of the core, if enough others remain.

        The speed around a long call is not its speed during the call.
        """
        first = self._first_sample if state in (State.MISS, State.COLD) else self._last_sample
        return self._is_selective and first <= SHORT_NS and self.plan.speed.is_slow(speed_ns)

    def parts(self, calls: int) -> list[int]:
        """Split consecutive calls into parts. With a gate, the core's speed is read around each."""
        most = MAX_PART_CALLS
        if self._is_selective:
            most = min(max(PART_NS // max(self._hit_ns, 1), LEAST_PART_CALLS), MAX_PART_CALLS)
        return [min(most, calls - first) for first in range(0, calls, most)]

    def at_first(self, count: int, recorded: int) -> int:
        """Return the number of samples, at most ``count``, to record before the first check of precision."""
        return count if self.fewest is None else min(count, max(self.fewest - recorded, 1))

    def may_repeat(self, repeated: int, count: int) -> bool:
        """Return whether to repeat a preempted call: a limited number of times, and none on ranks."""
        is_allowed = self.plan.agreement is None and repeated < MAX_REPEATED * count
        return is_allowed and self.clock() < self._deadline

    def is_enough(self, samples: Sequence[int]) -> bool:
        """Return whether the samples of a state are precise enough to end the rounds."""
        return self.fewest is not None and len(samples) >= self.fewest and is_precise(samples)


class Propagation(Enum):
    """Use of the sharding propagator by a subject, determined in its rehearsal."""

    CACHED = "cached"
    NEVER_CACHED = "never cached"
    NONE = "none"


# Notes are always printed, remarks only in verbose output.
NOTES = {Propagation.NEVER_CACHED: ("never hits: torch does not cache this op, and each call propagates",)}
REMARKS = {Propagation.NONE: ("unpropagated: it never queries the sharding propagator, so it has no miss",)}
