"""Regions of a step, and the cost of timing events in them. Without torch."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.budget.regions import (
    Mark,
    Regions,
    StepMarks,
    assign_regions,
    event_costs,
    marks_of,
    region_lengths,
)
from pytest_dtdispatch.budget.timeline import (
    OURS,
    Range,
    Slice,
    Timeline,
    nest_events,
    slices,
    subtract_waits,
)
from pytest_dtdispatch.core.events import Event, Part

RANGE = f"{OURS}wrapping from_local"


def marked(*at_ns: int) -> StepMarks:
    """Return the marks of a step; each pair of times inside belongs to a range."""
    return [Mark(number % 2 == 1 or number == 0, ns) for number, ns in enumerate(at_ns[:-1])] + [
        Mark(False, at_ns[-1])
    ]


def twice(*at_ns: int) -> StepMarks:
    """Return the marks of a step that entered each range twice."""
    inside = [Mark(number // 2 % 2 == 0, ns) for number, ns in enumerate(at_ns[1:-1])]
    return [Mark(True, at_ns[0]), *inside, Mark(False, at_ns[-1])]


def timed(*events: Event, end_ns: int) -> tuple[Timeline, StepMarks]:
    [node] = nest_events([Event(Range.STEP, 0, end_ns), *events])
    return tuple(slices(node)), marks_of(node)


def test_cost_of_marks_is_derived_from_doubled_marks() -> None:
    once = marked(0, 100, 150, 290)
    doubled = twice(0, 100, 110, 160, 170, 310)
    assert region_lengths([once], [doubled]).lengths_ns == (95, 40, 135)


def test_step_without_ranges_has_no_marking_cost() -> None:
    assert region_lengths([marked(0, 100)], [marked(0, 104)]) == Regions((True, False), (100,))


def test_region_has_its_median_length() -> None:
    steps = [marked(0, length) for length in (100, 104, 900)]
    assert region_lengths(steps, steps).lengths_ns == (104,)


def test_steps_of_another_shape_are_omitted() -> None:
    steps = [marked(0, 100, 150, 290)] * 3 + [marked(0, 900)]
    assert len(region_lengths(steps, [marked(0, 100)]).lengths_ns) == 3


def test_event_cost_is_derived_from_region_delay() -> None:
    ops = [Event("aten::mm", 10, 40), Event("PythonSubclass", 14, 38), Event("aten::mm", 20, 30)]
    timeline, marks = timed(*ops, Event(RANGE, 60, 90), Event("aten::add", 110, 190), end_ns=200)
    regions = Regions(tuple(mark.is_begin for mark in marks), (42.0, 27.0, 105.0))
    found = assign_regions(timeline, marks, regions)
    # Three events and half of a range, which counts as three; the range; half of the range and one event.
    assert event_costs([found], regions) == pytest.approx([18 / 4.5, 0.0, 5 / 2.5])


def test_regions_crossed_by_a_slice_are_merged() -> None:
    propagation = [Event(f"{OURS}propagation", 20, 80), Event(RANGE, 40, 60)]
    timeline, marks = timed(*propagation, end_ns=100)
    regions = Regions(tuple(mark.is_begin for mark in marks), (20.0, 15.0, 18.0, 15.0, 20.0))
    found = assign_regions(timeline, marks, regions)
    assert [one.regions for one in found if one.context.part is Part.PROPAGATION] == [(1, 3)]
    costs = event_costs([found], regions)
    assert costs[1] == costs[2] == costs[3] == pytest.approx(12 / 3)


def test_step_of_another_shape_is_one_region() -> None:
    timeline, marks = timed(Event("aten::add", 10, 60), end_ns=110)
    regions = Regions((True, True, False, False), (30.0, 40.0, 30.0))
    assert event_costs([assign_regions(timeline, marks, regions)], regions) == [10, 10, 10]


def test_several_timelines_are_one_region() -> None:
    regions = Regions((True, False), (100.0,))
    steps = [
        timed(*[Event("aten::add", 10 * i, 10 * i + 5) for i in range(n)], end_ns=100 + 4 * n) for n in (2, 4)
    ]
    timelines = [assign_regions(timeline, marks, regions) for timeline, marks in steps]
    assert event_costs(timelines, regions) == [4]


def lengths_without(waited_ns: list[int], *steps: list[int]) -> list[list[int]]:
    timelines = [tuple(Slice(end_ns=length) for length in lengths) for lengths in steps]
    return [[one.length_ns for one in timeline] for timeline in subtract_waits(timelines, waited_ns)]


def test_wait_is_subtracted_from_its_region() -> None:
    found = lengths_without([3000, 0, 4000], [3010, 102], [12, 100], [10, 4105])
    assert found == [[10, 102], [12, 100], [10, 105]]


def test_waits_of_each_step_are_subtracted_by_length() -> None:
    assert lengths_without([4000, 6000], [5000], [7000]) == [[1000], [1000]]
    assert lengths_without([900], [1000, 200]) == [[250, 50]]
