"""What timing costs, found on the step itself. Without torch.

The ranges that we put around functions of torch cut a step into regions. Each region is timed with torch's
profiler, which notes every op, and without it, by the clock of Python at the ends of ranges alone. The
difference is what timing the ops of that region cost.
"""

from __future__ import annotations

import bisect
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, TypeVar

from pytest_dtdispatch.budget.parts import OURS, Node
from pytest_dtdispatch.budget.timeline import Course, Slice

T = TypeVar("T")


class Mark(NamedTuple):
    """Where a range begins or ends: the first and the last of a step are those of the step itself."""

    is_begin: bool
    at_ns: int


Marked = Sequence[Mark]  # a step


class ClockedRange:
    """Notes when a range begins and ends on the clock of Python, which costs less than a profiler."""

    __slots__ = ("_marks",)

    def __init__(self, marks: list[Mark]) -> None:
        self._marks = marks

    def __enter__(self) -> None:
        self._marks.append(Mark(True, time.perf_counter_ns()))

    def __exit__(self, *exception: Any) -> None:
        self._marks.append(Mark(False, time.perf_counter_ns()))


def marks_of(node: Node) -> list[Mark]:
    """Find the ranges of ours in a profiled step, itself included, in the order of time."""
    marks = [Mark(True, node.event.begin_ns)]
    for child in node.children:
        if child.event.name.startswith(OURS):
            marks += marks_of(child)
        else:
            marks += marks_of(child)[1:-1]
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


def length_of(marked: Marked) -> int:
    """Give the wall time of a step, in nanoseconds."""
    return marked[-1].at_ns - marked[0].at_ns


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
    """Give the shape that most quiet steps have, and of those the median length of each region."""
    quiet = quieter_half(steps, length_of)
    shapes = [tuple(mark.is_begin for mark in step) for step in quiet]
    [(shape, _)] = Counter(shapes).most_common(1)
    alike = [step for step, its in zip(quiet, shapes, strict=True) if its == shape]
    lengths = ([after.at_ns - mark.at_ns for mark, after in pairwise(step)] for step in alike)
    return shape, [statistics.median(region) for region in zip(*lengths, strict=True)]


def in_regions(course: Course, marked: Marked, regions: Regions) -> Course:
    """Say of each slice of a timed step from which region to which it lies; in all where they are others."""
    last = len(regions.lengths_ns) - 1
    if tuple(mark.is_begin for mark in marked) != regions.shape:
        return tuple(one.across(0, last) for one in course)
    times = [mark.at_ns for mark in marked]

    def found(one: Slice) -> Slice:
        first = min(max(bisect.bisect_right(times, one.begin_ns) - 1, 0), last)
        return one.across(first, max(min(bisect.bisect_left(times, one.end_ns) - 1, last), first))

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
        longer[group_of[one.regions[0]]] += one.end_ns - one.begin_ns
        events[group_of[one.regions[0]]] += one.events  # type: ignore[assignment]
    return [longer[group] / events[group] if events[group] else 0.0 for group in group_of]


def _groups(courses: Sequence[Course], count: int) -> list[int]:
    """Number the groups of regions: those that a slice lies across are one, and all of several courses."""
    if len(courses) > 1:
        return [0] * count
    across = {number for one in courses[0] for number in range(one.regions[0] + 1, one.regions[1] + 1)}
    return list(accumulate((number not in across for number in range(1, count)), initial=0))
