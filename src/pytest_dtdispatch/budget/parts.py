"""What the time of a step goes to: parts, slices of time, and what timing costs. Without torch."""

from __future__ import annotations

import bisect
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, TypeVar

from pytest_dtdispatch.core.events import Event, Part

# Names of events of torch's profiler, and of ranges that we add.
ENGINE = "autograd::engine::evaluate_function"
OURS = "dtdispatch::"
ANCHOR = f"{OURS}anchor"
STEP, PROPAGATION, PLANNING = f"{OURS}step", f"{OURS}propagation", f"{OURS}planning"
REDISTRIBUTION, WRAPPING, BACKWARD = f"{OURS}redistribution", f"{OURS}wrapping", f"{OURS}backward"
LOOK_UP = f"{OURS}look-up"
WAITING = f"{OURS}async tensor"  # in the dispatch of an AsyncCollectiveTensor, which is no DTensor
SUBCLASS, DISPATCH = "PythonSubclass", f"{OURS}dispatch"
DETACH, NATIVE_NODE = "aten::detach", re.compile(r"\w+Backward\d+")  # nodes of C++ have a number
DISPATCHES = (SUBCLASS, DISPATCH)  # in which a DTensor op is dispatched: by C++, or by an old torch's Python
COLLECTIVES = (
    "_c10d_functional::",
    "c10d::",
    "_c10d_functional_autograd::",
    "_dtensor::",
    "record_param_comms",
)
REDISTRIBUTING = ("Redistribute", "NestedRedistribute")  # functions of autograd's, and their backward ones
CONVERTING = {"_FromTorchTensor": "from_local", "_ToTorchTensor": "to_local"}


WHOLE = (Part.LOCAL, Part.PROPAGATION, Part.PLANNING, Part.COPIES, Part.SENDING, Part.COMMUNICATION)
REDISTRIBUTED = (Part.MOVING, Part.WRAPPING)  # in which an op is no local op of the program
RANGES = {PROPAGATION: Part.PROPAGATION, PLANNING: Part.PLANNING}


@dataclass
class Node:
    """An event with those that ran inside of it."""

    event: Event
    children: list[Node] = field(default_factory=list)
    dispatches: bool = False  # whether a DTensor op was dispatched in it

    @property
    def length_ns(self) -> int:
        """Its wall time."""
        return self.event.end_ns - self.event.begin_ns

    def count(self) -> int:
        """Count the events inside."""
        return sum(1 for _ in self.inner())

    def inner(self) -> Iterator[Node]:
        """Give every event inside."""
        for child in self.children:
            yield child
            yield from child.inner()


class Slice(NamedTuple):
    """A piece of time that belongs to one part; without times, what an event runs in.

    Args:
        part: what it went to.
        op: the op, the conversion or the node of autograd that it was spent in; empty outside of all.
        begin_ns: when it began.
        end_ns: when it ended.
        since_ns: when the op began that it is part of: where the program called it; negative outside.
        events: how many events were timed in it, where half of the cost is before an event and half after.
        calls: 1 where the op begins with it.
        running: number of the node of autograd that ran; negative outside of backward.
        made: number of the node that the op made, if it made one.
        in_engine: whether autograd's engine ran it.
        regions: the first and the last region of the step that it lies in.
        timing_ns: what it cost to time its events, which made it longer.
    """

    part: Part = Part.OTHER
    op: str = ""
    begin_ns: int = 0
    end_ns: int = 0
    since_ns: int = -1
    events: float = 0.0
    calls: int = 0
    running: int = -1
    made: int = -1
    in_engine: bool = False
    regions: tuple[int, int] = (0, 0)
    timing_ns: float = 0.0

    @property
    def length_ns(self) -> int:
        """How long it is, the cost of timing included."""
        return self.end_ns - self.begin_ns

    def less(self, ns: float) -> Slice:
        """Add to the cost of timing, which is taken off it."""
        return self._replace(timing_ns=self.timing_ns + ns)


def placed(node: Node, within: Slice) -> Slice:
    """Say what an event runs in, itself included."""
    name, sequence = node.event.name, node.event.sequence
    part, op = _owner(node, within)
    if name.startswith(ENGINE):
        return Slice(part, op, running=sequence, in_engine=True)
    since_ns = -1
    if part not in (Part.OTHER, Part.AUTOGRAD):
        since_ns = within.since_ns if within.since_ns >= 0 else node.event.begin_ns
    return Slice(
        part,
        op,
        since_ns=since_ns,
        running=within.running,
        made=sequence if sequence >= 0 else within.made,
        in_engine=within.in_engine or name == BACKWARD,
    )


