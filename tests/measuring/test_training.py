"""Whole training steps under capture: equal losses and equal parameters, bit for bit, after three steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import SGD, AdamW, Optimizer

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.measuring.capture import SignatureCapture
from pytest_dtdispatch.measuring.plan import Plan
from pytest_dtdispatch.torchapi.missing_api import fully_shard
from pytest_dtdispatch.torchapi.ops import tree_leaves
from pytest_dtdispatch.torchapi.tensors import local_of
from tests.probes import FSDP_WITHOUT_CUDA, needs

pytestmark = pytest.mark.torch

STEPS = 3


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8))


def tensor_parallel(mesh: Any) -> nn.Module:
    # Dropout draws on every step: a step whose replay left the generator elsewhere gives other losses.
    return parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})


def fully_sharded(mesh: Any) -> nn.Module:
    model = mlp()
    for layer in (model[0], model[3]):
        fully_shard()(layer, mesh=mesh)
    fully_shard()(model, mesh=mesh)
    return model


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.01, momentum=0.9)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.01, foreach=True)


class Trained(NamedTuple):
    losses: list[torch.Tensor]
    parameters: list[torch.Tensor]
    optimizer_state: list[torch.Tensor]
    random: torch.Tensor
    book: TestResults


def train(
    model_of: Callable[[], nn.Module], optimizer_of: Callable[[nn.Module], Any], captured: bool
) -> Trained:
    torch.manual_seed(0)
    model = model_of()
    optimizer = optimizer_of(model)
    batch = torch.rand(4, 8)
    losses, book = [], TestResults()
    with SignatureCapture(book, Plan(rounds=1, repeat=2)) if captured else nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(batch).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
    state = [leaf for leaf in tree_leaves(optimizer.state_dict()) if isinstance(leaf, torch.Tensor)]
    return Trained(losses, local(list(model.parameters())), local(state), torch.get_rng_state(), book)


def local(tensors: list[Any]) -> list[torch.Tensor]:
    return [local_of(tensor.detach()).clone() for tensor in tensors]


def all_equal(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) > 0 and all(map(torch.equal, ones, others))


@pytest.mark.parametrize(
    ("model", "optimizer", "op"),
    [
        pytest.param(tensor_parallel, sgd, "add_.Tensor", id="tensor parallel SGD"),
        pytest.param(tensor_parallel, adamw, "_foreach_lerp_.Scalar", id="tensor parallel AdamW"),
        pytest.param(
            fully_sharded,
            adamw,
            "_foreach_addcdiv_.ScalarList",
            id="FSDP2 AdamW",
            marks=needs(FSDP_WITHOUT_CUDA),
        ),
    ],
)
def test_captured_steps_train_as_uncaptured_ones(
    computing_mesh: Any,
    model: Callable[[Any], nn.Module],
    optimizer: Callable[[nn.Module], Optimizer],
    op: str,
) -> None:
    plain = train(lambda: model(computing_mesh), optimizer, captured=False)
    captured = train(lambda: model(computing_mesh), optimizer, captured=True)
    assert all(torch.isfinite(loss) for loss in plain.losses)
    assert len({loss.item() for loss in plain.losses}) == STEPS
    assert all_equal(plain.losses, captured.losses)
    assert all_equal(plain.parameters, captured.parameters)
    assert all_equal(plain.optimizer_state, captured.optimizer_state)
    assert torch.equal(plain.random, captured.random)
    stepped = next(m for m in captured.book.measurements() if m.op == op)
    assert stepped.calls >= STEPS - 1
    assert stepped.of(State.MISS)
    assert stepped.of(State.HIT)


def test_a_captured_backward_is_measured_in_the_steps_ops(mesh: Any) -> None:
    captured = train(lambda: tensor_parallel(mesh), sgd, captured=True)
    measured = {m.op: m for m in captured.book.measurements()}
    # Forward and backward of both layers: addmm forward, mm backward, each step.
    assert measured["addmm.default"].calls == STEPS
    assert measured["mm.default"].calls >= STEPS
    assert all(m.proof == "proved" for m in captured.book.measurements() if m.op.endswith(".default"))
    # Both layers are redistributed and taken out of DTensors, forward and backward.
    assert {"redistribute", "redistribute_backward", "to_local", "to_local_backward"} <= measured.keys()
    assert {m.proof for m in captured.book.measurements()} == {"proved", "unpropagated"}
