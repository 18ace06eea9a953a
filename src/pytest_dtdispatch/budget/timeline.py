"""From events to slices of time: each nanosecond of a step in one part. Without torch."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pytest_dtdispatch.budget.parts import DISPATCHES, OURS, WHOLE, Node, Part, Within, placed
from pytest_dtdispatch.core.events import Event


class Slice(NamedTuple):
    """A piece of time that belongs to one part.

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

    part: Part
    op: str
    begin_ns: int
    end_ns: int
    since_ns: int = -1
    events: float = 0.0
    calls: int = 0
    running: int = -1
    made: int = -1
    in_engine: bool = False
    regions: tuple[int, int] = (0, 0)
    timing_ns: float = 0.0

    def moved(self, by_ns: int) -> Slice:
        """Give it on another clock."""
        return self._replace(
            begin_ns=self.begin_ns + by_ns,
            end_ns=self.end_ns + by_ns,
            since_ns=self.since_ns + by_ns * (self.since_ns >= 0),
        )

    def lasting(self, length_ns: int) -> Slice:
        """Give it another length."""
        return self._replace(end_ns=self.begin_ns + length_ns)

    def across(self, first: int, last: int) -> Slice:
        """Say from which region to which it lies."""
        return self._replace(regions=(first, last))

    def less(self, ns: float) -> Slice:
        """Give it more cost of timing, which is taken off it."""
        return self._replace(timing_ns=self.timing_ns + ns)


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
            event = event.ending(open_nodes[-1].event.end_ns)
        node = Node(event)
        (open_nodes[-1].children if open_nodes else roots).append(node)
        open_nodes.append(node)
        if event.name in DISPATCHES:
            for outer in open_nodes:
                outer.dispatches = True
    return roots


def slices(node: Node, within: Within | None = None) -> Iterator[Slice]:
    """Cut an event into slices, in the order of time; together they are as long as the event."""
    here = placed(node, within or Within())
    begin_ns, end_ns = node.event[1:3]
    calls = int(_begins(node, here, within))
    if here.part in WHOLE:
        yield _slice(here, begin_ns, end_ns, sum(map(_weight, node.inner())), calls)
        return
    before = 0.0
    for child in node.children:
        half = _weight(child) / 2
        yield _slice(here, begin_ns, child.event.begin_ns, before + half, calls)
        yield from slices(child, here)
        begin_ns, calls, before = child.event.end_ns, 0, half
    yield _slice(here, begin_ns, end_ns, before, calls)


def _begins(node: Node, here: Within, within: Within | None) -> bool:
    """Tell whether a call begins with an event: of a DTensor op where it is dispatched."""
    if here.part in (Part.DISPATCH, Part.AUTOGRAD):
        return node.event.name in DISPATCHES
    return bool(here.op) and (within is None or here.op != within.op)


def _slice(here: Within, begin_ns: int, end_ns: int, events: float, calls: int) -> Slice:
    where = here.running, here.made, here.in_engine
    return Slice(here.part, here.op, begin_ns, end_ns, here.since_ns, events, calls, *where)


def same_course(one: Sequence[Slice], other: Sequence[Slice]) -> bool:
    """Tell whether the same things ran in the same order."""
    return [each[:2] for each in one] == [each[:2] for each in other]


def typical(courses: Sequence[Course]) -> list[Course]:
    """Give one course that stands for several: each slice as long as its median in steps of the same course.

    What else runs on a machine makes a slice longer here and there, in one step this and in the next another.
    Where fewer than half of the steps have the same course, all are left as they are.
    """
    common, count = Counter(tuple(each[:2] for each in course) for course in courses).most_common(1)[0]
    if count * 2 < len(courses):
        return list(courses)
    alike = [course for course in courses if tuple(each[:2] for each in course) == common]
    return [tuple(map(_median_slice, zip(*alike, strict=True)))]


def _median_slice(alike: Sequence[Slice]) -> Slice:
    length_ns = statistics.median(each.end_ns - each.begin_ns for each in alike)
    return alike[0].lasting(round(length_ns))