Owner = tuple[Part, str]  # and the op that it belongs to


def _owner(node: Node, within: Slice) -> Owner:
    """Return which part an event is, and which op it belongs to: by the first rule that knows it."""
    name = node.event.name
    if (node.event.is_range or name.startswith(OURS)) and name != DISPATCH:
        return _owner_of_range(name, within)
    base, outer = name.removesuffix("Backward"), (within.part, within.op)
    is_inside = within.part in REDISTRIBUTED
    if base in REDISTRIBUTING:
        return Part.MOVING, within.op if is_inside else _redistribution_in(node)
    if base in CONVERTING:
        return outer if is_inside else (Part.WRAPPING, CONVERTING[base])
    if name.startswith(COLLECTIVES):
        moves = is_inside or within.part is Part.DISPATCH
        return Part.SENDING if moves else Part.COMMUNICATION, within.op or short(name)
    if is_inside:
        copies = within.part is Part.MOVING and "::" in name
        return Part.COPIES if copies else within.part, within.op
    if name in DISPATCHES or within.part is Part.DISPATCH:
        dispatches = name in DISPATCHES or node.dispatches
        return Part.DISPATCH if dispatches else Part.LOCAL, within.op
    if name.startswith((f"{ENGINE}: ", "torch::autograd")):
        return Part.AUTOGRAD, short(name.removeprefix(f"{ENGINE}: "))
    if "::" in name:  # of an op on DTensors its own time is that of recording it
        return Part.AUTOGRAD if node.dispatches else Part.LOCAL, short(name)
    return (Part.AUTOGRAD, name) if "Backward" in name else outer


def _owner_of_range(name: str, within: Slice) -> Owner:
    """Return that of a range of ours, or of one that a program named."""
    kind, _, label = name.partition(" ")
    if kind in RANGES:
        return RANGES[kind], within.op
    if kind == REDISTRIBUTION:
        return Part.MOVING, within.op if within.part is Part.DISPATCH else label
    if kind == WRAPPING and within.part not in REDISTRIBUTED:
        return Part.WRAPPING, label
    if kind == BACKWARD:
        return Part.AUTOGRAD, "autograd engine"
    is_named = not kind.startswith(OURS) and within.part is Part.OTHER
    return within.part, name if is_named else within.op


def _redistribution_in(node: Node) -> str:
    """Name what a function of autograd's redistributes, by the range inside of it."""
    names = (inner.event.name for inner in node.inner())
    labels = (name.removeprefix(REDISTRIBUTION).strip() for name in names if name.startswith(REDISTRIBUTION))
    return next(labels, "redistribute")


def short(name: str) -> str:
    """Shorten the name of an op or of a node as torch's users know it.

    Example:
        >>> short("aten::mm"), short("torch::autograd::AccumulateGrad")
        ('mm', 'AccumulateGrad')
    """
    return name.rpartition("::")[2] if name.startswith(("aten::", "torch::autograd::")) else name


Course = tuple[Slice, ...]  # what a step consists of, in the order of time


RANGE_EVENTS = 3  # a range of ours is entered from Python: to time it costs about as much as three events


def _weight(node: Node) -> float:
    return RANGE_EVENTS if node.event.name.startswith(OURS) else 1.0


def trees(events: Iterable[Event]) -> list[Node]:
    """Nest events that are in the order they began; one that outlasts what it runs in is cut there."""
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


def slices(node: Node, within: Slice | None = None) -> Iterator[Slice]:
    """Cut an event into slices, in the order of time; together they are as long as the event."""
    here = placed(node, within or Slice())
    begin_ns, end_ns = node.event[1:3]
    calls = int(_begins(node, here, within))
    if here.part in WHOLE:
        events = sum(map(_weight, node.inner()))
        yield here._replace(begin_ns=begin_ns, end_ns=end_ns, events=events, calls=calls)
        return
    before, around = 0.0, here
    for child in node.children:
        half, is_save = _weight(child) / 2, _saves_dtensor(node, child)
        if is_save:
            around, calls = here._replace(part=Part.DISPATCH, op=short(DETACH), since_ns=begin_ns), 1
        events, until_ns = before + half, child.event.begin_ns
        yield around._replace(begin_ns=begin_ns, end_ns=until_ns, events=events, calls=calls)
        around = around if is_save else here
        yield from slices(child, around)
        begin_ns, calls, before = child.event.end_ns, 0, half
    yield around._replace(begin_ns=begin_ns, end_ns=end_ns, events=before, calls=calls)


