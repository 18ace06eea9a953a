"""How dispatch grows: with the length of a list, with the dimensions of the mesh, with the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import rows_split
from pytest_dtdispatch.torchapi.optional import foreach_add as list_adder

SHAPE = (8, 8)  # that small, a local op is next to nothing
LENGTHS = (2, 4, 8, 16)
DIMENSIONS = (1, 2, 3)
WORLD_SIZES = (4, 64, 1024, 65536)


def test_stack_of_tensors(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Stack 2 to 16 tensors."""

    def stack(length: int) -> Callable[[], Any]:
        tensors: list[torch.Tensor] = [rows_split(device_mesh, *SHAPE) for _ in range(length)]
        return lambda: torch.stack(tensors)

    dtdispatch.scaling(stack, LENGTHS)


def test_foreach_of_tensors(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    """Add 2 to 16 pairs of tensors in one call."""
    add = list_adder()

    def foreach_add(length: int) -> Callable[[], Any]:
        tensors = [rows_split(device_mesh, *SHAPE) for _ in range(length)]
        return lambda: add(tensors, tensors)

    dtdispatch.scaling(foreach_add, LENGTHS)


def test_mesh_dimensions(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Add on meshes of one to three dimensions, 4 ranks in each."""

    def add(dimensions: int) -> Callable[[], Any]:
        a = rows_split(mesh_factory((4,) * dimensions), *SHAPE)
        return lambda: a + a

    dtdispatch.scaling(add, DIMENSIONS)


def test_world_size(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Add on 4 to 65,536 ranks."""

    def add(ranks: int) -> Callable[[], Any]:
        a = rows_split(mesh_factory((ranks,)), *SHAPE)
        return lambda: a + a

    dtdispatch.scaling(add, WORLD_SIZES)
