"""Regions between the marks of a step, and the cost of timing events in each. Does not import torch.

Profiling makes a step longer. The ranges that this plugin adds to profiled steps are also entered in steps
without a profiler, where only a clock records their begins and ends. The difference between both lengths of a
region is the timing cost of the events in it.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pytest_dtdispatch.budget.timeline import OURS, Node, Timeline
from pytest_dtdispatch.core.text import grouped


class Mark(NamedTuple):
    """Begin or end of a range. The first and the last mark are the begin and the end of the step."""

    is_begin: bool
    at_ns: int


StepMarks = Sequence[Mark]


class ClockedRange:
    """Records its begin and end by a clock, which costs less than a profiler."""

    __slots__ = ("_clock", "_marks")

    def __init__(self, marks: list[Mark], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._marks = marks
        self._clock = clock

    def __enter__(self) -> None:
        self._marks.append(Mark(True, self._clock()))

    def __exit__(self, *exception: Any) -> None:
        self._marks.append(Mark(False, self._clock()))


def marks_of(node: Node) -> list[Mark]:
    """Return the marks of a profiled step and of this plugin's ranges in it, in time order."""
    marks = [Mark(True, node.event.begin_ns)]
    for child in node.children:
        inside = marks_of(child)
        marks += inside if child.event.name.startswith(OURS) else inside[1:-1]
    return [*marks, Mark(False, node.event.end_ns)]


def merge_doubled_marks(marks: StepMarks) -> list[Mark]:
    """Replace each pair of marks by its midpoint in a step that entered each range twice.

    Example:
        >>> inner = [Mark(True, 3), Mark(True, 5), Mark(False, 7), Mark(False, 8)]
        >>> [mark.at_ns for mark in merge_doubled_marks([Mark(True, 0), *inner, Mark(False, 9)])]
        [0, 4, 7, 9]
    """
    first, *inside, last = marks
    pairs = zip(inside[::2], inside[1::2], strict=True)
    return [first, *(Mark(one.is_begin, (one.at_ns + other.at_ns) // 2) for one, other in pairs), last]


@dataclass(frozen=True)
class Regions:
    """Regions of a step, and their lengths without a profiler.

    Args:
        shape: whether each mark begins a range. Steps of equal shape have the same regions.
        lengths_ns: length of each region, with or without the cost of its marks.
    """

    shape: tuple[bool, ...]
    lengths_ns: tuple[float, ...]


def region_lengths(once: Sequence[StepMarks], twice: Sequence[StepMarks]) -> Regions:
    """Compute the lengths of regions from steps that entered each range once or twice.

    Entering each range a second time lengthens a region by the cost of its marks. The cost is the median over
    all regions but the first and the last: each of their ends costs half of a range.
    """
    marked, doubled = _median_regions(once), _median_regions([merge_doubled_marks(marks) for marks in twice])
    lengths, range_ns = marked.lengths_ns, 0.0
    if marked.shape == doubled.shape and len(lengths) > 2:
        pairs = zip(lengths[1:-1], doubled.lengths_ns[1:-1], strict=True)
        range_ns = statistics.median(longer - ns for ns, longer in pairs)
    halves = {0, len(lengths) - 1}  # the first and the last region border on a range at one end only
    costs = (range_ns / 2 if number in halves else range_ns for number in range(len(lengths)))
    return Regions(marked.shape, tuple(ns - cost for ns, cost in zip(lengths, costs, strict=True)))


def _median_regions(steps: Sequence[StepMarks]) -> Regions:
    """Return the regions of the most common shape of steps, with the median of each length.

    The median is over all steps of that shape, as the measured time is over all steps. Next to two busy loops
    on two cores that share caches, the faster half of steps without their waits was 3 to 9 % faster than all.
    """
    by_shape = grouped((tuple(mark.is_begin for mark in marks), marks) for marks in steps)
    equal = max(by_shape.values(), key=len)
    shape = tuple(mark.is_begin for mark in equal[0])
    lengths = ([after.at_ns - mark.at_ns for mark, after in pairwise(marks)] for marks in equal)
    return Regions(shape, tuple(statistics.median(region) for region in zip(*lengths, strict=True)))


def assign_regions(timeline: Timeline, marks: StepMarks, regions: Regions) -> Timeline:
    """Set the regions of each slice of a profiled step: all regions if the step has another shape."""
    last = len(regions.lengths_ns) - 1
    if tuple(mark.is_begin for mark in marks) != regions.shape:
        return tuple(one._replace(regions=(0, last)) for one in timeline)
    times = [mark.at_ns for mark in marks]
    assigned = []
    for one in timeline:
        first = min(max(bisect.bisect_right(times, one.begin_ns) - 1, 0), last)
        end = max(min(bisect.bisect_left(times, one.end_ns) - 1, last), first)
        assigned.append(one._replace(regions=(first, end)))
    return tuple(assigned)


def event_costs(timelines: Sequence[Timeline], regions: Regions) -> list[float]:
    """Compute the timing cost of an event in each region: the region's increase in length per event.

    Args:
        timelines: one timeline, which may be the median of several; or timelines of different steps, whose
            regions are treated as one.
        regions: regions with their lengths without a profiler.
    """
    group_of = [0] * len(regions.lengths_ns)
    if len(timelines) == 1:  # regions that one slice overlaps are one group
        joined = {number for one in timelines[0] for number in range(one.regions[0] + 1, one.regions[1] + 1)}
        is_new = (number not in joined for number in range(1, len(group_of)))
        group_of = list(accumulate(is_new, initial=0))
    longer_ns: defaultdict[int, float] = defaultdict(float)
    events: defaultdict[int, float] = defaultdict(float)
    for group, ns in zip(group_of, regions.lengths_ns, strict=True):
        longer_ns[group] -= ns * len(timelines)
    for one in (one for timeline in timelines for one in timeline):
        longer_ns[group_of[one.regions[0]]] += one.length_ns
        events[group_of[one.regions[0]]] += one.events
    return [longer_ns[group] / events[group] if events[group] else 0.0 for group in group_of]