def _saves_dtensor(node: Node, child: Node) -> bool:
    """Whether autograd saves or unpacks a DTensor in an event of its own C++ code.

    It is detached, a dispatch without an event: the one of the local detach is in the recorded op.
    """
    is_native = node.event.name.startswith("aten::") or NATIVE_NODE.fullmatch(node.event.name)
    return bool(is_native) and node.dispatches and child.event.name == DETACH and not child.dispatches


def _begins(node: Node, here: Slice, within: Slice | None) -> bool:
    """Tell whether a call begins with an event: of a DTensor op where it is dispatched."""
    if here.part in (Part.DISPATCH, Part.AUTOGRAD):
        return node.event.name in DISPATCHES and not any(one.event.name == WAITING for one in node.children)
    return bool(here.op) and (within is None or here.op != within.op)


def ran(course: Course) -> tuple[tuple[Part, str], ...]:
    """Return what ran in a step, in order: steps of one course have it in common."""
    return tuple((one.part, one.op) for one in course)


def typical(courses: Sequence[Course]) -> list[Course]:
    """Give one course that stands for several: each slice as long as its median in steps of the same course.

    What else runs on a machine makes a slice longer here and there, in one step this and in the next another.
    Where fewer than half of the steps have the same course, all are left as they are.
    """
    common, count = Counter(map(ran, courses)).most_common(1)[0]
    if count * 2 < len(courses):
        return list(courses)
    usual = []
    for first, *others in zip(*(course for course in courses if ran(course) == common), strict=True):
        length_ns = statistics.median(each.length_ns for each in (first, *others))
        usual.append(first._replace(end_ns=first.begin_ns + round(length_ns)))
    return [tuple(usual)]


def without_waits(courses: Sequence[Course], waited_ns: Sequence[int]) -> list[Course]:
    """Shorten slices by the time that each step waited for a core.

    A wait takes 1 ms or more, in one slice of many. It is subtracted from the slices that exceed the shortest
    of the same slice in other steps, the largest excess first, and only then in proportion to their lengths.
    """
    shortest: dict[Any, list[int]] = {}
    for course in courses:
        lengths = [one.length_ns for one in course]
        shortest[ran(course)] = [*map(min, lengths, shortest.get(ran(course), lengths))]
    found = []
    for course, left_ns in zip(courses, waited_ns, strict=True):
        least = shortest[ran(course)]
        cuts = [one.length_ns - ns for one, ns in zip(course, least, strict=True)]
        for number in sorted(range(len(course)), key=cuts.__getitem__, reverse=True):
            cuts[number] = min(cuts[number], left_ns)
            left_ns -= cuts[number]
        share = min(left_ns / max(sum(least), 1), 1.0)
        ends = (
            one.end_ns - cut - round(share * ns) for one, cut, ns in zip(course, cuts, least, strict=True)
        )
        found.append(tuple(one._replace(end_ns=end_ns) for one, end_ns in zip(course, ends, strict=True)))
    return found


T = TypeVar("T")


class Mark(NamedTuple):
    """Where a range begins or ends: the first and the last of a step are those of the step itself."""

    is_begin: bool
    at_ns: int


Marked = Sequence[Mark]  # a step


