"""What a watched loop did: totals, and the steps in which something happened. Its size has a bound."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.steps.events import Miss, Told, extremes, folded, ranged, told
from pytest_dtdispatch.steps.model import StepCounts

MOST_CAUSES, MOST_STEPS, MOST_TIMES = 1000, 500, 500


@dataclass(frozen=True)
class LoopStep:
    """One step of a loop.

    Args:
        number: from 1.
        counts: of it. Redistributions, collectives, wraps and unwraps are there if it was looked at.
        took_ns: wall time from the end of the step before to its own; None where more was done than counting.
        is_looked_at: whether it is known what it moved.
    """

    number: int
    counts: StepCounts
    took_ns: int | None = None
    is_looked_at: bool = False

    @property
    def new_entries(self) -> dict[str, int]:
        """Entries that caches gained, by cache; one that was emptied gained none."""
        grown = self.counts.cache_growth
        return {name: count for name, count in grown if count > 0} if grown else {}

    @property
    def is_steady(self) -> bool:
        """Whether nothing missed, and no cache gained an entry."""
        return not self.counts.misses and not self.new_entries


@dataclass
class Cause:
    """Misses of one cause: the op, its place, and what differed; as a text with ranges for what varied.

    Args:
        first_step: in which it happened first.
        last_step: in which it happened last.
        times: how often it happened.
    """

    first_step: int
    last_step: int = 0
    times: int = 0
    _ends: tuple[str, ...] = ()
    _module: str = ""

    def add(self, miss: Miss, number: int) -> None:
        """Add one that happened in a step."""
        self.times, self.last_step = self.times + 1, number
        text, self._module = told(miss)
        self._ends = extremes([*self._ends, text])

    def join(self, other: Cause) -> Cause:
        """Add another that has the same text."""
        first, last = min(self.first_step, other.first_step), max(self.last_step, other.last_step)
        return Cause(first, last, self.times + other.times)

    @property
    def told(self) -> Told:
        """What happened, and in which module."""
        return ranged(self._ends), self._module

    @property
    def when(self) -> str:
        """How often, and in which steps."""
        where = f"step {self.first_step}"
        if self.last_step > self.first_step:
            where = f"steps {self.first_step} to {self.last_step}"
        return f"{self.times:,}x in {where}"


@dataclass
class Total:
    """What several steps did, added up.

    Args:
        steps: how many.
        calls: of ops on DTensors.
        misses: of those, how many propagated.
        new_entries: that caches gained.
        times: wall times of the latest of them that were timed, in nanoseconds.
    """

    steps: int = 0
    calls: int = 0
    misses: int = 0
    new_entries: int = 0
    times: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))

    def add(self, step: LoopStep) -> None:
        """Add a step."""
        self.add_calls(step.counts.calls, step.took_ns)
        self.misses += step.counts.misses
        self.new_entries += sum(step.new_entries.values())

    def add_calls(self, calls: int, took_ns: int | None) -> None:
        """Add a step of hits alone."""
        self.steps += 1
        self.calls += calls
        if took_ns is not None:
            self.times.append(took_ns)

    @property
    def median_ns(self) -> float:
        """Median wall time of the latest of them; 0 where none was timed."""
        return statistics.median(self.times) if self.times else 0.0

    @property
    def most_of_them_ns(self) -> tuple[float, float]:
        """Between which wall times eight of ten of the latest lie."""
        ordered = sorted(self.times)
        cut = len(ordered) // 10
        return (ordered[cut], ordered[-1 - cut]) if ordered else (0.0, 0.0)


class LoopSteps:
    """What the steps of a loop did so far.

    Attributes:
        warmup: those at the beginning, in which misses belong there.
        steady: those after it in which nothing missed, and no cache gained an entry.
        disturbed: the others after it.
        looked_at: the latest step after the warm-up that was looked at, a steady one if there was any.
        after: counts of what came after the last step, once the watch is closed.
        disturbed_steps: the disturbed ones; only the latest, where there are very many.
        unlisted: disturbed steps that no line is due for, since the last one that has a line.
    """

    def __init__(self) -> None:
        self.warmup, self.steady, self.disturbed = Total(), Total(), Total()
        self.looked_at: LoopStep | None = None
        self.after = StepCounts()
        self.disturbed_steps: deque[LoopStep] = deque(maxlen=MOST_STEPS)
        self.unlisted = Total()
        self._steps_of = Counter[Hashable]()
        self._totals = self.warmup, self.steady, self.disturbed
        self._causes: dict[Hashable, Cause] = {}
        self._more_misses = 0

    def __len__(self) -> int:
        return self.warmup.steps + self.steady.steps + self.disturbed.steps  # asked in every step

    @property
    def calls(self) -> int:
        """Calls of ops on DTensors, in all steps."""
        return sum(total.calls for total in self._totals)

    @property
    def misses(self) -> int:
        """Calls that propagated, in all steps."""
        return sum(total.misses for total in self._totals)

    @property
    def misses_per_step(self) -> float:
        """Calls that propagated, a step after the warm-up; lists what missed and why."""
        return Count(self.disturbed.misses, self.steady.steps + self.disturbed.steps, self.causes)

    @property
    def causes(self) -> Sequence[str]:
        """What missed after the warm-up and why, a line for each cause, the most frequent first.

        Causes that differ by the index of a layer alone are one.
        """
        every, lines = [*self._causes.values()], dict[str, Cause]()
        for text, cause in zip(folded([each.told for each in every]), every, strict=True):
            lines[text] = lines[text].join(cause) if text in lines else cause
        by_times = sorted(lines.items(), key=lambda item: -item[1].times)
        more = [f"{self._more_misses:,} more misses of other causes"] * bool(self._more_misses)
        return [*(f"{text} ({cause.when})" for text, cause in by_times), *more]

    def add(self, step: LoopStep) -> None:
        """Add a step after the warm-up."""
        if step.is_looked_at and (step.is_steady or self.looked_at is None):
            self.looked_at = step
        if step.is_steady:
            self.steady.add(step)
            return
        self.disturbed.add(step)
        self.disturbed_steps.append(step)
        for miss in step.counts.missed:
            cause = self._causes.get(miss.origin)
            if cause is None and len(self._causes) < MOST_CAUSES:
                cause = self._causes[miss.origin] = Cause(step.number)
            if cause is None:
                self._more_misses += 1
            else:
                cause.add(miss, step.number)

    def is_due(self, step: LoopStep) -> bool:
        """Return whether a disturbed step has a line: the first with a cause, the second, the fourth, ..."""
        causes = {miss.origin for miss in step.counts.missed} or {tuple(step.new_entries)}
        for cause in causes:
            if cause in self._steps_of or len(self._steps_of) < MOST_CAUSES:
                self._steps_of[cause] += 1
        is_due = any(self._steps_of[cause].bit_count() == 1 for cause in causes)
        if not is_due:
            self.unlisted.add(step)
        return is_due

    @property
    def telling(self) -> list[list[StepCounts]]:
        """Steps that advice is for: one whose transfers are counted, and the last two if each one misses."""
        looked_at = [[self.looked_at.counts]] if self.looked_at else []
        last = [step for step in [*self.disturbed_steps][-2:] if step.number > len(self) - 2]
        return [*looked_at, *[[step.counts for step in last]] * (len(last) == 2)]
