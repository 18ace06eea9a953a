"""Gates on counts: exact, with no statistics and no noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pytest_dtdispatch.core.metrics import listed, repeated
from pytest_dtdispatch.steps.model import StepCounts, Steps


@dataclass(frozen=True)
class Limits:
    """The most that any one step may have; no limit where None.

    Args:
        max_misses_per_step: calls that propagate.
        max_cache_growth: entries that any one cache gains.
        max_spec_growth: ``DTensorSpec`` objects gained.
        max_redistributes: redistributions, asked for and implied.
        max_collectives: collectives of every kind.
    """

    max_misses_per_step: int | None = None
    max_cache_growth: int | None = None
    max_spec_growth: int | None = None
    max_redistributes: int | None = None
    max_collectives: int | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, limit.name) is not None for limit in fields(self))

    def __str__(self) -> str:
        given = {limit.name: getattr(self, limit.name) for limit in fields(self)}
        return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)


@dataclass(frozen=True)
class Excess:
    """One limit that a step exceeds.

    Args:
        limit: its name.
        allowed: the most that a step may have.
        found: what the worst step has.
        step: number of that step, from 1.
        details: what it consists of.
    """

    limit: str
    allowed: int
    found: int
    step: int
    details: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.limit}={self.allowed}, and step {self.step} has {self.found:,}"
        return "\n".join([head, *listed(self.details)])


def complaint(steps: Steps, limits: Mapping[str, Any]) -> str:
    """Say what limits have against steps; empty where none is exceeded."""
    own = Limits(**{limit: limits.get(limit) for limit in LIMITS})
    excesses = exceeded(steps, own)
    return "\n".join([f"{steps.name}: over its limits", *map(str, excesses)]) if excesses else ""


def exceeded(steps: Steps, limits: Limits) -> tuple[Excess, ...]:
    """Judge counts: every limit that some step exceeds, by its worst step."""
    return tuple(_exceeded(steps.steps, limits))


def _exceeded(steps: Sequence[StepCounts], limits: Limits) -> Iterator[Excess]:
    for name, (count, details) in _COUNTS.items():
        allowed = getattr(limits, name)
        if allowed is None or not steps:
            continue
        worst = max(range(len(steps)), key=lambda i: count(steps[i]))
        if count(steps[worst]) > allowed:
            yield Excess(name, allowed, count(steps[worst]), worst + 1, tuple(details(steps[worst])))


def _named(counts: Sequence[tuple[str, int]], unit: str) -> list[str]:
    return [f"{name}: {count:,}{unit}" for name, count in counts if count]


_COUNTS: dict[str, tuple[Callable[[StepCounts], int], Callable[[StepCounts], Sequence[str]]]] = {
    "max_misses_per_step": (lambda step: step.misses, lambda step: repeated(step.missed)),
    "max_cache_growth": (
        lambda step: step.most_cache_growth,
        lambda step: _named(step.cache_growth, " entries"),
    ),
    "max_spec_growth": (lambda step: step.spec_growth, lambda step: ()),
    "max_redistributes": (lambda step: step.redistributes, lambda step: repeated(step.redistributions)),
    "max_collectives": (lambda step: step.collective_calls, lambda step: _named(step.collectives, "x")),
}
LIMITS = tuple(limit.name for limit in fields(Limits))
