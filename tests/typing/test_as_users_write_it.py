"""Tests as users write them, type-checked against the installed package; they run, measured and not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from typing_extensions import assert_type

import pytest_dtdispatch
from pytest_dtdispatch import (
    DtDispatch,
    DtDispatchError,
    DtDispatchWarning,
    StepWatch,
    TimeCaptureMode,
    Timing,
    assert_sharded_tensor_equal,
    fake_mesh,
)
from pytest_dtdispatch.comparing.model import Compared
from pytest_dtdispatch.comparing.scaling import Fit, Scaling
from pytest_dtdispatch.compiled.model import Compiled
from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.core.store import ResultStore as TestResults
from pytest_dtdispatch.errors import GateError, UnequalError
from pytest_dtdispatch.steps.events import Miss, Redistribution
from pytest_dtdispatch.steps.model import Steady, StepCounts, Steps
from pytest_dtdispatch.watch.model import LoopSteps

pytestmark = pytest.mark.torch


@pytest.fixture
def weight(device_mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])


def test_capture_returns_results(dtdispatch: DtDispatch, weight: DTensor) -> None:
    with dtdispatch.capture() as results:
        _ = weight + weight
    rows = assert_type(results, TestResults).measurements()
    for row in assert_type(rows, tuple[Measurement, ...]):
        assert assert_type(row.median_ns(State.MISS), float | None) != 0
        assert_type(row.of(State.HIT), Samples | None)
        assert_type(row.overhead_ns, float | None)
        assert row.op in assert_type(row.label, str)
    assert bool(rows) is assert_type(dtdispatch.enabled, bool)


def test_call_returns_the_type_of_the_callable(dtdispatch: DtDispatch, weight: DTensor) -> None:
    def total(tensor: torch.Tensor) -> float:
        return float(tensor.to_local().sum()) if isinstance(tensor, DTensor) else 0.0

    result = dtdispatch.call(total, weight, name="total", setup=lambda: (weight,))
    assert isinstance(assert_type(result, float), float)


def test_steps_are_counted_with_and_without_inputs(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    def step(batch: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(batch, device_mesh, [Replicate()]).sum()

    steps = dtdispatch.steps(lambda: step(torch.ones(2, 8)), warmup=2, steps=3, name="sum")
    assert assert_type(steps, Steps).misses_per_step == 0
    missed: Sequence[Miss] = [miss for each in steps.steps for miss in each.missed]
    counts: Sequence[StepCounts] = steps.steps
    assert not missed
    assert bool(counts) is dtdispatch.enabled
    assert not assert_type(steps.redistributions, tuple[Redistribution, ...])
    assert_type(steps.collectives, dict[str, int])
    batches: Iterator[torch.Tensor] = (torch.rand(size, 8) for size in (2, 4, 2, 4))
    streamed = dtdispatch.steps(step, inputs=batches, name="stream")
    assert_type(streamed.steady_after, Steady | None)
    assert bool(streamed.inputs) is dtdispatch.enabled


def test_scaling_compare_compile_and_budget_are_typed(
    dtdispatch: DtDispatch, device_mesh: DeviceMesh, weight: DTensor
) -> None:
    def make(size: int) -> Callable[[], torch.Tensor]:
        tensor = distribute_tensor(torch.rand(size, 8), device_mesh, [Shard(0)])
        return lambda: tensor + tensor

    scaling = assert_type(dtdispatch.scaling(make, sizes=(8, 16), name="rows"), Scaling)
    assert bool(assert_type(scaling.sizes, tuple[int, ...])) is dtdispatch.enabled
    assert_type(assert_type(scaling.miss, Fit).exponent, float)
    compared = dtdispatch.compare({"dtensor": lambda: weight + weight, "same": lambda: weight * 2})
    assert list(assert_type(compared, Compared)) == ["dtensor", "same"]
    assert (assert_type(compared["same"].median_ns, float | None) is None) is not dtdispatch.enabled
    compiled = dtdispatch.compile(lambda t: t + 1, torch.rand(4), backend="eager", name="plus")
    graphs: float = assert_type(compiled, Compiled).graphs
    assert graphs in (0, 1)
    assert isinstance(str(dtdispatch.budget(lambda: weight + weight, steps=4, name="step")), str)


@pytest.mark.dtdispatch(mesh=(2, 2), dim_names=("dp", "tp"))
def test_mesh_fixtures_are_typed(device_mesh: DeviceMesh, mesh_factory: Callable[..., DeviceMesh]) -> None:
    assert device_mesh.shape == mesh_factory((2, 2), dim_names=("dp", "tp")).shape == (2, 2)


class Blocks:
    """A result of a custom kind."""

    kind, name = "blocks", "model"

    def rows(self) -> tuple[Measurement, ...]:
        return ()

    def metrics(self) -> list[tuple[str, int]]:
        return [("blocks", 12)]


def test_custom_result_is_recorded(dtdispatch: DtDispatch) -> None:
    if not dtdispatch.enabled:  # otherwise its kind must be registered
        dtdispatch.record(Blocks())


def test_outside_of_pytest() -> None:
    said: list[str] = []
    with (
        fake_mesh((2, 2), dim_names=("dp", "tp"), device="cpu") as mesh,
        StepWatch(print=said.append) as watch,
    ):
        tensor = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0), Replicate()])
        with TimeCaptureMode(repeat_count=3, ops=["add*"]) as mode:
            _ = tensor + tensor
        for _ in range(3):
            _ = tensor + tensor
            watch.step()
    miss, hit = assert_type(mode.op_to_time["add.Tensor"][-1], Timing)
    assert min(miss, hit) > 0
    assert len(assert_type(mode.time_list, list[float])) >= 3
    causes: Sequence[str] = assert_type(watch.steps, LoopSteps).causes
    assert len(watch.steps) == 3
    assert not causes
    assert "StepWatch" in str(watch)


def test_error_classes_have_a_common_base() -> None:
    with pytest.raises(DtDispatchError):
        TimeCaptureMode(repeat_count=0)
    assert all(issubclass(error, DtDispatchError) for error in (GateError, UnequalError))
    assert issubclass(DtDispatchWarning, Warning)
    check: Callable[[object, object], None] = assert_sharded_tensor_equal
    assert callable(check)
    assert "StepWatch" in pytest_dtdispatch.__all__
