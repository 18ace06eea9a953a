"""A mesh of two dimensions, and the same ranks in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import rows_split
from pytest_dtdispatch.torchapi.optional import flattened


def test_add(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture an op on the flattened mesh."""
    a = rows_split(flattened_or_skip(mesh_factory((4, 2), dim_names=("dp", "tp"))), 16, 16)
    with dtdispatch.capture():
        a + a


def test_all_reduce(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Sum over both dimensions, before the mesh is flattened and after: newer versions then reduce once."""
    mesh = mesh_factory((4, 2), dim_names=("dp", "tp"))
    reduce = all_reduce(mesh)
    dtdispatch.call(reduce, name="all_reduce")
    each = dtdispatch.steps(reduce, name="by dimension")
    flattened_or_skip(mesh)
    dtdispatch.call(reduce, name="all_reduce_flattened")
    together = dtdispatch.steps(reduce, name="flattened")
    assert together.misses_per_step == each.misses_per_step == 0
    assert together.collectives_per_step <= each.collectives_per_step


def all_reduce(mesh: DeviceMesh) -> Callable[[], Any]:
    """Prepare to sum what the ranks of both dimensions have."""
    summands = DTensor.from_local(torch.rand(16, 16, device=mesh.device_type), mesh, [Partial()] * 2)
    return lambda: summands.redistribute(placements=[Replicate()] * 2)


def flattened_or_skip(mesh: DeviceMesh) -> Any:
    """Flatten a mesh; skip the test where this torch cannot."""
    made = flattened(mesh)
    if made is None:
        pytest.skip(f"torch {torch.__version__} flattens no mesh: DeviceMesh has no _flatten")
    return made
