"""Mesh dimensions, dtypes and groups of collectives."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch.meshes.groups import fake_mesh
from pytest_dtdispatch.torchapi.mesh_dims import MESH_DIMS, GroupDims
from pytest_dtdispatch.torchapi.observe import optional_module
from tests.measured_runs import counts_of

pytestmark = [pytest.mark.torch]


class Ran(NamedTuple):
    kind: str
    bytes: int
    dtype: str
    mesh_dim: str
    group: str


def ran_in(step: Callable[[], object]) -> list[Ran]:
    runs = counts_of(step).collective_runs
    return [Ran(one.kind, one.bytes, one.dtype, one.mesh_dim, one.group) for one in runs]


@contextmanager
def named(shape: tuple[int, ...], *names: str) -> Iterator[DeviceMesh]:
    with fake_mesh(shape, dim_names=names) as mesh:
        yield mesh


def reduce(group: Any = None, dtype: torch.dtype = torch.float32) -> object:
    return dist.all_reduce(torch.ones(3, dtype=dtype), group=group)


def test_redistribution_names_the_dimension_that_it_gathers() -> None:
    with named((2, 4), "dp", "tp") as mesh:
        tensor = DTensor.from_local(torch.ones(4, 2), mesh, [Shard(0), Shard(1)])
        assert ran_in(tensor.full_tensor) == [
            Ran("all_gather", 128, "f32", "tp", "0-3"),
            Ran("all_gather", 256, "f32", "dp", "0,4"),
        ]


def test_slices_and_flattened_meshes_have_their_dimensions() -> None:
    with named((2, 2, 2), "dp", "cp", "tp") as mesh:
        flat = mesh["dp", "cp"]._flatten("dp_cp")

        def step() -> None:
            reduce(mesh["tp"].get_group(), torch.bfloat16)
            reduce(flat.get_group())
            reduce(mesh.get_group("cp"), torch.int64)

        assert ran_in(step) == [
            Ran("all_reduce", 6, "bf16", "tp", "0,1"),
            Ran("all_reduce", 12, "f32", "dp_cp", "0,2,4,6"),
            Ran("all_reduce", 24, "i64", "cp", "0,2"),
        ]


def test_default_group_is_the_dimension_of_a_flat_mesh() -> None:
    with fake_mesh(4) as unnamed:
        assert ran_in(reduce) == [Ran("all_reduce", 12, "f32", "0", "0-3")]
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        assert ran_in(reduce) == [Ran("all_reduce", 12, "f32", "dp", "0-3")]
        other = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        assert ran_in(reduce) == [Ran("all_reduce", 12, "f32", "dp/tp", "0-3")]
        tensor = DTensor.from_local(torch.ones(1), other, [Shard(0)])
        assert [one.mesh_dim for one in ran_in(tensor.full_tensor)] == ["tp"]
        assert unnamed.ndim == mesh.ndim


def test_group_of_the_program_has_ranks_but_no_dimension() -> None:
    with named((2, 4), "dp", "tp"):
        group = dist.new_group([0, 3, 5])
        counts = counts_of(lambda: (reduce(group), reduce()))
        assert [one.mesh_dim for one in counts.collective_runs] == ["", ""]
        assert [one.group for one in counts.collective_runs] == ["0,3,5", "0-7"]
        assert counts.collectives_by_dim == {"": 2, "dp": 0, "tp": 0}
        assert counts.collective_bytes_by_dim == {"": 24, "dp": 0, "tp": 0}
        assert counts.collective_bytes == 24


def test_mesh_without_this_rank_has_its_dimensions() -> None:
    with named((4,), "dp") as mesh:
        other = DeviceMesh("cpu", torch.tensor([[1, 2]]), mesh_dim_names=("pp", "ep"))
        assert mesh.get_coordinate() is not None
        assert other.get_coordinate() is None
        counts = counts_of(reduce)
        assert counts.mesh_dims == ("dp", "ep", "pp")
        assert counts.collectives_by_dim == {"dp": 1, "ep": 0, "pp": 0}


def test_group_outside_of_torch_has_no_dimension() -> None:
    kind: Any = type("Group", (dist.ProcessGroup,), {})
    assert MESH_DIMS.of(kind(0, 1)) == MESH_DIMS.of(None) == GroupDims()
    with named((4,), "dp"):
        assert MESH_DIMS.of(kind(0, 1)) == MESH_DIMS.of(None) == GroupDims()


def test_barrier_has_no_bytes_and_no_dtype() -> None:
    with named((4,), "dp"):
        assert ran_in(dist.barrier) == [Ran("barrier", 0, "", "dp", "0-3")]


def test_functional_collective_on_meta_has_its_dimension() -> None:
    with named((4,), "tp") as mesh:
        tensor = DTensor.from_local(torch.ones(2, device="meta"), mesh, [Shard(0)])
        assert ran_in(tensor.full_tensor) == [Ran("all_gather", 32, "f32", "tp", "0-3")]


def test_mesh_that_is_created_in_the_step_is_found() -> None:
    with named((2, 2), "dp", "tp"):

        def step() -> None:
            mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
            reduce(mesh.get_group())

        assert [one.mesh_dim for one in ran_in(step)] == ["ep"]


def test_frozen_mesh_is_found_by_its_tensors() -> None:
    with named((4,), "tp") as mesh:
        tensor = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
        gc.freeze()
        try:
            assert [one.mesh_dim for one in ran_in(tensor.full_tensor)] == ["tp"]
        finally:
            gc.unfreeze()


def test_mesh_of_a_destroyed_group_names_no_later_group() -> None:
    with named((2, 4), "rep", "shard") as stale, fake_tensor(stale) as tensor:
        ran_in(tensor.full_tensor)
    with named((2, 4), "dp", "tp") as mesh:
        counts = counts_of(lambda: (reduce(mesh.get_group("tp")), reduce(mesh.get_group("dp"))))
        assert [one.mesh_dim for one in counts.collective_runs] == ["tp", "dp"]
        assert counts.mesh_dims == ("dp", "tp")
    with named((8,), "dp") as stale:
        counts_of(reduce)
    with named((8,), "tp"):
        assert [one.mesh_dim for one in ran_in(reduce)] == ["tp"]
    assert stale.ndim == 1


@contextmanager
def fake_tensor(mesh: DeviceMesh) -> Iterator[DTensor]:
    yield DTensor.from_local(torch.ones(2), mesh, [Replicate(), Shard(0)])


def test_coalesced_collective_lists_its_dtypes() -> None:
    with named((2,), "dp") as mesh:
        functional = optional_module("torch.distributed._functional_collectives")
        assert functional is not None
        tensors = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16)]

        def step() -> None:
            for output in functional.all_reduce_coalesced(tensors, "sum", mesh.get_group()):
                functional.wait_tensor(output)

        [ran] = ran_in(step)
        assert ran == Ran("all_reduce", 12, "f32+bf16", "dp", "0,1")
