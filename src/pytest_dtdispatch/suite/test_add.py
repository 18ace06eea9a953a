"""One ``add`` on meshes of one to three dimensions: a miss grows with each, a hit does not."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.core.signatures import mesh_text
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import rows_split


@pytest.mark.parametrize("mesh", [(4,), (256,), (16, 16), (8, 8, 4)], ids=mesh_text)
def test_add(dtdispatch: DtDispatch, mesh_factory: MeshFactory, mesh: tuple[int, ...]) -> None:
    """Add 512x512 to itself, its rows split over the first mesh dimension."""
    device_mesh = mesh_factory(mesh)
    a = rows_split(device_mesh, 512, 512)
    with dtdispatch.capture():
        a + a
