"""Counted steps as data for programs: all counts of each step, and events grouped by cause and line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.text import fold_layers, plural
from pytest_dtdispatch.steps.events import AnyEvent
from pytest_dtdispatch.steps.model import COUNTS, Steps

NUMBERING = ("place", "call", "tensor_number", "result_number")  # fields that are no part of a cause


@dataclass(frozen=True)
class StepState:
    """State of a step. It is steady if it has no misses, no growth, and always the same number of calls.

    Args:
        counted: whether it is a single step without a warm-up, which has no steady state.
        steady: whether it is steady, if only after its last miss.
        shapes: number of distinct inputs up to its last miss, if it is steady only after that; else 0.
        misses: whether it misses.
        grows: whether caches or live sharding specs grow.
        unsteady: whether its number of calls differs.
    """

    counted: bool = False
    steady: bool = False
    shapes: int = 0
    misses: bool = False
    grows: bool = False
    unsteady: bool = False

    @property
    def has_trouble(self) -> bool:
        """Whether anything is wrong with the step."""
        return self.misses or self.grows or self.unsteady

    def __str__(self) -> str:
        after = f" after {plural(self.shapes, 'shape')}" if self.shapes else ""
        words = {
            "counted": self.counted,
            f"steady{after}": self.steady,
            "misses": self.misses,
            "grows": self.grows,
            "unsteady": self.unsteady,
        }
        return ", ".join(word for word, found in words.items() if found)


def state_of(steps: Steps) -> StepState:
    """Return the state of a step."""
    if steps.inputs and (after := steps.steady_after):
        grows = _grows(replace(steps, steps=steps.steps[after.steps :]))
        return StepState(steady=True, shapes=after.shapes if after.steps else 0, grows=grows)
    if not steps.inputs and steps.is_cold:
        return StepState(counted=True)
    state = StepState(misses=steps.misses > 0, grows=_grows(steps), unsteady=bool(steps.unsteady))
    return state if state.has_trouble else StepState(steady=True)


def _grows(steps: Steps) -> bool:
    return any(count > 0 for count in (*steps.cache_growth.values(), steps.spec_growth))


def steps_data(counted: Sequence[Steps]) -> list[dict[str, Any]]:
    """Return the data of the counted steps of a test. Counts are named as their limits, else by title."""
    kinds = {kind.limit or kind.title: kind.number for kind in COUNTS if kind.limit or kind.title}
    return [
        {
            "warmup": len(one.warmup),
            "steps": len(one.steps),
            "state": str(state_of(one)),
            "counts": {name: [*map(number, one.steps)] for name, number in kinds.items()},
            "cache_growth": one.cache_growth,
            "events": _events(one),
        }
        for one in counted
    ]


def _events(counted: Steps) -> list[dict[str, Any]]:
    """Return one entry for all events of the same cause and line, over steps and layers."""
    same: defaultdict[Hashable, list[tuple[int, AnyEvent]]] = defaultdict(list)
    for number, step in enumerate(counted.steps):
        for event in step.events:
            at = replace(event.place or CodePlace(), module="")
            causes = (getattr(event, name) for name in event.common if name not in NUMBERING)
            same[(type(event), at, *causes)].append((number, event))
    merged = []
    for of_cause in same.values():
        first, origins = of_cause[0][1], [event.place or CodePlace() for _, event in of_cause]
        in_step = Counter(number for number, _ in of_cause)
        merged.append(
            {
                "event": type(first).__name__.lower(),
                "op": getattr(first, "op", ""),
                "line": origins[0].line_text,
                "phase": origins[0].phase,
                "modules": sorted({*fold_layers(origin.module for origin in origins).values()} - {""}),
                "per_step": [in_step[number] for number in range(len(counted.steps))],
                **{name: value for name, value in asdict(first).items() if name not in NUMBERING},
            }
        )
    return merged
