"""Measure the budget of a step: traced and counted steps, then blocks of timed and profiled ones."""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from pytest_dtdispatch.budget.collector import CollectorPauses, PauseMeter
from pytest_dtdispatch.budget.model import MIN_WAITED, Budget, MeasuredBudget, cells_of, tracing_ns
from pytest_dtdispatch.budget.regions import (
    ClockedRange,
    Mark,
    StepMarks,
    assign_regions,
    event_costs,
    marks_of,
    region_lengths,
)
from pytest_dtdispatch.budget.timeline import (
    Node,
    Range,
    Timeline,
    median_timelines,
    nest_events,
    slices,
    subtract_waits,
)
from pytest_dtdispatch.core.checks import check_result
from pytest_dtdispatch.core.environment import slowing_settings, tracers
from pytest_dtdispatch.core.events import Event
from pytest_dtdispatch.core.text import MICROSECONDS, show_progress
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.lines.line_tracer import MAX_TRACING, LineTracer
from pytest_dtdispatch.replay.guard import MeasurementLock
from pytest_dtdispatch.rounds.core_waits import CoreWaits, core_waits
from pytest_dtdispatch.rounds.plan import Agreement, agreed
from pytest_dtdispatch.rounds.sampler import Clock
from pytest_dtdispatch.rounds.timing import gc_paused, no_op
from pytest_dtdispatch.stats.intervals import median_interval
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.torchapi.compiler import leave_uncompiled
from pytest_dtdispatch.torchapi.observe import before, missing_fsdp_name
from pytest_dtdispatch.torchapi.profiling import Marks, profiling, refuse_another_profiler
from pytest_dtdispatch.torchapi.signatures import redistribution_text
from pytest_dtdispatch.torchapi.tensors import are_on_meta, wait_for

BLOCKS = 4
# The first steps after a change of level are slower and are discarded: at least one, and all in this time.
# The first five steps of 0.4 ms were 8 to 18 % slower. After 5 ms, medians were still up to 5 % above those
# of a hand-written loop; after 20 ms, they were within 3 %.
WARM_NS, MAX_DISCARDED = 20_000_000, 40
TRACED_STEPS = 2  # after one untraced step
COUNTED_STEPS = 3  # after one discarded step; input of advice
ANOTHER_TRACER = "lines are not known: another tracer of Python runs, such as a debugger or coverage"


class StepTime(NamedTuple):
    """Wall time of a step, and the part of it in which the thread was not on a core."""

    wall_ns: int
    off_core_ns: int


def run_and_measure_budget(
    step: Callable[[], object], warmup: int, steps: int, name: str, agreement: Agreement | None = None
) -> MeasuredBudget:
    """Warm up, and measure the budget of a step. All ranks run equally many steps."""
    __tracebackhide__ = True
    refuse_another_profiler("a budget")
    with MeasurementLock("a budget is taken"), gc_paused() as collect:
        for _ in range(warmup):
            result = step()
            check_result("budget", result)
            wait_for(result)
            del result
        if are_on_meta(gc.get_objects()):
            why = "DTensors on meta are alive, and their ops take no time"
            raise MeasurementError(f"no budget: {why}: count steps")
        with BudgetMeasurement(steps, name, collect, agreement) as measurement:
            while measurement.begin_step():
                result = step()
                measurement.end_step()
                check_result("budget", result)
                wait_for(result)
                del result
            return measurement.result()


