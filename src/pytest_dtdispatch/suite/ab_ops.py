"""Default tests of an A/B run: ops on small tensors, so that most of their time is dispatch.

The name of this file does not begin with ``test_``, so the suite collects it only by name. To run all of it,
20 signatures: ``dtdispatch ab ... -- --pyargs pytest_dtdispatch.suite.ab_ops``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import rows_split

Op = Callable[[DTensor, DTensor], Any]  # of a tensor split by rows and a replicated one

CORE: Mapping[str, Op] = {
    "add": lambda a, b: a + a,
    "mul_number": lambda a, b: a * 2,
    "mm": lambda a, b: a @ b,
    "relu": lambda a, b: torch.relu(a),
    "sum": lambda a, b: a.sum(dim=1),
    "transpose": lambda a, b: a.t(),
    "clone": lambda a, b: a.clone(),
    "stack": lambda a, b: torch.stack([a, a]),
    "neg": lambda a, b: -a,
    "add_in_place": lambda a, b: a.add_(a),
}
MORE: Mapping[str, Op] = {
    "sub": lambda a, b: a - a,
    "div": lambda a, b: a / a,
    "exp": lambda a, b: torch.exp(a),
    "detach": lambda a, b: a.detach(),
    "unsqueeze": lambda a, b: a.unsqueeze(1),
    "softmax": lambda a, b: torch.softmax(a, dim=1),
    "cat": lambda a, b: torch.cat([a, a], dim=1),
    "where": lambda a, b: torch.where(a > a, a, a),
    "zero_": lambda a, b: a.zero_(),
}


@pytest.mark.parametrize("op", CORE)
def test_core(dtdispatch: DtDispatch, mesh_factory: MeshFactory, op: str) -> None:
    """Capture an op on a mesh of one dimension."""
    measure(dtdispatch, CORE[op], mesh_factory((4,)))


def test_more_two_dimensions(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture an op on a mesh of two dimensions, where a miss takes five times as long."""
    measure(dtdispatch, CORE["add"], mesh_factory((2, 2)))


@pytest.mark.parametrize("op", MORE)
def test_more(dtdispatch: DtDispatch, mesh_factory: MeshFactory, op: str) -> None:
    """Capture another op on a mesh of one dimension."""
    measure(dtdispatch, MORE[op], mesh_factory((4,)))


def measure(dtdispatch: DtDispatch, op: Op, mesh: DeviceMesh) -> None:
    """Capture an op on a tensor that is split by rows over the first mesh dimension."""
    a = rows_split(mesh, 16, 8)
    square = torch.rand(8, 8, device=mesh.device_type)
    b = distribute_tensor(square, mesh, [Replicate()] * mesh.ndim)
    with torch.no_grad(), dtdispatch.capture():
        op(a, b)
