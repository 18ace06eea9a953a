"""The timeline of a step: profiler events, cut into slices that each belong to one part. Without torch."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pytest_dtdispatch.core.events import Event, Part

# Names of profiler events, and of the ranges that this plugin adds.
ENGINE = "autograd::engine::evaluate_function"
OURS = "dtdispatch::"
ANCHOR = f"{OURS}anchor"
STEP, PROPAGATION, PLANNING = f"{OURS}step", f"{OURS}propagation", f"{OURS}planning"
REDISTRIBUTION, WRAPPING, BACKWARD = f"{OURS}redistribution", f"{OURS}wrapping", f"{OURS}backward"
FSDP_HOOK, FSDP_RANGE = f"{OURS}fsdp", "FSDP::"  # ours, and how FSDP2 begins the names of its own
FSDP_NODES = ("RegisterPostBackwardFunctionBackward", "RegisterPreBackwardFunctionBackward")
CACHE_QUERY = f"{OURS}look-up"
WAITING = f"{OURS}async tensor"  # inside the dispatch of an AsyncCollectiveTensor, which is not a DTensor
SUBCLASS, DISPATCH = "PythonSubclass", f"{OURS}dispatch"
DETACH, NATIVE_NODE = "aten::detach", re.compile(r"\w+Backward\d+")  # names of C++ nodes end with a number
DISPATCHES = (SUBCLASS, DISPATCH)  # the dispatch of a DTensor op: in C++, or in Python by an older torch
FUNCTIONAL = ("_c10d_functional::", "_c10d_functional_autograd::")
COLLECTIVES = (*FUNCTIONAL, "c10d::", "_dtensor::", "record_param_comms")
CONVERTING = {"_FromTorchTensor": "from_local", "_ToTorchTensor": "to_local"}
# Parts that are not divided further.
UNDIVIDED = (
    *(Part.LOCAL, Part.PROPAGATION, Part.PLANNING, Part.COPIES, Part.SENDING, Part.COMMUNICATION),
    *(Part.FSDP_COLLECTIVES, Part.FSDP_COPIES),
)
# Parts that contain Python between ops: they are not called by an op, and have lines of their own.
PYTHON = (Part.OTHER, Part.AUTOGRAD, Part.FSDP_PYTHON)
REDISTRIBUTED = (Part.MOVING, Part.WRAPPING)  # an op inside these is not a local op of the program
RANGE_PARTS = {PROPAGATION: Part.PROPAGATION, PLANNING: Part.PLANNING}
RANGE_EVENTS = 3  # timing a range of ours, which is entered from Python, costs as much as about three events


@dataclass
class Node:
    """A profiler event with the events inside it."""

    event: Event
    children: list[Node] = field(default_factory=list)
    dispatches: bool = False  # whether a DTensor op is dispatched inside

    @property
    def length_ns(self) -> int:
        """Wall time of the event."""
        return self.event.end_ns - self.event.begin_ns

    def descendants(self) -> Iterator[Node]:
        """Yield all events inside, outer ones first."""
        for child in self.children:
            yield child
            yield from child.descendants()

    def count(self) -> int:
        """Count the events inside."""
        return sum(1 for _ in self.descendants())


class Context(NamedTuple):
    """What a piece of time belongs to.

    Args:
        part: the part of the budget.
        op: the op, the conversion or the autograd node; empty outside of all.
        called_ns: when the program called the op; negative outside of ops.
        running_node: number of the autograd node that runs; negative outside of backward.
        new_node: number of the autograd node that the op creates; negative if none.
        in_engine: whether the autograd engine runs it.
    """

    part: Part = Part.OTHER
    op: str = ""
    called_ns: int = -1
    running_node: int = -1
    new_node: int = -1
    in_engine: bool = False


class Slice(NamedTuple):
    """A piece of time with one context.

    Args:
        context: what it belongs to.
        begin_ns: when it begins.
        end_ns: when it ends.
        events: number of events timed in it. Half of an event's cost is before it, half after it.
        calls: 1 if an op begins with it.
        regions: the first and the last region of the step that it overlaps.
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

    def less(self, ns: float) -> Slice:
        """Return the slice with a higher cost of timing."""
        return self._replace(timing_ns=self.timing_ns + ns)


