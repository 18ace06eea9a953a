"""Rounds: clear and miss, warm-up, hits; and what the counters prove of each sample. Without torch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_dtdispatch.core.measurement import Instructions, Samples, State
from pytest_dtdispatch.instructions.model import Profile
from pytest_dtdispatch.measuring.effort import MIN_ROUNDS, SLOW_NS, Effort, fitted, foretold_calls
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.precision import ENOUGH_TO_TRY, is_enough
from pytest_dtdispatch.measuring.tally import Tally
from pytest_dtdispatch.measuring.timing import (
    Clock,
    Meter,
    Reader,
    Row,
    TimedCall,
    gc_paused,
    moved,
    nothing_to_do,
    time_row,
)

if TYPE_CHECKING:
    from pytest_dtdispatch.instructions.counted_rounds import Counting

WARMUP_HITS = 10  # the second call after a miss costs 3 to 6 times a steady hit
WARMUP_LOCALS = 2
REHEARSAL_CALLS = 3
ROUNDS_TOGETHER = 10  # on ranks that repeat a collective, where rounds are to be enough: they stop as one

NOT_PROPAGATED = "propagation did not run"
PROPAGATED_AGAIN = "propagation ran again"
NO_COUNTER_MOVED = "no cache counter moved"
A_COUNTER_MOVED = "a cache counter moved"
NOT_COLD = "a cache was not empty"


T = TypeVar("T")
# Asks for rows to be timed, is sent what that gave, and returns something at its end.
Rows = Generator[Row, "list[tuple[int, Sequence[Any], Sequence[Any]]] | None", T]


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


class Agreement(Protocol):
    """What the rounds ask of the other ranks, where they repeat a collective together."""

    def come_to(self, subject: str) -> None:
        """Meet them at what is measured next."""

    def rounds(self, numbers: Sequence[int], propagation: str) -> tuple[int, ...] | None:
        """Settle each number; nothing where no rank waits for another."""


@dataclass(frozen=True)
class Plan:
    """How much is measured, and of what.

    Args:
        rounds: proved misses for each signature.
        repeat: hits recorded after each miss.
        max_time_s: seconds after which no round is added, once five are done. Of what has slow hits fewer are
            recorded and discarded, so that it ends in time.
        cold: also take cold calls.
        in_a_row: rounds that take their misses one after the other, each of a cleared cache, before their
            hits, where that takes no more than a tenth of the time; else five. Hits between two misses
            make the second one up to 20 % slower, as its code has gone cold.
        counting: counts instructions, in place of looking at the clock.
        agreement: settles rounds with other ranks, where there are any.
        within: share of the median; no round is added once the median of each state is known that closely.
        warmup: hits discarded before those of a row.
    """

    rounds: int = 20
    repeat: int = 10
    max_time_s: float = 1.0
    cold: bool = False
    in_a_row: int = 20
    counting: Counting | None = None
    agreement: Agreement | None = None
    within: float | None = None
    warmup: int = WARMUP_HITS

    @property
    def effort(self) -> Effort:
        """The calls that are made of one subject, where there is time enough."""
        return Effort(self.rounds, self.in_a_row, self.repeat, self.warmup)

    def foretold_calls(self, call_ns: int) -> int:
        """Foretell how many calls are made of what takes so long."""
        return foretold_calls(self.effort, call_ns, self.max_time_s * 1e9)


@dataclass(frozen=True)
class Subject:
    """What is timed.

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

    def row(self, prepare: Callable[[], tuple[Any, ...]], read: Reader, calls: int) -> Row:
        """Make the row of so many calls, each prepared as is said here."""
        return Row(self.fn, prepare, self.kwargs, read, calls, self.release)

    def drop(self, result: Any) -> None:
        """Release a result of a call that is not timed."""
        if self.release is not None:
            self.release(result)


class Propagation(Enum):
    """How a subject uses the sharding propagator, as its rehearsal showed."""

    CACHED = "cached"
    NEVER_CACHED = "never cached"
    NONE = "none"


@dataclass(frozen=True)
class Taken:
    """What the rounds gave."""

    propagation: Propagation
    rounds: int
    samples: tuple[Samples, ...] = ()
    instructions: tuple[Instructions, ...] = ()
    profiles: tuple[Profile, ...] = ()
    remarks: tuple[str, ...] = ()


