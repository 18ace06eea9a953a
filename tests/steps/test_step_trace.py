"""The spans of steps: as many as were counted, each inside of what it ran in."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch.core.spans import Interval, TraceSpan, label
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.report.chrome_trace import chrome_trace
from pytest_dtdispatch.steps.counter import StepCounter
from pytest_dtdispatch.steps.measure import run_and_count_steps, run_and_trace
from pytest_dtdispatch.steps.model import StepCounts, Steps
from pytest_dtdispatch.steps.step_calls import StepCalls
from pytest_dtdispatch.steps.step_trace import StepTrace
from pytest_dtdispatch.suite.models import fsdp_training_step, tensor_parallel_step
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.probes import FSDP_WITHOUT_CUDA, needs
from tests.trace_format import read_trace

pytestmark = pytest.mark.torch

KINDS = {
    "miss": lambda step: step.misses,
    "redistribution": lambda step: step.redistributes,
    "wrap": lambda step: len(step.wraps),
    "unwrap": lambda step: len(step.unwraps),
    "collective": lambda step: step.collective_calls,
}


class Layer(torch.nn.Module):
    """Every kind of what is counted, in forward and in backward."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        local = torch.rand(4, 8)
        self.weight = torch.nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))

    def forward(self, rows: int) -> torch.Tensor:
        x = DTensor.from_local(torch.rand(rows, 16), self.mesh, [Replicate()], run_check=False)
        y: Any = x @ self.weight
        return torch.as_tensor(y.redistribute(placements=[Replicate()]).to_local().sum())


