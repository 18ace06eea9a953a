"""Small models of the suite: a tensor-parallel MLP block, linear layers under FSDP2, functions to compile.

The AOT cases are those of ``benchmarks/dynamo/pr_time_benchmarks/benchmarks/aotdispatcher.py`` in the
PyTorch repository; the embedding is that of ``test/distributed/tensor/test_dynamic.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn.utils import clip_grad_norm_

from pytest_dtdispatch.compiled.model import Compiled
from pytest_dtdispatch.suite.llama import Work
from pytest_dtdispatch.torchapi.missing_api import fully_shard, two_tensor_type
from pytest_dtdispatch.torchapi.ops import tree_leaves
from pytest_dtdispatch.torchapi.tensors import local_of, shards_of_simulated_ranks

# Small enough for local ops to run in one thread: the benchmark is of dispatch.
WIDTH, HIDDEN, BATCH = 16, 64, 8
AOT_BACKEND = "aot_eager_decomp_partition"


def rows_split(mesh: DeviceMesh, *shape: int) -> DTensor:
    """Return a DTensor of random numbers, its rows split over the first mesh dimension."""
    placements: list[Placement] = [Shard(0), *(Replicate() for _ in range(mesh.ndim - 1))]
    return distribute_tensor(torch.rand(*shape, device=mesh.device_type), mesh, placements)


def tensor_parallel_step(mesh: DeviceMesh) -> Work:
    """Prepare forward and backward of an MLP block whose weights are split over the second mesh dimension.

    The batch is split over the first one. The first weight is split by rows and the second by columns, so
    that each pass has only one collective, an all-reduce.
    """
    up, down, x = _mlp_tensors(mesh)

    def step() -> Any:
        loss = mlp_loss(x, up, down)
        loss.backward()
        return loss

    return step


def tensor_parallel_mlp(mesh: DeviceMesh) -> tuple[Callable[[Any], Any], Any]:
    """Prepare the forward pass of the same block."""
    up, down, batch = map(filled, _mlp_tensors(mesh))

    def forward(x: torch.Tensor) -> torch.Tensor:
        return mlp_block(x, up, down)

    return forward, batch


def _mlp_tensors(mesh: DeviceMesh) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    up = split_parameter(torch.rand(HIDDEN, WIDTH), mesh, Shard(0))
    down = split_parameter(torch.rand(WIDTH, HIDDEN), mesh, Shard(1))
    batch = torch.rand(BATCH, WIDTH, device=mesh.device_type)
    return up, down, distribute_tensor(batch, mesh, [Shard(0), Replicate()])


def filled(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a local shard: older fake process groups scatter undefined values."""
    local_of(tensor).data.uniform_()
    return tensor


def mlp_block(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Run an MLP block, plain or tensor parallel."""
    out = F.linear(F.relu(F.linear(x, up)), down)
    return out.redistribute(placements=[Shard(0), Replicate()]) if isinstance(out, DTensor) else out


def mlp_loss(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Run the block, and return the sum of its output."""
    return mlp_block(x, up, down).sum()


def fsdp_training_step(mesh: DeviceMesh, **options: Any) -> Work:
    """Prepare a training step of four linear layers under FSDP2, with clipping and AdamW; run the first one.

    The first step creates the state of the optimizer, which later steps only update.
    """
    model = fsdp_groups(linear_layers(mesh.device_type), mesh, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    x = torch.rand(BATCH, WIDTH, device=mesh.device_type)

    def step() -> Any:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        return loss

    step()
    return step


def linear_layers(device: str, number: int = 4) -> torch.nn.Sequential:
    """Create the layers with unsplit weights."""
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, device=device) for _ in range(number)))


def fsdp_groups(model: torch.nn.Sequential, mesh: DeviceMesh, **options: Any) -> torch.nn.Sequential:
    """Apply FSDP2 to each layer of a model, and to the model."""
    shard = fully_shard()
    for layer in (*model, model):
        shard(layer, mesh=mesh, **options)
    return model


