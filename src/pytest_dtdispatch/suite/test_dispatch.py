"""The paths of PyTorch's own dispatch benchmark, end to end, on 256 ranks."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.paths import PATHS, WORLD_SIZE


# torch warns of random ops on every CPU mesh.
@pytest.mark.filterwarnings("ignore:DTensor random operators may not have complete support:UserWarning")
@pytest.mark.parametrize("path", PATHS)
def test_path(dtdispatch: DtDispatch, mesh_factory: MeshFactory, path: str) -> None:
    """Measure one path on a miss and on a hit."""
    dtdispatch.call(PATHS[path](mesh_factory((WORLD_SIZE,), dim_names=("dp",))), name=path)