class BudgetMeasurement:
    """Measures a budget while its caller runs steps.

    Call :meth:`begin_step` before and :meth:`end_step` after each step, until the former returns False.

    Args:
        steps: number of warm steps of each timed level.
        name: name of the budget.
        collect: function that runs Python's garbage collector, if the caller has disabled it; called before
            the first step and after each block.
        agreement: agreement of ranks that run their steps together; None for one rank.
    """

    def __init__(
        self,
        steps: int,
        name: str,
        collect: Callable[[], object] = no_op,
        agreement: Agreement | None = None,
    ) -> None:
        _leave_ours_uncompiled()
        self._steps, self._name, self._collect, self._agreement = steps, name, collect, agreement
        self._tracer = LineTracer()
        self._traced: list[Timeline] = []
        self._counted: list[StepCounts] = []
        self._undisturbed: list[StepTime] = []
        self._marked: list[StepTime] = []
        self._doubled: list[StepTime] = []
        self._marks: tuple[list[StepMarks], list[StepMarks]] = [], []  # each range entered once, or twice
        self._profiled: list[StepTime] = []
        self._roots: list[Node] = []
        self._pauses, self._collected = PauseMeter(), list[StepTime]()
        self._slowed_by: dict[str, str] = {}
        self._waits: CoreWaits  # set at the first step
        self._runner = self._run()

    def __enter__(self) -> BudgetMeasurement:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._runner.close()

    def begin_step(self) -> bool:
        """Begin a step; return False if the measurement is complete."""
        return next(self._runner, False)

    def end_step(self) -> None:
        """End the step."""
        next(self._runner)

    def _run(self) -> Generator[bool, None, None]:
        """Yield at the begin and at the end of each step, while the tools of its level are active."""
        with core_waits() as self._waits:
            is_paused = self._collect is not no_op
            [collects] = agreed(self._agreement, "the collector", is_paused or gc.isenabled())
            if collects:  # first: records of other levels would enlarge the heap
                self._collect()
                refuse_another_profiler("a budget")
                with ExitStack() as stack:
                    if is_paused:
                        gc.enable()
                        stack.callback(gc.disable)
                    for times in self._warm(self._steps, self._collected):
                        yield from self._step(nullcontext() if times is None else self._pauses, times)
                        yield True
            [may_trace] = agreed(self._agreement, "the tracer", sys.gettrace() is None)
            if may_trace:
                yield from self._run_traced()
            with StepCounter() as counter, settings_of_backward(self._slowed_by):
                counter.begin_notes()  # all ops of the first step, for the lines of ops in backward
                for _ in range(1 + COUNTED_STEPS):
                    yield from self._step(nullcontext())
                    counter.end_notes()
                    self._counted.append(counter.lap())
                    yield True
            blocks = min(BLOCKS, self._steps)
            for block in range(blocks):
                show_progress("timing {}: block {} of {}", self._name, block + 1, blocks)
                yield from self._run_block(len(range(block, self._steps, BLOCKS)))
                self._collect()

    def _step(
        self, context: AbstractContextManager[object], times: list[StepTime] | None = None
    ) -> Iterator[bool]:
        """Yield once, for a step in a context; append its time."""
        off_core_ns, began_ns = self._waits.read(), time.perf_counter_ns()
        with context:
            yield True
        wall_ns = time.perf_counter_ns() - began_ns
        if times is not None:
            times.append(StepTime(wall_ns, self._waits.read() - off_core_ns))

    def _warm(self, count: int, times: list[StepTime]) -> Iterator[list[StepTime] | None]:
        """Yield None for each step to discard, then `count` times the list for the times of steps.

        Ranks must discard equally many steps. They agree on the number after the first step, from its length.
        """
        began = time.perf_counter_ns()
        yield None
        discarded = MAX_DISCARDED - 1
        if self._agreement is not None:
            proposed = WARM_NS // max(time.perf_counter_ns() - began, 1)
            [discarded] = agreed(self._agreement, "the warm-up", max(min(proposed, discarded), 1))
        for _ in range(discarded):
            if self._agreement is None and time.perf_counter_ns() > began + WARM_NS:
                break
            yield None
        for _ in range(count):
            yield times

    def _run_traced(self) -> Iterator[bool]:
        """Profile and trace steps, after one untraced step; save timelines on the clock of the tracer."""
        refuse_another_profiler("a budget")
        with profiling() as events, Marks().in_place() as marks:
            anchors = _enter_anchors(marks)

            @contextmanager
            def traced() -> Iterator[None]:
                with self._tracer.tracing(sys._getframe()), marks.marked("step"):
                    yield

            yield from self._step(marks.marked("step"))
            yield True
            for _ in range(TRACED_STEPS):
                yield from self._step(traced())
                yield True
        if not self._tracer.is_interrupted:
            roots = steps_among(on_python_clock(events, anchors), marks)
            self._traced = [tuple(slices(root)) for root in roots[-TRACED_STEPS:]]

    def _run_block(self, count: int) -> Iterator[bool]:
        """Run as many warm steps of each timed level: undisturbed, marked once, marked twice and profiled."""
        for times in self._warm(count, self._undisturbed):
            yield from self._step(nullcontext(), times)
            yield True
        clock = marking_clock(self._waits, self._undisturbed[-count:])
        marks: list[Mark] = []
        for ranges, times in enumerate((self._marked, self._doubled), start=1):
            with ExitStack() as stack:
                for _ in range(ranges):
                    stack.enter_context(Marks(lambda name: ClockedRange(marks, clock)).in_place())
                for timed in self._warm(count, times):
                    marks.clear()
                    yield from self._step(ClockedRange(marks, clock), timed)
                    if timed is not None:
                        self._marks[ranges - 1].append(marks.copy())
                    yield True
        refuse_another_profiler("a budget")
        with profiling() as events, Marks().in_place() as profiled:
            for times in self._warm(count, self._profiled):
                yield from self._step(profiled.marked("step"), times)
                yield True
        self._roots += steps_among(events, profiled)[-count:]

    def result(self) -> MeasuredBudget:
        """Return the budget; call it after the last step."""
        waits, wall_ns = self._waits, statistics.median(step.wall_ns for step in self._undisturbed)
        on_core_ns = statistics.median(step.wall_ns - step.off_core_ns for step in self._undisturbed)
        off_core_ns = wall_ns - on_core_ns
        levels = self._undisturbed, self._marked, self._doubled, self._profiled
        undisturbed, *others, profiled = (
            [step.wall_ns - (step.off_core_ns if waits.is_counted else 0) for step in steps]
            for steps in levels
        )
        timelines = self._timelines(profiled)
        timing_ns = sum(one.timing_ns for timeline in timelines for one in timeline) / len(timelines)
        events = statistics.median(root.count() for root in self._roots)
        noise = 0.0
        for lengths in (undisturbed, *others, profiled):
            faster = statistics.median(sorted(lengths)[: (len(lengths) + 1) // 2])
            noise = max(noise, _scatter(lengths), 1 - faster / statistics.median(lengths))
        notes = [
            "" if self._traced else ANOTHER_TRACER,
            fsdp_note(timelines),
            "" if waits.is_counted else off_core_text(waits, off_core_ns, wall_ns),
        ]
        collected = [step.wall_ns for step in self._collected]  # none if the program has disabled it
        elsewhere = (one.elsewhere for step in self._counted for one in step.collective_runs)
        budget = Budget(
            self._name,
            statistics.median(undisturbed),
            cells_of(timelines, self._tracer.lines, self._traced),
            statistics.median(profiled),
            _scatter(undisturbed),
            self._steps,
            events,
            timing_ns / events if events else 0.0,
            "; ".join(filter(None, notes)),
            noise,
            waiting_ns=off_core_ns if waits.is_counted else 0.0,
            elsewhere=next(filter(None, elsewhere), ""),
            collector=CollectorPauses.of(self._pauses.pauses, len(collected), sum(collected))
            if collected
            else None,
            tracers=tracers(),
            redistributions=self._counted[-1].redistributions,
            slowed_by=self._slowed_by | settings_now(),
        )
        recorded, *counted = self._counted
        return MeasuredBudget(budget, counted, self._tracer.optimizers.values(), recorded)

    def _timelines(self, lengths_ns: Sequence[int]) -> list[Timeline]:
        """Return timelines of the faster half of profiled steps, without waits, with the cost of timing.

        Args:
            lengths_ns: lengths of all profiled steps without their waits for a core. A length exceeds the
                step's range, because the clock is read outside of the range.
        """
        regions = region_lengths(*self._marks)
        waits_ns = [max(root.length_ns - ns, 0) for root, ns in zip(self._roots, lengths_ns, strict=True)]
        timelines = [assign_regions(tuple(slices(root)), marks_of(root), regions) for root in self._roots]
        timelines = subtract_waits(timelines, waits_ns)
        timelines.sort(key=lambda timeline: sum(one.length_ns for one in timeline))
        # Interference only ever adds to a time.
        typical = median_timelines(timelines[: (len(timelines) + 1) // 2])
        costs = event_costs(typical, regions)
        return [
            tuple(one.with_timing_cost(one.events * costs[one.regions[0]]) for one in each)
            for each in typical
        ]


def steps_needed(steps: int, step_ns: float) -> int:
    """Estimate the total number of steps that a budget needs, if the garbage collector is enabled.

    Args:
        steps: number of warm steps of each timed level.
        step_ns: length of a step in nanoseconds.

    Example:
        >>> steps_needed(20, 30e6), steps_needed(20, 5e6)
        (124, 175)
    """
    discarded = min(math.ceil(WARM_NS / step_ns) or 1, MAX_DISCARDED)
    levels = 4  # undisturbed, marked once, marked twice, profiled
    with_collector = steps + discarded
    in_blocks = levels * (steps + min(BLOCKS, steps) * discarded)
    return 1 + TRACED_STEPS + 1 + COUNTED_STEPS + with_collector + in_blocks


def marking_clock(waits: CoreWaits, undisturbed: Sequence[StepTime]) -> Clock:
    """Return the clock of marks, which stops during waits if the median step of this block waited.

    Next to four busy loops, a region of 3 ms has a wait in each step. If waits are rare, the median of a
    region excludes them, and reading them at each mark made a step of 0.8 ms 70 us longer.
    """
    wait_ns = statistics.median(step.off_core_ns for step in undisturbed) if waits.is_counted else 0
    wall_ns = statistics.median(step.wall_ns for step in undisturbed)
    return waits.clock if wait_ns >= MIN_WAITED * wall_ns else time.perf_counter_ns


def steps_among(events: Sequence[Event], marks: Marks) -> list[Node]:
    """Return the profiled steps with nested events, whose names have the notes of these marks."""
    named = []
    for event in events:
        kind, _, number = event.name.partition(" ")
        if kind in (Range.REDISTRIBUTION, Range.CACHE_QUERY) and int(number) < len(marks.notes):
            note = marks.notes[int(number)]
            if kind == Range.REDISTRIBUTION:
                name = f"{kind} redistribute {redistribution_text(*note)}"
            else:
                name = Range.PROPAGATION if note else Range.CACHE_QUERY
            event = event._replace(name=name)
        named.append(event)
    return [node for node in nest_events(named) if node.event.name == Range.STEP]


def _enter_anchors(marks: Marks) -> list[tuple[int, int]]:
    """Enter short ranges to align the profiler's clock with Python's.

    Returns:
        Readings of Python's clock before and after the begin of each range.
    """
    anchors = []
    for _ in range(10):
        anchor, before_ns = marks.marked("anchor"), time.perf_counter_ns()
        with anchor:
            anchors.append((before_ns, time.perf_counter_ns()))
    return anchors


def on_python_clock(events: Sequence[Event], anchors: Sequence[tuple[int, int]]) -> list[Event]:
    """Convert times of the profiler's clock by the anchor with the shortest time between its readings.

    A thread that lost its core for 300 ms between two readings would otherwise assign ops to wrong lines.
    """
    begins = [event.begin_ns for event in events if event.name == Range.ANCHOR]
    offsets = []
    for (before_ns, after_ns), begin_ns in zip(anchors, begins, strict=True):
        offsets.append((after_ns - before_ns, (before_ns + after_ns) // 2 - begin_ns))
    _, offset_ns = min(offsets)
    return [one._replace(begin_ns=one.begin_ns + offset_ns, end_ns=one.end_ns + offset_ns) for one in events]


def _leave_ours_uncompiled() -> None:
    """Exclude the tracer and the ranges from torch.compile, because they run within code that it compiles."""
    for room in ("budget", "core", "lines", "replay", "rounds", "torchapi"):
        leave_uncompiled(f"pytest_dtdispatch.{room}")


def _scatter(lengths: Sequence[int]) -> float:
    """Return the maximum distance of the true median from the sample median, as a share of the latter."""
    middle = statistics.median(lengths)
    low, high = median_interval(lengths) or (min(lengths), max(lengths))
    return max(high - middle, middle - low) / middle


def fsdp_note(timelines: Sequence[Timeline]) -> str:
    """Return a note on FSDP2 names that torch lacks; empty if it lacks none, or in steps without FSDP2."""
    names = (one.context.op for timeline in timelines for one in timeline)
    missing = missing_fsdp_name()
    has_note = missing and any(name.startswith("FSDP::") for name in names)
    return f"no parts of FSDP2: torch has no {missing}" if has_note else ""


def off_core_text(waits: CoreWaits, ns: float, step_ns: float) -> str:
    """Describe the time in which a step was not on a core; empty if it is less than 1 % of the step."""
    if ns < MIN_WAITED * step_ns:
        return ""
    kind = "waiting for a core" if waits.is_counted else "not on a core (waiting and sleeping)"
    return f"{kind}: {MICROSECONDS.text(ns)} us of {MICROSECONDS.text(step_ns)}"


@contextmanager
def budgeted_region(name: str, record: Callable[[MeasuredBudget], object]) -> Iterator[None]:
    """Measure the budget of a region that runs once, and record it unless the region raises.

    Raises:
        MeasurementError: a torch profiler is running on entry.
    """
    __tracebackhide__ = True
    refuse_another_profiler("a budget")
    _leave_ours_uncompiled()
    tracer, is_traced, slowed_by = LineTracer(), sys.gettrace() is not None, dict[str, str]()
    measuring = MeasurementLock("a budget is taken")
    with measuring, core_waits() as waits, profiling() as events, Marks().in_place() as marks:
        anchors, off_core_ns = _enter_anchors(marks), waits.read()
        tracing = nullcontext() if is_traced else tracer.tracing(None, MAX_TRACING)
        with settings_of_backward(slowed_by), marks.marked("step"), tracing:
            yield
        off_core_ns = waits.read() - off_core_ns
    is_traced |= tracer.is_interrupted
    [root] = steps_among(on_python_clock(events, anchors), marks)
    event_ns, timeline = min_event_ns(), tuple(slices(root))
    traced_ns = (tracing_ns(tracer.lines, one.begin_ns, one.end_ns) for one in timeline)
    pairs = zip(timeline, traced_ns, strict=True)
    untraced = tuple(one.with_timing_cost(one.events * event_ns + ns) for one, ns in pairs)
    cells = cells_of([untraced], tracer.lines, [] if is_traced else [timeline])
    lines = ANOTHER_TRACER if is_traced else ""
    if tracer.ended_at and not is_traced:
        lines = f"lines are not known from {tracer.ended_at.line_text} on: "
        lines += "following them took three times as long as the rest"
    notes = (
        "ran once, with timing: measured is its time less the cost of timing and of following lines",
        lines,
        fsdp_note([timeline]),
        off_core_text(waits, off_core_ns, root.length_ns),
    )
    budget = Budget(
        name,
        sum(cell.ns for cell in cells),
        cells,
        root.length_ns,
        events=root.count(),
        event_ns=event_ns,
        note="; ".join(filter(None, notes)),
        tracers=tracers(),
        slowed_by=slowed_by | settings_now(),
    )
    record(MeasuredBudget(budget, (), tracer.optimizers.values()))


def settings_now() -> dict[str, str]:
    """Return settings of this process that can make calls longer."""
    dist: Any = torch.distributed
    environ = os.environ | {"TORCH_DISTRIBUTED_DEBUG": dist.get_debug_level().name}
    if not torch.cuda.is_initialized():  # nothing launches kernels
        environ.pop("CUDA_LAUNCH_BLOCKING", None)
    return slowing_settings(environ, torch.get_num_threads(), torch.is_anomaly_enabled())


def settings_of_backward(found: dict[str, str]) -> AbstractContextManager[None]:
    """Add the settings during a backward with anomaly mode, which a step may enable for its own backward."""

    def add(*args: Any) -> None:
        if torch.is_anomaly_enabled():
            found.update(settings_now())

    return before("backward", add)


def min_event_ns() -> float:
    """Measure the minimum timing cost of an event, from consecutive ops that one op calls.

    A step that ran once cannot be compared with a step without a profiler. Other events cost up to three
    times as much, so the subtracted time never exceeds the actual timing cost of such a step.
    """
    tensors, calls = [torch.ones(2, device="cpu")] * 100, 50

    def shortest_ns() -> int:
        times = []
        for _ in range(calls):
            began = time.perf_counter_ns()
            torch.broadcast_tensors(*tensors)
            times.append(time.perf_counter_ns() - began)
        return min(times)

    bare_ns = min(shortest_ns(), shortest_ns())
    with profiling() as events:
        timed_ns = shortest_ns()
    return max((timed_ns - bare_ns) * calls / len(events), 0.0)
