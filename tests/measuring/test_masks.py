"""Plans with a masked partial sum: a vocabulary-parallel embedding gives later what it gives unmeasured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.capture import SignatureCapture, TimeCaptureMode
from pytest_dtdispatch.torchapi.tensors import local_of
from tests.measuring.runs import FEW, Make, captured, measured_call

pytestmark = pytest.mark.torch

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


def in_capture(program: Program) -> list[torch.Tensor]:
    with SignatureCapture(TestResults(), FEW):
        return [program(number) for number in range(3)]


def timed(program: Program) -> list[torch.Tensor]:
    with TimeCaptureMode(3):
        return [program(number) for number in range(3)]


def called(program: Program) -> list[torch.Tensor]:
    return [measured_call(program, 0)[0], program(1), program(2)]


@pytest.mark.parametrize("measured", [in_capture, timed, called])
def test_later_calls_with_other_ids_give_what_they_give_unmeasured(
    program: Program, measured: Callable[[Program], list[torch.Tensor]]
) -> None:
    plain = [program(number) for number in range(3)]
    for one, other in zip(measured(program), plain, strict=True):
        assert torch.equal(one, other)


def test_a_callable_that_drops_its_result_leaves_no_mask_behind(shard: Make, mesh: Any) -> None:
    table = shard(16, 4)
    ids, others = (distribute_tensor(torch.arange(5) * n, mesh, [Replicate()]) for n in (1, 3))
    result, figures = measured_call(lambda: F.embedding(ids, table))
    assert {samples.state for samples in figures.samples if samples.ns} == {State.MISS, State.HIT}
    whole(F.embedding(others, table))
    whole(result)


def test_an_op_on_a_masked_partial_sum_is_measured(shard: Make, mesh: Any) -> None:
    table = shard(16, 4)
    ids = distribute_tensor(torch.arange(5), mesh, [Replicate()])
    plain = F.embedding(ids, table).relu()
    results: list[Any] = []
    book = captured(lambda: results.append(F.embedding(ids, table).relu()))
    measured = {each.op: each for each in book.measurements()}
    [note] = measured["relu.default"].notes
    assert note.startswith("redistributes f32[5,4]")
    assert measured["relu.default"].median_ns(State.HIT)
    assert torch.equal(local_of(results[0]), local_of(plain))
