"""What was counted while a step ran: exact numbers, and what each of them consists of."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from pytest_dtdispatch.core.checks import check_callable, check_count, check_steps, signature_mismatch
from pytest_dtdispatch.core.results import Advice, Count, NoRows
from pytest_dtdispatch.core.text import plural, shown, step_name
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.steps.events import (
    AnyEvent,
    Collective,
    Miss,
    Redistribution,
    StepEvent,
    Unwrapping,
    Wrapping,
    by_cause,
)

__tracebackhide__ = True  # a test that fails here shows its own line

E = TypeVar("E", bound=StepEvent)


class EventLists:
    """What follows from the list of what happened, in a step or in several."""

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """What happened, in order."""
        raise NotImplementedError

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """Return what happened of one kind, in order."""
        return tuple(event for event in self.events if type(event) is kind)

    @property
    def missed(self) -> tuple[Miss, ...]:
        """Every call that propagated."""
        return self.of(Miss)

    @property
    def misses(self) -> int:
        """Calls that propagated."""
        return len(self.missed)

    @property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """Every redistribution, asked for or implied."""
        return self.of(Redistribution)

    @property
    def implied(self) -> tuple[Redistribution, ...]:
        """Every implicit redistribution: an op made it, and nobody asked for it."""
        return tuple(one for one in self.redistributions if one.is_implied)

    @property
    def collective_runs(self) -> tuple[Collective, ...]:
        """Every collective, FSDP's and the program's own too."""
        return self.of(Collective)

    @property
    def collectives(self) -> dict[str, int]:
        """Collectives by kind, with how many there were."""
        return dict(sorted(Counter(one.kind for one in self.collective_runs).items()))

    @property
    def wraps(self) -> tuple[Wrapping, ...]:
        """Every DTensor that was made of a local tensor."""
        return self.of(Wrapping)

    @property
    def unwraps(self) -> tuple[Wrapping, ...]:
        """Every DTensor that was taken apart."""
        return self.of(Unwrapping)


@dataclass(frozen=True)
class StepCounts(EventLists):
    """Counts of one step.

    Args:
        hits: calls that a sharding-propagation cache answered.
        unpropagated: calls that never ask the propagator, such as ``is_same_size``.
        events: what missed, what moved data and what wrapped it, in the order it happened.
        cache_growth: entries that each cache gained.
        spec_growth: ``DTensorSpec`` objects gained, garbage having been collected.
        dtensor_growth: ``DTensor`` objects gained, likewise.
        kept: dtype, shape and placements of the DTensors of which the step left more, at most three kinds.
        called: every call of a warm-up step, equal ones once, each with its source line.
    """

    hits: int = 0
    unpropagated: int = 0
    events: tuple[AnyEvent, ...] = ()
    cache_growth: tuple[tuple[str, int], ...] = ()
    spec_growth: int = 0
    dtensor_growth: int = 0
    kept: str = field(default="", compare=False)
    called: tuple[str, ...] = field(default=(), compare=False)

    @property
    def calls(self) -> int:
        """Calls of ops on DTensors."""
        return self.hits + self.misses + self.unpropagated


def most_growth(step: StepCounts) -> int:
    """Return the entries that the fastest growing cache gained."""
    return max((count for _, count in step.cache_growth), default=0)


WARMUP, STEPS = 3, 5

GROWTH = "dtensor_growth"
METRICS: dict[str, Callable[[StepCounts], int]] = {
    "misses_per_step": lambda step: step.misses,
    "redistributes": lambda step: len(step.redistributions),
    "implicit": lambda step: len(step.implied),
    "collectives": lambda step: len(step.collective_runs),
    GROWTH: lambda step: step.dtensor_growth,
    "calls": lambda step: step.calls,
}
# What moves data or wraps it.
TRANSFERS = Redistribution, Collective, Wrapping, Unwrapping


class Steady(NamedTuple):
    """After how many distinct inputs, and after how many counted steps, no step missed any more."""

    shapes: int
    steps: int


@dataclass(frozen=True)
class Steps(EventLists, NoRows):
    """Counts of a step that ran several times.

    If nothing is measured, it has no steps, and every count is 0.

    Args:
        name: of the step.
        warmup: counts of each step of the warm-up.
        steps: counts of each step after it.
        inputs: the shape of each input, those of the warm-up first; empty where none were given.
        advice: what to change in the step, the largest saving first.

    Example:
        >>> from pytest_dtdispatch.steps.events import QueriedCache
        >>> miss = Miss("mm.default(f32[8,9]S0, f32[9,8]R)@4", "first call of this op", QueriedCache.NATIVE)
        >>> steps = Steps("train", (), (StepCounts(hits=3, events=(miss,)), StepCounts(hits=4)))
        >>> steps.calls, steps.misses, steps.misses_per_step
        (8, 1, 0.5)
    """

    kind: ClassVar[str] = "steps"
    name: str
    warmup: tuple[StepCounts, ...]
    steps: tuple[StepCounts, ...]
    inputs: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    def metrics(self) -> Iterator[tuple[str, int]]:
        """Every metric, from the step with the highest count, as in limits."""
        for metric, count in METRICS.items():
            if self.steps and not (metric == GROWTH and self.is_cold):
                yield metric, max(0, *map(count, self.steps))

    @property
    def is_cold(self) -> bool:
        """Whether it is one step without a warm-up, whose first calls fill caches: that is no growth."""
        return not self.warmup and len(self.steps) == 1

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """What happened, step by step."""
        return tuple(event for step in self.steps for event in step.events)

    @property
    def calls(self) -> int:
        """Calls of ops on DTensors, in all steps."""
        return sum(step.calls for step in self.steps)

    @property
    def hits(self) -> int:
        """Calls that a cache answered, in all steps."""
        return sum(step.hits for step in self.steps)

    @property
    def cache_growth(self) -> dict[str, int]:
        """Entries that each cache gained over all steps."""
        summed: Counter[str] = Counter()
        for step in self.steps:
            summed.update(dict(step.cache_growth))
        return dict(summed)

    @property
    def spec_growth(self) -> int:
        """``DTensorSpec`` objects gained over all steps."""
        return sum(step.spec_growth for step in self.steps)

    @property
    def dtensor_growth(self) -> int:
        """``DTensor`` objects gained over all steps."""
        return sum(step.dtensor_growth for step in self.steps)

    @property
    def misses_per_step(self) -> float:
        """Calls that propagated, a step; lists what missed and why."""
        return self._per_step([step.missed for step in self.steps])

    @property
    def redistributes_per_step(self) -> float:
        """Redistributions a step; lists them."""
        return self._per_step([step.redistributions for step in self.steps])

    @property
    def implicit_per_step(self) -> float:
        """Implicit redistributions a step, which nobody asked for; lists them."""
        return self._per_step([step.implied for step in self.steps])

    @property
    def collectives_per_step(self) -> float:
        """Collectives a step; lists them."""
        return self._per_step([step.collective_runs for step in self.steps])

    @property
    def wraps_per_step(self) -> float:
        """DTensors made of local tensors, a step; lists them."""
        return self._per_step([step.wraps for step in self.steps])

    @property
    def unwraps_per_step(self) -> float:
        """DTensors taken apart, a step; lists them."""
        return self._per_step([step.unwraps for step in self.steps])

    def _per_step(self, events: Sequence[Sequence[AnyEvent]]) -> Count:
        return Count(sum(map(len, events)), len(self.steps), by_cause(events))

    @property
    def cache_growth_per_step(self) -> float:
        """Entries a step that the fastest growing cache gained; lists every cache that grew."""
        grown, steps = self.cache_growth, plural(len(self.steps), "step")
        details = [f"{cache}: {count:+,} over {steps}" for cache, count in grown.items() if count]
        return Count(max(grown.values(), default=0), len(self.steps), details)

    @property
    def spec_growth_per_step(self) -> float:
        """``DTensorSpec`` objects gained a step."""
        return Count(self.spec_growth, len(self.steps))

    @property
    def dtensor_growth_per_step(self) -> float:
        """``DTensor`` objects gained a step; lists them."""
        details = dict.fromkeys(step.kept for step in self.steps if step.kept)
        return Count(self.dtensor_growth, len(self.steps), details)

    @property
    def steady_after(self) -> Steady | None:
        """After how many distinct inputs and steps no step missed any more; None if the last one did."""
        last = max((number for number, step in enumerate(self.steps, 1) if step.misses), default=0)
        if last and last == len(self.steps):
            return None
        return Steady(len(set(self.inputs[: len(self.warmup) + last])), last)

    @property
    def unsteady(self) -> str:
        """The first two steps with a different number of calls, as text; empty if there are none."""
        calls = [step.calls for step in self.steps]
        other = next((i for i, count in enumerate(calls) if count != calls[0]), None)
        return "" if other is None else f"{calls[0]} calls in step 1 and {calls[other]} in step {other + 1}"


@dataclass(frozen=True)
class StepCalls:
    """What a step is called with, and how often.

    Args:
        name: of the step.
        step: is called.
        warmup: calls that run first, and do not count.
        steps: calls after them; without a meaning where there are inputs.
        inputs: one for each call; None where the step takes no argument.
    """

    name: str
    step: Callable[..., object]
    warmup: int
    steps: int
    inputs: Iterable[Any] | None = None

    def arguments(self) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each call; refuse inputs of which none would be counted."""
        if self.inputs is None:
            yield from itertools.repeat((), self.warmup + self.steps)
            return
        number = 0
        for value in self.inputs:
            number += 1
            yield (value,)
        if number <= self.warmup:
            rest = f"warmup={self.warmup} leaves none of them to count" if number else "give one at least"
            raise MeasurementError(f"steps(): inputs has {number or 'no'} item{'s' * (number != 1)}: {rest}")

    def run_once(self) -> Steps:
        """Call the step where nothing is measured: once, or once with each input."""
        for arguments in [()] if self.inputs is None else self.arguments():
            self.step(*arguments)
        return Steps(self.name, (), ())


