"""Results of a watched loop, in limited memory: totals, and the latest disturbed steps."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from pytest_dtdispatch.budget.collector import Pause
from pytest_dtdispatch.core.parsing import read_limits
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.core.verdicts import RowVerdict, over
from pytest_dtdispatch.steps.events import (
    EventText,
    Miss,
    event_text,
    extremes,
    insert_folded_modules,
    merge_texts,
)
from pytest_dtdispatch.steps.model import COUNTS, StepCounts
from pytest_dtdispatch.steps.table import judge_step

MAX_CAUSES = 1000
MIN_TIMED = 5  # steady steps, for a range of their times
MIN_PAUSED = 0.1  # share of a step: shorter pauses are not worth a line
Most: TypeAlias = str | Sequence[str] | Mapping[str, int] | None  # limits: texts, or numbers by name


@dataclass(frozen=True)
class LoopStep:
    """One step of a loop.

    Args:
        number: number of the step, from 1.
        counts: counts of the step; without transfers unless they were recorded.
        took_ns: wall time from the end of the previous step; None if the step had overhead beyond counting.
        has_transfers: whether redistributions, collectives, wraps and unwraps were recorded.
        pauses: of Python's garbage collector.
    """

    number: int
    counts: StepCounts
    took_ns: int | None = None
    has_transfers: bool = False
    pauses: Sequence[Pause] = ()

    @property
    def new_entries(self) -> dict[str, int]:
        """Number of entries gained by each cache that grew."""
        grown = self.counts.cache_growth
        return {name: count for name, count in grown if count > 0} if grown else {}

    @property
    def is_steady(self) -> bool:
        """Whether nothing missed, and no cache gained an entry."""
        return not self.counts.misses and not self.new_entries


def read_step_limits(value: Any) -> dict[str, int]:
    """Parse limits on counts of every step of a watched loop; transfers are counted in some."""
    return read_limits(value, ("misses", "cache_growth"), "misses=0,cache_growth=4")


class Limits(NamedTuple):
    """Limits on the counts of each step after the warm-up.

    Args:
        most: maximum by the name of the count.
        warmup: number of steps of the warm-up; None for all up to the first without a miss, at most ten.
        stops: whether the first step over a limit ends the program.
    """

    most: Mapping[str, int] = {}
    warmup: int | None = None
    stops: bool = False

    def violation(self, step: LoopStep) -> Violation | None:
        """Return the violation of a step after the warm-up; None if it exceeds no limit."""
        name, verdicts = f"step {step.number}", []
        for kind in COUNTS:
            if kind.limit in self.most:
                most, found = self.most[kind.limit], kind.number(step.counts)
                verdicts.append(judge_step(name, kind, most, found, name, step.counts))
        exceeded = tuple(over(verdicts))
        return Violation(step.number, exceeded, step.counts.missed) if exceeded else None


@dataclass(frozen=True)
class Violation:
    """A step over its limits.

    Args:
        step: number of the step.
        verdicts: verdicts on the limits that it exceeds.
        missed: calls of the step that propagated: each has its op, line, and difference from earlier calls.
    """

    step: int
    verdicts: tuple[RowVerdict, ...]
    missed: tuple[Miss, ...]


@dataclass
class Cause:
    """Misses of one cause: the op, its line and the difference, with ranges of varying values.

    Args:
        first_step: the first step that missed.
        last_step: the last step that missed.
        times: number of misses.
    """

    first_step: int
    last_step: int = 0
    times: int = 0
    _ends: tuple[str, ...] = ()
    _module: str = ""

    def add(self, miss: Miss, number: int) -> None:
        """Add a miss of a step."""
        self.times, self.last_step = self.times + 1, number
        text, self._module = event_text(miss)
        self._ends = extremes([*self._ends, text])

    def join(self, other: Cause) -> Cause:
        """Return the sum with another cause of the same text."""
        first, last = min(self.first_step, other.first_step), max(self.last_step, other.last_step)
        return Cause(first, last, self.times + other.times)

    @property
    def text(self) -> EventText:
        """Text of all misses."""
        return EventText(merge_texts(self._ends), self._module)

    @property
    def when(self) -> str:
        """Text with the number of misses and the range of their steps."""
        where = f"step {self.first_step}"
        if self.last_step > self.first_step:
            where = f"steps {self.first_step} to {self.last_step}"
        return f"{self.times:,}x in {where}"


@dataclass
class Total:
    """Sums over several steps.

    Args:
        steps: number of steps.
        calls: number of calls of ops on DTensors.
        misses: number of calls that propagated.
        new_entries: number of entries that caches gained.
        times: wall times of the latest timed steps, in nanoseconds.
    """

    steps: int = 0
    calls: int = 0
    misses: int = 0
    new_entries: int = 0
    times: deque[int] = field(default_factory=lambda: deque(maxlen=500))

    def add(self, step: LoopStep) -> None:
        """Add a step."""
        self.add_calls(step.counts.calls, step.took_ns)
        self.misses += step.counts.misses
        self.new_entries += sum(step.new_entries.values())

    def add_calls(self, calls: int, took_ns: int | None) -> None:
        """Add a step with hits only."""
        self.steps += 1
        self.calls += calls
        if took_ns is not None:
            self.times.append(took_ns)

    @property
    def median_ns(self) -> float:
        """Median wall time of the latest steps; 0 if none was timed."""
        return statistics.median(self.times) if self.times else 0.0

    @property
    def range_ns(self) -> tuple[float, float]:
        """Range of wall times that contains eight of ten of the latest steps."""
        ordered = sorted(self.times)
        cut = len(ordered) // 10
        return (ordered[cut], ordered[-1 - cut]) if ordered else (0.0, 0.0)


class LoopSteps:
    """The steps of a loop so far.

    Attributes:
        warmup: total of the first steps, where misses are expected.
        steady: total of later steps without misses and cache growth.
        disturbed: total of the other later steps.
        with_transfers: the latest step after the warm-up with recorded transfers, a steady one if possible.
        recorded: the latest two steps with recorded transfers, steady ones if possible.
        with_ops: the latest step all of whose ops and transfers were recorded.
        after: counts after the last step, once the watch is closed.
        disturbed_steps: the latest disturbed steps.
        unlisted: total of disturbed steps since the last one that was printed.
        paused: number of steps that stood out because the garbage collector paused them.
        tracers: names of tools that made steps longer, in the order in which they were found.
    """

    def __init__(self) -> None:
        self.warmup, self.steady, self.disturbed = Total(), Total(), Total()
        self.with_transfers: LoopStep | None = None
        self.recorded: deque[LoopStep] = deque(maxlen=2)
        self.with_ops: StepCounts | None = None
        self.after = StepCounts()
        self.disturbed_steps: deque[LoopStep] = deque(maxlen=500)
        self.unlisted = Total()
        self.paused = 0
        self.tracers: dict[str, None] = {}
        self._steps_of = Counter[Hashable]()
        self._totals = self.warmup, self.steady, self.disturbed
        self._causes: dict[Hashable, Cause] = {}
        self._more_misses = 0

    def __len__(self) -> int:
        return self.warmup.steps + self.steady.steps + self.disturbed.steps  # runs in every step

    @property
    def calls(self) -> int:
        """Number of calls of ops on DTensors, in all steps."""
        return sum(total.calls for total in self._totals)

    @property
    def misses(self) -> int:
        """Number of misses, in all steps."""
        return sum(total.misses for total in self._totals)

    @property
    def misses_per_step(self) -> float:
        """Misses per step after the warm-up, with a list of their causes."""
        return Count(self.disturbed.misses, self.steady.steps + self.disturbed.steps, self.causes)

    @property
    def causes(self) -> Sequence[str]:
        """Causes of misses after the warm-up, the most frequent first.

        Causes that differ only in the layer index are merged.
        """
        every, merged = [*self._causes.values()], dict[str, Cause]()
        for text, cause in zip(insert_folded_modules([each.text for each in every]), every, strict=True):
            merged[text] = merged[text].join(cause) if text in merged else cause
        by_times = sorted(merged, key=lambda text: -merged[text].times)
        lines = [f"{text} ({merged[text].when})" for text in by_times]
        if self._more_misses:
            lines.append(f"{self._more_misses:,} more misses of other causes")
        return lines

    def add(self, step: LoopStep) -> None:
        """Add a step after the warm-up."""
        if step.has_transfers and (step.is_steady or self.with_transfers is None):
            self.with_transfers = step
        if step.is_steady:
            self.steady.add(step)
            return
        self.disturbed.add(step)
        self.disturbed_steps.append(step)
        for miss in step.counts.missed:
            cause = self._causes.get(miss.origin)
            if cause is None and len(self._causes) < MAX_CAUSES:
                cause = self._causes[miss.origin] = Cause(step.number)
            if cause is None:
                self._more_misses += 1
            else:
                cause.add(miss, step.number)

    def record(self, step: LoopStep) -> None:
        """Store a step with recorded transfers for advice, unless it is disturbed and others are not."""
        if step.has_transfers and (step.is_steady or len(self.recorded) < 2):
            self.recorded.append(step)
            self.with_ops = step.counts if step.counts.is_recorded else self.with_ops

    def is_due(self, step: LoopStep) -> bool:
        """Return whether to print a disturbed step: the first, second, fourth, ... step of a cause."""
        causes = {miss.origin for miss in step.counts.missed} or {tuple(step.new_entries)}
        for cause in causes:
            if cause in self._steps_of or len(self._steps_of) < MAX_CAUSES:
                self._steps_of[cause] += 1
        is_due = any(self._steps_of[cause].bit_count() == 1 for cause in causes)
        if not is_due:
            self.unlisted.add(step)
        return is_due

    def is_paused(self, took_ns: int, pauses: Sequence[Pause]) -> bool:
        """Return whether a step took longer than steady ones do, mostly because of pauses.

        The median is compared: pauses in every fifth step are part of the range of steady steps.
        """
        paused_ns = sum(pause.ns for pause in pauses)
        if paused_ns < MIN_PAUSED * took_ns or len(self.steady.times) < MIN_TIMED:
            return False
        longer_ns = took_ns - self.steady.median_ns
        return longer_ns > MIN_PAUSED * took_ns and 2 * paused_ns > longer_ns

    @property
    def for_advice(self) -> list[list[StepCounts]]:
        """Steps for advice: those with recorded transfers, and the last two if both miss."""
        recorded = [step.counts for step in self.recorded]
        last = [step.counts for step in [*self.disturbed_steps][-2:] if step.number > len(self) - 2]
        return [recorded, last] if len(last) == 2 else [recorded]