class Rounds:
    """Take rounds of one subject, and time them."""

    def __init__(
        self,
        subject: Subject,
        caches: Caches,
        plan: Plan,
        local: Subject | None = None,
        clock: Clock = time.perf_counter_ns,
        synchronize: Callable[[], None] = nothing_to_do,
        signals: Signals | None = None,
    ) -> None:
        self._subject = subject
        self._caches = caches
        self._plan = plan
        self._local = local
        self._clock = clock
        self._meter = Meter(clock, clock)
        self._synchronize = synchronize
        self._signals = signals or Signals()
        self._readers = caches.readers()
        self._hit_reader: Reader | None = None  # until it is known which cache answers: all of them
        self._effort = plan.effort
        self._affordable = plan.rounds
        self._within = plan.within
        self._miss_ns = self._hit_ns = 0  # of the rehearsal, with all that is done around a call
        self._why_no_miss = NOT_PROPAGATED
        self._tally = Tally()

    def take(self) -> Taken:
        """Run the rounds."""
        # Rows are timed here and not where they are planned: a propagation walks the Python stack, and each
        # frame that stands between the program and its op makes a miss 0.3 % slower.
        raw = None
        with closing(self._rows()) as rows:
            while True:
                try:
                    row = rows.send(raw)
                except StopIteration as end:
                    taken: Taken = end.value
                    return taken
                try:
                    self._signals.let_in()
                    raw = time_row(row, self._meter)
                finally:
                    self._signals.is_open = False

    def _rows(self) -> Rows[Taken]:
        start = self._clock()
        with gc_paused():
            propagation = yield from self._rehearse()
        some_rounds = {
            Propagation.CACHED: self._cached_rounds,
            Propagation.NEVER_CACHED: self._never_cached_rounds,
            Propagation.NONE: self._unpropagated_rounds,
        }[propagation]
        deadline = start + self._plan.max_time_s * 1e9
        self._fit(propagation, deadline)
        planned, deadline = self._settled(propagation, deadline)
        began, done = self._clock(), 0
        while count := self._next_rounds(done, planned, began, deadline):
            self._synchronize()
            taken = yield from some_rounds(count)
            done += taken
            if taken < count:  # they are enough
                break
        return self._taken(propagation, done)

    def _next_rounds(self, done: int, planned: int, began: int, deadline: float) -> int:
        """How many rounds are taken next; 0 where there is no time for more."""
        count = min(self._effort.in_a_row, planned - done)
        if done < MIN_ROUNDS:
            return count
        if (now := self._clock()) >= deadline:
            return 0
        if not self._effort.is_paced:
            return count
        return min(count, int((deadline - now) * done / max(now - began, 1)))

    def _taken(self, propagation: Propagation, done: int) -> Taken:
        return Taken(propagation, done, self._tally.recorded(Samples))

    def _rehearse(self) -> Rows[Propagation]:
        """Discard a first round, and learn from it which cache answers."""
        subject, caches = self._subject, self._caches
        before: list[int] = []
        with caches.counting_uncached() as uncached:

            def miss() -> tuple[Any, ...]:
                args = subject.prepare()
                caches.clear()
                uncached[0] = 0
                return args

            def hit() -> tuple[Any, ...]:
                args = subject.prepare()
                uncached[0] = 0
                before[:] = [reader()[0] for reader in self._readers]
                return args

            began = self._clock()
            [first] = yield from self._timed(subject.row(miss, self._read_all, 1))
            self._miss_ns = self._clock() - began
            asked_at_first = first.hits or first.misses or uncached[0]
            last = yield from self._rehearse_hits(subject.row(hit, self._read_all, 1), uncached)
            after = [reader()[0] for reader in self._readers]
        self._rehearsed(first.figure, last.figure)
        if not (asked_at_first or last.hits or last.misses or uncached[0]):
            return Propagation.NONE
        if last.misses or uncached[0]:
            self._refuse(State.HIT, PROPAGATED_AGAIN)
            if not last.misses:  # it propagates, and asks no cache that could count it
                self._why_no_miss = NO_COUNTER_MOVED
            return Propagation.NEVER_CACHED
        if not subject.prepare_propagates:
            for reader, old, new in zip(self._readers, before, after, strict=True):
                if new > old:
                    self._hit_reader = reader
        return Propagation.CACHED

    def _rehearse_hits(self, row: Row, uncached: Sequence[int]) -> Rows[TimedCall]:
        """Make a few hits; where there is no time for them, end at the first that is one."""
        for _ in range(REHEARSAL_CALLS):
            began = self._clock()
            [last] = yield from self._timed(row)
            self._hit_ns = min(self._clock() - began, self._hit_ns or sys.maxsize)
            least_ns = MIN_ROUNDS * (self._miss_ns + self._hit_ns)
            has_time = self._hit_ns < SLOW_NS or least_ns <= self._plan.max_time_s * 1e9
            # Ranks must make the same number of calls, whatever the time each of them takes.
            if not (has_time or last.misses or uncached[0] or self._plan.agreement):
                break
        return last

    def _fit(self, propagation: Propagation, deadline: float) -> None:
        """Cut what is planned, where the rehearsal showed that it would not end in time."""
        miss_ns = 0 if propagation is Propagation.NONE else self._miss_ns * (2 if self._plan.cold else 1)
        hit_ns = 0 if propagation is Propagation.NEVER_CACHED else self._hit_ns * (2 if self._local else 1)
        left_ns, budget_ns = deadline - self._clock(), self._plan.max_time_s * 1e9
        self._effort = fitted(self._effort, miss_ns, hit_ns, left_ns, budget_ns)
        self._affordable = min(self._affordable, self._effort.rounds)

    def _settled(self, propagation: Propagation, deadline: float) -> tuple[int, float]:
        """How many rounds are taken, and until when: with other ranks a number alone, the same on all."""
        if self._plan.agreement is not None:
            rounds = self._affordable if self._within is None else min(self._affordable, ROUNDS_TOGETHER)
            effort = self._effort
            numbers = (rounds, effort.in_a_row, effort.repeat, effort.warmup)
            settled = self._plan.agreement.rounds(numbers, propagation.value)
            if settled is not None:
                rounds, in_a_row, repeat, warmup = settled
                self._effort, self._within = Effort(rounds, in_a_row, repeat, warmup), None
                return rounds, math.inf
        return self._plan.rounds, deadline

    def _affordable_rounds(self, miss_ns: int, hit_ns: int) -> int:
        """Rounds that the time is enough for, by the figures of the rehearsal."""
        misses = 2 if self._plan.cold else 1
        round_ns = misses * miss_ns + (self._plan.repeat + 1) * hit_ns
        affordable = int(min(self._plan.max_time_s, 1e9) * 1e9 / max(round_ns, 1))
        return min(self._plan.rounds, max(affordable, MIN_ROUNDS))

    def _rehearsed(self, miss: int, hit: int) -> None:
        """Plan by what a first miss and a later call took."""
        self._affordable = self._affordable_rounds(miss, hit)
        affordable = int(min(self._plan.max_time_s, 1e9) * 1e9 / 10 / max(miss, 1))
        self._effort = self._effort._replace(in_a_row=min(self._plan.in_a_row, max(affordable, MIN_ROUNDS)))

    def _cached_rounds(self, count: int) -> Rows[int]:
        taken = yield from self._propagating_calls(count)
        with gc_paused():
            yield from self._steady(taken, self._hits)
            yield from self._until_enough(State.HIT, taken, count, self._hits)
            yield from self._locals(taken * self._effort.repeat)
        return taken

    def _never_cached_rounds(self, count: int) -> Rows[int]:
        taken = yield from self._propagating_calls(count)
        with gc_paused():
            yield from self._locals(taken * self._effort.repeat)
        return taken

    def _unpropagated_rounds(self, count: int) -> Rows[int]:
        taken = self._at_first(State.CALL, count)
        with gc_paused():
            yield from self._steady(taken, self._unpropagated_calls)
            taken = yield from self._until_enough(State.CALL, taken, count, self._unpropagated_calls)
            yield from self._locals(taken * self._effort.repeat)
        return taken

    def _at_first(self, state: State, count: int) -> int:
        """How many of so many rounds are taken before it is looked whether they are enough."""
        if self._within is None:
            return count
        return min(count, max(ENOUGH_TO_TRY - len(self._tally.figures(state)), 1))

    def _is_enough(self, state: State) -> bool:
        return self._within is not None and is_enough(self._tally.figures(state), self._within)

    def _until_enough(
        self, state: State, taken: int, most: int, take: Callable[[int], Rows[None]]
    ) -> Rows[int]:
        """Add calls, a round's at a time, to those of the rounds taken; give the rounds there are then."""
        while self._within is not None and taken < most and not self._is_enough(state):
            yield from take(self._effort.repeat)
            taken += 1
        return taken

    def _steady(self, count: int, take: Callable[[int], Rows[None]]) -> Rows[None]:
        """Take the calls of so many rounds, once the state is steady."""
        yield from self._calls(self._subject, self._effort.warmup)
        yield from take(count * self._effort.repeat)

    def _propagating_calls(self, count: int) -> Rows[int]:
        if self._plan.cold:
            yield from self._after_clearing(State.COLD, self._clear_all, count)
        return (yield from self._after_clearing(State.MISS, self._clear, count))

    def _after_clearing(self, state: State, clear: Callable[[], bool], count: int) -> Rows[int]:
        """Time calls each of which finds the caches cleared, and the garbage of the one before collected."""
        subject = self._subject
        taken = 0
        is_clear: list[bool] = []
        with gc_paused() as collect:

            def prepare() -> tuple[Any, ...]:
                args = subject.prepare()
                collect()
                is_clear.append(clear())
                return args

            while taken < count and not (taken and self._is_enough(state)):
                more = self._at_first(state, count - taken)
                warmup = 0 if taken else self._warmup_of_misses(more)
                row = subject.row(prepare, self._read_all, warmup + more)
                calls = yield from self._timed(row)
                self._enter_cleared(state, calls[warmup:], is_clear[warmup:])
                is_clear.clear()
                taken += more
        return taken

    def _enter_cleared(self, state: State, calls: Sequence[TimedCall], is_clear: Sequence[bool]) -> None:
        for call, was_clear in zip(calls, is_clear, strict=True):
            if not was_clear:
                self._refuse(state, NOT_COLD)
            elif not call.misses:
                self._refuse(state, self._why_no_miss)
            else:
                self._record(state, call.figure)

    def _warmup_of_misses(self, count: int) -> int:
        """Discard the first of a long row, which are slow; a short one has calls that take long anyway."""
        return count // 4 if self._effort.in_a_row == self._plan.in_a_row else 0

    def _clear(self) -> bool:
        self._caches.clear()
        return True

    def _clear_all(self) -> bool:
        self._caches.clear()
        self._caches.clear_cold()
        return not self._caches.cold_entries()

    def _hits(self, count: int) -> Rows[None]:
        """Time a block of hits.

        The counters of the cache that answers are read around every call. The others would cost a
        hit 2 % if they were read as often: they are read around the block, and can only refuse it whole.
        """
        before = self._read_all()
        calls = yield from self._calls(self._subject, count)
        misses = moved(before, self._read_all())[1]
        others_missed = self._hit_reader is not None and misses != sum(call.misses for call in calls)
        for call in calls:
            if others_missed or call.misses:
                self._refuse(State.HIT, PROPAGATED_AGAIN)
            elif not call.hits:
                self._refuse(State.HIT, NO_COUNTER_MOVED)
            else:
                self._record(State.HIT, call.figure)

    def _unpropagated_calls(self, count: int) -> Rows[None]:
        for call in (yield from self._calls(self._subject, count)):
            if call.hits or call.misses:
                self._refuse(State.CALL, A_COUNTER_MOVED)
            else:
                self._record(State.CALL, call.figure)

    def _locals(self, count: int) -> Rows[None]:
        if self._local is None:
            return
        yield from self._calls(self._local, WARMUP_LOCALS)
        for call in (yield from self._calls(self._local, count)):
            self._record(State.LOCAL, call.figure)

    def _calls(self, subject: Subject, count: int) -> Rows[list[TimedCall]]:
        read = self._hit_reader or self._read_all
        return (yield from self._timed(subject.row(subject.prepare, read, count)))

    def _timed(self, row: Row) -> Rows[list[TimedCall]]:
        raw = yield row
        return [TimedCall(figure, *moved(before, after)) for figure, before, after in raw or ()]

    def _read_all(self) -> Sequence[Any]:
        return [reader() for reader in self._readers]

    def _record(self, state: State, figure: int) -> None:
        self._tally.enter(state, figure)

    def _refuse(self, state: State, reason: str) -> None:
        self._tally.refuse(state, reason)
