"""The budget of a loop, measured from the steps that the loop runs anyway."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch import DtDispatchError, StepWatch
from pytest_dtdispatch.errors import MeasurementError

pytestmark = pytest.mark.torch


@pytest.fixture
def x(mesh: DeviceMesh) -> Any:
    return DTensor.from_local(torch.rand(4, 8), mesh, [Shard(0)])


def test_loop_budget_adds_up_and_has_lines(x: Any) -> None:
    lines: list[str] = []
    with StepWatch(lines.append) as watch:
        watch.step()
        watch.budget(steps=6)
        while not watch.budgets:
            x + x
            time.sleep(0.021)
            watch.step()
        [budget] = watch.budgets
        text = lines[-1]
        # Seven steps run with the collector, three find lines, four count. Each of four levels has six steps,
        # in four blocks with one more step each.
        assert len(watch.steps) == 2 + 7 + 3 + 4 + 4 * (6 + 4)
    assert budget.name == f"steps 3 to {len(watch.steps)}"
    assert budget.measured_ns > 5_000_000
    assert sum(budget.parts.values()) + budget.unexplained_ns == pytest.approx(budget.measured_ns)
    dearest = budget.by_line()[0]
    assert "test_loop_budget.py:" in dearest.name
    assert dearest.ns > 4_000_000
    assert "StepWatch: steps 3 to" in text
    assert "unexplained" in text
    assert sys.gettrace() is None
    assert watch.steps.misses == 1


def test_advice_of_loop_budget_names_the_line(x: Any) -> None:
    with StepWatch(list[str]().append) as watch:
        watch.budget(steps=2)
        for number in itertools.count():
            if watch.budgets:
                break
            x.expand(number + 1, *x.shape)  # one miss per step
            watch.step()
    [advice] = watch.budgets[0].advice
    assert "expand missed in each step" in str(advice)
    assert "test_loop_budget.py:" in str(advice)


def test_garbage_during_a_budget_is_not_growth(x: Any) -> None:
    """Programs that collect garbage themselves, like trainers, have garbage among live objects."""
    lines: list[str] = []
    gc.disable()
    try:
        with StepWatch(lines.append) as watch:
            for _ in range(3):
                watch.step()
            watch.budget(steps=20)
            while not watch.budgets:
                garbage: list[Any] = [x.redistribute(placements=[Replicate()]) for _ in range(3)]
                garbage.append(garbage)
                time.sleep(0.021)
                watch.step()
    finally:
        gc.enable()
    assert not [line for line in lines if "grow" in line]


@pytest.mark.parametrize("ended_after", [0, 2, 4, 6])
def test_loop_that_ends_early_leaves_nothing_behind(x: Any, ended_after: int) -> None:
    lines: list[str] = []
    with StepWatch(lines.append) as watch:
        watch.budget(steps=2)
        for _ in range(ended_after):
            x + x
            watch.step()
    assert watch.budgets == []
    [line] = [line for line in lines if "no budget" in line]
    steps = f"{ended_after} step" + "s" * (ended_after != 1)
    assert line.startswith(f"dtdispatch: no budget: the loop ended after {steps}, and one takes about ")
    assert sys.gettrace() is None
    with torch.autograd.profiler.profile():
        x + x


def test_invalid_budget_requests_are_refused() -> None:
    with StepWatch(list[str]().append) as watch:
        for steps in (0, -1, "two", True):
            with pytest.raises(DtDispatchError, match="not a whole number of at least 1"):
                watch.budget(steps)  # type: ignore[arg-type]
        profiler = torch.autograd.profiler.profile()
        with profiler, pytest.raises(DtDispatchError, match="a profiler of torch is running"):
            watch.budget()
        watch.budget()
        with pytest.raises(MeasurementError, match="a budget is being measured"):
            watch.budget()
    with pytest.raises(MeasurementError, match="closed"):
        watch.budget()


def test_profiler_of_the_program_is_undisturbed() -> None:
    lines: list[str] = []
    with StepWatch(lines.append) as watch:
        watch.budget()
        with torch.autograd.profiler.profile() as profiler:
            watch.step()
            torch.ones(2) + 1
            watch.step()
    assert any(event.name == "aten::add" for event in profiler.function_events)
    assert any("no budget: a profiler of torch is running" in line for line in lines)