def fsdp_hooks_step(mesh: DeviceMesh) -> Work:
    """Prepare forward and backward of 16 linear layers, each an FSDP2 group; run the first step.

    Most of a step is Python of FSDP2's hooks.
    """
    model = fsdp_groups(linear_layers(mesh.device_type, 16), mesh)
    x = torch.rand(BATCH, WIDTH, device=mesh.device_type)

    def step() -> Any:
        return model(x).sum().backward()

    step()
    return step


def fsdp_weight_sync(mesh: DeviceMesh) -> Work:
    """Prepare to gather the parameters of four FSDP2 groups one by one, as for an inference engine."""
    model = fsdp_groups(linear_layers(mesh.device_type), mesh)

    def sync() -> list[torch.Tensor]:
        return [weight.full_tensor() for weight in model.state_dict().values()]

    return sync


def fsdp_step_or_skip(
    mesh: DeviceMesh, prepare: Callable[..., Work] = fsdp_training_step, **options: Any
) -> Work:
    """Prepare a step; skip the test if this torch does not run FSDP2 on a CPU."""
    try:
        return prepare(mesh, **options)
    except RuntimeError as error:
        if "requires CUDA" not in str(error):
            raise
        pytest.skip(f"torch {torch.__version__}: {error}")


def fsdp_columns_step_or_skip(mesh: DeviceMesh) -> Work:
    """Prepare the same step, each weight split by its columns; skip the test if this torch cannot."""
    if "shard_placement_fn" not in inspect.signature(fully_shard()).parameters:
        pytest.skip(f"torch {torch.__version__}: fully_shard has no shard_placement_fn")

    def by_columns(weight: torch.Tensor) -> Shard | None:
        return Shard(1) if weight.ndim > 1 else None

    return fsdp_step_or_skip(mesh, shard_placement_fn=by_columns)


def split_parameter(weight: torch.Tensor, mesh: DeviceMesh, split: Shard) -> torch.nn.Parameter:
    """Split a weight over the second dimension of a mesh."""
    placed = distribute_tensor(weight.to(mesh.device_type), mesh, [Replicate(), split])
    return torch.nn.Parameter(placed)


def add_each(*inputs: torch.Tensor) -> list[torch.Tensor]:
    """Add each input to itself."""
    return [torch.add(x, x) for x in inputs]


def aot_inputs(training: bool, subclass: bool) -> list[torch.Tensor]:
    """Create 100 inputs of 100 elements."""
    plain = [torch.ones(100, requires_grad=training) for _ in range(100)]
    if not subclass:
        return plain
    two_tensor = two_tensor_type()
    return [two_tensor(x, x.clone().detach().requires_grad_(training)) for x in plain]


def embedding(mesh: DeviceMesh) -> tuple[Callable[[Any], Any], Any]:
    """Prepare a lookup of 1,024 rows of a replicated table."""
    device = mesh.device_type
    table_rows = 202_048 if device == "cuda" else 2_048  # a CPU would copy those of the GPU for seconds
    table = torch.rand(table_rows, 256, device=device, requires_grad=True)
    weight = distribute_tensor(table, mesh, [Replicate()])
    rows = torch.randint(low=0, high=100, size=(2, 512), device=device)

    def embedding(batch: Any) -> Any:
        return F.embedding(batch, weight.to(torch.float32))

    return embedding, DTensor.from_local(rows, mesh, [Replicate()])


def assert_equals_eager(compiled: Compiled) -> None:
    """Check that results have the types, placements and values of the uncompiled function's."""
    for result, eager in zip(compiled.results, compiled.eager_results, strict=True):
        pairs = zip(tree_leaves(result), tree_leaves(eager), strict=True)
        for one, other in pairs:
            assert type(one) is type(other)
            assert getattr(one, "placements", ()) == getattr(other, "placements", ())
            for inner, expected in zip(plain_tensors(one), plain_tensors(other), strict=True):
                torch.testing.assert_close(inner, expected)


def assert_compiled_once(compiled: Compiled) -> None:
    """Check that results equal eager ones, without graph breaks and recompiles."""
    assert_equals_eager(compiled)
    assert compiled.graph_breaks == compiled.recompiles == 0


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors inside a two-tensor subclass, or of each simulated rank."""
    if isinstance(tensor, two_tensor_type()):
        yield from (tensor.a, tensor.b)
    else:
        yield from shards_of_simulated_ranks(local_of(tensor))
