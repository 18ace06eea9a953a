"""Tests as users write them, type-checked against the installed package; they run, measured and not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

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
from pytest_dtdispatch.compare.model import Compared
from pytest_dtdispatch.compiled.model import Compiled
from pytest_dtdispatch.core.measurement import Measurement, Samples, State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.errors import GateError, UnequalError
from pytest_dtdispatch.scaling import Fit, Scaling
from pytest_dtdispatch.steps.events import Miss, Redistribution
from pytest_dtdispatch.steps.model import Steady, StepCounts, Steps
from pytest_dtdispatch.watch.model import LoopSteps

pytestmark = pytest.mark.torch


@pytest.fixture
def weight(device_mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(torch.rand(8, 8), device_mesh, [Shard(0)])


def test_a_capture_gives_results(dtdispatch: DtDispatch, weight: DTensor) -> None:
    with dtdispatch.capture() as results:
        _ = weight + weight
    kept: TestResults = results
    rows: tuple[Measurement, ...] = kept.measurements()
    for row in rows:
        miss: float | None = row.median_ns(State.MISS)
        hit: Samples | None = row.of(State.HIT)
        overhead: float | None = row.overhead_ns
        name: str = row.label
        assert miss is None or miss > 0
        assert hit is None or hit.median_ns > 0
        assert overhead is None or row.steady_ns is not None
        assert row.op in name
    is_measured: bool = dtdispatch.enabled
    assert bool(rows) is is_measured


def test_a_call_gives_what_the_callable_gives(dtdispatch: DtDispatch, weight: DTensor) -> None:
    def total(tensor: torch.Tensor) -> float:
        return float(tensor.to_local().sum()) if isinstance(tensor, DTensor) else 0.0

    given: float = dtdispatch.call(total, weight, name="total", setup=lambda: (weight,))
    assert isinstance(given, float)


def test_steps_are_counted(dtdispatch: DtDispatch, weight: DTensor) -> None:
    steps: Steps = dtdispatch.steps(lambda: weight + weight, warmup=2, steps=3, name="add")
    assert steps.misses_per_step == 0
    missed: Sequence[Miss] = [miss for step in steps.steps for miss in step.missed]
    moved: tuple[Redistribution, ...] = steps.redistributions
    counts: Sequence[StepCounts] = steps.steps
    assert not missed
    assert not moved
    assert all(step.calls == 1 for step in counts)
    sizes: dict[str, int] = steps.collectives
    assert not sizes


def test_steps_take_inputs(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    def batches() -> Iterator[torch.Tensor]:
        yield from (torch.rand(size, 8) for size in (2, 4, 2, 4))

    def step(batch: torch.Tensor) -> torch.Tensor:
        return distribute_tensor(batch, device_mesh, [Replicate()]).sum()

    steps = dtdispatch.steps(step, inputs=batches())
    steady: Steady | None = steps.steady_after
    assert bool(steps.inputs) is dtdispatch.enabled
    assert steady is None or isinstance(steady.steps, int)


def test_a_scaling_is_fitted(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    def make(size: int) -> Callable[[], torch.Tensor]:
        tensor = distribute_tensor(torch.rand(size, 8), device_mesh, [Shard(0)])
        return lambda: tensor + tensor

    scaling: Scaling = dtdispatch.scaling(make, sizes=(8, 16), name="rows")
    sizes: tuple[int, ...] = scaling.sizes
    fit: Fit = scaling.miss
    assert bool(sizes) is dtdispatch.enabled
    assert isinstance(fit.exponent, float)


def test_variants_are_compared_compiled_and_budgeted(dtdispatch: DtDispatch, weight: DTensor) -> None:
    compared: Compared = dtdispatch.compare({"dtensor": lambda: weight + weight, "same": lambda: weight * 2})
    median: float | None = compared["same"].median_ns
    assert list(compared) == ["dtensor", "same"]
    assert (median is None) is not dtdispatch.enabled
    compiled: Compiled = dtdispatch.compile(lambda t: t + 1, torch.rand(4), backend="eager", name="plus")
    graphs: float = compiled.graphs
    assert graphs in (0, 1)
    shown: str = str(dtdispatch.budget(lambda: weight + weight, steps=4, name="step"))
    assert shown is not None


@pytest.mark.dtdispatch(mesh=(2, 2), dim_names=("dp", "tp"))
def test_meshes_are_made(device_mesh: DeviceMesh, mesh_factory: Callable[..., DeviceMesh]) -> None:
    assert device_mesh.shape == mesh_factory((2, 2), dim_names=("dp", "tp")).shape == (2, 2)


class Blocks:
    """A result of a kind of its own."""

    kind, name = "blocks", "model"

    def rows(self) -> tuple[Measurement, ...]:
        return ()

    def metrics(self) -> list[tuple[str, int]]:
        return [("blocks", 12)]


def test_a_result_of_ones_own_is_recorded(dtdispatch: DtDispatch) -> None:
    if not dtdispatch.enabled:  # else its kind must be registered
        dtdispatch.record(Blocks())


def test_outside_of_pytest() -> None:
    with fake_mesh((2, 2), dim_names=("dp", "tp"), device="cpu") as mesh:
        tensor = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0), Replicate()])
        with TimeCaptureMode(repeat_count=3, ops=["add*"]) as mode:
            _ = tensor + tensor
        timing: Timing = mode.op_to_time["add.Tensor"][-1]
        miss, hit = timing
        assert miss > 0
        assert hit > 0
        seconds: list[float] = mode.time_list
        assert len(seconds) >= 3


def test_a_loop_is_watched() -> None:
    said: list[str] = []
    with fake_mesh("2x2") as mesh, StepWatch(print=said.append) as watch:
        tensor = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0), Replicate()])
        for _ in range(3):
            _ = tensor + tensor
            watch.step()
    steps: LoopSteps = watch.steps
    causes: Sequence[str] = steps.causes
    assert len(steps) == 3
    assert not causes
    assert "StepWatch" in str(watch)


def test_errors_are_told_apart() -> None:
    with pytest.raises(DtDispatchError):
        TimeCaptureMode(repeat_count=0)
    assert issubclass(GateError, DtDispatchError)
    assert issubclass(UnequalError, DtDispatchError)
    assert issubclass(DtDispatchWarning, Warning)
    check: Callable[[object, object], None] = assert_sharded_tensor_equal
    assert callable(check)
    assert "StepWatch" in pytest_dtdispatch.__all__
