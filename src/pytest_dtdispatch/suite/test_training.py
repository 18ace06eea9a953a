"""Every DTensor op of training steps, and of a token that is decoded."""

from __future__ import annotations

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.decode import decode_token
from pytest_dtdispatch.suite.llama import llama_step
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


def test_llama_step(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture forward and backward of two Llama layers, tensor and sequence parallel on 4 ranks."""
    step = llama_step(mesh_factory((4,), dim_names=("tp",)))
    with dtdispatch.capture():
        step()


def test_decode_token(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Capture one token, decoded by two layers with 16 tokens in their caches."""
    decode = decode_token(mesh_factory((4,), dim_names=("tp",)))
    decode(15)
    with dtdispatch.capture():
        decode(16)
