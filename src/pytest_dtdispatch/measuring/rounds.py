"""Rounds: clear, one miss, warm-up, hits; and what the counters prove of each sample. Without torch."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType
from typing import Any, Protocol

from pytest_dtdispatch.records.measurement import Refused, Samples, State

MIN_ROUNDS = 5
WARMUP_HITS = 10  # the second call after a miss costs 3 to 6 times a steady hit
WARMUP_LOCALS = 2
REHEARSAL_CALLS = 3

NOT_PROPAGATED = "propagation did not run"
PROPAGATED_AGAIN = "propagation ran again"
NO_COUNTER_MOVED = "no cache counter moved"
A_COUNTER_MOVED = "a cache counter moved"
NOT_COLD = "a cache was not empty"

Clock = Callable[[], int]
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


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Args:
        rounds: proved misses for each signature.
        repeat: hits recorded after each miss.
        max_time_s: seconds after which no round is added, once five are done.
        cold: also take cold calls.
    """

    rounds: int = 20
    repeat: int = 10
    max_time_s: float = 1.0
    cold: bool = False


@dataclass(frozen=True)
class Subject:
    """What is timed.

    Args:
        fn: the callable.
        prepare: called before each call, untimed; returns the positional arguments.
        kwargs: keyword arguments.
    """

    fn: Callable[..., Any]
    prepare: Callable[[], tuple[Any, ...]]
    kwargs: dict[str, Any] = field(default_factory=dict)


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
    samples: tuple[Samples, ...]


def nothing_to_wait_for() -> None:
    """Stand in for a device to synchronise, on a CPU."""


