"""Take the budget of a step: undisturbed, marked and timed steps in turn, and where the program was."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch

from pytest_dtdispatch.advice import advise
from pytest_dtdispatch.budget.model import Budget, cells_of, noting_ns
from pytest_dtdispatch.budget.parts import (
    ANCHOR,
    LOOK_UP,
    PROPAGATION,
    REDISTRIBUTION,
    STEP,
    ClockedRange,
    Course,
    Mark,
    Node,
    Regions,
    event_costs,
    in_regions,
    marks_of,
    quieter_half,
    slices,
    trees,
    typical,
    unmarked,
    without_waits,
)
from pytest_dtdispatch.core.events import Event
from pytest_dtdispatch.core.text import MICROSECONDS, show_progress
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.lines.line_log import MAX_NOTING, PlaceLog
from pytest_dtdispatch.replay.call import redistribution_text
from pytest_dtdispatch.replay.guard import MeasurementLock
from pytest_dtdispatch.rounds.core_waits import CoreWaits, core_waits
from pytest_dtdispatch.rounds.plan import Agreement, agreed
from pytest_dtdispatch.rounds.rounds import gc_paused, nothing_to_do
from pytest_dtdispatch.stats.intervals import median_interval
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.torchapi.compiler import leave_uncompiled
from pytest_dtdispatch.torchapi.profiling import Marks, profiling, refuse_another_profiler
from pytest_dtdispatch.torchapi.tensors import are_on_meta, wait_for


def steps_among(events: Sequence[Event], marks: Marks) -> list[Node]:
    """Find the steps among what was profiled."""
    named = (_named(event, marks) for event in events)
    return [node for node in trees(named) if node.event.name == STEP]


def _named(event: Event, marks: Marks) -> Event:
    """Name a range of ours by what was noted of it."""
    kind, _, number = event.name.partition(" ")
    if kind not in (REDISTRIBUTION, LOOK_UP) or int(number) >= len(marks.notes):  # no range of these marks
        return event
    note = marks.notes[int(number)]
    if kind == LOOK_UP:
        return event._replace(name=PROPAGATION if note else LOOK_UP)
    return event._replace(name=f"{kind} redistribute {redistribution_text(*note)}")


LEVELS = 4  # undisturbed, marked once, marked twice, timed
BLOCKS = 4
# Steps after a change of tools are slower, and are not counted: a block begins with them until this has
# passed, with one at least. Of steps of 0.4 ms the first five were 8 to 18 % slower; after 5 ms medians
# were still up to 5 % above those of a loop by hand, after 20 ms within 3 %.
WARM_NS, MOST_DISCARDED = 20_000_000, 40
LOCATED = 2  # steps that are followed line by line, after one that is not looked at
COUNTED = 3  # steps whose events are counted, for advice
ANCHORS = 10  # short ranges that align the profiler's clock with Python's
EVENT_CALLS = 50
ONCE = "ran once, with timing: measured is its time less the cost of timing and of following lines"
MIN_OFF_CORE = 0.01  # share of a step from which on a note names it
TRACED = "lines are not known: another tracer of Python runs, such as a debugger or coverage"
COLLECTOR = "timed steps run without Python's garbage collector, which is in no part"
UNFOLLOWED = "lines are not known from {} on: following them took three times as long as the rest"

Steps = Generator[None, None, Any]  # yields where a step is to begin, and again where it has ended
Clock = Callable[[], int]  # in nanoseconds
MarkedStep = tuple[list[Mark], int]  # with its length, in nanoseconds


def run_and_measure_budget(
    step: Callable[[], object], warmup: int, steps: int, name: str, agreement: Agreement | None = None
) -> Budget:
    """Run a step, first to warm up, then as often as its budget takes; with other ranks, equally often."""
    __tracebackhide__ = True
    refuse_another_profiler("a budget")
    with MeasurementLock("a budget is taken"), gc_paused() as collect:
        for _ in range(warmup):
            wait_for(step())
        if are_on_meta(gc.get_objects()):
            raise MeasurementError(
                "no budget: DTensors on meta are alive, whose ops have no time: count steps"
            )
        with closing(take_budget(steps, name, collect, agreement)) as taking:
            while True:
                try:
                    next(taking)
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                result = step()
                next(taking)
                wait_for(result)
                del result


def take_budget(
    steps: int,
    name: str,
    collect: Callable[[], object] = nothing_to_do,
    agreement: Agreement | None = None,
) -> Generator[None, None, Budget]:
    """Follow some steps line by line, then run undisturbed, marked and timed ones in turn, block by block.

    Yields where a step is to begin, and again where it has ended.

    Args:
        steps: of each level.
        name: of the budget.
        collect: is called after each block.
        agreement: of ranks that run their steps together.
    """
    _leave_ours_uncompiled()
    log = PlaceLog()
    [may_trace] = agreed(agreement, "the tracer", sys.gettrace() is None)
    located = (yield from _follow(log)) if may_trace else []
    counted = yield from _count()
    undisturbed: list[tuple[int, int]] = []
    marked: tuple[list[MarkedStep], list[MarkedStep]] = [], []
    timed: list[tuple[Node, int]] = []
    blocks = min(BLOCKS, steps)
    with core_waits() as waits:
        for block in range(blocks):
            show_progress("timing {}: block {} of {}", name, block + 1, blocks)
            count = len(range(block, steps, BLOCKS))
            undisturbed += (yield from _undisturbed(_warm(count, agreement), waits))[-count:]
            clock = marking_clock(waits, undisturbed[-count:])
            for ranges, steps_of_level in enumerate(marked, 1):
                steps_of_level += (yield from _marked(_warm(count, agreement), waits, clock, ranges))[-count:]
            timed += (yield from _timed(_warm(count, agreement), waits))[-count:]
            collect()
    walls = [wall_ns for wall_ns, _ in undisturbed]
    runs = [wall_ns - off_core_ns for wall_ns, off_core_ns in undisturbed]
    measured_ns = statistics.median(walls)
    off_core_ns = measured_ns - statistics.median(runs)
    quiet = runs if waits.is_counted else walls
    lengths = quiet, *([length_ns for _, length_ns in level] for level in (marked[0], timed))
    courses, events = _courses(timed, unmarked(*([marks for marks, _ in level] for level in marked)))
    timing_ns = sum(one.timing_ns for course in courses for one in course) / len(courses)
    cells = cells_of(courses, log.moments, located)
    off_core = "" if waits.is_counted else off_core_text(waits, off_core_ns, measured_ns)
    collector = COLLECTOR * (collect is not nothing_to_do)
    return Budget(
        name,
        measured_ns,
        cells,
        statistics.median(lengths[-1]),
        _scatter(walls),
        steps,
        events,
        timing_ns / events if events else 0.0,
        "; ".join(filter(None, ("" if located else TRACED, off_core, collector))),
        max(map(_noise, lengths)),
        advise(counted, cells, measured_ns, log.optimizers.values()),
        off_core_ns * waits.is_counted,
        next((one.elsewhere for step in counted for one in step.collective_runs if one.elsewhere), ""),
    )


def steps_taken(steps: int, step_ns: float) -> int:
    """Estimate how many steps a budget takes in all.

    Args:
        steps: of each level.
        step_ns: how long one takes, in nanoseconds.

    Example:
        >>> steps_taken(20, 30e6), steps_taken(20, 5e6)
        (103, 151)
    """
    discarded = min(math.ceil(WARM_NS / step_ns) or 1, MOST_DISCARDED)
    return 1 + LOCATED + 1 + COUNTED + LEVELS * (steps + min(BLOCKS, steps) * discarded)


def _count() -> Generator[None, None, list[StepCounts]]:
    """Count what happens in some steps, after one in which ops are noted, so that backward has lines."""
    counted = []
    with StepCounter() as counter:
        counter.begin_notes()
        for _ in range(1 + COUNTED):
            yield
            yield
            counter.end_notes()
            counted.append(counter.lap())
    return counted[1:]


def _courses(timed: Sequence[tuple[Node, int]], regions: Regions) -> tuple[list[Course], float]:
    """Return the quieter timed steps, less their waits and the cost of timing, and the events of one."""
    courses = [in_regions(tuple(slices(node)), marks_of(node), regions) for node, _ in timed]
    courses = without_waits(courses, [max(node.length_ns - length_ns, 0) for node, length_ns in timed])
    quiet = typical(quieter_half(courses, lambda course: sum(one.length_ns for one in course)))
    costs = event_costs(quiet, regions)
    courses = [tuple(one.less(one.events * costs[one.regions[0]]) for one in course) for course in quiet]
    return courses, statistics.median(node.count() for node, _ in timed)


def _warm(count: int, agreement: Agreement | None) -> Iterator[None]:
    """Yield before each step of a block: those that are discarded, then as many as are counted.

    Ranks must discard equally many: they agree after the first step, by how long it took.
    """
    began = time.perf_counter_ns()
    yield
    discarded = MOST_DISCARDED - 1
    if agreement is not None:
        proposed = WARM_NS // max(time.perf_counter_ns() - began, 1)
        [discarded] = agreed(agreement, "the warm-up", max(min(proposed, discarded), 1))
    for _ in range(discarded):
        if agreement is None and time.perf_counter_ns() > began + WARM_NS:
            break
        yield
    yield from repeat(None, count)


def _undisturbed(turns: Iterator[None], waits: CoreWaits) -> Steps:
    """Return the wall time of each step, and how long of it the thread was not on a core."""
    times = []
    for _ in turns:
        off_core_ns, began_ns = waits.read(), time.perf_counter_ns()
        yield
        wall_ns = time.perf_counter_ns() - began_ns
        times.append((wall_ns, waits.read() - off_core_ns))
        yield
    return times


def marking_clock(waits: CoreWaits, undisturbed: Sequence[tuple[int, int]]) -> Clock:
    """Return the clock of marks: one that stops during waits if most steps of this block waited.

    Beside four busy loops a region of 3 ms has a wait in each step. Elsewhere the median of a region excludes
    waits, and reading them at each mark made a step of 0.8 ms 70 us longer.
    """
    wait_ns = statistics.median(off_core_ns for _, off_core_ns in undisturbed) if waits.is_counted else 0
    wall_ns = statistics.median(wall_ns for wall_ns, _ in undisturbed)
    return waits.clock if wait_ns >= MIN_OFF_CORE * wall_ns else time.perf_counter_ns


def _marked(turns: Iterator[None], waits: CoreWaits, clock: Clock, ranges: int) -> Steps:
    """Record on `clock` when ranges begin and end, and how long each step is without its waits.

    Each range is entered `ranges` times.
    """
    marks: list[Mark] = []
    steps: list[MarkedStep] = []
    with ExitStack() as stack:
        for _ in range(ranges):
            stack.enter_context(Marks(lambda name: ClockedRange(marks, clock)).in_place())
        for _ in turns:
            marks.clear()
            began_ns = waits.clock()
            with ClockedRange(marks, clock):
                yield
            steps.append((marks.copy(), waits.clock() - began_ns))
            yield
    return steps


def _timed(turns: Iterator[None], waits: CoreWaits) -> Steps:
    """Profile steps; return each with its length without waits, in nanoseconds.

    It is read outside the step's range: waits between both readings and the range are in neither.
    """
    refuse_another_profiler("a budget")
    lengths_ns = []
    with profiling() as events, Marks().in_place() as marks:
        for _ in turns:
            began_ns = waits.clock()
            with marks.marked("step"):
                yield
            lengths_ns.append(waits.clock() - began_ns)
            yield
    return list(zip(steps_among(events, marks), lengths_ns, strict=True))


def _follow(log: PlaceLog) -> Steps:
    """Follow steps line by line; return them on the clock of the log."""
    refuse_another_profiler("a budget")
    with profiling() as events, Marks().in_place() as marks:
        anchors = _anchored(marks)
        with marks.marked("step"):
            yield
        yield
        for _ in range(LOCATED):
            with log.noting(sys._getframe()), marks.marked("step"):
                yield
            yield
    if log.is_interrupted:
        return []
    by_ns = clock_offset_ns(events, anchors)
    return [_on_clock(node, by_ns) for node in steps_among(events, marks)[-LOCATED:]]


def _anchored(marks: Marks) -> list[tuple[int, int]]:
    """Enter short ranges; return readings of Python's clock from before and after each begins."""
    anchors = []
    for _ in range(ANCHORS):
        anchor, before_ns = marks.marked("anchor"), time.perf_counter_ns()
        with anchor:
            anchors.append((before_ns, time.perf_counter_ns()))
    return anchors


