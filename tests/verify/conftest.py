"""Mesh of simulated ranks."""

from __future__ import annotations

import pytest
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.spec import MeshSpec


@pytest.fixture
def simulated(group_owner: ProcessGroupOwner) -> DeviceMesh:
    """Return a mesh of four simulated ranks."""
    return group_owner.mesh(MeshSpec((4,), "cpu", "local"))
