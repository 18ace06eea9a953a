"""The paths of PyTorch's own dispatch benchmark, end to end, on 256 ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.suite.paths import PATHS, WORLD_SIZE, Path

if TYPE_CHECKING:
    from pytest_dtdispatch.api import DtDispatch
    from pytest_dtdispatch.plugin.fixtures import MeshFactory


# torch warns of random ops on every CPU mesh.
@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support:UserWarning")
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_path(dtdispatch: DtDispatch, mesh_factory: MeshFactory, path: Path) -> None:
    """Measure one path on a miss and on a hit."""
    work = path.make(mesh_factory((WORLD_SIZE,), dim_names=("dp",)))
    dtdispatch.call(work, name=path.name)
