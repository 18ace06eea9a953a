"""A stream of inputs whose shapes change: which steps missed, when it got steady, what a miss cost."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pytest_dtdispatch.stats.medians import median_interval
from pytest_dtdispatch.steps.causes import Happened

# How reasons begin that an equal call may have had before: its plan was dropped, or is never kept.
LOST = ("the caches were cleared", "an equal call missed before", "propagation raised", "no cache was asked")


class Missed(Happened, Protocol):
    """What a stream asks of a miss."""

    @property
    def signature(self) -> str:
        """The call."""

    @property
    def reason(self) -> str:
        """What in it was not seen before, or why no cache could answer."""


class CountsOfStep(Protocol):
    """What a stream asks of the counts of a step."""

    @property
    def misses(self) -> int:
        """Calls that propagated."""

    @property
    def missed(self) -> Sequence[Missed]:
        """Every call that propagated."""

    @property
    def cache_growth(self) -> Sequence[tuple[str, int]]:
        """Entries that each cache gained."""


class Steady(NamedTuple):
    """Since when no step missed: after so many distinct shapes, and after so many counted steps."""

    shapes: int
    steps: int


class TimeSpread(NamedTuple):
    """A median, and what holds it.

    Args:
        median_ns: of the samples.
        low_ns: with ``high_ns`` the 95 % interval of the median; of fewer than six samples, their range.
        high_ns: its other end.
        samples: how many there are.
    """

    median_ns: float
    low_ns: float
    high_ns: float
    samples: int

    @classmethod
    def of(cls, values: Sequence[float]) -> TimeSpread:
        """Take the median of one sample or more.

        Example:
            >>> TimeSpread.of([5, 1, 4])
            TimeSpread(median_ns=4, low_ns=1, high_ns=5, samples=3)
        """
        low, high = median_interval(values) or (min(values), max(values))
        return cls(statistics.median(values), low, high, len(values))


class MissCost(NamedTuple):
    """What a step takes longer when it misses.

    Args:
        step: a step that missed, less what steps that did not miss take.
        miss: the same, by the misses of the step.
        is_of_same_shape: whether steps of the same shape stand against each other; else those of all shapes.
    """

    step: TimeSpread
    miss: TimeSpread
    is_of_same_shape: bool

    @property
    def is_noise(self) -> bool:
        """Whether it may be nothing: the times of both kinds of steps overlap."""
        return self.step.low_ns <= 0


@dataclass(frozen=True)
class StreamStep:
    """One step of a stream.

    Args:
        shape: dtypes, shapes and placements in its input, or what else the input is, as a text.
        counts: of the step.
        took_ns: wall time until the step returned, while it was counted; no count, and no part of what makes
            two streams equal.
        shapes: distinct shapes met so far, those of the warm-up among them.
        gained: entries that each cache gained so far, over the counted steps.
        is_repeated: whether an earlier input had the same shape.
        again: misses of calls that had missed in an earlier step.
    """

    shape: str
    counts: CountsOfStep
    took_ns: int = field(compare=False)
    shapes: int
    gained: tuple[tuple[str, int], ...]
    is_repeated: bool
    again: tuple[Missed, ...]

    @property
    def misses(self) -> int:
        """Calls that propagated."""
        return self.counts.misses

    @property
    def missed_inside(self) -> bool:
        """Whether an earlier input had the same shape, and yet a new call missed."""
        return self.is_repeated and self.misses > len(self.again)

    @property
    def entries(self) -> int:
        """Entries gained so far by the cache that gained most."""
        return max((entries for _, entries in self.gained), default=0)


@dataclass(frozen=True)
class Stream:
    """What a step did with each of its inputs, in order.

    Where nothing is measured it has no steps, and every count is 0.

    Args:
        warmup: shapes of the inputs that were not counted.
        steps: the others, one by one.
    """

    warmup: tuple[str, ...] = ()
    steps: tuple[StreamStep, ...] = ()

    @property
    def shapes(self) -> tuple[str, ...]:
        """Distinct shapes of the counted steps, in the order they came."""
        return tuple(dict.fromkeys(step.shape for step in self.steps))

    @property
    def steady_after(self) -> Steady | None:
        """After how many shapes and counted steps no step missed any more; None where the last step did."""
        missed = [number for number, step in enumerate(self.steps, 1) if step.misses]
        if not missed:
            return Steady(len(set(self.warmup)), 0)
        last = missed[-1]
        return None if last == len(self.steps) else Steady(self.steps[last - 1].shapes, last)

    @property
    def misses_per_shape(self) -> float:
        """Calls that propagated, by distinct shapes of the counted steps."""
        return sum(step.misses for step in self.steps) / max(len(self.shapes), 1)

    @property
    def missed_again(self) -> tuple[StreamStep, ...]:
        """Steps in which calls missed that had missed before: plans that were dropped, or are never kept."""
        return tuple(step for step in self.steps if step.again)

    @property
    def grown_most(self) -> str:
        """The cache that gained most entries over the counted steps; empty where none did."""
        gained = self.steps[-1].gained if self.steps else ()
        return max(gained, key=lambda cache: cache[1])[0] if gained else ""

    @property
    def missing(self) -> TimeSpread | None:
        """Wall time of steps that missed; None where none did."""
        return _spread([step.took_ns for step in self.steps if step.misses])

    @property
    def hitting(self) -> TimeSpread | None:
        """Wall time of steps that did not miss; None where all did."""
        return _spread([step.took_ns for step in self.steps if not step.misses])

    @property
    def miss_cost(self) -> MissCost | None:
        """What a step takes longer when it misses; None where no step missed, or every step did.

        A step that missed stands against those of the same shape that did not, as another shape may be more
        work. Where no shape has both, it stands against all that did not miss.
        """
        hitting: defaultdict[str, list[int]] = defaultdict(list)
        for step in self.steps:
            if not step.misses:
                hitting[step.shape].append(step.took_ns)
        missing = [step for step in self.steps if step.misses]
        if not missing or not hitting:
            return None
        of_same_shape = [step for step in missing if step.shape in hitting]
        pairs = [(step, TimeSpread.of(hitting[step.shape])) for step in of_same_shape]
        if not pairs:
            everything = TimeSpread.of([took for of_shape in hitting.values() for took in of_shape])
            pairs = [(step, everything) for step in missing]
        by_misses = _above(pairs, [step.misses for step, _ in pairs])
        return MissCost(_above(pairs, [1] * len(pairs)), by_misses, bool(of_same_shape))


def stream_of(
    shapes: Sequence[str],
    warm: Sequence[CountsOfStep],
    counted: Sequence[CountsOfStep],
    took_ns: Sequence[int],
) -> Stream:
    """Put together what was counted of a stream, given the shapes of all inputs, those of the warm-up first.

    Example:
        >>> stream_of([], [], [], [])
        Stream(warmup=(), steps=())
    """
    steps = _steps(shapes, warm, counted, took_ns)
    return Stream(tuple(shapes[: len(warm)]), tuple(steps))


def _steps(
    shapes: Sequence[str],
    warm: Sequence[CountsOfStep],
    counted: Sequence[CountsOfStep],
    took_ns: Sequence[int],
) -> Iterator[StreamStep]:
    met = set(shapes[: len(warm)])
    missed = {miss.signature for counts in warm for miss in counts.missed}
    gained: Counter[str] = Counter()
    for shape, counts, took in zip(shapes[len(warm) :], counted, took_ns, strict=True):
        is_repeated = shape in met
        met.add(shape)
        again = tuple(
            miss for miss in counts.missed if miss.signature in missed and miss.reason.startswith(LOST)
        )
        missed.update(miss.signature for miss in counts.missed)
        for cache, entries in counts.cache_growth:
            gained[cache] += entries
        yield StreamStep(shape, counts, took, len(met), tuple(gained.items()), is_repeated, again)


def _spread(took_ns: Sequence[int]) -> TimeSpread | None:
    return TimeSpread.of(took_ns) if took_ns else None


def _above(pairs: Sequence[tuple[StreamStep, TimeSpread]], parts: Sequence[int]) -> TimeSpread:
    """Say how far steps lie above others, each divided into parts; the spread of both sides is in it."""
    divided = [(step.took_ns, other, part) for (step, other), part in zip(pairs, parts, strict=True)]
    median = statistics.median([(took - other.median_ns) / part for took, other, part in divided])
    low = TimeSpread.of([(took - other.high_ns) / part for took, other, part in divided]).low_ns
    high = TimeSpread.of([(took - other.low_ns) / part for took, other, part in divided]).high_ns
    return TimeSpread(median, low, high, len(divided))
