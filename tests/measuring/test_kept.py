"""What a callable makes in its first call and keeps, counts, or cannot give back: as that call left it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from pytest_dtdispatch.core.measurement import Figures, State
from tests.measuring.runs import Make, measured_call

pytestmark = pytest.mark.torch

SPARSE = "runs once: it writes to a sparse_coo tensor, whose contents cannot be put back"


def plain(fn: Callable[[], Any]) -> Any:
    return fn(), Figures()


def state_of(optimizer: Optimizer) -> list[Any]:
    return [
        entry.full_tensor() if hasattr(entry, "full_tensor") else entry
        for state in optimizer.state.values()
        for entry in state.values()
    ]


def assert_equal(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda parameters: AdamW(parameters, foreach=True),
    "AdamW one by one": lambda parameters: AdamW(parameters, foreach=False),
    "AdamW amsgrad": lambda parameters: Adam(parameters, amsgrad=True),
    "Adagrad": lambda parameters: Adagrad(parameters),
    "SGD with momentum": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_step_of_an_optimizer_leaves_its_state_as_one_step_does(name: str, mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    def first_step(run: Callable[[Callable[[], Any]], Any]) -> list[Any]:
        torch.manual_seed(7)
        weight = nn.Parameter(DTensor.from_local(torch.rand(2, 8), mesh, [Shard(0)], run_check=False))
        weight.grad = DTensor.from_local(torch.rand(2, 8), mesh, [Shard(0)], run_check=False)
        optimizer = OPTIMIZERS[name]([weight])
        _, figures = run(optimizer.step)
        assert figures.notes == ()
        states = [entry for state in optimizer.state.values() for entry in state.values()]
        return [getattr(each, "_local_tensor", each) for each in (weight.detach(), *states)]

    assert_equal(first_step(measured_call), first_step(plain))


def test_the_first_step_of_an_optimizer_of_sparse_gradients_leaves_its_numbers() -> None:
    def first_step(run: Callable[[Callable[[], Any]], Any]) -> list[Any]:
        torch.manual_seed(7)
        table = nn.Embedding(10, 4, sparse=True)
        table(torch.tensor([1, 2])).sum().backward()
        optimizer = SparseAdam(table.parameters())
        run(optimizer.step)
        return [table.weight.detach(), *state_of(optimizer)]

    assert_equal(first_step(measured_call), first_step(plain))


def test_a_tensor_that_the_first_call_made_is_as_that_call_left_it(shard: Make) -> None:
    kept: dict[str, Any] = {}
    source = shard(8, 8)

    def fn() -> None:
        if "sum" not in kept:
            kept["sum"] = torch.zeros_like(source)
        kept["sum"].add_(1)

    _, figures = measured_call(fn)
    assert {samples.state for samples in figures.samples if samples.ns} == {State.MISS, State.HIT}
    assert torch.equal(kept["sum"].to_local(), torch.ones(2, 8))


def test_backward_goes_through_a_forward_that_wrote_to_a_buffer() -> None:
    norm, x = nn.BatchNorm1d(4), torch.rand(8, 4, requires_grad=True)
    buffer = torch.zeros(4)

    def forward() -> torch.Tensor:
        buffer.add_(1)
        loss: torch.Tensor = (x * buffer).sum() + norm(x).sum()
        return loss

    loss, figures = measured_call(forward)
    assert figures.notes == ()
    assert buffer._version == 1
    loss.backward()
    assert torch.equal(buffer, torch.ones(4))


def test_a_view_that_a_repetition_makes_leaves_the_version_of_its_base() -> None:
    base = torch.zeros(4)

    def fn() -> None:
        base[:2].add_(1)

    measured_call(fn)
    assert base._version == 1
    assert base.tolist() == [1, 1, 0, 0]


def test_a_backward_that_runs_before_a_write_can_be_repeated() -> None:
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * weight).sum()

    def fn() -> None:
        loss.backward(retain_graph=True)
        with torch.no_grad():
            weight.add_(1)

    _, figures = measured_call(fn)
    assert figures.notes == ()
    assert torch.equal(weight.detach(), torch.full((4,), 2.0))
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((4,), 2.0))


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors:UserWarning")
def test_a_write_to_overlapping_memory_loses_no_other_write() -> None:
    expanded, other = torch.zeros(1, 4).expand(3, 4), torch.zeros(3)

    def fn() -> None:
        expanded.index_put_((torch.tensor([0]),), torch.tensor(1.0))
        other.add_(1)

    measured_call(fn)
    assert torch.equal(expanded, torch.ones(3, 4))
    assert torch.equal(other, torch.ones(3))


def test_what_cannot_be_put_back_runs_once_and_says_why() -> None:
    table, other = nn.Embedding(10, 4, sparse=True), torch.zeros(3)

    def fn() -> None:
        other.add_(1)
        table(torch.tensor([1, 2])).sum().backward()

    fn()
    _, figures = measured_call(fn)
    assert figures.notes == (SPARSE,)
    assert table.weight.grad is not None
    assert table.weight.grad.to_dense().sum().item() == 16
    assert torch.equal(other, torch.full((3,), 2.0))


def test_what_the_first_call_made_without_storage_is_not_written_to_again() -> None:
    kept: list[torch.Tensor] = []

    def fn() -> None:
        if not kept:
            kept.append(torch.eye(3).to_sparse())
        kept[0].mul_(2)

    _, figures = measured_call(fn)
    assert figures.notes == (SPARSE,)
    assert torch.equal(kept[0].to_dense(), torch.eye(3) * 2)
