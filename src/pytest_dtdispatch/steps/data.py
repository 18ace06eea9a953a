"""Counted steps as data for programs: all counts of each step, and events grouped by cause and line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.core.plain_data import MAX_OF_CLASS, left_out, select
from pytest_dtdispatch.core.text import fold_layers, grouped
from pytest_dtdispatch.steps.events import PROOF, AnyEvent, Redistribution
from pytest_dtdispatch.steps.model import Steps, state_of

# Fields that are no part of a cause.
NUMBERING = ("place", "call", "tensor_number", "result_number", "memory_number")


def steps_data(counted: Sequence[Steps]) -> list[dict[str, Any]]:
    """Return the data of the counted steps of a test. Counts are named as their limits, else by title."""
    data = []
    for one in counted:
        named = {kind.limit or kind.title: kind for kind in one.kinds}
        causes = causes_data([step.events for step in one.steps])
        events = grouped((event["event"], event) for event in causes)
        data.append(
            {
                "warmup": len(one.warmup),
                "steps": len(one.steps),
                "state": state_of(one).text,
                "counts": {name: [*map(kind.number, one.steps)] for name, kind in named.items() if name},
                "cache_growth": one.cache_growth,
                "events": [event for of_kind in events.values() for event in of_kind[:MAX_OF_CLASS]],
                "left_out": left_out(events),
            }
        )
    return data


def _size(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes that an entry sends in all steps, and the number of its events."""
    number = sum(event["per_step"])
    return event.get("bytes", 0) * number, number


def written_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of an event that are written."""
    names = (each.name for each in fields(kind) if each.metadata != PROOF)
    return tuple(name for name in names if name not in NUMBERING)


def causes_data(steps: Sequence[Sequence[AnyEvent]]) -> list[dict[str, Any]]:
    """Return one entry for all events of a cause, line and size, over steps and layers; the largest first."""
    same: defaultdict[Any, list[tuple[int, AnyEvent]]] = defaultdict(list)
    of_any_size = Counter[Any]()
    for number, events in enumerate(steps):
        for event in events:
            at = replace(event.place or CodePlace(), module="")
            causes = (getattr(event, name) for name in event.common if name not in NUMBERING)
            sizes = (getattr(event, name, None) for name in ("tensor", "bytes"))  # each entry shows one value
            cause = (type(event), at, *causes)
            of_any_size[cause] += 1
            same[cause, tuple(sizes)].append((number, event))
    merged = []
    for (cause, _), of_cause in same.items():
        first, origins = of_cause[0][1], [event.place or CodePlace() for _, event in of_cause]
        in_step = Counter(number for number, _ in of_cause)
        merged.append(
            {
                "event": type(first).__name__.lower(),
                "op": getattr(first, "op", ""),
                "line": origins[0].line_text,
                "phase": origins[0].phase,
                "modules": sorted({*fold_layers(origin.module for origin in origins).values()} - {""}),
                "per_step": [in_step[number] for number in range(len(steps))],
                "per_step_mean": of_any_size[cause] / len(steps),
                **({"is_implicit": first.is_implied} if isinstance(first, Redistribution) else {}),
                **select(first, *written_names(type(first))),
            }
        )
    return sorted(merged, key=_size, reverse=True)
