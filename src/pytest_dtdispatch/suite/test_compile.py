"""Compiled functions: cold and warm compiles, calls, the FakeTensor cache, recompiles."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import (
    AOT_BACKEND,
    add_each,
    aot_inputs,
    assert_compiled_once,
    assert_equals_eager,
    embedding,
    filled,
    tensor_parallel_mlp,
)
from pytest_dtdispatch.torchapi.compiler import fake_tensor_cache
from pytest_dtdispatch.torchapi.observe import has_local_mode

pytestmark = pytest.mark.compile
FAKE_TENSOR_CACHE = pytest.mark.parametrize(
    "is_cached", [False, True], ids=["fake_tensor_cache_off", "fake_tensor_cache_on"]
)


# A compile takes seconds here, and a warm one as long as a cold one: this backend caches nothing.
@pytest.mark.dtdispatch(compile_rounds=3)
@pytest.mark.parametrize("subclass", [False, True], ids=["nosubclass", "subclass"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_aotdispatcher(dtdispatch: DtDispatch, training: bool, subclass: bool) -> None:
    """Compile a function of 100 inputs and 100 outputs with AOTDispatcher."""
    mode = "training" if training else "inference"
    name = f"aotdispatcher_{mode}_{'subclass' if subclass else 'nosubclass'}_cpu"
    inputs = aot_inputs(training, subclass)
    compiled = dtdispatch.compile(add_each, *inputs, backend=AOT_BACKEND, name=name)
    assert_compiled_once(compiled)
    assert all(output.requires_grad is training for output in compiled.result)


@FAKE_TENSOR_CACHE
def test_embedding(dtdispatch: DtDispatch, device_mesh: DeviceMesh, is_cached: bool) -> None:
    """Look rows up in a table, with dynamic shapes, with the FakeTensor cache off and on."""
    function, indices = embedding(device_mesh)
    with fake_tensor_cache(is_cached):
        compiled = dtdispatch.compile(function, indices, dynamic=True)
    assert_compiled_once(compiled)


# Inductor cannot generate code for tensors that contain those of every rank.
@pytest.mark.skipif(not has_local_mode(), reason="this torch has no torch.distributed._local_tensor")
@pytest.mark.dtdispatch(backend="local", device="cpu")
@FAKE_TENSOR_CACHE
def test_embedding_on_simulated_ranks(
    dtdispatch: DtDispatch, device_mesh: DeviceMesh, is_cached: bool
) -> None:
    """Do the same with all ranks simulated in this process, and a backend that generates no code."""
    function, indices = embedding(device_mesh)
    with fake_tensor_cache(is_cached):
        compiled = dtdispatch.compile(function, indices, backend="aot_eager", dynamic=True)
    assert_compiled_once(compiled)


def test_tensor_parallel_mlp(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Compile an MLP block whose weights are split over the second dimension of a 2x4 mesh."""
    mlp, x = tensor_parallel_mlp(mesh_factory((2, 4), dim_names=("dp", "tp")))
    compiled = dtdispatch.compile(mlp, x, name="tensor_parallel_mlp")
    assert_compiled_once(compiled)


def test_placement_change(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Call with another placement, which recompiles, then with both again, which does not."""
    values = torch.rand(64, 64, device=device_mesh.device_type)
    rows, columns = (filled(distribute_tensor(values, device_mesh, [Shard(dim)])) for dim in (0, 1))

    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    others = [(columns,), (rows,), (columns,)]
    compiled = dtdispatch.compile(double, rows, backend="aot_eager", others=others)
    assert_equals_eager(compiled)
    assert [result.placements for result in compiled.results] == [(Shard(0),), (Shard(1),)] * 2
    assert compiled.recompiles == (1 if dtdispatch.enabled else 0)
