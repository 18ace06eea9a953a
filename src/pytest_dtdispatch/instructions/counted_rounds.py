"""Rounds that count instructions: as many calls as make a count repeat, whatever ran before.

Two things move a count that are not of the call. CPython replaces byte code by faster byte code while it
runs, for hundreds of calls. And its method cache has 4,096 slots, chosen by addresses and by versions of
types: where two methods of a call fall into one slot, each call searches classes for both, 300 to 600
instructions a time. Which ones do depends on all that the process ever allocated: on the length of an
environment variable, or on a line of code elsewhere. So types get new versions before each round, calls that
are not counted follow, and the least of several rounds is a count without such accidents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pytest_dtdispatch.core.measurement import Instructions, State, is_count
from pytest_dtdispatch.instructions.model import Profile
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.rounds import Caches, Plan, Propagation, Rounds, Rows, Subject, Taken
from pytest_dtdispatch.measuring.tally import NOT_COUNTED
from pytest_dtdispatch.measuring.timing import Meter, gc_paused, nothing_to_do

WARMUP_MISSES = 45
WARMUP_CALLS = 200  # in a round; with 100 a count is up to 1.5 % higher
LEAST_CALLS = 5  # of each kind, however many instructions they take
AFFORDABLE_MISSES = 300_000_000  # instructions of misses that are not counted: 6 to 10 s under callgrind
AFFORDABLE = 100_000_000  # of hits
UNREAD = Meter(int, int)  # to read callgrind takes as long as 10 to 50 calls
IN_ONE_LAYOUT = "counted in one layout of CPython's method cache: this process has made too many"


class Profiler(Protocol):
    """What the rounds ask of a profiler."""

    def __call__(
        self,
        state: State,
        fn: Callable[..., Any],
        prepare: Callable[[], tuple[Any, ...]],
        kwargs: dict[str, Any],
    ) -> Profile:
        """Tell where the instructions of a call went."""


@dataclass(frozen=True)
class Counting:
    """How instructions are counted.

    Args:
        meter: counts them.
        forget_methods: makes CPython fill its method cache anew, in other slots; false where it cannot.
        profiler: tells where the instructions of one call more in each state went.
    """

    meter: Meter
    forget_methods: Callable[[], bool]
    profiler: Profiler | None = None


class CountedRounds(Rounds):
    """Take rounds of one subject, and count their instructions.

    All rounds of the plan are taken, however long they last: a number that depended on the time would
    move the least count.
    """

    def __init__(
        self,
        subject: Subject,
        caches: Caches,
        plan: Plan,
        counting: Counting,
        local: Subject | None = None,
        synchronize: Callable[[], None] = nothing_to_do,
        signals: Signals | None = None,
    ) -> None:
        all_in_a_row = replace(plan, max_time_s=math.inf, in_a_row=plan.rounds)
        super().__init__(subject, caches, all_in_a_row, local, synchronize=synchronize, signals=signals)
        self._counting = counting
        self._meter = counting.meter
        self._warmup_misses = self._affordable_calls = 0
        self._has_layouts = True

    def _rows(self) -> Rows[Taken]:
        self._forget_methods()
        return (yield from super()._rows())

    def _rehearsed(self, miss: int, hit: int) -> None:
        self._warmup_misses = min(max(AFFORDABLE_MISSES // max(miss, 1), LEAST_CALLS), WARMUP_MISSES)
        self._affordable_calls = AFFORDABLE // max(hit, 1)

    def _warmup_of_misses(self, count: int) -> int:
        return self._warmup_misses

    def _steady(self, count: int, take: Callable[[int], Rows[None]]) -> Rows[None]:
        layouts = min(max(self._affordable_calls // WARMUP_CALLS, 1), count)
        warmup = min(max(self._affordable_calls // layouts, LEAST_CALLS), WARMUP_CALLS)
        for layout in range(layouts):
            if layout:
                self._forget_methods()
            self._meter = UNREAD
            yield from self._calls(self._subject, warmup)
            self._meter = self._counting.meter
            yield from take(max(self._plan.repeat, math.ceil(LEAST_CALLS / layouts)))

    def _forget_methods(self) -> None:
        self._has_layouts = self._counting.forget_methods() and self._has_layouts

    def _record(self, state: State, figure: int) -> None:
        if is_count(figure):
            super()._record(state, figure)
        else:
            self._refuse(state, NOT_COUNTED)

    def _taken(self, propagation: Propagation, done: int) -> Taken:
        counted, profiles = self._tally.recorded(Instructions), tuple(self._profiles())
        remarks = () if self._has_layouts else (IN_ONE_LAYOUT,)
        return Taken(propagation, done, instructions=counted, profiles=profiles, remarks=remarks)

    def _profiles(self) -> Iterator[Profile]:
        subject, profile = self._subject, self._counting.profiler
        if profile is None:
            return

        def cleared() -> tuple[Any, ...]:
            args = subject.prepare()
            self._clear()
            return args

        prepares = {State.MISS: cleared, State.HIT: subject.prepare, State.CALL: subject.prepare}
        with gc_paused():
            for state, prepare in prepares.items():
                if self._tally.has(state):
                    yield profile(state, subject.fn, prepare, subject.kwargs)


def rounds_of(
    subject: Subject,
    caches: Caches,
    plan: Plan,
    local: Subject | None = None,
    synchronize: Callable[[], None] = nothing_to_do,
    signals: Signals | None = None,
) -> Rounds:
    """Make the rounds that a plan asks for; arguments as of :class:`CountedRounds`."""
    if plan.counting is None:
        return Rounds(subject, caches, plan, local, synchronize=synchronize, signals=signals)
    return CountedRounds(subject, caches, plan, plan.counting, local, synchronize, signals)
