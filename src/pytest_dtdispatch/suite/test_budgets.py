"""Where the time of training steps goes, and of a decode loop."""

from __future__ import annotations

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.decode import decode_steps
from pytest_dtdispatch.suite.llama import llama_step
from pytest_dtdispatch.suite.models import fsdp_step_or_skip, tensor_parallel_step


def test_tensor_parallel_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Take the budget of an MLP block on a 2x4 mesh."""
    dtdispatch.budget(tensor_parallel_step(mesh_factory((2, 4), dim_names=("dp", "tp"))))


def test_fsdp2_adamw_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Take the budget of training steps of four linear layers under FSDP2 with AdamW on 8 ranks."""
    dtdispatch.budget(fsdp_step_or_skip(mesh_factory((8,), dim_names=("dp",))))


def test_llama_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Take the budget of a Llama-like model of two layers, tensor and sequence parallel."""
    dtdispatch.budget(llama_step(mesh_factory((4,), dim_names=("tp",))))


def test_decode_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Take the budget of a token that a model decodes, whose cache grows by each: it misses."""
    dtdispatch.budget(decode_steps(mesh_factory((4,), dim_names=("tp",))), steps=8)
