"""Variants measured alternately: results, and state afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.advice import advise
from pytest_dtdispatch.comparing.measure import MAX_ROUNDS, run_and_measure_variants
from pytest_dtdispatch.comparing.model import Compared, Variants
from pytest_dtdispatch.rounds.plan import Plan
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import StepCalls
from pytest_dtdispatch.torchapi.missing_api import fully_shard
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from tests.probes import FSDP_WITHOUT_CUDA, needs

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("young_heap")]


def compare(**functions: Any) -> Compared:
    plan = Plan(rounds=6, max_time_s=0.3)
    return run_and_measure_variants(Variants("it", functions), ShardingCaches(), plan)


def adds(mesh: DeviceMesh, count: int) -> Callable[[], None]:
    a = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])

    def run() -> None:
        for _ in range(count):
            a + a

    return run


def test_only_different_work_is_reported_as_different(mesh: DeviceMesh) -> None:
    # Far more than the claim below: on a busy machine the interval spans factors of 1.2 to 2.6.
    found = compare(one=adds(mesh, 5), two=adds(mesh, 40), same=adds(mesh, 5))
    assert found["two"].slower_than("one", by=0.3)
    assert found["one"].faster_than("two", by=0.2)
    # A cache entry matches the tensor that created it faster than an equal one.
    assert not found["same"].slower_than("one")
    assert not found["same"].faster_than("one")
    assert {one.measurement.mesh for one in found.variants} == {"4"}
    (rounds,) = {len(one.samples.values) for one in found.variants if one.samples}
    assert 0 < rounds <= MAX_ROUNDS  # on a busy machine, the time limit may be reached first


def test_variants_have_the_advice_of_counted_steps(mesh: DeviceMesh) -> None:
    x: Any = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])

    def twice() -> Any:
        return x.redistribute(placements=[Replicate()]) + x.redistribute(placements=[Replicate()])

    def once() -> Any:
        whole = x.redistribute(placements=[Replicate()])
        return whole + whole

    found = compare(once=once, twice=twice)
    steps = run_and_count(StepCalls("it", twice, 2, 2))
    expected = advise(steps.steps, steps.warmup[-1])
    assert [one.rule for one in expected] == ["repeated"]
    assert [variant.advice for variant in found.variants] == [(), expected]


def test_one_call_is_counted_in_the_steady_state(mesh: DeviceMesh) -> None:
    a = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])

    def moved() -> None:
        (a + a).redistribute(placements=[Shard(1)]).sum()  # type: ignore[attr-defined]

    sizes = iter(range(1, 10**6))

    def growing() -> None:
        distribute_tensor(torch.ones(4 * next(sizes), 2), mesh, [Shard(0)]) + 1

    found = compare(moved=moved, growing=growing)
    assert found["moved"].counts.misses == 0
    assert found["moved"].counts.redistributes == 1
    assert found["moved"].counts.collectives > 0
    assert found["growing"].counts.misses == 1


def test_equal_variants_have_equal_misses(mesh: DeviceMesh) -> None:
    whole = torch.ones(100_000)

    def variant() -> Callable[[], Any]:
        sizes = itertools.count(1)
        return lambda: -DTensor.from_local(whole[: next(sizes)], mesh, [Shard(0)])  # each shape misses once

    found = compare(one=variant(), two=variant(), three=variant())
    assert [found[label].counts.misses for label in found] == [1, 1, 1]


def fsdp_step(mesh: DeviceMesh) -> Callable[[], None]:
    """Return a step that leaves no gradients; FSDP2 wraps them."""
    model = torch.nn.Linear(8, 8)
    fully_shard()(model, mesh=mesh)
    optimizer, x = torch.optim.AdamW(model.parameters(), fused=True), torch.rand(4, 8)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@needs(FSDP_WITHOUT_CUDA)
def test_fsdp_wraps_equal_those_of_steps(mesh: DeviceMesh) -> None:
    counted = run_and_count(StepCalls("step", fsdp_step(mesh), 2, 1))
    found = compare(one=fsdp_step(mesh), two=fsdp_step(mesh))
    assert [counted.wraps_per_step, *(found[label].counts.wraps for label in found)] == [2, 2, 2]


def test_variants_have_effects_of_one_call_each() -> None:
    x, y, shared = torch.ones(4), torch.ones(4), torch.ones(4)
    torch.manual_seed(5)

    def one() -> torch.Tensor:
        shared.add_(1)
        return x.add_(torch.rand(4))

    def two() -> torch.Tensor:
        shared.mul_(3)
        return y.add_(torch.rand(4))

    compare(one=one, two=two)
    left = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(x, 1 + torch.rand(4))
    assert torch.equal(x, y)
    assert torch.equal(left, torch.rand(1))
    assert x._version == y._version == 1
    assert shared.tolist() == [6.0] * 4


def test_unrepeatable_variant_leaves_others_measured() -> None:
    sparse = torch.eye(3).to_sparse()

    def two() -> None:
        sparse.mul_(1.0)

    one, other = compare(one=lambda: None, two=two).variants
    assert one.samples is not None
    assert other.samples is None
    assert other.measurement.figures.notes[0].startswith("two: runs once: it writes to a sparse")
    assert other.counts is None


def test_only_unrepeatable_variants_have_notes_instead_of_figures() -> None:
    sparse = torch.eye(3).to_sparse()
    found = compare(one=lambda: sparse.mul_(1.0), two=lambda: sparse.mul_(1.0))
    notes = [variant.measurement.figures.notes[0] for variant in found.variants]
    assert [note.partition(" to a")[0] for note in notes] == [
        f"{label}: runs once: it writes" for label in ("one", "two")
    ]
    assert [(variant.samples, variant.counts) for variant in found.variants] == [(None, None)] * 2


def test_errors_propagate_only_from_the_first_call() -> None:
    with pytest.raises(ZeroDivisionError):
        compare(one=lambda: 0, two=lambda: 0 // 0)
    left = iter((4, 3, 2, 1))  # calls that succeed
    found = compare(one=lambda: 0, two=lambda: 0 // next(left, 0))
    reason = ("two: repeating it raised ZeroDivisionError: integer division or modulo by zero",)
    assert {one.measurement.figures.notes for one in found.variants} == {reason}
