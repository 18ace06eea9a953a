"""Every DTensor op of a tensor-parallel block and of an FSDP2 training step."""

from __future__ import annotations

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import fsdp_step_or_skip, tensor_parallel_step


def test_tensor_parallel_mlp(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture forward and backward of an MLP block on a 2x4 mesh."""
    step = tensor_parallel_step(mesh_factory((2, 4), dim_names=("dp", "tp")))
    with dtdispatch.capture():
        step()


def test_fsdp2_adamw_step(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture the second training step of four linear layers on 8 ranks."""
    step = fsdp_step_or_skip(mesh_factory((8,), dim_names=("dp",)))
    with dtdispatch.capture():
        step()
