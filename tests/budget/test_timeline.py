"""From events to slices: each nanosecond of a step belongs to one part. Without torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtdispatch.budget.timeline import (
    ACCUMULATING,
    ENGINE,
    OURS,
    Context,
    Node,
    Range,
    Slice,
    executed,
    median_timelines,
    nest_events,
    slices,
)
from pytest_dtdispatch.core.events import Event, Part

MM = [
    Event("aten::mm", 10, 40, 7),
    Event("PythonSubclass", 14, 38),
    Event("aten::mm", 20, 30),
    Event("resolve", 21, 22),
]


MOVED = Event(f"{OURS}redistribution a", 10, 50)


def step_of(*events: Event, end_ns: int = 100) -> Node:
    [node] = nest_events([Event(Range.STEP, 0, end_ns), *events])
    return node


def by_part(node: Node, count: Callable[[Slice], float]) -> dict[Part, float]:
    """Sum a property of the slices of a step by part."""
    sums = defaultdict[Part, float](int)
    for one in slices(node):
        sums[one.context.part] += count(one)
    return dict(sums)


spent = partial(by_part, count=lambda one: one.end_ns - one.begin_ns)
events_of = partial(by_part, count=lambda one: one.events)


def test_op_is_split_into_autograd_dispatch_and_local() -> None:
    assert spent(step_of(*MM)) == {Part.OTHER: 70, Part.AUTOGRAD: 6, Part.DISPATCH: 14, Part.LOCAL: 10}


def calls_of(node: Node) -> dict[str, int]:
    """Count the dispatches of each op."""
    calls = defaultdict[str, int](int)
    for one in slices(node):
        calls[one.context.op] += one.calls if one.context.part is Part.DISPATCH else 0
    return {op: count for op, count in calls.items() if count}


# relu saves its result, which is detached twice; a backward hook detaches a plain tensor.
SAVED = [
    Event("aten::relu", 10, 40, 7),
    Event("PythonSubclass", 12, 20),
    Event("aten::detach", 28, 32, 8),
    Event("detach", 29, 31),
    Event(f"{ENGINE}: ReluBackward0", 50, 90, 7),
    Event("aten::detach", 51, 53),
    Event("ReluBackward0", 54, 88, 7),
    Event("aten::detach", 60, 62),
    Event("aten::threshold_backward", 66, 84),
    Event("PythonSubclass", 68, 82),
]


def test_detach_of_a_saved_dtensor_is_a_dispatch() -> None:
    step = step_of(*SAVED)
    assert calls_of(step) == {"relu": 1, "detach": 2, "threshold_backward": 1}
    ns = dict.fromkeys(("detach", "relu"), 0)
    for one in slices(step):
        ns[one.context.op] = ns.get(one.context.op, 0) + one.length_ns * (one.context.part is Part.DISPATCH)
    # The time between its neighbors, minus the local detach.
    assert ns["detach"] == (40 - 20 - 4) + (66 - 54 - 2)
    assert sum(one.length_ns for one in slices(step)) == step.length_ns


def test_dispatch_of_async_tensor_is_not_a_call() -> None:
    waiting = [
        Event(Range.ASYNC, 18, 34),
        Event("_c10d_functional::wait_tensor", 19, 20),
        Event("aten::pow", 21, 30),
    ]
    inside = [Event("aten::pow", 16, 36), Event("PythonSubclass", 17, 35), *waiting]
    step = step_of(Event("aten::pow", 10, 40), Event("PythonSubclass", 14, 38), *inside)
    assert calls_of(step) == {"pow": 1}
    assert spent(step)[Part.SENDING] == 1


def test_python_dispatch_range_equals_torch_event() -> None:
    in_python = [MM[0], Event(Range.DISPATCH, 14, 38, is_range=True), *MM[2:]]
    ours, theirs = (slices(step_of(*events)) for events in (in_python, MM))
    assert [one._replace(events=0) for one in ours] == [one._replace(events=0) for one in theirs]


def test_range_counts_as_several_events_of_parent() -> None:
    in_mm = step_of(*MM[:2], Event(f"{OURS}redistribution a", 16, 36))
    assert events_of(step_of(*MM)) == {Part.OTHER: 1, Part.AUTOGRAD: 1, Part.DISPATCH: 1, Part.LOCAL: 1}
    assert sum(events_of(in_mm).values()) == 1 + 1 + 3


@pytest.mark.parametrize(
    ("events", "part", "ns"),
    [
        ([Event("aten::add", 10, 30), Event("aten::fill_", 12, 20)], Part.LOCAL, 20),
        ([*MM[:2], Event(f"{OURS}propagation", 15, 35), Event("aten::empty", 18, 22)], Part.PROPAGATION, 20),
        ([Event("Redistribute", 10, 50), Event(f"{OURS}redistribution a", 12, 48)], Part.MOVING, 40),
        ([MOVED, Event(f"{OURS}planning", 12, 20)], Part.PLANNING, 8),
        ([MOVED, Event("_c10d_functional::wait", 12, 20)], Part.SENDING, 8),
        ([MOVED, Event("aten::split", 12, 20)], Part.COPIES, 8),
        ([Event("_FromTorchTensor", 10, 50), Event("aten::view_as", 12, 20)], Part.WRAPPING, 40),
        ([Event("_ToTorchTensorBackward", 10, 50), Event(f"{OURS}wrapping x", 12, 40)], Part.WRAPPING, 40),
        ([Event(f"{ENGINE}: AddBackward0", 10, 30), Event("AddBackward0", 12, 20)], Part.AUTOGRAD, 20),
        ([Event("c10d::allreduce_", 10, 30)], Part.COMMUNICATION, 20),
        ([Event("FSDP::pre_forward", 10, 30, is_range=True)], Part.OTHER, 100),
        ([*MM[:2], Event(f"{OURS}look-up", 15, 35)], Part.DISPATCH, 24),
    ],
)
def test_parts(events: list[Event], part: Part, ns: int) -> None:
    assert spent(step_of(*events))[part] == ns


HOOK = Event(f"{OURS}fsdp FSDP::pre_forward", 10, 90, is_range=True)
GATHER = [
    Event("FSDP::all_gather (0)", 12, 40, is_range=True),
    Event("fsdp::all_gather_copy_in", 14, 20),
    Event("aten::empty", 15, 16),
    Event("c10d::_allgather_base_", 22, 32),
]


def test_fsdp_hook_is_split_into_its_parts() -> None:
    own = [HOOK, *GATHER, Event("RegisterPostBackwardFunction", 50, 60)]
    step = step_of(*own)
    assert spent(step) == {
        Part.OTHER: 20,
        Part.FSDP_PYTHON: 64,
        Part.FSDP_COPIES: 6,
        Part.FSDP_COLLECTIVES: 10,
    }
    ops = {(one.context.part, one.context.op) for one in slices(step)}
    assert {(Part.FSDP_PYTHON, "FSDP::all_gather (0)"), (Part.FSDP_PYTHON, "FSDP::pre_forward")} < ops
    assert (Part.FSDP_COLLECTIVES, "c10d::_allgather_base_") in ops


def test_dtensors_inside_fsdp_have_their_own_parts() -> None:
    wrap = Event(f"{OURS}wrapping DTensor", 50, 60, is_range=True)
    found = spent(step_of(HOOK, *MM, wrap))
    assert (found[Part.DISPATCH], found[Part.LOCAL], found[Part.WRAPPING]) == (14, 10, 10)


def test_fsdp_leaves_autograd_in_backward() -> None:
    engine = [
        Event(f"{OURS}backward", 0, 99),
        Event(f"{ENGINE}: RegisterPostBackwardFunctionBackward", 2, 98),
    ]
    node = Event("RegisterPostBackwardFunctionBackward", 8, 92)
    step = step_of(*engine, node, HOOK, *GATHER)
    assert spent(step)[Part.AUTOGRAD] == 15
    assert {one.context.in_engine for one in slices(step) if one.context.part is Part.FSDP_PYTHON} == {True}
    without_hook = spent(step_of(*engine, node))
    assert without_hook == {Part.OTHER: 1, Part.AUTOGRAD: 99}


@pytest.mark.parametrize(("name", "number"), [("MmBackward0", 5), ("torch::autograd::AccumulateGrad", -1)])
def test_engine_event_without_number_has_that_of_its_node(name: str, number: int) -> None:
    hooked = [Event(f"{ENGINE}: {name}", 2, 98), HOOK._replace(begin_ns=4, end_ns=20)]
    found = slices(step_of(*hooked, Event(name, 30, 40, number), Event("aten::mm", 31, 35, 9)))
    expected = ACCUMULATING if number < 0 else number
    assert {one.context.running_node for one in found if one.context.in_engine} == {expected}


def test_redistribution_of_an_op_retains_op_name() -> None:
    moved = [Event(f"{OURS}redistribution a", 16, 36), Event("c10d::allgather", 20, 30)]
    ops = {one.context.part: one.context.op for one in slices(step_of(*MM[:2], *moved))}
    assert (ops[Part.MOVING], ops[Part.SENDING]) == ("mm", "mm")


def test_calls_are_counted_where_ops_start() -> None:
    engine = [Event(f"{OURS}backward", 50, 95), Event(f"{ENGINE}: MmBackward0", 52, 90, 7)]
    again = [one._replace(begin_ns=one.begin_ns + 45, end_ns=one.end_ns + 45, sequence=-1) for one in MM]
    timeline = list(slices(step_of(*MM, *engine, *again)))
    assert sum(one.calls for one in timeline if one.context.op == "mm") == 2
    assert {
        one.context.running_node for one in timeline if one.context.in_engine and one.context.op == "mm"
    } == {7}
    assert {
        one.context.new_node for one in timeline if not one.context.in_engine and one.context.op == "mm"
    } == {7}


def test_parts_of_an_op_belong_to_its_call() -> None:
    timeline = list(slices(step_of(*MM)))
    assert {one.context.called_ns for one in timeline if one.context.part in (Part.DISPATCH, Part.LOCAL)} == {
        14
    }


NAMES = st.sampled_from(
    [
        "aten::mm",
        "PythonSubclass",
        "Redistribute",
        "c10d::send",
        f"{ENGINE}: X",
        "_FromTorchTensor",
        "a range",
    ]
    + [f"{OURS}{name}" for name in ("redistribution a", "planning", "propagation")]
)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 60), NAMES), max_size=12))
def test_slices_add_up_for_arbitrary_spans(spans: list[tuple[int, int, str]]) -> None:
    events = [Event(name, begin, begin + length) for begin, length, name in spans]
    events.sort(key=lambda event: (event.begin_ns, -event.end_ns))
    timeline = list(slices(step_of(*events)))
    assert sum(one.end_ns - one.begin_ns for one in timeline) == 100
    assert all(one.end_ns >= one.begin_ns for one in timeline)
    assert [one.begin_ns for one in timeline[1:]] == [one.end_ns for one in timeline[:-1]]


def test_timeline_of_several_steps_has_their_medians() -> None:
    def timeline(*lengths: int) -> tuple[Slice, ...]:
        return tuple(
            Slice(Context(Part.LOCAL, f"op{i}"), 10 * i, 10 * i + length) for i, length in enumerate(lengths)
        )

    [one] = median_timelines(
        [timeline(1, 9), timeline(2, 3), timeline(8, 4), (Slice(Context(Part.LOCAL, "other"), 0, 1),)]
    )
    assert [each.end_ns - each.begin_ns for each in one] == [2, 4]
    assert executed(one) == executed(timeline(5, 5))


def test_steps_with_different_ops_are_returned_unchanged() -> None:
    timelines = [(Slice(Context(Part.LOCAL, f"op{i}"), 0, 1),) for i in range(5)]
    assert median_timelines(timelines) == timelines