def training_step(mesh: DeviceMesh) -> Callable[[], object]:
    """Make a step that misses each time, on a shape of its own."""
    net, rows = torch.nn.Sequential(Layer(mesh)), itertools.count(4)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(next(rows)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return step


def trace_of(step: Callable[[], object], warmup: int = 1, steps: int = 2, name: str = "step") -> Steps:
    ShardingCaches().clear_all()
    return run_and_trace(StepCalls(name, step, warmup, steps))


def of_kind(steps: Steps, kind: str) -> list[TraceSpan]:
    return [span for span in steps.spans if span.kind == kind]


@pytest.fixture
def square(group_owner: ProcessGroupOwner) -> DeviceMesh:
    return group_owner.mesh(Place((2, 2), "cpu", "fake"))


@pytest.mark.parametrize(
    ("make", "on"),
    [
        (training_step, "mesh"),
        (tensor_parallel_step, "square"),
        pytest.param(fsdp_training_step, "mesh", marks=needs(FSDP_WITHOUT_CUDA)),
    ],
)
def test_there_are_as_many_spans_as_counts_and_they_nest(
    make: Callable[..., Any], on: str, request: pytest.FixtureRequest
) -> None:
    steps = trace_of(make(request.getfixturevalue(on)))
    counted = [*steps.warmup, *steps.steps]
    assert len(of_kind(steps, "step")) == 3
    for kind, count in KINDS.items():
        assert len(of_kind(steps, kind)) == sum(map(count, counted)), kind
    events = read_trace(chrome_trace({"t": steps.spans}))  # which asserts that they nest
    assert len(events) == len(steps.spans)
    inside = [span for step in of_kind(steps, "step") for span in steps.spans if step.when.holds(span.when)]
    assert len(inside) == len(steps.spans)


def test_a_training_step_is_phases_that_hold_modules_that_hold_what_happened(mesh: DeviceMesh) -> None:
    steps = trace_of(training_step(mesh))
    last = of_kind(steps, "step")[-1]
    phases = [span for span in of_kind(steps, "phase") if last.when.holds(span.when)]
    assert [span.name for span in sorted(phases, key=lambda span: span.when.begin_ns)] == [
        *("optimizer", "forward", "backward", "clipping", "optimizer")
    ]
    [layer] = [span for span in of_kind(steps, "module") if span.name == "0" and last.when.holds(span.when)]
    in_layer = Counter(span.kind for span in steps.spans if layer.when.holds(span.when))
    assert {"miss", "redistribution", "wrap", "unwrap", "collective"} <= {*in_layer}
    for span in steps.spans:
        if "phase" in span.arguments:
            around = [phase.name for phase in of_kind(steps, "phase") if phase.when.holds(span.when)]
            assert around[-1:] == [span.arguments["phase"]], span


def test_spans_say_what_is_known_of_them(mesh: DeviceMesh) -> None:
    steps = trace_of(training_step(mesh))
    last = steps.steps[-1]
    miss, counted = of_kind(steps, "miss")[-last.misses], last.missed[0]
    assert miss.name == miss.arguments["signature"] == counted.signature
    assert miss.arguments["reason"] == counted.reason
    number = next(i for i, one in enumerate(last.redistributions) if one.bytes)
    moved = of_kind(steps, "redistribution")[number - last.redistributes]
    redistribution = last.redistributions[number]
    assert moved.arguments["placements"] == moved.name == "P -> R"
    assert moved.arguments["bytes"] == redistribution.bytes > 0
    place = redistribution.place
    assert place is not None
    assert moved.arguments["at"] == f"{place.short_file}:{place.line}"
    assert (moved.arguments["module"], moved.arguments["phase"]) == (place.module, "forward")
    assert of_kind(steps, "wrap")[0].arguments["placements"] == "R"
    totals = of_kind(steps, "step")[-1].arguments
    assert (totals["hits"], totals["misses"]) == (last.hits, last.misses)


@pytest.mark.parametrize(("name", "first"), [("step", "1 (warm-up)"), ("train", "1 of train (warm-up)")])
def test_steps_are_numbered_by_their_name(name: str, first: str) -> None:
    steps = trace_of(lambda: None, name=name)
    assert of_kind(steps, "step")[0].name == first
    assert of_kind(steps, "step")[1].name == first.removesuffix(" (warm-up)")


def test_counts_are_those_without_a_trace(square: DeviceMesh) -> None:
    step = tensor_parallel_step(square)
    step()
    assert trace_of(step, warmup=1) == _untraced(step)
    assert _untraced(step).spans == ()


def _untraced(step: Callable[[], object]) -> Steps:
    ShardingCaches().clear_all()
    return run_and_count_steps(step, 1, 2, "step")


def test_a_step_without_a_backward_is_forward_to_its_end() -> None:
    steps = trace_of(lambda: torch.nn.ReLU()(torch.ones(2)), warmup=0, steps=1)
    [step], [phase] = of_kind(steps, "step"), of_kind(steps, "phase")
    assert (phase.name, phase.when) == ("forward", step.when)


def test_a_module_that_calls_backward_holds_it() -> None:
    class Trained(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            x.sum().backward()

    steps = trace_of(lambda: Trained()(torch.ones(2, requires_grad=True)), warmup=0, steps=1)
    read_trace(chrome_trace({"t": steps.spans}))
    assert [span.name for span in of_kind(steps, "phase")] == ["backward"]


def test_a_loop_adds_its_steps_as_they_end(mesh: DeviceMesh) -> None:
    step = training_step(mesh)
    with StepCounter() as counter, StepTrace() as trace:
        for number in range(3):
            step()
            trace.add(str(number), counter.lap())
    assert [span.name for span in trace.spans if span.kind == "step"] == ["0", "1", "2"]
    assert Counter(span.name for span in trace.spans if span.kind == "phase")["forward"] == 3
    read_trace(chrome_trace({"loop": trace.spans}))


def test_a_step_that_was_not_timed_has_no_span() -> None:
    with StepTrace() as trace:
        trace.add("1", StepCounts(hits=1))
        trace.add("2", StepCounts(hits=1, when=Interval(1, 2, 3)))
    assert [span.name for span in trace.spans if span.kind == "step"] == ["2"]


@pytest.mark.parametrize("is_inside", [False, True], ids=["around the steps", "in a step"])
def test_a_profiler_that_runs_has_the_same_spans(is_inside: bool, mesh: DeviceMesh) -> None:
    step = training_step(mesh)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler.profile(
        activities=cpu, acc_events=True
    )  # some torches warn where it is not said

    def profiled() -> None:
        with profiler:
            step()

    if is_inside:
        steps = trace_of(profiled, warmup=0, steps=1)
    else:
        with profiler:
            steps = trace_of(step, warmup=0, steps=1)
    # What was forward is known when a step is over.
    unseen = {"step"} if is_inside else set()
    spans = [span for span in steps.spans if span.kind not in unseen and span.name != "forward"]
    names = Counter(label(span.kind, span.name) for span in spans)
    ranges = Counter(event.name for event in profiler.events() if event.name in names)
    assert ranges == names
    assert {*KINDS, "module", "phase"} == {span.kind for span in spans} - {"step"}


def test_a_miss_holds_no_specs_when_it_is_over(mesh: DeviceMesh) -> None:
    rows = itertools.count(4)

    def step() -> None:
        x = DTensor.from_local(torch.rand(next(rows), 8), mesh, [Shard(0)], run_check=False)
        x.detach()

    counted = trace_of(step, warmup=0, steps=3).steps
    # Each plan in the cache holds its own: the first miss holds as many as the others.
    assert len({(one.misses, one.spec_growth) for one in counted}) == 1