class ClockedRange:
    """Notes when a range begins and ends on a clock, which costs less than a profiler."""

    __slots__ = ("_clock", "_marks")

    def __init__(self, marks: list[Mark], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._marks = marks
        self._clock = clock

    def __enter__(self) -> None:
        self._marks.append(Mark(True, self._clock()))

    def __exit__(self, *exception: Any) -> None:
        self._marks.append(Mark(False, self._clock()))


def marks_of(node: Node) -> list[Mark]:
    """Find the ranges of ours in a profiled step, itself included, in the order of time."""
    marks = [Mark(True, node.event.begin_ns)]
    for child in node.children:
        inside = marks_of(child)
        marks += inside if child.event.name.startswith(OURS) else inside[1:-1]
    return [*marks, Mark(False, node.event.end_ns)]


def single(marked: Marked) -> list[Mark]:
    """Take each two marks of a step whose ranges were all put in twice for one, between both.

    Example:
        >>> inner = [Mark(True, 3), Mark(True, 5), Mark(False, 7), Mark(False, 8)]
        >>> [mark.at_ns for mark in single([Mark(True, 0), *inner, Mark(False, 9)])]
        [0, 4, 7, 9]
    """
    first, *inside, last = marked
    both = zip(inside[::2], inside[1::2], strict=True)
    return [first, *(Mark(one.is_begin, (one.at_ns + other.at_ns) // 2) for one, other in both), last]


@dataclass(frozen=True)
class Regions:
    """The regions of a step, and how long each takes where no op is timed.

    Args:
        shape: of each mark, whether a range begins there. Steps of one shape have the same regions.
        lengths_ns: of each region, less what it cost to mark it.
    """

    shape: tuple[bool, ...]
    lengths_ns: tuple[float, ...]


def quieter_half(steps: Sequence[T], length_ns: Callable[[T], float]) -> list[T]:
    """Choose the shorter half of steps: what else runs on a machine only adds to a time.

    Example:
        >>> quieter_half([5, 9, 4, 8, 6], abs)
        [4, 5, 6]
    """
    return sorted(steps, key=length_ns)[: (len(steps) + 1) // 2]


def unmarked(once: Sequence[Marked], twice: Sequence[Marked]) -> Regions:
    """Say how long regions take, by steps whose ranges were marked once, and by others, marked twice.

    Marking one range costs by how much a region is longer in the latter: the median of all regions that lie
    between two ranges, as each of their ends is half of a range.
    """
    shape, lengths = _typical(once)
    shape_of_twice, longer = _typical([single(marked) for marked in twice])
    range_ns = 0.0
    if shape == shape_of_twice and len(lengths) > 2:
        range_ns = statistics.median(b - a for a, b in zip(lengths[1:-1], longer[1:-1], strict=True))
    ends = {0: 0.5, len(lengths) - 1: 0.5} if len(lengths) > 2 else {0: 0.0}
    shares = (ends.get(number, 1.0) for number in range(len(lengths)))
    return Regions(shape, tuple(ns - range_ns * share for ns, share in zip(lengths, shares, strict=True)))


def _typical(steps: Sequence[Marked]) -> tuple[tuple[bool, ...], list[float]]:
    """Return the most common shape of steps, and the median length of each region of that shape.

    All steps count, as they do in the measured time. The quieter half of steps without their waits for a core
    was 3 to 9 % faster than all beside two busy loops, where the two cores share caches.
    """
    shapes = [tuple(mark.is_begin for mark in step) for step in steps]
    [(shape, _)] = Counter(shapes).most_common(1)
    alike = [step for step, its in zip(steps, shapes, strict=True) if its == shape]
    lengths = ([after.at_ns - mark.at_ns for mark, after in pairwise(step)] for step in alike)
    return shape, [statistics.median(region) for region in zip(*lengths, strict=True)]


def in_regions(course: Course, marked: Marked, regions: Regions) -> Course:
    """Say of each slice of a timed step from which region to which it lies; in all where they are others."""
    last = len(regions.lengths_ns) - 1
    if tuple(mark.is_begin for mark in marked) != regions.shape:
        return tuple(one._replace(regions=(0, last)) for one in course)
    times = [mark.at_ns for mark in marked]

    def found(one: Slice) -> Slice:
        first = min(max(bisect.bisect_right(times, one.begin_ns) - 1, 0), last)
        end = max(min(bisect.bisect_left(times, one.end_ns) - 1, last), first)
        return one._replace(regions=(first, end))

    return tuple(map(found, course))


def event_costs(courses: Sequence[Course], regions: Regions) -> list[float]:
    """Say of each region what it cost to time an event in it: what it took longer, shared among its events.

    Args:
        courses: one timed step, or one that stands for several; or several of different courses, whose
            regions are not compared one by one.
        regions: how long they take where no op is timed.
    """
    group_of = _groups(courses, len(regions.lengths_ns))
    longer: Counter[int] = Counter()
    events: Counter[int] = Counter()
    for group, ns in zip(group_of, regions.lengths_ns, strict=True):
        longer[group] -= ns * len(courses)  # type: ignore[assignment]
    for one in chain.from_iterable(courses):
        longer[group_of[one.regions[0]]] += one.length_ns
        events[group_of[one.regions[0]]] += one.events  # type: ignore[assignment]
    return [longer[group] / events[group] if events[group] else 0.0 for group in group_of]


def _groups(courses: Sequence[Course], count: int) -> list[int]:
    """Number the groups of regions: those that a slice lies across are one, and all of several courses."""
    if len(courses) > 1:
        return [0] * count
    across = {number for one in courses[0] for number in range(one.regions[0] + 1, one.regions[1] + 1)}
    return list(accumulate((number not in across for number in range(1, count)), initial=0))
