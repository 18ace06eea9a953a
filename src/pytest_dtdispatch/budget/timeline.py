"""Timeline of a step: profiler events, cut into slices of one part each. Does not import torch."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_dtdispatch.core.events import Event, Part
from pytest_dtdispatch.core.text import TextEnum

OURS = "dtdispatch::"  # prefix of the names of this plugin's ranges


class Range(TextEnum):
    """Names of the ranges that this plugin adds; a note may follow, after a space."""

    ANCHOR = f"{OURS}anchor"
    STEP = f"{OURS}step"
    PROPAGATION = f"{OURS}propagation"
    PLANNING = f"{OURS}planning"
    REDISTRIBUTION = f"{OURS}redistribution"
    WRAPPING = f"{OURS}wrapping"
    BACKWARD = f"{OURS}backward"
    FSDP_HOOK = f"{OURS}fsdp"
    CACHE_QUERY = f"{OURS}look-up"
    DISPATCH = f"{OURS}dispatch"
    ASYNC = f"{OURS}async tensor"  # inside the dispatch of an AsyncCollectiveTensor, which is not a DTensor


ENGINE = "autograd::engine::evaluate_function"
# The dispatch of a DTensor op: in C++, or in Python in older versions of torch.
DISPATCHES = ("PythonSubclass", Range.DISPATCH)
# Parts that are not divided further.
UNDIVIDED = (
    *(Part.LOCAL, Part.PROPAGATION, Part.PLANNING, Part.COPIES, Part.SENDING, Part.COMMUNICATION),
    *(Part.FSDP_COLLECTIVES, Part.FSDP_COPIES),
)
REDISTRIBUTED = (Part.MOVING, Part.WRAPPING)  # ops inside these are not local ops of the program
BETWEEN_NODES = "autograd engine"  # op of the engine's own time
ACCUMULATING = -2  # these nodes have no number, and run after the node that computed the gradient


@dataclass
class Node:
    """A profiler event with the events inside it."""

    event: Event
    children: list[Node] = field(default_factory=list)
    dispatches: bool = False  # whether it is or contains the dispatch of a DTensor op

    @property
    def length_ns(self) -> int:
        """Wall time of the event."""
        return self.event.end_ns - self.event.begin_ns

    def descendants(self) -> Iterator[Node]:
        """Yield all events inside, outer before inner."""
        for child in self.children:
            yield child
            yield from child.descendants()

    def count(self) -> int:
        """Count the events inside."""
        return sum(1 for _ in self.descendants())


class Context(NamedTuple):
    """Part, op and autograd node to which a slice of time belongs.

    Args:
        part: part of the budget.
        op: op, conversion, autograd node, FSDP2 hook or named range; empty outside of these.
        called_ns: time at which the program called the op; negative outside of ops.
        running_node: number of the running autograd node; negative outside of nodes, ``ACCUMULATING`` in one
            that accumulates a gradient.
        new_node: number of the autograd node that the op creates; negative if it creates none.
        in_engine: whether it runs in the autograd engine.
    """

    part: Part = Part.OTHER
    op: str = ""
    called_ns: int = -1
    running_node: int = -1
    new_node: int = -1
    in_engine: bool = False


class Slice(NamedTuple):
    """Time interval with one context.

    Args:
        context: part, op and autograd node.
        begin_ns: begin in nanoseconds.
        end_ns: end in nanoseconds.
        events: number of timed events. The slices before and after an event count half of it each.
        calls: 1 if a call of an op begins with it, else 0.
        regions: first and last region of the step that it overlaps.
        timing_ns: cost of timing its events, included in its length.
    """

    context: Context = Context()
    begin_ns: int = 0
    end_ns: int = 0
    events: float = 0.0
    calls: int = 0
    regions: tuple[int, int] = (0, 0)
    timing_ns: float = 0.0

    @property
    def length_ns(self) -> int:
        """Length, including the cost of timing."""
        return self.end_ns - self.begin_ns

    def with_timing_cost(self, ns: float) -> Slice:
        """Return a copy that includes another ``ns`` of timing cost."""
        return self._replace(timing_ns=self.timing_ns + ns)


Timeline = tuple[Slice, ...]  # slices of one step in time order


def context_of(node: Node, outer: Context) -> Context:
    """Return the context of an event, including the event itself.

    Args:
        node: the event.
        outer: context of the enclosing event.
    """
    name, sequence = node.event.name, node.event.sequence
    part, op = _part_and_op(node, outer)
    if name.startswith(ENGINE):
        # The engine's event lacks the number of a node that has hooks in Python.
        events = (node.event, *(child.event for child in node.children if name.endswith(child.event.name)))
        number = next((event.sequence for event in events if event.sequence >= 0), ACCUMULATING)
        return Context(part, op, running_node=number, in_engine=True)
    called_ns = -1
    if part not in (Part.OTHER, Part.AUTOGRAD, Part.FSDP_PYTHON):  # those are Python code, which no op calls
        called_ns = outer.called_ns if outer.called_ns >= 0 else node.event.begin_ns
    new_node = sequence if sequence >= 0 else outer.new_node
    in_engine = outer.in_engine or name == Range.BACKWARD
    return Context(part, op, called_ns, outer.running_node, new_node, in_engine)


def _part_and_op(node: Node, outer: Context) -> tuple[Part, str]:
    """Return the part and the op of an event, by the first matching rule."""
    name = node.event.name
    if (node.event.is_range or name.startswith(OURS)) and name != Range.DISPATCH:
        return _part_and_op_of_range(name, outer)
    base, unchanged = name.removesuffix("Backward"), (outer.part, outer.op)
    is_inside, is_fsdp = outer.part in REDISTRIBUTED, outer.part is Part.FSDP_PYTHON
    if base in ("Redistribute", "NestedRedistribute"):  # autograd functions
        names = (inner.event.name for inner in node.descendants())
        first = next((each for each in names if each.startswith(Range.REDISTRIBUTION)), "redistribute")
        return Part.MOVING, outer.op if is_inside else first.removeprefix(Range.REDISTRIBUTION).strip()
    if base in ("_FromTorchTensor", "_ToTorchTensor"):
        conversion = "from_local" if base == "_FromTorchTensor" else "to_local"
        return unchanged if is_inside else (Part.WRAPPING, conversion)
    collectives = ("_c10d_functional::", "_c10d_functional_autograd::", "c10d::", "_dtensor::")
    if name.startswith((*collectives, "record_param_comms")):
        if is_fsdp:
            return Part.FSDP_COLLECTIVES, range_op(name)
        moves = is_inside or outer.part is Part.DISPATCH
        return Part.SENDING if moves else Part.COMMUNICATION, outer.op or range_op(name)
    if is_inside:
        copies = outer.part is Part.MOVING and "::" in name
        return Part.COPIES if copies else outer.part, outer.op
    if name in DISPATCHES or outer.part is Part.DISPATCH:
        dispatches = name in DISPATCHES or node.dispatches
        return Part.DISPATCH if dispatches else Part.LOCAL, outer.op
    if name.startswith((f"{ENGINE}: ", "torch::autograd")):
        return Part.AUTOGRAD, range_op(name.removeprefix(f"{ENGINE}: "))
    if "::" in name:  # the self time of a DTensor op is spent on recording it for backward
        is_local = Part.FSDP_COPIES if is_fsdp else Part.LOCAL
        return Part.AUTOGRAD if node.dispatches else is_local, range_op(name)
    hooked = ("RegisterPostBackwardFunctionBackward", "RegisterPreBackwardFunctionBackward")
    if is_fsdp:
        return Part.FSDP_PYTHON, outer.op
    if name in hooked and any(child.event.name.startswith(Range.FSDP_HOOK) for child in node.children):
        return Part.FSDP_PYTHON, name
    return (Part.AUTOGRAD, name) if "Backward" in name else unchanged


def _part_and_op_of_range(name: str, outer: Context) -> tuple[Part, str]:
    """Return the part and the op of a range of this plugin or of the program."""
    kind, _, label = name.partition(" ")
    if kind == Range.PROPAGATION:
        return Part.PROPAGATION, outer.op
    if kind == Range.PLANNING:
        return Part.PLANNING, outer.op
    if kind == Range.REDISTRIBUTION:
        return Part.MOVING, outer.op if outer.part is Part.DISPATCH else label
    if kind == Range.WRAPPING and outer.part not in REDISTRIBUTED:
        return Part.WRAPPING, label
    if kind == Range.BACKWARD:
        return Part.AUTOGRAD, BETWEEN_NODES
    if kind == Range.FSDP_HOOK:
        return Part.FSDP_PYTHON, label
    is_named = not kind.startswith(OURS) and outer.part in (Part.OTHER, Part.FSDP_PYTHON)
    return outer.part, name if is_named else outer.op


def range_op(name: str) -> str:
    """Return the name of an op or an autograd node without its C++ namespace.

    Example:
        >>> range_op("aten::mm"), range_op("torch::autograd::AccumulateGrad")
        ('mm', 'AccumulateGrad')
    """
    return name.rpartition("::")[2] if name.startswith(("aten::", "torch::autograd::")) else name


def _weight(node: Node) -> float:
    """Return the cost of timing an event; a range is entered from Python, and costs as much as three."""
    return 3.0 if node.event.name.startswith(OURS) else 1.0


def nest_events(events: Iterable[Event]) -> list[Node]:
    """Nest events that are sorted by begin. An event that outlasts its parent is truncated to it."""
    roots: list[Node] = []
    open_nodes: list[Node] = []
    for event in events:
        while open_nodes and open_nodes[-1].event.end_ns <= event.begin_ns:
            open_nodes.pop()
        if open_nodes and event.end_ns > open_nodes[-1].event.end_ns:
            event = event._replace(end_ns=open_nodes[-1].event.end_ns)
        node = Node(event)
        (open_nodes[-1].children if open_nodes else roots).append(node)
        open_nodes.append(node)
        if event.name in DISPATCHES:
            for outer in open_nodes:
                outer.dispatches = True
    return roots


def slices(node: Node, outer: Context | None = None) -> Iterator[Slice]:
    """Yield the slices of an event in time order; their lengths add up to the length of the event."""
    here = context_of(node, outer or Context())
    begin_ns, end_ns = node.event.begin_ns, node.event.end_ns
    calls = int(_begins_call(node, here, outer))
    if here.part in UNDIVIDED:
        yield Slice(here, begin_ns, end_ns, sum(map(_weight, node.descendants())), calls)
        return
    before, context = 0.0, here
    # Autograd saves and unpacks DTensors in C++ code, whose dispatch has no event, only the detach of the
    # local tensor. The names of its nodes end with a number.
    saves = node.dispatches and re.fullmatch(r"aten::.*|\w+Backward\d+", node.event.name) is not None
    for child in node.children:
        half = _weight(child) / 2
        is_save = saves and child.event.name == "aten::detach" and not child.dispatches
        if is_save:
            context, calls = here._replace(part=Part.DISPATCH, op="detach", called_ns=begin_ns), 1
        yield Slice(context, begin_ns, child.event.begin_ns, before + half, calls)
        context = context if is_save else here
        yield from slices(child, context)
        begin_ns, calls, before = child.event.end_ns, 0, half
    yield Slice(context, begin_ns, end_ns, before, calls)


def _begins_call(node: Node, here: Context, outer: Context | None) -> bool:
    """Return whether a call begins with an event. A call of a DTensor op begins with its dispatch."""
    if here.part is Part.FSDP_PYTHON:
        return False
    if here.part in (Part.DISPATCH, Part.AUTOGRAD):
        is_async = any(one.event.name == Range.ASYNC for one in node.children)
        return node.event.name in DISPATCHES and not is_async
    return bool(here.op) and (outer is None or here.op != outer.op)


def executed(timeline: Timeline) -> tuple[tuple[Part, str], ...]:
    """Return the part and op of each slice. Timelines that are equal in these are compared slice by slice."""
    return tuple((one.context.part, one.context.op) for one in timeline)


def median_timelines(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Return one timeline with the median length of each slice, over steps that executed the same ops.

    Interference lengthens different slices in different steps. If fewer than half of the steps executed the
    same ops, all timelines are returned unchanged.
    """
    common, count = Counter(map(executed, timelines)).most_common(1)[0]
    if count * 2 < len(timelines):
        return list(timelines)
    equal = [timeline for timeline in timelines if executed(timeline) == common]
    lengths = [statistics.median(one.length_ns for one in same) for same in zip(*equal, strict=True)]
    pairs = zip(equal[0], lengths, strict=True)
    return [tuple(one._replace(end_ns=one.begin_ns + round(ns)) for one, ns in pairs)]