def clock_offset_ns(events: Sequence[Event], anchors: Sequence[tuple[int, int]]) -> int:
    """Return Python's clock minus the profiler's, from the anchor that began within the shortest time.

    A thread that lost its core between two readings for 300 ms would assign ops to earlier lines.
    """
    begins = [event.begin_ns for event in events if event.name == ANCHOR]
    pairs = zip(anchors, begins, strict=True)
    (before_ns, after_ns), begin_ns = min(pairs, key=lambda pair: pair[0][1] - pair[0][0])
    return (before_ns + after_ns) // 2 - begin_ns


def _on_clock(node: Node, by_ns: int) -> Course:
    """Return the slices of a step, shifted to Python's clock."""
    return tuple(
        one._replace(
            begin_ns=one.begin_ns + by_ns,
            end_ns=one.end_ns + by_ns,
            since_ns=one.since_ns + by_ns * (one.since_ns >= 0),
        )
        for one in slices(node)
    )


def _leave_ours_uncompiled() -> None:
    """What notes places and marks ranges runs among code that torch compiles, and is none of it."""
    for room in ("budget", "core", "measuring", "torchapi"):
        leave_uncompiled(f"pytest_dtdispatch.{room}")


def _scatter(steps: Sequence[int]) -> float:
    """Say how far the true median may lie from that of some steps, as a share of it."""
    middle = statistics.median(steps)
    low, high = median_interval(steps) or (min(steps), max(steps))
    return max(high - middle, middle - low) / middle


