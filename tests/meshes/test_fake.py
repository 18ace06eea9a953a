"""A mesh of fake ranks outside pytest: opened, closed, and refused if a process group exists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from pytest_dtdispatch import DtDispatchError, fake_mesh
from pytest_dtdispatch.torchapi.groups import has_uniform_ranks, init_fake_group
from pytest_dtdispatch.torchapi.propagator import ShardingCaches

pytestmark = pytest.mark.torch


def error_line(*args: Any, **keywords: Any) -> str:
    """Return the one-line error that refuses a mesh."""
    with pytest.raises(DtDispatchError) as raised, fake_mesh(*args, **keywords):
        pass
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(("shape", "names"), [((2, 4), ("dp", "tp")), (4, None), ("2x2", None)])
def test_fake_mesh_exists_only_inside_its_block(shape: Any, names: Any) -> None:
    with fake_mesh(shape, dim_names=names) as mesh:
        assert mesh.mesh_dim_names == names
        a = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)] * mesh.ndim)
        assert (a + a).shape == (8, 8)
        assert dist.get_world_size() == mesh.size()
        assert ShardingCaches().cold_entries() > 0
    assert not dist.is_initialized()
    assert ShardingCaches().cold_entries() == 0


@pytest.mark.skipif(not has_uniform_ranks(), reason="collectives of fake groups return undefined values")
def test_fake_ranks_have_uniform_values() -> None:
    with fake_mesh((2, 4)) as mesh:
        partial = DTensor.from_local(torch.ones(3), mesh, [Replicate(), Partial()])
        assert partial.full_tensor().tolist() == [4.0, 4.0, 4.0]
        rows = DTensor.from_local(torch.arange(2.0), mesh, [Shard(0), Replicate()])
        assert rows.full_tensor().tolist() == [0.0, 1.0, 0.0, 1.0]
        total: Any = rows.sum()
        assert total.full_tensor().item() == 2.0


def test_fake_mesh_closes_after_errors_and_destroyed_groups() -> None:
    with pytest.raises(KeyError, match="mine"), fake_mesh(2):
        raise KeyError("mine")
    assert not dist.is_initialized()
    with fake_mesh(2):
        dist.destroy_process_group()
    with fake_mesh(4) as mesh:
        assert mesh.size() == 4


def test_open_process_group_is_not_replaced() -> None:
    init_fake_group(8)
    try:
        mesh = init_device_mesh("cpu", (8,))
        line = error_line((2, 4))
        assert line.startswith("fake_mesh: a process group is open (fake, 8 ranks): create the mesh on it")
        assert dist.is_initialized()
        a = distribute_tensor(torch.rand(8, 8), mesh, [Shard(0)])
        assert (a + a).shape == (8, 8)
    finally:
        dist.destroy_process_group()
        ShardingCaches().clear_all()
    with fake_mesh(2):
        assert "(fake, 2 ranks)" in error_line(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": "2x"}, "fake_mesh: mesh='2x' is not a mesh shape: extents of at least 1"),
        ({"mesh": ()}, "fake_mesh: mesh=() is not a mesh shape"),
        ({"mesh": 4, "dim_names": "dp"}, "fake_mesh: dim_names='dp' is not a tuple of names"),
        ({"mesh": 4, "dim_names": ("dp", "tp")}, "mesh 4 has 1 dimensions, not ('dp', 'tp')"),
        ({"mesh": 4, "device": "tpu"}, "fake_mesh: device='tpu' is not one of cpu, cuda, auto"),
        ({"mesh": 2**30}, "mesh 1073741824 has 1073741824 ranks; at most"),
    ],
    ids=str,
)
def test_unavailable_mesh_is_a_one_line_error(arguments: dict[str, Any], message: str) -> None:
    assert error_line(**arguments).startswith(message)
    assert not dist.is_initialized()
