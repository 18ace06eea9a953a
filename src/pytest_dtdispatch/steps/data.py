"""Counted steps as data for programs: all counts of each step, and events grouped by cause and line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from typing import Any

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.plain_data import select
from pytest_dtdispatch.core.text import fold_layers
from pytest_dtdispatch.steps.events import PROOF, AnyEvent
from pytest_dtdispatch.steps.model import Steps, state_of

# Fields that are no part of a cause.
NUMBERING = ("place", "call", "tensor_number", "result_number", "memory_number")


def steps_data(counted: Sequence[Steps]) -> list[dict[str, Any]]:
    """Return the data of the counted steps of a test. Counts are named as their limits, else by title."""
    return [
        {
            "warmup": len(one.warmup),
            "steps": len(one.steps),
            "state": state_of(one).text,
            "counts": {
                kind.limit or kind.title: [*map(kind.number, one.steps)]
                for kind in one.kinds
                if kind.limit or kind.title
            },
            "cache_growth": one.cache_growth,
            "events": _events(one),
        }
        for one in counted
    ]


def written_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of an event that are written."""
    names = (each.name for each in fields(kind) if each.metadata != PROOF)
    return tuple(name for name in names if name not in NUMBERING)


def _events(counted: Steps) -> list[dict[str, Any]]:
    """Return one entry for all events of the same cause, line and size, over steps and layers."""
    same: defaultdict[Hashable, list[tuple[int, AnyEvent]]] = defaultdict(list)
    for number, step in enumerate(counted.steps):
        for event in step.events:
            at = replace(event.place or CodePlace(), module="")
            causes = (getattr(event, name) for name in event.common if name not in NUMBERING)
            sizes = (getattr(event, name, None) for name in ("tensor", "bytes"))  # each entry shows one value
            same[(type(event), at, *causes, *sizes)].append((number, event))
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
                **select(first, *written_names(type(first))),
            }
        )
    return merged
