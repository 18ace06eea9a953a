"""Real collectives on many ranks; each result is checked against that of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.core.environment import read_world
from pytest_dtdispatch.meshes.sharded import assert_sharded_tensor_equal
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.llama import Sizes, llama, split, training_step
from pytest_dtdispatch.suite.models import BATCH, HIDDEN, WIDTH, mlp_loss, split_parameter
from pytest_dtdispatch.suite.paths import PATHS
from pytest_dtdispatch.torchapi.missing_api import sharded_tensors, split_over_ranks

RANKS = read_world(os.environ).size
pytestmark = pytest.mark.skipif(
    RANKS == 1, reason="several ranks are needed: add --dtdispatch-nproc 4, or start pytest with torchrun"
)
ROWS, COLUMNS = 8 * RANKS, 16


def numbers(*extents: int) -> torch.Tensor:
    """Return whole numbers that are equal on every rank: their sums are exact in any order."""
    return torch.arange(float(torch.tensor(extents).prod())).remainder(97).reshape(extents)


def test_add(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Add 512x512 to itself, its rows split over all ranks."""
    whole = numbers(512, 512).to(device_mesh.device_type)
    a = distribute_tensor(whole, device_mesh, [Shard(0)])
    with dtdispatch.capture():
        result: Any = a + a
    assert torch.equal(result.full_tensor(), whole + whole)


def test_collectives(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Measure the collectives of PyTorch's own dispatch benchmark, on real ranks."""
    name = "dtensor_dispatch_collectives"
    dtdispatch.call(PATHS[name](device_mesh), name=name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(Shard(0), Replicate(), id="all_gather"),
        pytest.param(Shard(0), Shard(1), id="all_to_all"),
        pytest.param(Partial(), Replicate(), id="all_reduce"),
        pytest.param(Partial(), Shard(0), id="reduce_scatter"),
    ],
)
def test_redistribution(
    dtdispatch: DtDispatch, device_mesh: DeviceMesh, before: Placement, after: Placement
) -> None:
    """Measure one collective, and check its result."""
    whole = numbers(ROWS, COLUMNS).to(device_mesh.device_type)
    if before.is_partial():
        a = DTensor.from_local(whole * (dist.get_rank() + 1), device_mesh, [before])
        expected = whole * sum(range(1, RANKS + 1))
    else:
        a, expected = distribute_tensor(whole, device_mesh, [before]), whole
    result = dtdispatch.call(lambda: a.redistribute(placements=[after]), name="redistribute")
    assert torch.equal(result.full_tensor(), expected)


def test_tensor_parallel_mlp(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture forward and backward of an MLP block, split over pairs of ranks."""
    pair = 1 if RANKS % 2 else 2
    mesh = mesh_factory((RANKS // pair, pair), dim_names=("dp", "tp"))
    on = mesh.device_type
    x, weights = numbers(BATCH, WIDTH).to(on), (numbers(HIDDEN, WIDTH).to(on), numbers(WIDTH, HIDDEN).to(on))
    plain = [weight.clone().requires_grad_() for weight in weights]
    loss = mlp_loss(x, *plain)
    loss.backward()
    split = [split_parameter(weight, mesh, Shard(dim)) for dim, weight in enumerate(weights)]
    batch = distribute_tensor(x, mesh, [Shard(0), Replicate()])
    with dtdispatch.capture():
        result: Any = mlp_loss(batch, *split)
        result.backward()
    torch.testing.assert_close(result.full_tensor(), loss)
    for ours, theirs in zip(split, plain, strict=True):
        grad: Any = ours.grad
        torch.testing.assert_close(grad.full_tensor(), theirs.grad)


@pytest.mark.skipif(RANKS not in (2, 4), reason="4 heads are split over 2 or 4 ranks")
def test_llama(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count steps of a Llama-like model split over all ranks; check loss and gradients against the whole."""
    mesh, tokens = mesh_factory((RANKS,), dim_names=("tp",)), Sizes().tokens
    on = mesh.device_type
    model, whole = split(llama(on), mesh), llama(on)
    whole.load_state_dict({name: each.full_tensor() for name, each in model.state_dict().items()})
    step, expected = (training_step(each, tokens, tokens, on) for each in (model, whole))
    assert dtdispatch.steps(step).misses_per_step == 0
    torch.testing.assert_close(step(), expected())
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        grad: Any = ours.grad
        torch.testing.assert_close(grad.full_tensor(), theirs.grad)


@pytest.mark.filterwarnings("ignore:Please use DTensor instead:FutureWarning")
@pytest.mark.parametrize(
    "has_rpc", [False, pytest.param(True, marks=pytest.mark.dtdispatch(rpc=True))], ids=["alone", "RPC"]
)
def test_sharded_tensor(dtdispatch: DtDispatch, process_group: Any, has_rpc: bool) -> None:
    """Measure creating and copying a ShardedTensor, the predecessor of DTensor."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensors, spec = sharded_tensors(), split_over_ranks(RANKS, device)

    def make(fill: Callable[..., Any]) -> Any:
        return fill(spec, ROWS, COLUMNS, init_rrefs=has_rpc)

    created = dtdispatch.call(lambda: make(tensors.ones), name="create")
    copied = dtdispatch.call(lambda: created.clone(), name="clone")
    again, zeros = make(tensors.ones), make(tensors.zeros)
    assert_sharded_tensor_equal(created, again)
    assert torch.equal(copied.local_tensor(), created.local_tensor())
    with pytest.raises(AssertionError, match=r"local shard 0: .*Mismatched elements: 128 / 128"):
        assert_sharded_tensor_equal(created, zeros)
    [shard] = created.local_shards()
    assert torch.equal(shard.tensor, torch.ones(8, COLUMNS, device=shard.tensor.device))
