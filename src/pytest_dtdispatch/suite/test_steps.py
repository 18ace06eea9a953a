"""Counts of steps: those of training are steady, each token that is decoded misses."""

from __future__ import annotations

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.decode import decode_steps
from pytest_dtdispatch.suite.llama import llama_step
from pytest_dtdispatch.suite.models import (
    fsdp_columns_step_or_skip,
    fsdp_step_or_skip,
    tensor_parallel_step,
)


def test_tensor_parallel_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count forward and backward of an MLP block on a 2x4 mesh."""
    steps = dtdispatch.steps(tensor_parallel_step(mesh_factory((2, 4), dim_names=("dp", "tp"))))
    assert steps.misses_per_step == 0
    assert steps.cache_growth_per_step == 0


def test_fsdp2_adamw_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count training steps of four linear layers under FSDP2 with AdamW on 8 ranks."""
    step = fsdp_step_or_skip(mesh_factory((8,), dim_names=("dp",)))
    steps = dtdispatch.steps(step)
    assert steps.misses_per_step == 0
    assert steps.cache_growth_per_step == 0


def test_fsdp2_columns_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count the same steps with each weight split by its columns."""
    step = fsdp_columns_step_or_skip(mesh_factory((8,), dim_names=("dp",)))
    steps = dtdispatch.steps(step)
    assert steps.misses_per_step == 0
    assert steps.cache_growth_per_step == 0


def test_llama_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count forward and backward of two Llama layers, tensor and sequence parallel on 4 ranks."""
    steps = dtdispatch.steps(llama_step(mesh_factory((4,), dim_names=("tp",))))
    assert steps.misses_per_step == 0
    assert steps.cache_growth_per_step == 0


def test_decode_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count decoded tokens, whose caches of keys and values grow: such steps are never steady.

    Each token brings the shapes of one more entry in the cache, so every op on the cache misses, once for
    both layers, and the sharding caches keep an entry for it.
    """
    steps = dtdispatch.steps(decode_steps(mesh_factory((4,), dim_names=("tp",))))
    if dtdispatch.enabled:
        assert min(each.misses for each in steps.steps) >= 4
        assert steps.collectives_per_step == 4
