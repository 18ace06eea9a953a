"""Where a step misses, redistributes, wraps and runs collectives: line, module and phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.steps.events import by_cause
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

pytestmark = pytest.mark.torch

LINES = Path(__file__).read_text().splitlines()
Where = tuple[str, str, str]


class Layer(torch.nn.Module):
    """Do one of each."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]))

    def forward(self, x: DTensor) -> DTensor:
        y: Any = x @ self.weight  # implied
        y = y.redistribute(placements=[Replicate()])  # asked
        local = y.to_local()  # unwrap
        return DTensor.from_local(local, x.device_mesh, [Replicate()])  # wrap


class Net(torch.nn.Module):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.first, self.second = Layer(mesh), Layer(mesh)

    def forward(self, x: DTensor) -> Any:
        return self.second(self.first(x).redistribute(placements=[Shard(0)]))


class OwnSGD(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.redistribute(placements=[Replicate()])  # moved
            parameter.sub_(parameter.grad)  # update


def where(disturbed_steps: Iterable[Any]) -> set[Where]:
    """Describe places by the marks at the ends of their lines."""
    places = [one.place for one in disturbed_steps]
    assert {place.file for place in places} <= {__file__}
    return {(LINES[place.line - 1].partition("# ")[2], place.module, str(place.phase)) for place in places}


def in_layers(mark: str, *phases: str) -> set[Where]:
    return {(mark, layer, phase) for layer in ("first", "second") for phase in phases}


def test_each_event_of_a_step_has_its_line_its_module_and_its_phase(mesh: DeviceMesh) -> None:
    net = Net(mesh)
    optimizer = OwnSGD(net.parameters(), {})
    x = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]).requires_grad_()

    def step() -> None:
        optimizer.zero_grad()
        ShardingCaches().clear()
        loss = net(x).sum()  # loss
        ShardingCaches().clear()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # clip
        ShardingCaches().clear()
        optimizer.step()
        loss.to_local()  # logging

    [counts] = run_and_count(StepCalls("train", step, 2, 1)).steps
    assert ("implied", "first", "forward") in where(m for m in counts.missed if m.op == "mm.default")
    assert where(miss for miss in counts.missed if miss.op == "sum.default") == {("loss", "", "forward")}
    assert where(m for m in counts.missed if m.op == "sub_.Tensor") == {("update", "", "optimizer")}
    phases = {str(miss.place.phase) for miss in counts.missed if miss.place}
    assert phases == {"forward", "backward", "clipping", "optimizer"}
    implied = where(one for one in counts.redistributions if one.op == "mm.default")
    assert in_layers("implied", "forward") <= implied <= in_layers("implied", "forward", "backward")
    asked = where(one for one in counts.redistributions if one.op == "redistribute")
    assert asked >= in_layers("asked", "forward") | {("moved", "", "optimizer")}
    # In backward each does what the other does in forward.
    for events, forward, backward in (
        (counts.wraps, "wrap", "unwrap"),
        (counts.unwraps, "unwrap", "wrap"),
    ):
        places = where(events)
        assert places >= in_layers(forward, "forward") | in_layers(backward, "backward")
    assert ("logging", "", "other") in where(counts.unwraps)
    assert where(counts.collective_runs) >= in_layers("asked", "forward") | {
        ("clip", "", "clipping"),
        ("moved", "", "optimizer"),
    }


def test_one_cause_at_two_lines_is_two_lines(shard: Callable[..., DTensor]) -> None:
    a = shard(8, 8)

    def step() -> None:
        ShardingCaches().clear()
        a + a  # here
        ShardingCaches().clear()
        a + a  # there

    missed = [one.missed for one in run_and_count(StepCalls("step", step, 1, 3)).steps]
    lines = by_cause(missed)
    assert len(lines) == 2
    assert all(line.endswith(" (forward) (once in each of steps 1-3)") for line in lines)
    assert where(miss for step in missed for miss in step) == {
        ("here", "", "forward"),
        ("there", "", "forward"),
    }


def test_a_step_of_another_file_has_the_line_that_counts_it(shard: Callable[..., DTensor]) -> None:
    a = shard(8, 8)
    steps = run_and_count(StepCalls("step", a.sin, 0, 1))  # outside
    assert where(steps.missed) == {("outside", "", "forward")}
