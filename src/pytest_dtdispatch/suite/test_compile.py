"""Compiled functions: cold and warm compiles, calls, the FakeTensor cache, recompiles.

The four AOT cases are those of ``benchmarks/dynamo/pr_time_benchmarks/benchmarks/aotdispatcher.py`` in the
PyTorch repository, under its names; the embedding is that of ``test/distributed/tensor/test_dynamic.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.measuring import torchapi
from pytest_dtdispatch.suite.models import tensor_parallel_mlp
from pytest_dtdispatch.suite.two_tensor import TwoTensor

if TYPE_CHECKING:
    from pytest_dtdispatch.fixtures import MeshFactory
    from pytest_dtdispatch.measurer import DtDispatch
    from pytest_dtdispatch.records.compiled import Compiled

pytestmark = pytest.mark.compile

INPUTS, LENGTH = 100, 100
AOT_BACKEND = "aot_eager_decomp_partition"
ROWS = {"cpu": 2_048, "cuda": 202_048}  # of the embedding: with those of the GPU, a CPU copies for seconds
WIDTH = 256


def add_each(*inputs: torch.Tensor) -> list[torch.Tensor]:
    """Add each input to itself."""
    return [torch.add(x, x) for x in inputs]


@pytest.mark.parametrize("subclass", [False, True], ids=["nosubclass", "subclass"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_aotdispatcher(dtdispatch: DtDispatch, training: bool, subclass: bool) -> None:
    """Dispatch 100 inputs and 100 outputs ahead of time."""
    inputs = [torch.ones(LENGTH, requires_grad=training) for _ in range(INPUTS)]
    if subclass:
        inputs = [TwoTensor(x, x.clone().detach().requires_grad_(training)) for x in inputs]
    mode = "training" if training else "inference"
    name = f"aotdispatcher_{mode}_{'subclass' if subclass else 'nosubclass'}_cpu"
    compiled = dtdispatch.compile(add_each, *inputs, backend=AOT_BACKEND, name=name)
    assert_equals_eager(compiled)
    assert compiled.graph_breaks == compiled.recompiles == 0
    assert all(output.requires_grad is training for output in compiled.result)


def test_embedding(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Look 1,024 rows of a replicated table up, with dynamic shapes, with the FakeTensor cache off and on."""
    device = device_mesh.device_type
    table = torch.rand(ROWS[device], WIDTH, device=device, requires_grad=True)
    weight = distribute_tensor(table, device_mesh, [Replicate()])
    rows = torch.randint(low=0, high=100, size=(2, 512), device=device)
    replicated = DTensor.from_local(rows, device_mesh, [Replicate()])

    def embedding(batch: torch.Tensor) -> torch.Tensor:
        return F.embedding(batch, weight.to(torch.float32))

    compiled = dtdispatch.compile(embedding, replicated, dynamic=True, fake_tensor_cache=[False, True])
    assert_equals_eager(compiled)
    assert compiled.graph_breaks == compiled.recompiles == 0


def test_tensor_parallel_mlp(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Compile an MLP block whose weights are split over the second dimension of a 2x4 mesh."""
    mlp, x = tensor_parallel_mlp(mesh_factory((2, 4), dim_names=("dp", "tp")))
    compiled = dtdispatch.compile(mlp, x, name="tensor_parallel_mlp")
    assert_equals_eager(compiled)
    assert compiled.graph_breaks == compiled.recompiles == 0


def test_placement_change(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Call with another placement, which recompiles, then with both again, which does not."""
    values = torch.rand(64, 64, device=device_mesh.device_type)
    rows, columns = (distribute_tensor(values, device_mesh, [Shard(dim)]) for dim in (0, 1))

    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    others = [(columns,), (rows,), (columns,)]
    compiled = dtdispatch.compile(double, rows, backend="aot_eager", others=others)
    assert_equals_eager(compiled)
    assert [result.placements for result in compiled.results] == [(Shard(0),), (Shard(1),)] * 2
    assert compiled.recompiles == (1 if dtdispatch.enabled else 0)


def assert_equals_eager(compiled: Compiled) -> None:
    """Hold results against those of the uncompiled function: values, and where they lie."""
    for result, eager in zip(compiled.results, compiled.eager_results, strict=True):
        pairs = zip(torchapi.tree_leaves(result), torchapi.tree_leaves(eager), strict=True)
        for one, other in pairs:
            assert type(one) is type(other)
            assert getattr(one, "placements", ()) == getattr(other, "placements", ())
            for inner, expected in zip(plain_tensors(one), plain_tensors(other), strict=True):
                torch.testing.assert_close(inner, expected)


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """Take a tensor of a subclass apart."""
    if isinstance(tensor, TwoTensor):
        yield from (tensor.first, tensor.second)
    else:
        yield torchapi.local_of(tensor)
