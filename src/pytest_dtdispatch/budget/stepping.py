"""Run a step: undisturbed, and timed event by event."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pytest_dtdispatch.budget.parts import LOOK_UP, PROPAGATION, REDISTRIBUTION, STEP, WRAPPING, Node
from pytest_dtdispatch.budget.timeline import trees
from pytest_dtdispatch.core.events import Event
from pytest_dtdispatch.measuring.op_call import placements_text, tensor_text
from pytest_dtdispatch.torchapi.marking import Marks, marked, marking
from pytest_dtdispatch.torchapi.profiling import profiling
from pytest_dtdispatch.torchapi.tensors import tensor_traits, wait_for

Step = Callable[[], object]
T = TypeVar("T")
DISCARDED = 1  # at the begin of each block: the step after a change of tools is slower


def quieter_half(steps: Sequence[T], key: Callable[[T], Any] = lambda step: step) -> list[T]:
    """Choose the shorter half of steps: what else runs on a machine only adds to a time.

    Example:
        >>> quieter_half([5, 9, 4, 8, 6])
        [4, 5, 6]
    """
    return sorted(steps, key=key)[: (len(steps) + 1) // 2]


def undisturbed_steps(step: Step, count: int) -> list[int]:
    """Time whole steps."""
    __tracebackhide__ = True
    times = []
    for _ in range(DISCARDED + count):
        began = time.perf_counter_ns()
        result = step()
        times.append(time.perf_counter_ns() - began)
        wait_for(result)
        del result
    return times[DISCARDED:]


def timed_steps(step: Step, count: int) -> list[Node]:
    """Time steps event by event."""
    __tracebackhide__ = True
    with profiling() as profiled, marking() as marks:
        for _ in range(DISCARDED + count):
            marked_step(step)
    return steps_among(profiled.events, marks)[DISCARDED:]


def marked_step(step: Step) -> int:
    """Run a step in a range of its own; return when it began, by the clock of Python."""
    __tracebackhide__ = True
    began = time.perf_counter_ns()
    with marked("step"):
        result = step()
    wait_for(result)
    return began


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
