"""Implicit redistributions are distinguished from explicit ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from pytest_dtdispatch.core.verdicts import complaint
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.steps.table import judge
from pytest_dtdispatch.torchapi.tensors import wait_for
from tests.probes import needs

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap", "nothing_stays")]

CONTEXT = "torch.distributed.tensor._utils.ExplicitRedistributionContext"
FILE = Path(__file__).name
LINES = Path(__file__).read_text().splitlines()
Make = Callable[[DeviceMesh], Callable[[], Any]]
WHOLE = [Replicate()]


def distributed(mesh: DeviceMesh, placement: Any, requires_grad: bool = False) -> Any:
    return distribute_tensor(torch.rand(8, 8), mesh, [placement]).requires_grad_(requires_grad)


# Steps with explicit redistributions


def redistributed(mesh: DeviceMesh) -> Callable[[], Any]:
    rows, columns = distributed(mesh, Shard(0), requires_grad=True), distributed(mesh, Shard(1))
    return lambda: (rows.redistribute(placements=[Shard(1)]) + columns).to_local().sum().backward()


def gathered(mesh: DeviceMesh) -> Callable[[], Any]:
    rows = distributed(mesh, Shard(0), requires_grad=True)
    return lambda: (rows * 2).full_tensor().sum().backward()


def parallel(mesh: DeviceMesh) -> Callable[[], Any]:
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    mlp = parallelize_module(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False)), mesh, plan)
    x = torch.rand(4, 8)
    return lambda: mlp(x).sum().backward()


def trained_on_plain_logits(mesh: DeviceMesh) -> Callable[[], Any]:
    """The autograd node of plain logits is in C++, and has no weak references."""
    rows = distributed(mesh, Shard(0), requires_grad=True)
    batch, labels = torch.rand(4, 8), torch.arange(4)
    return lambda: nn.functional.cross_entropy(batch @ rows.full_tensor(), labels).backward()


def parallel_by_sequence(mesh: DeviceMesh) -> Callable[[], Any]:
    prepared = PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),))
    block = nn.Sequential(nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8)))
    plan = {"0": SequenceParallel(sequence_dim=0), "1": prepared, "1.0": ColwiseParallel()}
    parallelize_module(block, mesh, plan)
    x = torch.rand(2, 8)
    return lambda: block(x)


def summed(mesh: DeviceMesh) -> Callable[[], Any]:
    part = torch.rand(8, 8)
    return lambda: DTensor.from_local(part, mesh, [Partial()]).redistribute(placements=WHOLE).relu()


EXPLICIT: list[Make] = [
    redistributed,
    gathered,
    trained_on_plain_logits,
    parallel,
    parallel_by_sequence,
    summed,
]

# Steps in which an op redistributes implicitly, at the marked line


def added(mesh: DeviceMesh) -> Callable[[], Any]:
    rows, columns = distributed(mesh, Shard(0)), distributed(mesh, Shard(1))
    return lambda: rows.redistribute(placements=WHOLE) + rows + columns  # added


def multiplied(mesh: DeviceMesh) -> Callable[[], Any]:
    rows = distributed(mesh, Shard(0))
    return lambda: rows @ rows  # multiplied


def biased(mesh: DeviceMesh) -> Callable[[], Any]:
    linear = parallelize_module(nn.Linear(8, 8), mesh, RowwiseParallel())
    x = torch.rand(4, 2)  # columns of this rank
    return lambda: linear(x)  # biased


def clipped(mesh: DeviceMesh) -> Callable[[], Any]:
    weight = distributed(mesh, Shard(0), requires_grad=True)
    weight.grad = distributed(mesh, Shard(0))
    return lambda: nn.utils.clip_grad_norm_([weight], 1e9)  # clipped


def optimized(mesh: DeviceMesh) -> Callable[[], Any]:
    weight = nn.Parameter(distributed(mesh, Shard(0)))
    weight.grad = distributed(mesh, Replicate())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    return lambda: optimizer.step()  # optimized


IMPLIED: list[Make] = [added, multiplied, biased, clipped, optimized]


def name_of(make: Any) -> str:
    return str(make.__name__)


@pytest.mark.parametrize("make", EXPLICIT, ids=name_of)
def test_explicit_redistribution_is_not_implicit(mesh: DeviceMesh, make: Make) -> None:
    steps = run_and_count(StepCalls("step", make(mesh), 2, 3))
    assert steps.redistributions, "the step has redistributions, all explicit"
    assert (steps.implied, steps.implicit_per_step) == ((), 0)
    assert not complaint(judge(steps, {"implicit": 0}))


@pytest.mark.parametrize("make", IMPLIED, ids=name_of)
def test_implicit_redistribution_over_limit_is_listed_by_line(mesh: DeviceMesh, make: Make) -> None:
    steps = run_and_count(StepCalls("step", make(mesh), 2, 3))
    assert steps.implicit_per_step >= 1
    [line] = [number for number, text in enumerate(LINES, 1) if text.endswith(f"  # {name_of(make)}")]
    title, excess, *listed = complaint(judge(steps, {"implicit": 0})).splitlines()
    count = int(steps.implicit_per_step)
    assert title == "step: over its limits"
    assert excess.startswith(f"implicit=0, and step 1 has {count}, at ")
    assert excess.endswith(f"{FILE}:{line}")
    assert listed
    assert all(f"{FILE}:{line} " in text and "redistribute:" not in text for text in listed)


def gradient_replaced(mesh: DeviceMesh) -> Callable[[], Any]:
    local = torch.rand(8, 8, requires_grad=True)

    def step() -> None:
        whole = DTensor.from_local(local, mesh, [Replicate()], run_check=False)
        whole.to_local(grad_placements=[Partial()]).sum().backward()

    return step


@needs(CONTEXT)
@pytest.mark.parametrize("make", [gradient_replaced, gathered, added], ids=name_of)
def test_implicit_matches_redistributions_refused_by_torch(mesh: DeviceMesh, make: Make) -> None:
    from torch.distributed.tensor import _utils

    step, is_refused = make(mesh), False
    steps = run_and_count(StepCalls("step", step, 1, 1))
    try:
        with _utils.ExplicitRedistributionContext(strict=True):
            step()
    except RuntimeError:
        is_refused = True
    assert bool(steps.implied) == is_refused
    assert {one.op for one in steps.implied} <= {"add.Tensor", "from_local"}
    assert steps.redistributions


@needs(CONTEXT)
@pytest.mark.parametrize("make", [*EXPLICIT, *IMPLIED, gradient_replaced], ids=name_of)
def test_strict_context_of_torch_refuses_implicit_steps(mesh: DeviceMesh, make: Make) -> None:
    from torch.distributed.tensor import _utils

    step, is_refused = make(mesh), False
    steps = run_and_count(StepCalls("step", step, 1, 1))
    try:
        with _utils.ExplicitRedistributionContext(strict=True):
            wait_for(step())
    except RuntimeError as error:
        is_refused = "Implicit redistribution" in str(error)
    assert bool(steps.implied) == is_refused


def test_gradient_redistributed_by_from_local_is_counted_once(mesh: DeviceMesh) -> None:
    [one] = run_and_count(StepCalls("step", gradient_replaced(mesh), 1, 1)).redistributions
    assert (one.op, one.source, one.target) in [
        (op, ("P",), ("R",))
        for op in ("redistribute", "from_local")  # the latter since torch 2.15
    ]