Timeline = tuple[Slice, ...]  # of one step, in the order of time


def context_of(node: Node, outer: Context) -> Context:
    """Return the context of an event, including the event itself.

    Args:
        node: the event.
        outer: the context that surrounds it.
    """
    name, sequence = node.event.name, node.event.sequence
    part, op = _part_and_op(node, outer)
    if name.startswith(ENGINE):
        return Context(part, op, running_node=sequence, in_engine=True)
    called_ns = -1
    if part not in PYTHON:
        called_ns = outer.called_ns if outer.called_ns >= 0 else node.event.begin_ns
    new_node = sequence if sequence >= 0 else outer.new_node
    return Context(part, op, called_ns, outer.running_node, new_node, outer.in_engine or name == BACKWARD)


def _part_and_op(node: Node, outer: Context) -> tuple[Part, str]:
    """Return the part and the op of an event, by the first rule that matches."""
    name = node.event.name
    if (node.event.is_range or name.startswith(OURS)) and name != DISPATCH:
        return _part_and_op_of_range(name, outer)
    base, unchanged = name.removesuffix("Backward"), (outer.part, outer.op)
    is_inside, is_fsdp = outer.part in REDISTRIBUTED, outer.part is Part.FSDP_PYTHON
    if base in ("Redistribute", "NestedRedistribute"):  # autograd functions
        return Part.MOVING, outer.op if is_inside else _redistribution_in(node)
    if base in CONVERTING:
        return unchanged if is_inside else (Part.WRAPPING, CONVERTING[base])
    if name.startswith(COLLECTIVES):
        if is_fsdp:
            return Part.FSDP_COLLECTIVES, op_name(name)
        moves = is_inside or outer.part is Part.DISPATCH
        return Part.SENDING if moves else Part.COMMUNICATION, outer.op or op_name(name)
    if is_inside:
        copies = outer.part is Part.MOVING and "::" in name
        return Part.COPIES if copies else outer.part, outer.op
    if name in DISPATCHES or outer.part is Part.DISPATCH:
        dispatches = name in DISPATCHES or node.dispatches
        return Part.DISPATCH if dispatches else Part.LOCAL, outer.op
    if name.startswith((f"{ENGINE}: ", "torch::autograd")):
        return Part.AUTOGRAD, op_name(name.removeprefix(f"{ENGINE}: "))
    if "::" in name:  # a DTensor op spends its own time on recording the op for backward
        is_local = Part.FSDP_COPIES if is_fsdp else Part.LOCAL
        return Part.AUTOGRAD if node.dispatches else is_local, op_name(name)
    if is_fsdp or _runs_fsdp(node):
        return Part.FSDP_PYTHON, outer.op if is_fsdp else name
    return (Part.AUTOGRAD, name) if "Backward" in name else unchanged


def _runs_fsdp(node: Node) -> bool:
    """Whether an autograd node of FSDP2 calls one of its hooks."""
    hooks = (child for child in node.children if child.event.name.startswith(FSDP_HOOK))
    return node.event.name in FSDP_NODES and any(hooks)


def _part_and_op_of_range(name: str, outer: Context) -> tuple[Part, str]:
    """Return the part and the op of a range: one of ours, or one that the program named."""
    kind, _, label = name.partition(" ")
    if kind in RANGE_PARTS:
        return RANGE_PARTS[kind], outer.op
    if kind == REDISTRIBUTION:
        return Part.MOVING, outer.op if outer.part is Part.DISPATCH else label
    if kind == WRAPPING and outer.part not in REDISTRIBUTED:
        return Part.WRAPPING, label
    if kind == BACKWARD:
        return Part.AUTOGRAD, "autograd engine"
    if kind == FSDP_HOOK:
        return Part.FSDP_PYTHON, label
    is_named = not kind.startswith(OURS) and outer.part in (Part.OTHER, Part.FSDP_PYTHON)
    return outer.part, name if is_named else outer.op


