"""Whether live objects grow while a loop is steady. What is garbage must be collected first to tell."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import gt

from pytest_dtdispatch.steps.loop import LiveObjects

FIRST_LOOK = 8  # steps after the loop became steady; every look is twice as far as the one before
COLLECTION_NS = 300_000_000  # what it may take, before one was timed


@dataclass
class Allowance:
    """The time that a watch may take beside what every step costs: a share of the time since it began.

    Args:
        share: of that time.
        now_ns: the clock.
    """

    share: float = 0.01
    now_ns: Callable[[], int] = time.perf_counter_ns

    def __post_init__(self) -> None:
        self._began_ns = self.now_ns()
        self._spent_ns = 0

    def affords(self, cost_ns: int) -> bool:
        """Tell whether so much may be spent."""
        return self._spent_ns + cost_ns <= self.share * (self.now_ns() - self._began_ns)

    def spend(self, work: Callable[[], object]) -> int:
        """Do what takes time; return how long it took."""
        began = self.now_ns()
        work()
        took = self.now_ns() - began
        self._spent_ns += took
        return took


class Growth:
    """Follow live objects from when a loop became steady.

    They grow where the fewest that there were since a look are more than the fewest before it, twice in a
    row: what comes and goes does not. Garbage is collected only where there are more, and where the time for
    it is there; nothing is found to grow before that.

    Args:
        since: the step in which the loop became steady.
        live: counts live objects, with garbage.
        allowance: of time for collecting it.
    """

    def __init__(self, since: int, live: Callable[[], LiveObjects], allowance: Allowance) -> None:
        self.since = since
        self._live = live
        self._allowance = allowance
        self._base = self._last = live()
        self._fewest: LiveObjects | None = None  # since the last look
        self._next = since + FIRST_LOOK
        self._cost_ns = COLLECTION_NS
        self._grew_before = False
        self._grown = LiveObjects(0, 0)

    def look(self, step: int) -> str:
        """Say what grew, garbage being collected; empty where nothing did, or where it is no time to look."""
        fewest = self._fewest = _fewer(self._live(), self._fewest)
        if step < self._next:
            return ""
        if not _is_more(fewest, self._last):
            self._begin_window(step, fewest, grew=False)
            return ""
        if not self._allowance.affords(self._cost_ns):
            return ""
        self._cost_ns = self._allowance.spend(gc.collect)
        live, again = self._live(), self._grew_before
        grew = _is_more(live, self._last)
        self._begin_window(step, _fewer(live, fewest), grew)
        if not (grew and again):
            return ""
        self._grown = _gained(live, self._base)
        return f"live objects grow: {growth_text(self._grown)} since step {self.since}"

    def _begin_window(self, step: int, fewest: LiveObjects, grew: bool) -> None:
        self._last, self._fewest, self._grew_before = fewest, None, grew
        self._next = self.since + 2 * (step - self.since)

    def so_far(self, step: int) -> str:
        """Say for a summary what grew; empty where nothing did."""
        if any(self._grown):
            return f"live objects grew: {growth_text(self._grown)} since step {self.since}"
        more = _gained(self._live(), self._base)
        if self._fewest is None or not _is_more(self._fewest, self._base) or max(more) < step - self.since:
            return ""  # not even one in each step
        return f"live objects: {growth_text(more)} since step {self.since}, garbage among them"


def _fewer(live: LiveObjects, other: LiveObjects | None) -> LiveObjects:
    return live if other is None else LiveObjects(*map(min, live, other))


def _is_more(live: LiveObjects, other: LiveObjects) -> bool:
    return any(map(gt, live, other))


def _gained(live: LiveObjects, base: LiveObjects) -> LiveObjects:
    return LiveObjects(*(max(now - before, 0) for now, before in zip(live, base, strict=True)))


def growth_text(grown: LiveObjects) -> str:
    """Say how many objects were gained.

    Example:
        >>> growth_text(LiveObjects(1200, 0)), growth_text(LiveObjects(2, 1))
        ('+1,200 sharding specs', '+2 sharding specs, +1 DTensors')
    """
    named = (("sharding specs", grown.specs), ("DTensors", grown.dtensors))
    return ", ".join(f"+{count:,} {name}" for name, count in named if count)