def _noise(steps: Sequence[int]) -> float:
    """Say how far steps scatter, or how far the quieter half is from all, as a share of the median."""
    quiet = statistics.median(quieter_half(steps, float))
    return max(_scatter(steps), 1 - quiet / statistics.median(steps))


def off_core_text(waits: CoreWaits, ns: float, step_ns: float) -> str:
    """Describe how long a step was not on a core; empty if less than a hundredth of it."""
    if ns < MIN_OFF_CORE * step_ns:
        return ""
    kind = "waiting for a core" if waits.is_counted else "not on a core (waiting and sleeping)"
    return f"{kind}: {MICROSECONDS.text(ns)} us of {MICROSECONDS.text(step_ns)}"


@contextmanager
def budgeted_region(name: str, keep: Callable[[Budget], None]) -> Iterator[None]:
    """Take the budget of a region that runs once; it is kept where the region did not raise.

    Raises:
        MeasurementError: on entry, where a profiler of torch runs already.
    """
    __tracebackhide__ = True
    refuse_another_profiler("a budget")
    _leave_ours_uncompiled()
    log, is_traced = PlaceLog(), sys.gettrace() is not None
    measuring = MeasurementLock("a budget is taken")
    with measuring, core_waits() as waits, profiling() as events, Marks().in_place() as marks:
        anchors, off_core_ns = _anchored(marks), waits.read()
        with marks.marked("step"), nullcontext() if is_traced else log.noting(None, MAX_NOTING):
            yield
        off_core_ns = waits.read() - off_core_ns
    is_traced |= log.is_interrupted
    [node] = steps_among(events, marks)
    event_ns, course = least_event_ns(), _on_clock(node, clock_offset_ns(events, anchors))
    timed = (one.less(one.events * event_ns) for one in course)
    noted = tuple(one.less(noting_ns(log.moments, one.begin_ns, one.end_ns)) for one in timed)
    cells = cells_of([noted], log.moments, [] if is_traced else [course])
    unknown = TRACED * is_traced or (UNFOLLOWED.format(log.ended_at.line_text) if log.ended_at else "")
    notes = (ONCE, unknown, off_core_text(waits, off_core_ns, node.length_ns))
    note = "; ".join(filter(None, notes))
    took_ns = sum(cell.ns for cell in cells)
    budget = Budget(name, took_ns, cells, node.length_ns, 0.0, 0, node.count(), event_ns, note)
    keep(replace(budget, advice=advise((), cells, took_ns, log.optimizers.values())))


def least_event_ns() -> float:
    """Measure what timing an event costs at least: of ops that an op calls, one right after the other.

    A step that ran once leaves nothing to compare with. Elsewhere an event costs up to three times as much:
    what is taken off such a step is never more than timing cost.
    """
    tensors = [torch.ones(2, device="cpu")] * 100

    def shortest_ns() -> int:
        times = []
        for _ in range(EVENT_CALLS):
            began = time.perf_counter_ns()
            torch.broadcast_tensors(*tensors)
            times.append(time.perf_counter_ns() - began)
        return min(times)

    bare_ns = min(shortest_ns(), shortest_ns())
    with profiling() as events:
        timed_ns = shortest_ns()
    return max((timed_ns - bare_ns) * EVENT_CALLS / len(events), 0.0)