def _redistribution_in(node: Node) -> str:
    """Name the redistribution of an autograd function by the range inside it."""
    names = (inner.event.name for inner in node.descendants())
    labels = (name.removeprefix(REDISTRIBUTION).strip() for name in names if name.startswith(REDISTRIBUTION))
    return next(labels, "redistribute")


def op_name(name: str) -> str:
    """Return the name of an op or an autograd node without its C++ namespace.

    Example:
        >>> op_name("aten::mm"), op_name("torch::autograd::AccumulateGrad")
        ('mm', 'AccumulateGrad')
    """
    return name.rpartition("::")[2] if name.startswith(("aten::", "torch::autograd::")) else name


def _weight(node: Node) -> float:
    return RANGE_EVENTS if node.event.name.startswith(OURS) else 1.0


def nest_events(events: Iterable[Event]) -> list[Node]:
    """Nest events that are sorted by begin; an event that outlasts its parent is cut at the parent's end."""
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
    """Cut an event into slices in the order of time; their lengths add up to the event's."""
    here = context_of(node, outer or Context())
    begin_ns, end_ns = node.event.begin_ns, node.event.end_ns
    calls = int(_begins_call(node, here, outer))
    if here.part in UNDIVIDED:
        yield Slice(here, begin_ns, end_ns, sum(map(_weight, node.descendants())), calls)
        return
    before, context = 0.0, here
    for child in node.children:
        half, is_save = _weight(child) / 2, _saves_dtensor(node, child)
        if is_save:
            context, calls = here._replace(part=Part.DISPATCH, op=op_name(DETACH), called_ns=begin_ns), 1
        yield Slice(context, begin_ns, child.event.begin_ns, before + half, calls)
        context = context if is_save else here
        yield from slices(child, context)
        begin_ns, calls, before = child.event.end_ns, 0, half
    yield Slice(context, begin_ns, end_ns, before, calls)


def _saves_dtensor(node: Node, child: Node) -> bool:
    """Whether autograd saves or unpacks a DTensor in an event of its own C++ code.

    The DTensor is detached by a dispatch without an event; `child` is the detach of its local tensor.
    """
    is_native = node.event.name.startswith("aten::") or NATIVE_NODE.fullmatch(node.event.name)
    return bool(is_native) and node.dispatches and child.event.name == DETACH and not child.dispatches


def _begins_call(node: Node, here: Context, outer: Context | None) -> bool:
    """Whether a call begins with an event; a call of a DTensor op begins with its dispatch."""
    if here.part is Part.FSDP_PYTHON:
        return False
    if here.part in (Part.DISPATCH, Part.AUTOGRAD):
        return node.event.name in DISPATCHES and not any(one.event.name == WAITING for one in node.children)
    return bool(here.op) and (outer is None or here.op != outer.op)


def executed(timeline: Timeline) -> tuple[tuple[Part, str], ...]:
    """Return what a step executed, in order. Steps that executed the same are compared slice by slice."""
    return tuple((one.context.part, one.context.op) for one in timeline)


def median_timelines(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Return one timeline with the median length of each slice, over the steps that executed the same.

    Interference makes one slice longer in this step and another one in the next. If fewer than half of the
    steps executed the same, all timelines are returned unchanged.
    """
    common, count = Counter(map(executed, timelines)).most_common(1)[0]
    if count * 2 < len(timelines):
        return list(timelines)
    equal = [timeline for timeline in timelines if executed(timeline) == common]
    lengths = [statistics.median(one.length_ns for one in same) for same in zip(*equal, strict=True)]
    pairs = zip(equal[0], lengths, strict=True)
    return [tuple(one._replace(end_ns=one.begin_ns + round(ns)) for one, ns in pairs)]


def subtract_waits(timelines: Sequence[Timeline], waits_ns: Sequence[int]) -> list[Timeline]:
    """Shorten slices by the time that each step waited for a core.

    A wait takes 1 ms or more, in one slice of many. It is subtracted from the slices that exceed the shortest
    of the same slice in other steps, the largest excess first, and only then in proportion to their lengths.
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
