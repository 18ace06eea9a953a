"""A scripted op with scripted caches, to measure rounds without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.rounds import Rounds
from pytest_dtdispatch.rounds.sampler import WallClock
from pytest_dtdispatch.rounds.timing import Reader, Subject


class CacheInfo(NamedTuple):
    """Result of a Python cache's ``cache_info()``; a native cache has only the first two fields."""

    hits: int
    misses: int
    maxsize: None
    currsize: int


class FakeCache:
    """Counters of a cache with at most one entry."""

    def __init__(self) -> None:
        self.hits = self.misses = 0
        self.is_filled = False
        self.clear_works = True

    def clear(self) -> None:
        if self.clear_works:
            self.hits = self.misses = 0
            self.is_filled = False

    def ask(self) -> None:
        if self.is_filled:
            self.hits += 1
        else:
            self.misses += 1
        self.is_filled = True


class FakeCaches:
    """A native cache, a Python cache, and another cache that only cold calls clear."""

    def __init__(self) -> None:
        self.native = FakeCache()
        self.python = FakeCache()
        self.cold_size = 0
        self.cold_clear_works = True
        self.log: list[str] = []
        self.uncached: list[int] | None = None
        self.reading: Callable[[], None] = lambda: None

    def clear(self) -> None:
        self.log.append("clear")
        self.native.clear()
        self.python.clear()

    def clear_cold(self) -> None:
        self.log.append("clear cold")
        if self.cold_clear_works:
            self.cold_size = 0

    def cold_entries(self) -> int:
        return self.cold_size

    def readers(self) -> tuple[Reader, ...]:
        def native() -> tuple[int, int]:
            self.reading()
            return self.native.hits, self.native.misses

        def python() -> CacheInfo:
            self.reading()
            return CacheInfo(self.python.hits, self.python.misses, None, int(self.python.is_filled))

        return native, python

    @contextmanager
    def counting_uncached(self) -> Iterator[list[int]]:
        self.uncached = [0]
        try:
            yield self.uncached
        finally:
            self.uncached = None

    def propagate_uncached(self) -> None:
        if self.uncached is not None:
            self.uncached[0] += 1


class FakeClock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def passes(self, ns: int) -> None:
        self.now += ns


class FakeOp:
    """An op whose call number n takes 1000 + n ns, so that a sample identifies its call."""

    def __init__(self, clock: FakeClock, effect: Callable[[int], object]) -> None:
        self.calls = 0
        self._clock = clock
        self._effect = effect

    def __call__(self) -> None:
        number = self.calls
        self.calls += 1
        self._clock.passes(1000 + number)
        self._effect(number)


def figures_of(rounds: Rounds) -> Figures:
    """Measure rounds, and return their figures."""
    rounds.run()
    return rounds.figures


class Bench:
    """One op, two caches and a clock."""

    def __init__(self) -> None:
        self.caches: Any = FakeCaches()  # replaces torch's
        self.clock = FakeClock()
        self.cpu: Callable[[], int] = self.clock  # of the thread, which is never off its core
        self.op = self.op_that(lambda number: self.caches.native.ask())

    def op_that(self, effect: Callable[[int], object]) -> FakeOp:
        self.op = FakeOp(self.clock, effect)
        return self.op

    def take(self, plan: Plan, **more: Any) -> Figures:
        return figures_of(self.rounds(Subject(self.op, tuple), plan, **more))

    def rounds(self, subject: Subject, plan: Plan, **more: Any) -> Rounds:
        timed = replace(plan, sampler=WallClock(self.clock, self.cpu))
        return Rounds(subject, self.caches, timed, **more)
