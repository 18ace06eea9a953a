"""DTensors with local tensors on meta are counted like those with memory, and never timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pytest_dtdispatch.budget.measure import run_and_measure_budget
from pytest_dtdispatch.comparing.measure import run_and_measure_variants
from pytest_dtdispatch.comparing.model import Variants
from pytest_dtdispatch.core.measurement import Figures
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.errors import MeasurementError
from pytest_dtdispatch.instructions.instruction_sampler import InstructionSampler
from pytest_dtdispatch.replay.capture import SignatureCapture
from pytest_dtdispatch.replay.repeat import ON_META, run_and_measure_call
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.rounds.sampler import Meter
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls, Steps
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("young_heap", "nothing_stays")]

SHORT = Plan(rounds=2, repeat=2)


def training_step(mesh: DeviceMesh, device: str, width: int) -> Callable[[], object]:
    with torch.device(device):
        model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        batch = torch.ones(16, width)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        # torch has no foreach kernels on meta.
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()

    return step


def counted(step: Callable[[], object]) -> Steps:
    return run_and_count(StepCalls("step", step, 3, 3))


def numbers(steps: Steps) -> dict[str, object]:
    moved = [(each.source, each.target) for step in steps.steps for each in step.redistributions]
    return {"calls": steps.calls, "misses": steps.misses_per_step, "moved": moved, "ran": steps.collectives}


def test_meta_step_counts_equal_those_with_memory(mesh: DeviceMesh) -> None:
    small, large = (counted(training_step(mesh, *each)) for each in (("cpu", 64), ("meta", 65_536)))
    assert numbers(large) == numbers(small)
    few, many = (
        [each.bytes for step in one.steps for each in step.collective_runs] for one in (small, large)
    )
    assert few
    assert many == [
        65_536 // 64 * sent if sent > 100 else sent for sent in few
    ]  # running statistics are unchanged


def test_miss_is_counted_on_meta(mesh: DeviceMesh) -> None:
    rows = itertools.count(10**6, 4)

    def step() -> object:
        return distribute_tensor(torch.empty(next(rows), 10**5, device="meta"), mesh, [Shard(0)]) + 1

    assert counted(step).misses_per_step == 1


def test_collective_of_shape_inference_is_not_counted(mesh: DeviceMesh) -> None:
    def step() -> object:
        return distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]).redistribute(mesh, [Replicate()])

    [first, *_] = counted(step).steps
    assert first.collectives.get("all_gather") == 1


def big(mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(torch.empty(10**5, 10**5, device="meta"), mesh, [Shard(0)])


def captured(mesh: DeviceMesh, plan: Plan) -> dict[str, Figures]:
    tensor = big(mesh)
    with SignatureCapture(results := ResultStore(), plan):
        tensor * 2
        tensor.add_(1)
        tensor.redistribute(mesh, [Replicate()])
    return {row.op: row.figures for row in results.measurements()}


def test_ops_and_conversions_on_meta_are_not_timed(mesh: DeviceMesh) -> None:
    figures = captured(mesh, SHORT)
    assert {*figures} == {"mul.Tensor", "add_.Tensor", "redistribute"}
    assert all(each == Figures(notes=(ON_META,), call=each.call) for each in figures.values())


def test_call_creating_meta_tensors_is_not_timed(mesh: DeviceMesh) -> None:
    _, _, figures = run_and_measure_call(lambda: (big(mesh) * 2).sum(), (), None, ShardingCaches(), SHORT)
    assert figures == Figures(notes=(ON_META,))


def test_instructions_are_counted_on_meta(mesh: DeviceMesh) -> None:
    clock = itertools.count(1)
    sampler = InstructionSampler(lambda: (Meter(lambda: 0, lambda: next(clock)), None), lambda: True)
    for figures in captured(mesh, Plan(rounds=2, repeat=2, sampler=sampler)).values():
        assert [each.state.value for each in figures.samples if each.values][:2] == ["miss", "hit"]


def test_variants_on_meta_are_neither_compared_nor_timed(mesh: DeviceMesh) -> None:
    tensor = big(mesh)
    variants = Variants("it", {"a": lambda: tensor * 2, "b": lambda: tensor + tensor})
    with pytest.raises(MeasurementError, match=r"'a' returned a tensor on meta, without contents"):
        run_and_measure_variants(variants, ShardingCaches(), SHORT)
    variants = Variants("it", {"a": lambda: len(tensor * 2), "b": lambda: len(tensor + 1)})
    found = run_and_measure_variants(variants, ShardingCaches(), SHORT)
    assert [each.measurement.figures.notes for each in found.variants] == [
        (f"{name}: {ON_META}",) for name in "ab"
    ]


def test_budget_of_a_step_on_meta_is_refused(mesh: DeviceMesh) -> None:
    tensor = big(mesh)
    with pytest.raises(MeasurementError, match="DTensors on meta are alive"):
        run_and_measure_budget(lambda: tensor * 2, 1, 1, "step")