def subtract_waits(timelines: Sequence[Timeline], waits_ns: Sequence[int]) -> list[Timeline]:
    """Subtract from the slices of each step the time that it waited for a core.

    A wait takes 1 ms or more and affects one slice of many. It is subtracted from the excess of each slice
    over its minimum in steps that executed the same ops, the largest excess first. The remainder is
    subtracted from all slices in proportion to their minima.
    """
    shortest: dict[Hashable, list[int]] = {}
    for timeline in timelines:
        lengths = [one.length_ns for one in timeline]
        shortest[executed(timeline)] = [*map(min, lengths, shortest.get(executed(timeline), lengths))]
    shortened = []
    for timeline, wait_ns in zip(timelines, waits_ns, strict=True):
        minima = shortest[executed(timeline)]
        cuts = [one.length_ns - ns for one, ns in zip(timeline, minima, strict=True)]
        for number in sorted(range(len(timeline)), key=cuts.__getitem__, reverse=True):
            cuts[number] = min(cuts[number], wait_ns)
            wait_ns -= cuts[number]
        share = min(wait_ns / max(sum(minima), 1), 1.0)
        cuts = [cut + round(share * ns) for cut, ns in zip(cuts, minima, strict=True)]
        pairs = zip(timeline, cuts, strict=True)
        shortened.append(tuple(one._replace(end_ns=one.end_ns - cut) for one, cut in pairs))
    return shortened
