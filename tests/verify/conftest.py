"""Mesh of simulated ranks. torch is imported lazily, because unit tests run without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner


@pytest.fixture
def simulated(group_owner: ProcessGroupOwner) -> DeviceMesh:
    """Return a mesh of four simulated ranks."""
    from pytest_dtdispatch.meshes.spec import MeshSpec

    return group_owner.mesh(MeshSpec((4,), "cpu", "local"))
