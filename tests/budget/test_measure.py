"""Budgets of steps on DTensors: what they find, where, and that the program does not notice."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.utils.checkpoint import checkpoint

from pytest_dtdispatch.budget.measure import budgeted_region, run_and_measure_budget
from pytest_dtdispatch.budget.model import Budget, CostShare
from pytest_dtdispatch.errors import CaptureError
from pytest_dtdispatch.torchapi.hooks import API, redistribute_module

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SLOW_NS = 20_000_000
WIDTH = 16


class Inner(torch.nn.Module):
    """A matmul, a wrap and a redistribution, on lines of their own."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.weight = torch.nn.Parameter(torch.rand(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        y: Any = x @ self.weight
        z = DTensor.from_local(torch.ones(8, WIDTH), self.mesh, [Replicate()], run_check=False)
        return (y + z).redistribute(placements=[Shard(0)])


class Outer(torch.nn.Module):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.inner = distribute_module(Inner(mesh), mesh)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


def training(mesh: DeviceMesh) -> tuple[Outer, Callable[[], Any]]:
    torch.manual_seed(0)
    model = Outer(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = distribute_tensor(torch.ones(8, WIDTH), mesh, [Replicate()])

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def line_of(text: str) -> str:
    """Name the line of this file that has a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))
    return f"test_measure.py:{number}"


def taken(spent: list[CostShare], name: str) -> float:
    return sum(one.ns for one in spent if one.name.endswith(name))


def spin() -> None:
    end = time.perf_counter_ns() + SLOW_NS
    while time.perf_counter_ns() < end:
        continue


def test_the_parts_phases_modules_lines_and_ops_of_a_training_step(mesh: DeviceMesh) -> None:
    _, step = training(mesh)
    budget = run_and_measure_budget(step, 3, 8, "train")
    assert {"local", "dispatch", "wrapping", "autograd", "other"} <= set(budget.parts)
    assert any(part.startswith("redistribution") for part in budget.parts)
    assert "propagation" not in budget.parts
    assert sum(budget.parts.values()) + budget.unexplained_ns == pytest.approx(budget.measured_ns)
    assert budget.steps == 8
    assert budget.events > 50
    assert {"forward", "backward", "optimizer"} <= {one.name for one in budget.by_phase()}
    assert "inner" in {one.name for one in budget.by_module()}
    for text in ("y: Any = x @", "z = DTensor.from_local", "return (y + z)", "optimizer.step()"):
        assert taken(budget.by_line(), line_of(text)) > 0
    calls = {one.name: one.calls for one in budget.by_op()}
    assert calls["mm"] == 2  # forward, and backward for the weight
    assert calls["from_local"] == 1
    assert calls["redistribute f32[8,16]R -> S0"] == 1


@pytest.mark.parametrize(
    ("owner", "name", "part", "text"),
    [
        ("api", "_FromTorchTensor", "wrapping", "z = DTensor.from_local"),
        ("redistribute", "Redistribute", "redistribution", "return (y + z)"),
    ],
)
def test_what_is_slow_is_found(
    monkeypatch: pytest.MonkeyPatch, mesh: DeviceMesh, owner: str, name: str, part: str, text: str
) -> None:
    function = getattr(sys.modules[API] if owner == "api" else redistribute_module(), name)
    forward = function.forward

    def slow(*args: Any) -> Any:
        spin()
        return forward(*args)

    monkeypatch.setattr(function, "forward", staticmethod(slow))
    _, step = training(mesh)
    found = run_and_measure_budget(step, 3, 5, "train")
    own = sum(ns for each, ns in found.parts.items() if each.startswith(part))
    assert own > 0.9 * SLOW_NS
    assert own > 0.8 * sum(found.parts.values())
    assert taken(found.by_line(), line_of(text)) > 0.9 * SLOW_NS
    assert taken(found.by_phase(), "forward") > 0.9 * SLOW_NS
    assert taken(found.by_module(), "inner") > 0.9 * SLOW_NS


def test_a_slow_line_of_python_is_found(mesh: DeviceMesh) -> None:
    _, train = training(mesh)

    def step() -> None:
        train()
        time.sleep(SLOW_NS / 1e9)

    found = run_and_measure_budget(step, 3, 5, "train")
    assert taken(found.by_line(), line_of("time.sleep(SLOW_NS")) > 0.9 * SLOW_NS
    assert taken(found.by_phase(), "other") > 0.9 * SLOW_NS
    assert found.parts["other"] > 0.9 * SLOW_NS


def test_misses_are_propagation(mesh: DeviceMesh) -> None:
    rows = iter(range(8, 1000))
    x = distribute_tensor(torch.ones(1024, WIDTH), mesh, [Replicate()])
    found = run_and_measure_budget(lambda: x.narrow(0, 0, next(rows)), 1, 8, "stream")
    assert found.parts["propagation"] > 0.5 * sum(found.parts.values())
    assert found.by_op()[0].name == "slice"


def test_a_checkpointed_block_runs_again_in_backward_at_its_own_lines(mesh: DeviceMesh) -> None:
    inner = Outer(mesh).inner
    x = distribute_tensor(torch.ones(8, WIDTH), mesh, [Replicate()])

    def step() -> None:
        checkpoint(inner, x, use_reentrant=False).sum().backward()

    found = run_and_measure_budget(step, 3, 5, "train")
    places = {(c.place.line_text.rpartition("/")[2], str(c.place.phase)) for c in found.cells if c.place}
    assert {(line_of("y: Any = x @"), phase) for phase in ("forward", "backward")} <= places


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.tanh()


class Doubling(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return Doubled.apply(x)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("run", [lambda inner, x: inner(x), partial(checkpoint, use_reentrant=False)])
def test_a_function_s_own_backward_is_in_the_module_that_applied_it(mesh: DeviceMesh, run: Any) -> None:
    layers = torch.nn.Sequential(Doubling(), torch.nn.Identity(), Doubling())
    x = distribute_tensor(torch.ones(8, WIDTH), mesh, [Replicate()]).requires_grad_()
    found = run_and_measure_budget(lambda: run(layers, x).sum().backward(), 3, 5, "train")

    own = line_of("return gradient.tanh()")
    places = [c.place for c in found.cells if c.op == "tanh" and c.place and c.place.line_text.endswith(own)]
    assert {(place.module, str(place.phase)) for place in places} == {("0", "backward"), ("2", "backward")}


def test_nothing_is_left_behind_by_a_step_that_raises_and_a_profiler_that_runs_is_refused(
    mesh: DeviceMesh,
) -> None:
    held = redistribute_module().redistribute_local_tensor
    calls = iter(range(100))

    def step() -> None:
        if next(calls) == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_and_measure_budget(step, 2, 8, "train")
    assert redistribute_module().redistribute_local_tensor is held
    assert sys.gettrace() is None
    with (
        torch.autograd.profiler.profile(),
        pytest.raises(CaptureError, match="a profiler of torch runs already"),
    ):
        run_and_measure_budget(lambda: None, 0, 1, "x")
    assert run_and_measure_budget(lambda: None, 0, 1, "next").measured_ns > 0


def test_beside_another_tracer_lines_are_not_known(mesh: DeviceMesh) -> None:
    _, step = training(mesh)
    sys.settrace(lambda *_: None)
    try:
        found = run_and_measure_budget(step, 2, 8, "train")
    finally:
        sys.settrace(None)
    assert "another tracer" in found.note
    assert {one.name for one in found.by_line()} == {""}
    assert found.parts["dispatch"] > 0


def test_a_region_that_runs_once(mesh: DeviceMesh) -> None:
    found: list[Budget] = []
    _, step = training(mesh)
    with budgeted_region("test", found.append):
        step()
    [taken_once] = found
    assert taken_once.steps == 0
    assert taken_once.unexplained_ns == pytest.approx(0, abs=1)
    assert "propagation" in taken_once.parts
    assert taken(taken_once.by_line(), line_of("y: Any = x @")) > 0
