"""Gradient clipping and the implementations of AdamW, on lists of DTensors."""

from __future__ import annotations

import pytest

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.steps.model import Steps
from pytest_dtdispatch.suite.optimizers import ADAMW, Work, adamw_step_or_skip, clipping

RANKS = 8


def test_clip_grad_norm(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Clip four gradients by the norm of all."""
    steps = measure(dtdispatch, clipping(mesh_factory((RANKS,), dim_names=("dp",))))
    assert steps.misses_per_step == 0
    assert steps.cache_growth_per_step == 0


@pytest.mark.parametrize("implementation", ADAMW)
def test_adamw(dtdispatch: DtDispatch, mesh_factory: MeshFactory, implementation: str) -> None:
    """Take steps with four parameters, the learning rate a number or a tensor.

    The loop over parameters passes ``addcdiv_`` another number in each step. Torch 2.10 and 2.11 keep
    that number in the key of their cache, so this op may miss; no other does.
    """
    mesh = mesh_factory((RANKS,), dim_names=("dp",))
    steps = measure(dtdispatch, adamw_step_or_skip(mesh, implementation))
    misses = [miss for miss in steps.missed if not miss.signature.startswith("addcdiv_")]
    assert not misses


def measure(dtdispatch: DtDispatch, step: Work) -> Steps:
    """Capture a step, and count others."""
    with dtdispatch.capture():
        step()
    return dtdispatch.steps(step)
