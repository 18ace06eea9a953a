"""The budget of the coming steps of a loop: it is told where they begin and end, and runs none itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator

from pytest_dtdispatch.budget.located import PlaceLog
from pytest_dtdispatch.budget.measure import BLOCKS, LOCATED, budget_of, courses_of
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.budget.parts import Node
from pytest_dtdispatch.budget.stepping import DISCARDED, steps_among
from pytest_dtdispatch.budget.timeline import Course
from pytest_dtdispatch.budget.timing_cost import CostOfTiming
from pytest_dtdispatch.torchapi.marking import marked, marking
from pytest_dtdispatch.torchapi.profiling import profiling, refuse_another_profiler


class LoopBudget:
    """A budget that is being taken.

    Args:
        steps: that are measured undisturbed, and as many that are timed.
        name: of the budget.
    """

    def __init__(self, steps: int, name: str) -> None:
        self._taking = take_budget(steps, name)
        self._is_in_step = False

    def begin_step(self) -> Budget | None:
        """Be told that a step begins; return the budget where it needs no more of them."""
        self._is_in_step = True
        try:
            next(self._taking)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        return None

    def end_step(self) -> None:
        """Be told that a step has ended; the first began before this was asked for."""
        if self._is_in_step:
            next(self._taking)

    def close(self) -> None:
        """Leave it where it is, and take everything out."""
        self._taking.close()


def steps_taken(steps: int) -> int:
    """Say how many steps of the loop a budget takes."""
    blocks = min(BLOCKS, steps)
    return DISCARDED + LOCATED + 2 * (blocks * DISCARDED + steps)


def take_budget(steps: int, name: str) -> Generator[None, None, Budget]:
    """Follow some steps line by line, then undisturbed and timed ones by turns.

    Yields where a step begins, and again where it has ended.
    """
    log, located = yield from _located()
    undisturbed: list[int] = []
    timed: list[Node] = []
    costs = CostOfTiming()
    for block in range(min(BLOCKS, steps)):
        count = len(range(block, steps, BLOCKS))
        undisturbed += yield from _undisturbed(count)
        timed += yield from _timed(count)
        costs.measure()
    return budget_of(name, undisturbed, timed, costs.found(), log, located)


def _undisturbed(count: int) -> Generator[None, None, list[int]]:
    times = []
    for _ in range(DISCARDED + count):
        began = time.perf_counter_ns()
        yield
        times.append(time.perf_counter_ns() - began)
        yield
    return times[DISCARDED:]


def _timed(count: int) -> Generator[None, None, list[Node]]:
    refuse_another_profiler()
    with profiling() as profiled, marking() as marks:
        for _ in range(DISCARDED + count):
            with marked("step"):
                yield
            yield
    return steps_among(profiled.events, marks)[DISCARDED:]


def _located() -> Generator[None, None, tuple[PlaceLog, list[Course]]]:
    """Follow steps line by line, where no other tracer does; give them on the clock of the log."""
    log, anchors = PlaceLog(), []
    if sys.gettrace() is not None:
        return log, []
    refuse_another_profiler()
    with profiling() as profiled, marking() as marks:
        with marked("step"):
            yield
        yield
        for _ in range(LOCATED):
            with log.noting_inside(sys._getframe().f_back):
                anchors.append(time.perf_counter_ns())
                with marked("step"):
                    yield
            yield
    return log, courses_of(anchors, steps_among(profiled.events, marks)[DISCARDED:])
