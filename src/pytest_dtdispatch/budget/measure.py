"""Take the budget of a step: undisturbed steps and timed ones by turns, and where the program was."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from pytest_dtdispatch.budget.cells import cells_of
from pytest_dtdispatch.budget.located import PlaceLog
from pytest_dtdispatch.budget.model import Budget
from pytest_dtdispatch.budget.moments import noting_ns
from pytest_dtdispatch.budget.parts import Node
from pytest_dtdispatch.budget.stepping import (
    DISCARDED,
    Step,
    length_ns,
    marked_step,
    steps_among,
    timed_steps,
    undisturbed_steps,
)
from pytest_dtdispatch.budget.timeline import Cost, Course, slices, typical
from pytest_dtdispatch.budget.timing_cost import CostOfTiming
from pytest_dtdispatch.core.progress import tell
from pytest_dtdispatch.measuring.preconditions import Measuring
from pytest_dtdispatch.measuring.proof import gc_paused
from pytest_dtdispatch.stats.medians import median_interval
from pytest_dtdispatch.torchapi.compiler import leave_uncompiled
from pytest_dtdispatch.torchapi.marking import marked, marking
from pytest_dtdispatch.torchapi.profiling import profiling, refuse_another_profiler
from pytest_dtdispatch.torchapi.tensors import wait_for

BLOCKS = 4
LOCATED = 2  # steps that are followed line by line, after one that is not looked at
ONCE = "ran once, as it was timed: measured is what it took less the cost of timing and of following lines"
TRACED = "lines are not known: another tracer of Python runs, such as a debugger or coverage"


def run_and_measure_budget(step: Step, warmup: int, steps: int, name: str) -> Budget:
    """Run a step, first to warm up, then by turns undisturbed and timed."""
    __tracebackhide__ = True
    refuse_another_profiler()
    with Measuring("a budget is taken"), gc_paused() as collect:
        for _ in range(warmup):
            wait_for(step())
        _leave_ours_uncompiled()
        log, located = _located(step)
        undisturbed: list[int] = []
        timed: list[Node] = []
        costs = CostOfTiming()
        for block in range(min(BLOCKS, steps)):
            tell("timing {}: block {} of {}", name, block + 1, min(BLOCKS, steps))
            count = len(range(block, steps, BLOCKS))
            undisturbed += undisturbed_steps(step, count)
            timed += timed_steps(step, count)
            costs.measure()
            collect()
    return budget_of(name, undisturbed, timed, costs.found(), log, located)


def budget_of(
    name: str,
    undisturbed: Sequence[int],
    timed: Sequence[Node],
    cost: Cost,
    log: PlaceLog,
    located: Sequence[Course],
) -> Budget:
    """Make a budget of steps that were measured undisturbed, timed, and followed line by line."""
    courses = typical([tuple(slices(node, cost)) for node in timed])
    measured_ns = statistics.median(undisturbed)
    low, high = median_interval(undisturbed) or (min(undisturbed), max(undisturbed))
    return Budget(
        name,
        measured_ns,
        cells_of(courses, log.moments, located),
        statistics.median(map(length_ns, timed)),
        max(high - measured_ns, measured_ns - low) / measured_ns,
        len(undisturbed),
        statistics.median(sum(1 for _ in node.inner()) for node in timed),
        cost.event_ns,
        "" if located else TRACED,
    )


def _leave_ours_uncompiled() -> None:
    """What notes places and marks ranges runs among code that torch compiles, and is none of it."""
    for room in ("budget", "core", "measuring", "torchapi"):
        leave_uncompiled(f"pytest_dtdispatch.{room}")


def _located(step: Step) -> tuple[PlaceLog, list[Course]]:
    """Follow steps line by line, where no other tracer does; give them on the clock of the log."""
    __tracebackhide__ = True
    log, anchors = PlaceLog(), []
    if sys.gettrace() is not None:
        return log, []
    with profiling() as profiled, marking() as marks:
        marked_step(step)
        for _ in range(LOCATED):
            with log.noting():
                anchors.append(marked_step(step))
    return log, courses_of(anchors, steps_among(profiled.events, marks)[DISCARDED:])


def courses_of(began_ns: Sequence[int], steps: Sequence[Node]) -> list[Course]:
    """Give the courses of steps on the clock of Python, by when each began on it."""
    courses = []
    for began, node in zip(began_ns, steps, strict=True):
        shift = began - node.event.begin_ns
        courses.append(tuple(each.moved(shift) for each in slices(node, Cost())))
    return courses


class BudgetedRegion(ExitStack):
    """Take the budget of a region that runs once, from the ``with`` to its end.

    Args:
        name: of the budget.
        enter: is given the budget, where the region did not raise.

    Raises:
        CaptureError: on entry, where a profiler of torch runs already.
    """

    def __init__(self, name: str, enter: Callable[[Budget], None]) -> None:
        super().__init__()
        self._name = name
        self._enter = enter

    def __enter__(self) -> BudgetedRegion:
        __tracebackhide__ = True
        refuse_another_profiler()
        super().__enter__()
        _leave_ours_uncompiled()
        self.enter_context(Measuring("a budget is taken"))
        self._log = PlaceLog()
        self._profiled, self._marks = self.enter_context(profiling()), self.enter_context(marking())
        self._is_traced = sys.gettrace() is not None
        self._began = time.perf_counter_ns()
        self.enter_context(marked("step"))
        if not self._is_traced:
            self.enter_context(self._log.noting())
        return self

    def __exit__(self, *exception: Any) -> None:
        __tracebackhide__ = True
        super().__exit__(*exception)
        if exception[0] is not None:
            return
        [node] = steps_among(self._profiled.events, self._marks)
        costs = CostOfTiming()
        for _ in range(BLOCKS):
            costs.measure()
        self._enter(self._budget(node, costs.found()))

    def _budget(self, node: Node, cost: Cost) -> Budget:
        shift, moments = self._began - node.event.begin_ns, self._log.moments
        course = tuple(each.moved(shift) for each in slices(node, cost))
        noted = [each.less(noting_ns(moments, each.begin_ns, each.end_ns)) for each in course]
        cells = cells_of([tuple(noted)], moments, [] if self._is_traced else [course])
        note = f"{ONCE}; {TRACED}" if self._is_traced else ONCE
        events = sum(1 for _ in node.inner())
        took = sum(cell.ns for cell in cells)
        return Budget(self._name, took, cells, length_ns(node), 0.0, 0, events, cost.event_ns, note)
