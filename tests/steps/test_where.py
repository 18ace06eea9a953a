"""Where a step misses, redistributes, wraps and runs collectives: line, module and phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

from pytest_dtdispatch.core.events import CodePlace
from pytest_dtdispatch.steps.events import by_cause
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, StepCounts
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

pytestmark = pytest.mark.torch

LINES = Path(__file__).read_text().splitlines()
MISSED = ("mm.default", "sum.default", "sub_.Tensor")
Where = tuple[str, str, str]


def worked(x: DTensor, weight: torch.Tensor) -> DTensor:
    """Do one of each; it is called from several places."""
    y: Any = x @ weight  # implied
    y = y.redistribute(placements=[Replicate()])  # asked
    local = y.to_local()  # unwrap
    return DTensor.from_local(local, x.device_mesh, [Replicate()])  # wrap


class Layer(torch.nn.Module):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]))

    def forward(self, x: DTensor) -> DTensor:
        return worked(x.redistribute(placements=[Shard(0)]), self.weight)  # layer


class Block(torch.nn.Module):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.first, self.second = Layer(mesh), Layer(mesh)

    def forward(self, x: DTensor) -> Any:
        return self.second(self.first(x))  # block


class Net(torch.nn.Module):
    def __init__(self, mesh: DeviceMesh, is_reentrant: bool) -> None:
        super().__init__()
        self.plain, self.checkpointed = Block(mesh), Block(mesh)
        self.is_reentrant = is_reentrant

    def forward(self, x: DTensor) -> Any:
        return checkpoint(self.checkpointed, self.plain(x), use_reentrant=self.is_reentrant)


class OwnSGD(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            worked(parameter, parameter)
            parameter.sub_(parameter.grad)  # update


@pytest.fixture(scope="module", params=[False, True], ids=["", "reentrant"])
def counts(request: pytest.FixtureRequest) -> Any:
    """Count a step of training in which every phase misses."""
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
    from pytest_dtdispatch.meshes.place import Place

    owner = ProcessGroupOwner()
    mesh = owner.mesh(Place((4,), "cpu", "fake"))
    net = Net(mesh, request.param)
    optimizer = OwnSGD(net.parameters())
    x = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)]).requires_grad_()

    def step() -> None:
        optimizer.zero_grad()
        ShardingCaches().clear()
        loss = net(x).sum()  # loss
        ShardingCaches().clear()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # clip
        ShardingCaches().clear()
        optimizer.step()  # optimizer
        loss.full_tensor()  # logging

    yield run_and_count(StepCalls("train", step, 2, 1)).steps[0]
    owner.close()


def where(happened: Iterable[Any]) -> set[Where]:
    return {described(one.place) for one in happened}


def described(place: CodePlace | None) -> Where:
    """Describe a place by the mark at the end of its line."""
    assert place is not None
    assert place.file == __file__
    return LINES[place.line - 1].partition("# ")[2], place.module, str(place.phase)


def in_layers(mark: str, *phases: str, blocks: Iterable[str] = ("plain", "checkpointed")) -> set[Where]:
    layers = [f"{block}.{layer}" for block in blocks for layer in ("first", "second")]
    return {(mark, layer, phase) for layer in layers for phase in phases}


def test_misses(counts: StepCounts) -> None:
    places = {op: where(miss for miss in counts.missed if miss.op == op) for op in MISSED}
    products = places["mm.default"]
    assert ("implied", "plain.first", "forward") in products
    assert ("implied", "", "optimizer") in products
    assert ("implied", "checkpointed.second", "backward") in products
    assert places["sum.default"] == {("loss", "", "forward")}
    assert places["sub_.Tensor"] == {("update", "", "optimizer")}
    phases = {str(miss.place.phase) for miss in counts.missed if miss.place}
    assert phases == {"forward", "backward", "clipping", "optimizer"}


def test_redistributions(counts: StepCounts) -> None:
    implied = where(one for one in counts.redistributions if one.op == "mm.default")
    in_optimizer = {("implied", "", "optimizer")}
    recomputed = in_layers("implied", "backward", blocks=["checkpointed"])
    assert implied >= in_layers("implied", "forward") | in_optimizer | recomputed
    assert implied <= in_layers("implied", "forward", "backward") | in_optimizer
    asked = where(one for one in counts.redistributions if one.op == "redistribute")
    assert {one for one in asked if one[0] == "asked"} == in_layers("asked", "forward", "backward") | {
        ("asked", "", "optimizer")
    }
    assert ("layer", "plain.second", "backward") in asked


def test_wraps_and_unwraps(counts: StepCounts) -> None:
    places = {
        (kind, name): where(one for one in events if one.name == name)
        for kind, events in (("wrap", counts.wraps), ("unwrap", counts.unwraps))
        for name in ("from_local", "to_local")
    }
    wrapped, unwrapped = places["wrap", "from_local"], places["unwrap", "to_local"]
    assert wrapped >= in_layers("wrap", "forward") | {("wrap", "", "optimizer")}
    assert wrapped <= in_layers("wrap", "forward", "backward") | {("wrap", "", "optimizer")}
    assert unwrapped >= in_layers("unwrap", "forward", blocks=["plain"]) | {("logging", "", "other")}
    # In backward each does what the other does in forward.
    assert places["wrap", "to_local"] == in_layers("unwrap", "backward")
    assert places["unwrap", "from_local"] == in_layers("wrap", "backward")


def test_collectives(counts: StepCounts) -> None:
    gathered = where(one for one in counts.collective_runs if one.kind == "all_gather")
    assert gathered >= in_layers("implied", "forward") | {("implied", "", "optimizer")}
    assert ("clip", "", "clipping") in where(counts.collective_runs)


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