class Rounds:
    """Take rounds of one subject.

    Args:
        subject: what is timed.
        caches: the caches that are cleared and whose counters prove each sample.
        plan: how much is measured.
        local: the same computation on plain tensors, where there is one.
        clock: returns nanoseconds.
        synchronize: waits for the device, called between rounds and never inside one.
    """

    def __init__(
        self,
        subject: Subject,
        caches: Caches,
        plan: Plan,
        local: Subject | None = None,
        clock: Clock = time.perf_counter_ns,
        synchronize: Callable[[], None] = nothing_to_wait_for,
    ) -> None:
        self._subject = subject
        self._caches = caches
        self._plan = plan
        self._local = local
        self._clock = clock
        self._synchronize = synchronize
        self._readers = caches.readers()
        self._hit_reader = self._readers[0]
        self._why_no_miss = NOT_PROPAGATED
        self._ns: dict[State, list[int]] = {}
        self._refused: Counter[tuple[State, str]] = Counter()

    def take(self) -> Taken:
        """Run the rounds.

        Returns:
            The samples of every state that was tried, those that were refused counted by reason.
        """
        return with_stack_room(self._take)

    def _take(self) -> Taken:
        start = self._clock()
        with gc_paused():
            propagation = self._rehearse()
        one_round = {
            Propagation.CACHED: self._cached_round,
            Propagation.NEVER_CACHED: self._never_cached_round,
            Propagation.NONE: self._unpropagated_round,
        }[propagation]
        deadline = start + self._plan.max_time_s * 1e9
        done = 0
        while done < self._plan.rounds and (done < MIN_ROUNDS or self._clock() < deadline):
            self._synchronize()
            with gc_paused():
                one_round()
            done += 1
        return Taken(propagation, done, self._samples())

    def _rehearse(self) -> Propagation:
        """Discard a first round, and learn from it which cache answers."""
        caches = self._caches
        caches.clear()
        before = self._read()
        with caches.counting_uncached() as uncached:
            self._block(self._subject, 1, self._readers[0])
            moved = self._read() != before or uncached[0] > 0
            for _ in range(REHEARSAL_CALLS):
                uncached[0] = 0
                before = self._read()
                self._block(self._subject, 1, self._readers[0])
            after = self._read()
        moved = moved or after != before or uncached[0] > 0
        if not moved:
            return Propagation.NONE
        if _misses(after) > _misses(before) or uncached[0]:
            self._refuse(State.HIT, PROPAGATED_AGAIN)
            if _misses(after) == _misses(before):  # it propagates, and asks no cache that could count it
                self._why_no_miss = NO_COUNTER_MOVED
            return Propagation.NEVER_CACHED
        for reader, old, new in zip(self._readers, before, after, strict=True):
            if new[0] > old[0]:
                self._hit_reader = reader
        return Propagation.CACHED

    def _cached_round(self) -> None:
        if self._plan.cold:
            self._cold()
        self._miss()
        self._block(self._subject, WARMUP_HITS, self._hit_reader)
        self._hits()
        self._locals()

    def _never_cached_round(self) -> None:
        if self._plan.cold:
            self._cold()
        self._miss()
        self._locals()

    def _unpropagated_round(self) -> None:
        self._block(self._subject, WARMUP_HITS, self._hit_reader)
        before = self._read()
        timed = self._block(self._subject, self._plan.repeat, self._hit_reader)
        if self._read() == before:
            self._record(State.CALL, (ns for ns, _ in timed))
        else:
            self._refuse(State.CALL, A_COUNTER_MOVED, len(timed))
        self._locals()

    def _cold(self) -> None:
        self._caches.clear()
        self._caches.clear_cold()
        if self._caches.cold_entries():
            self._refuse(State.COLD, NOT_COLD)
            return
        self._propagating_call(State.COLD)

    def _miss(self) -> None:
        self._caches.clear()
        self._propagating_call(State.MISS)

    def _propagating_call(self, state: State) -> None:
        before = self._read()
        [(ns, _)] = self._block(self._subject, 1, self._readers[0])
        if _misses(self._read()) > _misses(before):
            self._record(state, (ns,))
        else:
            self._refuse(state, self._why_no_miss)

    def _hits(self) -> None:
        """Time a block of hits.

        The counters of the cache that answers are read around every call. The others would cost a
        hit 2 % if they were read as often: they are read around the block, and can only refuse it whole.
        """
        before = self._read()
        hits, misses = self._hit_reader()[:2]
        timed = self._block(self._subject, self._plan.repeat, self._hit_reader)
        others_missed = _misses(self._read()) - _misses(before) != timed[-1][1][1] - misses
        for ns, (new_hits, new_misses, *_) in timed:
            if others_missed or new_misses != misses:
                self._refuse(State.HIT, PROPAGATED_AGAIN)
            elif new_hits <= hits:
                self._refuse(State.HIT, NO_COUNTER_MOVED)
            else:
                self._record(State.HIT, (ns,))
            hits, misses = new_hits, new_misses

    def _locals(self) -> None:
        if self._local is None:
            return
        self._block(self._local, WARMUP_LOCALS, self._hit_reader)
        timed = self._block(self._local, self._plan.repeat, self._hit_reader)
        self._record(State.LOCAL, (ns for ns, _ in timed))

    def _block(self, subject: Subject, count: int, read: Reader) -> list[tuple[int, Sequence[Any]]]:
        """Time calls one after the other, and read the counters after each.

        Returns:
            For each call its latency in nanoseconds and what the reader said after it.
        """
        fn, prepare, kwargs, clock = subject.fn, subject.prepare, subject.kwargs, self._clock
        timed = []
        for _ in range(count):
            args = prepare()
            start = clock()
            result = fn(*args, **kwargs)
            end = clock()
            del result  # its release is not part of the call
            timed.append((end - start, read()))
        return timed

    def _read(self) -> tuple[tuple[int, int], ...]:
        return tuple((read[0], read[1]) for read in (reader() for reader in self._readers))

    def _record(self, state: State, ns: Iterator[int] | Sequence[int]) -> None:
        self._ns.setdefault(state, []).extend(ns)

    def _refuse(self, state: State, reason: str, count: int = 1) -> None:
        self._refused[state, reason] += count

    def _samples(self) -> tuple[Samples, ...]:
        tried = {*self._ns, *(state for state, _ in self._refused)}
        return tuple(
            Samples(
                state,
                tuple(self._ns.get(state, ())),
                tuple(Refused(why, count) for (of, why), count in self._refused.items() if of is state),
            )
            for state in State
            if state in tried
        )


def _call(fn: Callable[[], Taken]) -> Taken:
    return fn()


# CPython keeps frames in chunks of 16 KiB. Where a chunk ends, every call maps a new one and frees it on
# return, and a hit there takes two to three times as long as one a few frames above or below. This function
# asks for a frame of 32 KiB: it gets a chunk of its own, with as much room again for what it calls.
with_stack_room: Callable[[Callable[[], Taken]], Taken] = FunctionType(
    _call.__code__.replace(co_stacksize=4200), {}, "with_stack_room"
)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Keep garbage collection out of a timed block, and collect the block's own garbage after it.

    Only the young generations are collected: a full collection takes 100 ms once torch is imported.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(1)


def _misses(read: tuple[tuple[int, int], ...]) -> int:
    return sum(misses for _, misses in read)
