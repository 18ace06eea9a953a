"""Counts of a step: exact numbers and their events."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeVar

from pytest_dtdispatch.core.checks import (
    check_callable,
    check_count,
    check_result,
    check_steps,
    signature_mismatch,
)
from pytest_dtdispatch.core.events import FsdpGroup, OptimizerStep
from pytest_dtdispatch.core.results import Advice, Count, NoRows
from pytest_dtdispatch.core.text import plural, shown, step_name
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.steps.events import (
    AnyEvent,
    Collective,
    Miss,
    OpCalls,
    Read,
    Redistribution,
    StepEvent,
    Unwrapping,
    Wrapping,
    by_cause,
)

__tracebackhide__ = True  # a test that fails here shows its own line

E = TypeVar("E", bound=StepEvent)


class EventLists:
    """Counts derived from a list of events, of one or several steps."""

    @property
    def mesh_dims(self) -> tuple[str, ...]:
        """Names of the dimensions of all meshes."""
        raise NotImplementedError

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """All events, in order."""
        raise NotImplementedError

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """Return the events of one kind, in order."""
        return tuple(event for event in self.events if type(event) is kind)

    @property
    def missed(self) -> tuple[Miss, ...]:
        """Calls that propagated."""
        return self.of(Miss)

    @property
    def misses(self) -> int:
        """Number of calls that propagated."""
        return len(self.missed)

    @property
    def redistributions(self) -> tuple[Redistribution, ...]:
        """All redistributions, explicit or implicit."""
        return self.of(Redistribution)

    @property
    def implied(self) -> tuple[Redistribution, ...]:
        """Implicit redistributions: those that an op implied."""
        return tuple(one for one in self.redistributions if one.is_implied)

    @property
    def collective_runs(self) -> tuple[Collective, ...]:
        """All collectives, including those of FSDP and of the program."""
        return self.of(Collective)

    @property
    def collectives(self) -> dict[str, int]:
        """Number of collectives by kind."""
        return dict(sorted(Counter(one.kind for one in self.collective_runs).items()))

    @property
    def collective_bytes(self) -> int:
        """Bytes of all collectives on this rank."""
        return _bytes_of(self.collective_runs)

    @property
    def collectives_by_dim(self) -> dict[str, int]:
        """Number of collectives by mesh dimension; a collective of several counts for each."""
        return {dim: len(runs) for dim, runs in self._runs_by_dim().items()}

    @property
    def collective_bytes_by_dim(self) -> dict[str, int]:
        """Bytes of collectives by mesh dimension, likewise."""
        return {dim: _bytes_of(runs) for dim, runs in self._runs_by_dim().items()}

    def _runs_by_dim(self) -> dict[str, list[Collective]]:
        """Return the collectives of each mesh dimension; those of no dimension have an empty name."""
        by_dim: defaultdict[str, list[Collective]] = defaultdict(list, {dim: [] for dim in self.mesh_dims})
        for one in self.collective_runs:
            for dim in one.mesh_dims or ("",):
                by_dim[dim].append(one)
        return dict(sorted(by_dim.items()))

    @property
    def wraps(self) -> tuple[Wrapping, ...]:
        """Conversions of local tensors to DTensors."""
        return self.of(Wrapping)

    @property
    def unwraps(self) -> tuple[Wrapping, ...]:
        """Conversions of DTensors to local tensors."""
        return self.of(Unwrapping)

    @property
    def reads(self) -> tuple[Read, ...]:
        """Reads of values of tensors by the host."""
        return self.of(Read)

    @property
    def partial_reads(self) -> tuple[Read, ...]:
        """Reads of partial DTensors: each rank reads its own share."""
        return tuple(one for one in self.reads if one.is_partial)


@dataclass(frozen=True)
class StepCounts(EventLists):
    """Counts of one step.

    Args:
        hits: number of calls that were hits of a sharding-propagation cache.
        unpropagated: number of calls that never query the propagator, such as ``is_same_size``.
        events: misses, redistributions, collectives and conversions, in order.
        cache_growth: number of entries that each cache gained.
        spec_growth: number of ``DTensorSpec`` objects gained, after garbage collection.
        dtensor_growth: number of ``DTensor`` objects gained, likewise.
        kept: dtype, shape and placements of the DTensors gained, at most three kinds.
        called: distinct calls of a warm-up step with their source lines.
        mesh_dims: names of the dimensions of all meshes, or their numbers in meshes without names.
        is_recorded: whether all ops of the step were recorded, as in a warm-up.
        ops: calls of ops on DTensors by line, if they were recorded.
        groups: groups of FSDP2 that were gathered or reduced, if ops were recorded.
        optimizers: optimizers that stepped, if ops were recorded; None for those that are not torch's.
    """

    hits: int = 0
    unpropagated: int = 0
    events: tuple[AnyEvent, ...] = ()
    cache_growth: tuple[tuple[str, int], ...] = ()
    spec_growth: int = 0
    dtensor_growth: int = 0
    kept: str = field(default="", compare=False)
    called: tuple[str, ...] = field(default=(), compare=False)
    mesh_dims: tuple[str, ...] = field(default=(), compare=False)
    is_recorded: bool = field(default=False, compare=False)
    ops: tuple[OpCalls, ...] = field(default=(), compare=False)
    groups: tuple[FsdpGroup, ...] = field(default=(), compare=False)
    optimizers: tuple[OptimizerStep | None, ...] = field(default=(), compare=False)

    @property
    def calls(self) -> int:
        """Number of calls of ops on DTensors."""
        return self.hits + self.misses + self.unpropagated

    @property
    def max_cache_growth(self) -> int:
        """Number of entries that the fastest-growing cache gained."""
        return max((count for _, count in self.cache_growth), default=0)

    @property
    def grown_caches(self) -> list[str]:
        """Caches that gained entries, as lines."""
        grown = [(name, count) for name, count in self.cache_growth if count > 0]
        return [f"{name}: {count:,} {'entry' if count == 1 else 'entries'}" for name, count in grown]

    @property
    def grown_tensors(self) -> list[str]:
        """Description of the DTensors gained, as lines."""
        return [self.kept] if self.kept else []


class CountKind(NamedTuple):
    """A kind of count of a step. Columns, limits, metrics and counts of A/B runs are derived from it.

    Args:
        counted: function that returns the counted events of a step, or its count.
        title: title of its column; empty if it has none.
        limit: name of its limit; empty if it has none.
        metric: name in files; empty if it is not written.
        per_step: attribute of ``Steps``, and name in A/B runs; empty if they do not compare it.
        listed: function that returns lines for a limit that it exceeds; by default its events.
        is_growth: whether it counts growth; a cold step fills caches, which is not growth.
        is_bytes: whether it counts the bytes of its events.
        meaning: meaning of its column; empty if the title says it.
        is_omitted: whether its column is omitted if it is 0 in all steps.
        follows_moves: whether one redistribution changes it, so that A/B runs name the cause once.
    """

    counted: Callable[[StepCounts], Any]
    title: str = ""
    limit: str = ""
    metric: str = ""
    per_step: str = ""
    listed: Callable[[StepCounts], Sequence[str]] | None = None
    is_growth: bool = False
    is_bytes: bool = False
    meaning: str = ""
    is_omitted: bool = False
    follows_moves: bool = False

    def number(self, step: StepCounts) -> int:
        """Return the count of a step."""
        counted = self.counted(step)
        if isinstance(counted, int):
            return counted
        return _bytes_of(counted) if self.is_bytes else len(counted)

    def events(self, step: StepCounts) -> Sequence[StepEvent]:
        """Return the counted events of a step."""
        counted = self.counted(step)
        return () if isinstance(counted, int) else counted

    def details(self, step: StepCounts) -> Sequence[str]:
        """Return lines for a limit that the count exceeds."""
        return self.listed(step) if self.listed else by_cause([self.events(step)])


def event_kind(
    name: str,
    events: Callable[[StepCounts], Sequence[StepEvent]],
    metric: str = "",
    meaning: str = "",
    is_omitted: bool = False,
    follows_moves: bool = False,
) -> CountKind:
    """Return the kind that counts these events, with one name for its column, its limit and in A/B runs."""
    kind = CountKind(events, name, name, metric, f"{name}_per_step", meaning=meaning)
    return kind._replace(is_omitted=is_omitted, follows_moves=follows_moves)


def bytes_kind(name: str, runs: Callable[[StepCounts], Sequence[Collective]]) -> CountKind:
    """Return the kind that counts the bytes of these collectives."""
    return CountKind(runs, limit=name, metric=name, is_bytes=True)


def growth_kind(
    name: str,
    number: str,
    title: str,
    meaning: str,
    metric: str = "",
    listed: Callable[[StepCounts], Sequence[str]] | None = None,
) -> CountKind:
    """Return the kind of a number of a step that counts growth."""
    per_step = f"{name}_per_step"
    return CountKind(
        attrgetter(number), title, name, metric, per_step, listed, is_growth=True, meaning=meaning
    )


def _bytes_of(collectives: Iterable[Collective]) -> int:
    return sum(one.bytes for one in collectives)


def kinds_of_dim(dim: str) -> tuple[CountKind, CountKind]:
    """Return the kinds that count the collectives of one mesh dimension, and their bytes."""

    def runs(step: StepCounts) -> list[Collective]:
        return [one for one in step.collective_runs if dim in one.mesh_dims]

    name, of_bytes = f"collectives[{dim}]", f"collective_bytes[{dim}]"
    return event_kind(name, runs, metric=name), bytes_kind(of_bytes, runs)


IMPLICIT, GROWTH = "implicit", "dtensor_growth"
COUNTS = (
    event_kind("misses", attrgetter("missed"), "misses_per_step", "calls whose sharding was propagated"),
    event_kind("redistributes", attrgetter("redistributions"), "redistributes", follows_moves=True),
    event_kind(
        IMPLICIT,
        attrgetter("implied"),
        IMPLICIT,
        "redistributions that an op implied",
        is_omitted=True,
        follows_moves=True,
    ),
    event_kind("wraps", attrgetter("wraps"), meaning="conversions of local tensors to DTensors"),
    CountKind(lambda step: len(step.unwraps), per_step="unwraps_per_step"),  # its events are not listed
    event_kind("collectives", attrgetter("collective_runs"), "collectives", follows_moves=True),
    bytes_kind("collective_bytes", attrgetter("collective_runs")),
    event_kind(
        "reads",
        attrgetter("reads"),
        "reads",
        "reads of values by the host, which wait for a device",
        is_omitted=True,
    ),
    event_kind(
        "partial_reads",
        attrgetter("partial_reads"),
        "partial_reads",
        "reads of partial DTensors: each rank reads its own share",
        is_omitted=True,
    ),
    growth_kind(
        "cache_growth",
        "max_cache_growth",
        "cache+",
        "entries that the fastest-growing cache gained",
        listed=attrgetter("grown_caches"),
    ),
    growth_kind("spec_growth", "spec_growth", "specs+", "live sharding specs gained"),
    growth_kind(
        GROWTH, GROWTH, "DTensors+", "live DTensors gained", GROWTH, listed=attrgetter("grown_tensors")
    ),
    CountKind(attrgetter("calls"), title="calls", limit="calls", metric="calls", meaning="ops on DTensors"),
    CountKind(attrgetter("hits"), title="hits"),
)


class Steady(NamedTuple):
    """Number of distinct inputs and of counted steps up to the last step that missed."""

    shapes: int
    steps: int


@dataclass(frozen=True)
class Steps(EventLists, NoRows):
    """Counts of a step that ran several times.

    If nothing is measured, it has no steps, and every count is 0.

    Args:
        name: name of the step.
        warmup: counts of each warm-up step.
        steps: counts of each step after the warm-up.
        inputs: shape of each input, including the warm-up; empty without inputs.
        advice: suggested changes of the step, the largest saving first.

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
        """Yield each metric: the maximum over the steps, as in limits."""
        for kind in self.kinds:
            if kind.metric and self.steps and not (kind.is_growth and self.is_cold):
                yield kind.metric, max(0, *map(kind.number, self.steps))

    @property
    def mesh_dims(self) -> tuple[str, ...]:
        """Names of the dimensions of all meshes, and of those that collectives ran over."""
        ran = {dim for step in self.steps for one in step.collective_runs for dim in one.mesh_dims}
        return tuple(sorted(ran.union(*(step.mesh_dims for step in self.steps))))

    @property
    def kinds(self) -> tuple[CountKind, ...]:
        """All kinds of counts, with those of each mesh dimension."""
        return (*COUNTS, *itertools.chain.from_iterable(map(kinds_of_dim, self.mesh_dims)))

    @property
    def is_cold(self) -> bool:
        """Whether it is one step without a warm-up; filling caches in its first calls is not growth."""
        return not self.warmup and len(self.steps) == 1

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """All events, step by step."""
        return tuple(event for step in self.steps for event in step.events)

    @property
    def calls(self) -> int:
        """Number of calls of ops on DTensors, in all steps."""
        return sum(step.calls for step in self.steps)

    @property
    def hits(self) -> int:
        """Number of cache hits, in all steps."""
        return sum(step.hits for step in self.steps)

    @property
    def cache_growth(self) -> dict[str, int]:
        """Number of entries that each cache gained over all steps."""
        summed: Counter[str] = Counter()
        for step in self.steps:
            summed.update(dict(step.cache_growth))
        return dict(summed)

    @property
    def spec_growth(self) -> int:
        """Number of ``DTensorSpec`` objects gained over all steps."""
        return sum(step.spec_growth for step in self.steps)

    @property
    def dtensor_growth(self) -> int:
        """Number of ``DTensor`` objects gained over all steps."""
        return sum(step.dtensor_growth for step in self.steps)

    @property
    def misses_per_step(self) -> float:
        """Misses per step, with a list of their causes."""
        return self._per_step([step.missed for step in self.steps])

    @property
    def redistributes_per_step(self) -> float:
        """Redistributions per step, with a list."""
        return self._per_step([step.redistributions for step in self.steps])

    @property
    def implicit_per_step(self) -> float:
        """Implicit redistributions per step, with a list."""
        return self._per_step([step.implied for step in self.steps])

    @property
    def collectives_per_step(self) -> float:
        """Collectives per step, with a list."""
        return self._per_step([step.collective_runs for step in self.steps])

    @property
    def collective_bytes_per_step(self) -> float:
        """Bytes of collectives per step, with a list."""
        runs = [step.collective_runs for step in self.steps]
        return Count(self.collective_bytes, len(self.steps), by_cause(runs))

    @property
    def wraps_per_step(self) -> float:
        """Conversions of local tensors to DTensors per step, with a list."""
        return self._per_step([step.wraps for step in self.steps])

    @property
    def unwraps_per_step(self) -> float:
        """Conversions of DTensors to local tensors per step, with a list."""
        return self._per_step([step.unwraps for step in self.steps])

    @property
    def reads_per_step(self) -> float:
        """Reads of values by the host per step, with a list."""
        return self._per_step([step.reads for step in self.steps])

    @property
    def partial_reads_per_step(self) -> float:
        """Reads of partial DTensors per step, with a list."""
        return self._per_step([step.partial_reads for step in self.steps])

    def _per_step(self, events: Sequence[Sequence[AnyEvent]]) -> Count:
        return Count(sum(map(len, events)), len(self.steps), by_cause(events))

    @property
    def cache_growth_per_step(self) -> float:
        """Entries that the fastest-growing cache gained per step, with a list of all caches that grew."""
        grown, steps = self.cache_growth, plural(len(self.steps), "step")
        details = [f"{cache}: {count:+,} over {steps}" for cache, count in grown.items() if count]
        return Count(max(grown.values(), default=0), len(self.steps), details)

    @property
    def spec_growth_per_step(self) -> float:
        """``DTensorSpec`` objects gained per step."""
        return Count(self.spec_growth, len(self.steps))

    @property
    def dtensor_growth_per_step(self) -> float:
        """``DTensor`` objects gained per step, with a list."""
        details = dict.fromkeys(step.kept for step in self.steps if step.kept)
        return Count(self.dtensor_growth, len(self.steps), details)

    @property
    def steady_after(self) -> Steady | None:
        """Number of inputs and steps up to the last step that missed; None if it is the last of all steps."""
        last = max((number for number, step in enumerate(self.steps, 1) if step.misses), default=0)
        if last and last == len(self.steps):
            return None
        return Steady(len(set(self.inputs[: len(self.warmup) + last])), last)

    @property
    def unsteady(self) -> str:
        """Text about the first two steps with different numbers of calls; empty if there are none."""
        calls = [step.calls for step in self.steps]
        other = next((i for i, count in enumerate(calls) if count != calls[0]), None)
        if other is None:
            return ""
        return f"{plural(calls[0], 'call')} in step 1 and {calls[other]:,} in step {other + 1}"


