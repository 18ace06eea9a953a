"""Small models that use DTensor as training does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.torchapi.optional import fully_shard
from pytest_dtdispatch.torchapi.tensors import local_of

# Small enough for local ops to run in one thread: what is measured is dispatch.
WIDTH, HIDDEN, BATCH = 16, 64, 8


def rows_split(mesh: DeviceMesh, *shape: int) -> DTensor:
    """Place random numbers, their rows split over the first mesh dimension."""
    placements: list[Placement] = [Shard(0), *(Replicate() for _ in range(mesh.ndim - 1))]
    return distribute_tensor(torch.rand(*shape, device=mesh.device_type), mesh, placements)


def tensor_parallel_step(mesh: DeviceMesh) -> Callable[[], Any]:
    """Prepare forward and backward of an MLP block whose weights are split over the second mesh dimension.

    The batch is split over the first one. The first weight is split by rows and the second by columns, so
    that one all-reduce a pass is all the communication there is.
    """
    up = split_parameter(torch.rand(HIDDEN, WIDTH), mesh, Shard(0))
    down = split_parameter(torch.rand(WIDTH, HIDDEN), mesh, Shard(1))
    batch = torch.rand(BATCH, WIDTH, device=mesh.device_type)
    x = distribute_tensor(batch, mesh, [Shard(0), Replicate()])

    def step() -> Any:
        loss = mlp_loss(x, up, down)
        loss.backward()
        return loss

    return step


def tensor_parallel_mlp(mesh: DeviceMesh) -> tuple[Callable[[Any], Any], Any]:
    """Prepare the forward pass of the same block."""
    up = filled(split_parameter(torch.rand(HIDDEN, WIDTH), mesh, Shard(0)))
    down = filled(split_parameter(torch.rand(WIDTH, HIDDEN), mesh, Shard(1)))
    batch = torch.rand(BATCH, WIDTH, device=mesh.device_type)

    def mlp(x: Any) -> Any:
        out: Any = F.linear(F.relu(F.linear(x, up)), down)
        return out.redistribute(placements=[Shard(0), Replicate()])

    return mlp, filled(distribute_tensor(batch, mesh, [Shard(0), Replicate()]))


def filled(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a local shard: older fake process groups leave undefined what they scatter."""
    local_of(tensor).data.uniform_()
    return tensor


def mlp_loss(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Run an MLP block, plain or tensor parallel, and sum what it gives."""
    out: Any = F.linear(F.relu(F.linear(x, up)), down)
    if isinstance(out, DTensor):
        out = out.redistribute(placements=[Shard(0), Replicate()])
    loss: torch.Tensor = out.sum()
    return loss


def fsdp_training_step(mesh: DeviceMesh) -> Callable[[], Any]:
    """Prepare a training step of four linear layers under FSDP2 with AdamW, and take the first one.

    The first step makes the optimizer's state; those after it are what training repeats.
    """
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, device=mesh.device_type) for _ in range(4)))
    shard = fully_shard()
    for layer in model:
        shard(layer, mesh=mesh)
    shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    x = torch.rand(BATCH, WIDTH, device=mesh.device_type)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    step()
    return step


@contextmanager
def skipped_where_cuda_is_required() -> Iterator[None]:
    """Skip the test where this torch runs FSDP2 on no CPU."""
    try:
        yield
    except RuntimeError as error:
        if "requires CUDA" not in str(error):
            raise
        pytest.skip(f"torch {torch.__version__}: {error}")


def split_parameter(weight: torch.Tensor, mesh: DeviceMesh, split: Shard) -> torch.nn.Parameter:
    """Split a weight over the second dimension of a mesh."""
    placed = distribute_tensor(weight.to(mesh.device_type), mesh, [Replicate(), split])
    return torch.nn.Parameter(placed)
