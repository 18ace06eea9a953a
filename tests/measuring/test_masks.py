"""Plans with a masked partial sum: a vocabulary-parallel embedding gives later what it gives unmeasured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.capture import SignatureCapture, TimeCaptureMode
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.measuring.repeat import run_and_measure_call
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import local_of

pytestmark = pytest.mark.torch

Make = Callable[..., Any]
Program = Callable[[int], torch.Tensor]


def whole(tensor: Any) -> torch.Tensor:
    """Reduce a masked partial sum, by which it gives its mask back."""
    reduced: DTensor = tensor.redistribute(placements=[Replicate()])
    return reduced.to_local()


@pytest.fixture(params=["embedding", "gather"])
def program(request: pytest.FixtureRequest, shard: Make, mesh: Any) -> Program:
    """A program that gives a masked partial sum of other ids each time, and reduces it."""
    table = shard(16, 4)

    def ids(number: int, *shape: int) -> DTensor:
        made = (torch.arange(shape[0]) * 3 + number) % 16
        return distribute_tensor(made.reshape(-1, *[1] * (len(shape) - 1)).expand(shape), mesh, [Replicate()])

    if request.param == "embedding":
        return lambda number: whole(F.embedding(ids(number, 5), table))
    return lambda number: whole(torch.gather(table, 0, ids(number, 1, 4)))


def captured(program: Program) -> list[torch.Tensor]:
    with SignatureCapture(TestResults(), Plan(2, 3)):
        return [program(number) for number in range(3)]


def timed(program: Program) -> list[torch.Tensor]:
    with TimeCaptureMode(3):
        return [program(number) for number in range(3)]


def called(program: Program) -> list[torch.Tensor]:
    first, _, _ = run_and_measure_call(program, (0,), None, ShardingCaches(), Plan(2, 3))
    return [first, program(1), program(2)]


@pytest.mark.parametrize("measured", [captured, timed, called])
def test_later_calls_with_other_ids_give_what_they_give_unmeasured(
    program: Program, measured: Callable[[Program], list[torch.Tensor]]
) -> None:
    plain = [program(number) for number in range(3)]
    for one, other in zip(measured(program), plain, strict=True):
        assert torch.equal(one, other)


def test_a_callable_that_drops_its_result_leaves_no_mask_behind(shard: Make, mesh: Any) -> None:
    table = shard(16, 4)
    ids, others = (distribute_tensor(torch.arange(5) * n, mesh, [Replicate()]) for n in (1, 3))
    result, _, figures = run_and_measure_call(
        lambda: F.embedding(ids, table), (), None, ShardingCaches(), Plan(2, 3)
    )
    assert {samples.state for samples in figures.samples if samples.ns} == {State.MISS, State.HIT}
    whole(F.embedding(others, table))
    whole(result)


def test_an_op_on_a_masked_partial_sum_is_measured(shard: Make, mesh: Any) -> None:
    table, book = shard(16, 4), TestResults()
    ids = distribute_tensor(torch.arange(5), mesh, [Replicate()])
    plain = F.embedding(ids, table).relu()
    with SignatureCapture(book, Plan(2, 3)):
        result = F.embedding(ids, table).relu()
    measured: dict[str, Measurement] = {each.op: each for each in book.measurements()}
    [note] = measured["relu.default"].notes
    assert note.startswith("redistributes f32[5,4]")
    assert measured["relu.default"].median_ns(State.HIT)
    assert torch.equal(local_of(result), local_of(plain))