def read_calls(
    step: Callable[..., object],
    warmup: int | None,
    steps: int | None,
    inputs: Iterable[Any] | None,
    name: str | None,
) -> StepCalls:
    """Read what ``steps()`` was given, and refuse what cannot be counted."""
    if inputs is None:
        warmup, steps = WARMUP if warmup is None else warmup, STEPS if steps is None else steps
        check_steps(step, warmup, steps, name)
        return StepCalls(name or step_name(step), step, warmup, steps)
    check_callable("steps", step, name)
    if steps is not None:
        raise MeasurementError(
            f"steps(): steps={shown(steps)} with inputs: each input is a step, leave it out"
        )
    warmup = 0 if warmup is None else warmup
    check_count("warmup", warmup, 0)
    if not isinstance(inputs, Iterable) and not hasattr(inputs, "__getitem__"):
        raise MeasurementError(
            f"steps(): inputs={shown(inputs)} cannot be iterated over: give a list of inputs"
        )
    if mismatch := signature_mismatch(step, None):
        raise MeasurementError(
            f"steps(): the step {mismatch}, and is called with "
            "one of the inputs: wrap it, as in dtdispatch.steps(lambda pair: step(*pair), inputs=pairs)"
        )
    return StepCalls(name or step_name(step), step, warmup, 0, inputs)
