"""Every op that DTensor's propagator or dispatcher has a rule for: ``-m atlas``."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.atlas.arguments import find_arguments
from pytest_dtdispatch.suite.atlas.inputs import GRID, LINE, layouts_of
from pytest_dtdispatch.torchapi.groups import collectives_write
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule

OPS = ops_with_a_rule()


@pytest.mark.atlas
@pytest.mark.filterwarnings("default:torch refuses")  # takes precedence over the filter below
@pytest.mark.filterwarnings("ignore")  # beta ops, deprecated ops, random ops: torch warns of many
@pytest.mark.parametrize("name", OPS)
def test_op(dtdispatch: DtDispatch, mesh_factory: MeshFactory, name: str) -> None:
    """Measure an op in every layout that torch supports; warn about others, and skip an op without any."""
    arguments = find_arguments(OPS[name])
    if isinstance(arguments, str):
        pytest.skip(f"no arguments made: {arguments}")
    meshes: dict[tuple[int, ...], Any] = {shape: mesh_factory(shape) for shape in (GRID, LINE)}
    layouts = layouts_of(name)
    refused = {}
    for layout in layouts:
        call = arguments.supported(meshes[layout.mesh], layout)
        if isinstance(call, str):
            refused[layout] = call
        else:
            with dtdispatch.capture():
                call.run()
    if not refused:
        return
    where = ", ".join(map(str, refused))
    doubt = "" if collectives_write() else " (or a fake collective left its output undefined)"
    why = f"torch refuses {name} on {where}{doubt}: {next(iter(refused.values()))}"
    if len(refused) == len(layouts):
        pytest.skip(why)
    warnings.warn(why, stacklevel=1)