@dataclass(frozen=True)
class StepCalls:
    """Calls of a step.

    Args:
        name: name of the step.
        step: step function.
        warmup: number of warm-up calls, which are not part of the counts.
        steps: number of calls after the warm-up; ignored if there are inputs.
        inputs: argument of each call; None if the step takes no argument.
    """

    name: str
    step: Callable[..., object]
    warmup: int
    steps: int
    inputs: Iterable[Any] | None = None

    def arguments(self) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each call.

        Raises:
            MeasurementError: there are no inputs after the warm-up.
        """
        if self.inputs is None:
            yield from itertools.repeat((), self.warmup + self.steps)
            return
        number = 0
        for value in self.inputs:
            number += 1
            yield (value,)
        if number <= self.warmup:
            rest = f"warmup={self.warmup} leaves none of them to count" if number else "pass at least one"
            items = "1 item" if number == 1 else f"{number or 'no'} items"
            raise MeasurementError(f"steps(): inputs has {items}: {rest}")

    def run_once(self) -> Steps:
        """Call the step once, or once with each input, without counting."""
        for arguments in [()] if self.inputs is None else self.arguments():
            check_result("steps", self.step(*arguments))
        return Steps(self.name, (), ())


def read_calls(
    step: Callable[..., object],
    warmup: int | None,
    steps: int | None,
    inputs: Iterable[Any] | None,
    name: str | None,
) -> StepCalls:
    """Validate the arguments of ``steps()``."""
    if inputs is None:
        warmup, steps = 3 if warmup is None else warmup, 5 if steps is None else steps
        check_steps(step, warmup, steps, name)
        return StepCalls(name or step_name(step), step, warmup, steps)
    check_callable("steps", step, name)
    if steps is not None:
        raise MeasurementError(
            f"steps(): steps={shown(steps)} with inputs: each input is a step, so omit steps="
        )
    warmup = 0 if warmup is None else warmup
    check_count("warmup", warmup, 0)
    if not isinstance(inputs, Iterable) and not hasattr(inputs, "__getitem__"):
        raise MeasurementError(
            f"steps(): inputs={shown(inputs)} cannot be iterated over: pass a list of inputs"
        )
    mismatch = signature_mismatch(step, None)
    if mismatch:
        raise MeasurementError(
            f"steps(): the step {mismatch}, and is called with "
            "one input: wrap it, as in dtdispatch.steps(lambda pair: step(*pair), inputs=pairs)"
        )
    return StepCalls(name or step_name(step), step, warmup, 0, inputs)


class StepState(NamedTuple):
    """State of a step as text, and whether anything is wrong with the step."""

    text: str
    has_trouble: bool = False


def state_of(steps: Steps) -> StepState:
    """Return the state of a step. It is steady without misses, growth and different numbers of calls.

    A single step without a warm-up has no steady state: it is counted. A step with inputs may be steady after
    its last miss.
    """
    if not steps.inputs and steps.is_cold:
        return StepState("counted")
    after = steps.steady_after if steps.inputs else None
    if after:
        steady = f"steady after {plural(after.shapes, 'shape')}" if after.steps else "steady"
        grows = _grows(replace(steps, steps=steps.steps[after.steps :]))
        return StepState(f"{steady}, grows" if grows else steady, grows)
    words = {"misses": steps.misses > 0, "grows": _grows(steps), "unsteady": bool(steps.unsteady)}
    trouble = ", ".join(word for word, is_found in words.items() if is_found)
    return StepState(trouble or "steady", bool(trouble))


def causes_since(now: Steps, then: Steps) -> list[str]:
    """Return the causes of grown counts that an earlier run of a step did not have."""
    causes: dict[str, None] = {}
    for kind in now.kinds if now.steps and then.steps else ():
        step, before = (max(each.steps, key=kind.number) for each in (now, then))
        if kind.metric and kind.number(step) > kind.number(before):
            causes.update(dict.fromkeys(by_cause([new_events(kind.events(step), kind.events(before))])))
    return [*causes]


def new_events(now: Iterable[StepEvent], then: Iterable[StepEvent]) -> list[StepEvent]:
    """Return the events of a step that an earlier one did not have, at any line of the same file."""
    left = Counter(map(_without_line, then))
    new = []
    for event in now:
        key = _without_line(event)
        if left[key]:
            left[key] -= 1
        else:
            new.append(event)
    return new


def _without_line(event: StepEvent) -> Hashable:
    """Return a key of an event that stays equal if its line moves within its file."""
    return event, event.place and replace(event.place, line=0)


def _grows(steps: Steps) -> bool:
    return any(count > 0 for count in (*steps.cache_growth.values(), steps.spec_growth))
