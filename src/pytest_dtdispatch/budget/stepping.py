"""Steps that are timed, as events of torch's profiler with the ranges of ours among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_dtdispatch.budget.parts import LOOK_UP, PROPAGATION, REDISTRIBUTION, STEP, WRAPPING, Node
from pytest_dtdispatch.budget.timeline import trees
from pytest_dtdispatch.core.events import Event
from pytest_dtdispatch.measuring.call import placements_text, tensor_text
from pytest_dtdispatch.torchapi.profiling import Marks
from pytest_dtdispatch.torchapi.tensors import tensor_traits


def steps_among(events: Sequence[Event], marks: Marks) -> list[Node]:
    """Find the steps among what was profiled."""
    named = (_named(event, marks) for event in events)
    return [node for node in trees(named) if node.event.name == STEP]


def length_ns(node: Node) -> int:
    """Give the wall time of an event."""
    return node.event.end_ns - node.event.begin_ns


def _named(event: Event, marks: Marks) -> Event:
    """Name a range of ours by what was noted of it."""
    kind, _, number = event.name.partition(" ")
    is_noted = number and kind in (REDISTRIBUTION, WRAPPING, LOOK_UP)
    if not is_noted or int(number) >= len(marks.notes):  # no range of these marks
        return event
    note = marks.notes[int(number)]
    if kind == LOOK_UP:
        return event.renamed(PROPAGATION if note else LOOK_UP)
    return event.renamed(f"{kind} {note if kind == WRAPPING else redistribution_text(*note)}")


def redistribution_text(source: Any, target: Any) -> str:
    """Name a redistribution by what it changes: ``redistribute f32[8,16]PS0 -> S0R``."""
    tensor = tensor_traits(source)
    return f"redistribute {tensor_text(tensor) if tensor else ''} -> {placements_text(target.placements)}"
