"""Gates on counts: exact, with no statistics and no noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_dtdispatch.core.metrics import listed, repeated
from pytest_dtdispatch.steps.model import StepCounts, Steps


def _named(counts: Sequence[tuple[str, int]], unit: str) -> list[str]:
    return [f"{name}: {count:,}{unit}" for name, count in counts if count]


# The most that any one step may have: what is counted, and what it consists of.
_LIMITED: dict[str, tuple[Callable[[StepCounts], int], Callable[[StepCounts], Sequence[str]]]] = {
    "max_misses_per_step": (lambda step: step.misses, lambda step: repeated(step.missed)),
    "max_cache_growth": (
        lambda step: step.most_cache_growth,
        lambda step: _named(step.cache_growth, " entries"),
    ),
    "max_spec_growth": (lambda step: step.spec_growth, lambda step: ()),
    "max_redistributes": (lambda step: step.redistributes, lambda step: repeated(step.redistributions)),
    "max_collectives": (lambda step: step.collective_calls, lambda step: _named(step.collectives, "x")),
}
LIMITS = tuple(_LIMITED)


def complaint(steps: Steps, limits: Mapping[str, Any]) -> str:
    """Say which limits some step exceeds, each by its worst step; empty where none is exceeded."""
    against = list(_complaints(steps.steps, limits)) if steps.steps else []
    return "\n".join([f"{steps.name}: over its limits", *against]) if against else ""


def _complaints(steps: Sequence[StepCounts], limits: Mapping[str, Any]) -> Iterator[str]:
    for limit, (count, details) in _LIMITED.items():
        allowed, worst = limits.get(limit), max(steps, key=count)
        if allowed is not None and count(worst) > allowed:
            yield f"{limit}={allowed}, and step {steps.index(worst) + 1} has {count(worst):,}"
            yield from listed(details(worst))
