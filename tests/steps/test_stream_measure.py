"""Counting streams of shapes: decode loops and batches, and the program does not notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import Place
from pytest_dtdispatch.steps.measure import run_and_count
from pytest_dtdispatch.steps.model import Steps
from pytest_dtdispatch.steps.step_calls import read_calls
from pytest_dtdispatch.steps.stream import Stream
from pytest_dtdispatch.torchapi.process_groups import has_local_mode
from tests.steps.test_measure import clear_as_a_program_does

pytestmark = pytest.mark.torch

Step = Callable[[Any], Any]
PLACEMENTS = [pytest.param(Replicate(), id="replicated"), pytest.param(Shard(0), id="sharded")]


@pytest.fixture(autouse=True)
def _empty_caches() -> None:
    clear_as_a_program_does()


def count(step: Step, inputs: Iterable[Any], warmup: int = 0) -> Steps:
    return run_and_count(read_calls(step, warmup, None, inputs, "step"))


def stream_of(steps: Steps) -> Stream:
    assert steps.stream
    return steps.stream


def tokens(mesh: DeviceMesh, placement: Any, count: int) -> Iterator[DTensor]:
    for _ in range(count):
        yield DTensor.from_local(torch.rand(2, 1, 8), mesh, [placement])


def decoding(mesh: DeviceMesh, placement: Any) -> tuple[Step, list[torch.Tensor]]:
    """Make a step that attends to all tokens before it, and what it writes its results to."""
    cache: Any = DTensor.from_local(torch.rand(2, 4, 8), mesh, [placement])
    results: list[torch.Tensor] = []

    def step(token: DTensor) -> None:
        nonlocal cache
        cache = torch.cat([cache, token], dim=1)
        scores = torch.softmax(token @ cache.transpose(1, 2), -1)
        results.append((scores @ cache).to_local())

    return step, results


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_growing_cache_misses_at_each_token(mesh: DeviceMesh, placement: Any) -> None:
    steps = count(decoding(mesh, placement)[0], tokens(mesh, placement, 6))
    stream = stream_of(steps)
    assert len(stream.steps) == 6
    assert all(step.misses for step in stream.steps)
    assert len(stream.shapes) == 1
    assert (stream.steady_after, stream.miss_cost, stream.hitting) == (None, None, None)
    assert [step.entries for step in stream.steps] == sorted({step.entries for step in stream.steps})
    assert [step.missed_inside for step in stream.steps] == [False] + [True] * 5
    assert not stream.missed_again
    assert all("shape of" in miss.reason for miss in steps.steps[-1].missed)


def test_a_cache_of_fixed_length_is_steady_after_the_first_token(mesh: DeviceMesh) -> None:
    cache: Any = DTensor.from_local(torch.zeros(2, 16, 8), mesh, [Replicate()])

    def step(token: DTensor) -> None:
        nonlocal cache
        cache = cache + token
        torch.softmax(token @ cache.transpose(1, 2), -1) @ cache

    assert stream_of(count(step, tokens(mesh, Replicate(), 6))).steady_after == (1, 1)


@pytest.fixture
def simulated(group_owner: ProcessGroupOwner) -> DeviceMesh:
    """Four ranks that are simulated in this process."""
    if not has_local_mode():
        pytest.skip("this torch has no torch.distributed._local_tensor")
    return group_owner.mesh(Place((4,), "cpu", "local"))


@pytest.mark.parametrize("ranks", ["mesh", "simulated"])
def test_batches_of_three_sizes_are_steady_after_three_shapes(
    ranks: str, request: pytest.FixtureRequest
) -> None:
    mesh: DeviceMesh = request.getfixturevalue(ranks)
    weight = DTensor.from_local(torch.rand(8, 8), mesh, [Replicate()])
    rows = [2, 4, 8, *random.Random(0).choices([2, 4, 8], k=17)]
    batches = [DTensor.from_local(torch.rand(n, 8), mesh, [Shard(0)]) for n in rows]
    steps = count(lambda batch: (batch @ weight).relu(), batches)
    stream = stream_of(steps)
    assert stream.shapes == ("f32[8,8]S0@4", "f32[16,8]S0@4", "f32[32,8]S0@4")
    assert stream.steady_after == (3, 3)
    assert [one.misses for one in steps.steps] == [2] * 3 + [0] * 17
    assert (stream.misses_per_shape, stream.missed_again) == (2, ())
    cost = stream.miss_cost
    assert cost
    assert cost.is_of_same_shape
    assert cost.step.median_ns > 0


def test_the_warm_up_is_run_and_not_counted(mesh: DeviceMesh) -> None:
    batches = [DTensor.from_local(torch.rand(n, 8), mesh, [Shard(0)]) for n in (2, 4, 2, 4)]
    steps = count(lambda batch: batch + batch, batches, warmup=2)
    stream = stream_of(steps)
    assert [one.misses for one in (*steps.warmup, *steps.steps)] == [1, 1, 0, 0]
    assert stream.warmup == stream.shapes == ("f32[8,8]S0@4", "f32[16,8]S0@4")
    assert stream.steady_after == (2, 0)


def test_a_shape_whose_plan_was_dropped_misses_again(mesh: DeviceMesh) -> None:
    a = DTensor.from_local(torch.rand(2, 8), mesh, [Shard(0)])

    def step(number: int) -> None:
        if number == 3:
            clear_as_a_program_does()
        a + a

    steps = count(step, [1, 2, 3, 2, 3, 1])
    again = stream_of(steps).missed_again
    assert [(step.shape, step.misses) for step in again] == [("3", 1), ("3", 1)]
    assert steps.missed[-1].reason == "the caches were cleared since its last call"


def test_an_op_whose_plan_is_never_kept_misses_again(mesh: DeviceMesh) -> None:
    a, b = (DTensor.from_local(torch.rand(3, n), mesh, [Replicate()]) for n in (4, 5))

    def step(number: int) -> None:
        del number
        with pytest.raises(RuntimeError):
            a @ b

    assert [len(step.again) for step in stream_of(count(step, range(3))).steps] == [0, 1, 1]


def test_what_makes_the_inputs_is_no_part_of_the_steps(mesh: DeviceMesh) -> None:
    def inputs() -> Iterator[DTensor]:
        for n in (2, 4, 8):
            a: Any = DTensor.from_local(torch.rand(n, 8), mesh, [Shard(0)])
            yield (a * 2).redistribute(placements=[Replicate()])

    steps = count(lambda a: a.redistribute(placements=[Shard(1)]), inputs())
    assert (steps.misses, steps.redistributes_per_step, steps.collectives) == (0, 1, {})
    assert steps.dtensor_growth == 0


def test_a_counted_stream_computes_what_it_computes_uncounted(mesh: DeviceMesh) -> None:
    def results(run: Callable[[Step, Iterable[Any]], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        step, found = decoding(mesh, Shard(0))
        run(step, tokens(mesh, Shard(0), 5))
        return [*found, torch.rand(3)]

    def uncounted(step: Step, inputs: Iterable[Any]) -> None:
        for token in inputs:
            step(token)

    expected, found = results(uncounted), results(lambda step, inputs: count(step, inputs, warmup=1))
    assert len(expected) == len(found) == 6
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))


def test_two_runs_of_a_stream_are_equal(mesh: DeviceMesh) -> None:
    def found() -> Steps:
        clear_as_a_program_does()
        return count(decoding(mesh, Shard(0))[0], tokens(mesh, Shard(0), 3))

    found()  # what torch keeps beside the sharding caches is filled
    first, second = found(), found()
    assert [one.misses for one in first.steps] == [one.misses for one in second.steps]
    assert first.stream == second.stream


def test_a_step_that_raises_raises_at_once(mesh: DeviceMesh) -> None:
    seen: list[int] = []

    def step(number: int) -> None:
        seen.append(number)
        if number == 2:
            raise KeyError("of the program")

    with pytest.raises(KeyError, match="of the program"):
        count(step, range(9))
    assert seen == [0, 1, 2]
