"""Counts of steady training steps: no misses, no growth."""

from __future__ import annotations

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.suite.models import fsdp_step_or_skip, tensor_parallel_step


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
