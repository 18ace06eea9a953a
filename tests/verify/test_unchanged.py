"""Verified steps compute the same as unverified ones, bit for bit, and leave the same state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import SGD, AdamW

from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import local_of, shards_of_simulated_ranks, version_of
from pytest_dtdispatch.verify.mode import Verifier
from tests.probes import LOCAL_TENSOR, needs
from tests.verify.programs import verified

pytestmark = [pytest.mark.torch, needs(LOCAL_TENSOR)]

Step = Callable[[], Any]


def mlp(mesh: DeviceMesh, optimizer: Any, **options: Any) -> tuple[nn.Module, Any, Step]:
    """Return a tensor-parallel model with dropout, its optimizer and its step."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel(use_local_output=False)})
    updates = optimizer(model.parameters(), lr=0.1, **options)
    x = torch.ones(4, 8)

    def step() -> Any:
        updates.zero_grad()
        loss = nn.functional.dropout(model(x), 0.5).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        updates.step()
        return loss

    return model, updates, step


def bits(tensor: torch.Tensor) -> list[list[float]]:
    """Return the values and versions on all ranks, and the version of the tensor."""
    shards = shards_of_simulated_ranks(local_of(tensor.detach()))
    versions = [float(version_of(each) or 0) for each in (tensor, *shards)]
    return [versions, *(shard.flatten().tolist() for shard in shards)]


def state(model: nn.Module, optimizer: Any, losses: list[torch.Tensor]) -> dict[str, Any]:
    """Return everything that a training leaves."""
    tensors: list[Any] = [*losses, *model.parameters(), *(each.grad for each in model.parameters())]
    tensors += [each for of in optimizer.state.values() for each in of.values() if torch.is_tensor(each)]
    readers = [reader() for reader in ShardingCaches().readers()]
    caches = [(read[0], read[1]) for read in readers]
    return {
        "bits": [*map(bits, tensors)],
        "random": torch.get_rng_state().tolist(),
        "hits and misses": caches,
        "entries": ShardingCaches().entries(),
    }


def trained(mesh: DeviceMesh, verifies: bool, optimizer: Any, **options: Any) -> dict[str, Any]:
    """Run three steps from the same seed, with empty caches."""
    torch.manual_seed(0)
    model, updates, step = mlp(mesh, optimizer, **options)
    ShardingCaches().clear_all()
    losses: list[torch.Tensor] = []
    for _ in range(3):
        if verifies:
            found = verified(lambda: losses.append(step().detach()))
            assert found.compared > 20
            assert not found.wrong_ops
        else:
            losses.append(step().detach())
    return state(model, updates, losses)


@pytest.mark.parametrize("optimizer", [SGD, AdamW])
@pytest.mark.parametrize("foreach", [True, False])
def test_training_is_unchanged_bit_for_bit(simulated: DeviceMesh, optimizer: Any, foreach: bool) -> None:
    plain, other = (
        trained(simulated, verifies=verifies, optimizer=optimizer, foreach=foreach)
        for verifies in (False, True)
    )
    assert other == plain


def test_row_sharded_embedding_keeps_its_mask(simulated: DeviceMesh) -> None:
    table = distribute_tensor(torch.arange(32.0).view(8, 4), simulated, [Shard(0)])
    ids = distribute_tensor(torch.tensor([1, 7, 3]), simulated, [Replicate()])
    results: list[Any] = []

    def step() -> None:
        rows: Any = nn.functional.embedding(ids, table)
        results.append((rows + 1).redistribute(placements=[Replicate()]))

    found = verified(step)
    step()
    assert not found.wrong_ops
    assert found.compared == found.calls
    assert bits(results[0]) == bits(results[1])


def test_error_of_the_program_is_raised_unchanged(simulated: DeviceMesh) -> None:
    a = distribute_tensor(torch.ones(8, 4), simulated, [Shard(0)])
    errors = []
    runs: tuple[Callable[[Step], object], ...] = (verified, lambda step: step())
    for run in runs:
        with pytest.raises(RuntimeError) as raised:
            run(lambda: a @ a)
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_op_that_raises_has_a_reason(simulated: DeviceMesh) -> None:
    a = distribute_tensor(torch.ones(8, 4), simulated, [Shard(0)])
    with Verifier(ResultStore()) as verifier, pytest.raises(RuntimeError):
        a @ a
    found = verifier.result("step")
    assert (found.calls, found.compared, found.skipped) == (1, 0, {"that raise": 1})
