"""Every op that DTensor's propagator or dispatcher has a rule for: ``-m atlas``."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.atlas.arguments import find_arguments
from pytest_dtdispatch.atlas.inputs import GRID, LINE
from pytest_dtdispatch.atlas.survey import cases_of
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.torchapi.ops import ops_with_a_rule

OPS = ops_with_a_rule()


@pytest.mark.atlas
@pytest.mark.filterwarnings("ignore")  # beta ops, deprecated ops, random ops: torch warns of many
@pytest.mark.parametrize("name", OPS)
def test_op(dtdispatch: DtDispatch, mesh_factory: MeshFactory, name: str) -> None:
    """Measure an op in every layout that torch supports; skip one that it supports in none, in its words."""
    arguments = find_arguments(OPS[name])
    if isinstance(arguments, str):
        pytest.skip(f"no arguments made: {arguments}")
    meshes: dict[tuple[int, ...], Any] = {shape: mesh_factory(shape) for shape in (GRID, LINE)}
    cases = list(cases_of(name, arguments, meshes.__getitem__))
    refusals = [case.refusal for case in cases if case.refusal]
    if len(refusals) == len(cases):
        pytest.skip(f"torch does not support it: {refusals[0]}")
    for case in cases:
        if not case.refusal:
            call = case.on(meshes.__getitem__)
            with dtdispatch.capture():
                call.run()
