"""Line, module and phase of misses, redistributions, wraps and collectives of a step."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.steps.events import by_cause
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.measured_runs import Make

pytestmark = pytest.mark.torch

LINES = Path(__file__).read_text().splitlines()
Where = tuple[str, str, str]


class Layer(torch.nn.Module):
    """A layer with one event of each kind."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]))

    def forward(self, x: DTensor) -> DTensor:
        y: Any = x @ self.weight  # implied
        y = y.redistribute(placements=[Replicate()])  # explicit
        local = y.to_local()  # unwrap
        whole: Any = DTensor.from_local(local, x.device_mesh, [Replicate()])  # wrap
        return whole.redistribute(placements=[Shard(0)])  # type: ignore[no-any-return]


def where(disturbed_steps: Iterable[Any]) -> set[Where]:
    """Return the comments that mark the lines of these events, with module and phase."""
    found = [one.place for one in disturbed_steps]
    assert {place.file for place in found} <= {__file__}
    return {(LINES[place.line - 1].partition("# ")[2], place.module, str(place.phase)) for place in found}


def in_layers(mark: str, *phases: str) -> set[Where]:
    return {(mark, layer, phase) for layer in "01" for phase in phases}


def test_each_event_has_line_module_and_phase(mesh: DeviceMesh) -> None:
    net = torch.nn.Sequential(Layer(mesh), Layer(mesh))
    optimizer = torch.optim.SGD(net.parameters())
    x = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]).requires_grad_()

    def step() -> None:
        optimizer.zero_grad()
        ShardingCaches().clear()
        loss = net(x).sum()  # loss
        ShardingCaches().clear()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # clip
        ShardingCaches().clear()
        optimizer.step()  # update
        loss.to_local()  # logging

    [counts] = run_and_count(StepCalls("train", step, 2, 1)).steps
    missed = where(counts.missed)
    assert {("implied", "0", "forward"), ("loss", "", "forward"), ("update", "", "optimizer")} <= missed
    assert {phase for *_, phase in missed} == {"forward", "backward", "clipping", "optimizer"}
    implied = where(one for one in counts.redistributions if one.op == "mm.default")
    assert in_layers("implied", "forward") <= implied <= in_layers("implied", "forward", "backward")
    explicit = where(one for one in counts.redistributions if one.op == "redistribute")
    assert explicit >= in_layers("explicit", "forward")
    # In backward, wrap and unwrap exchange roles.
    wraps, unwraps = where(counts.wraps), where(counts.unwraps)
    assert wraps >= in_layers("wrap", "forward") | in_layers("unwrap", "backward")
    assert unwraps >= in_layers("unwrap", "forward") | in_layers("wrap", "backward")
    assert ("logging", "", "other") in unwraps
    assert where(counts.collective_runs) >= in_layers("explicit", "forward") | {("clip", "", "clipping")}


def test_flat_parameters_are_moved_in_their_module(mesh: DeviceMesh) -> None:
    sizes = [16, 32, 64, 24]
    layers = [torch.nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)]
    net = FullyShardedDataParallel(
        torch.nn.Sequential(*layers),
        auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}),
        device_id=torch.device("cpu"),
    )
    owners = {a * b * 4: str(number) for number, (a, b) in enumerate(pairwise(sizes))}
    x = torch.rand(4, sizes[0])
    [counts] = run_and_count(StepCalls("train", lambda: net(x).sum().backward(), 1, 1)).steps
    assert {run.kind for run in counts.collective_runs} == {"all_gather", "reduce_scatter"}
    found = [(run.bytes, run.place.module) for run in counts.collective_runs if run.place]
    assert found == [(nbytes, owners[nbytes]) for nbytes, _ in found]


class Whole(torch.nn.Module):
    def forward(self, x: DTensor) -> DTensor:
        return x.redistribute(placements=[Replicate()])  # whole


@pytest.mark.parametrize("warmup", [0, 1])
def test_backward_of_a_redistribution_without_change_has_its_module(mesh: DeviceMesh, warmup: int) -> None:
    net = torch.nn.Sequential(Whole(), torch.nn.Identity(), torch.nn.Linear(8, 8, bias=False))
    net[2].weight = torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]))
    x = distribute_tensor(torch.rand(8, 8), mesh, [Replicate()]).requires_grad_()
    [counts] = run_and_count(StepCalls("train", lambda: net(x).sum().backward(), warmup, 1)).steps
    reduced = [each for each in counts.redistributions if (each.source, each.target) == (("P",), ("R",))]
    assert where(reduced) == {("whole", "0", "backward")}


def test_one_cause_at_two_lines_is_listed_twice(shard: Make) -> None:
    a = shard(8, 8)

    def step() -> None:
        ShardingCaches().clear()
        a + a  # here
        ShardingCaches().clear()
        a + a  # there

    steps = run_and_count(StepCalls("step", step, 1, 3))
    lines = by_cause([one.missed for one in steps.steps])
    assert len(lines) == 2
    assert all(line.endswith(" (forward) (once in each of steps 1-3)") for line in lines)
    assert where(steps.missed) == {("here", "", "forward"), ("there", "", "forward")}


def test_step_from_another_file_has_caller_line(shard: Make) -> None:
    a = shard(8, 8)
    steps = run_and_count(StepCalls("step", a.sin, 0, 1))  # outside
    assert where(steps.missed) == {("outside", "", "forward")}
