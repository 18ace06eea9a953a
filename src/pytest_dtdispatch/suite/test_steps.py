"""Steps: all ops of one, counts of several, their budget; gradient clipping and optimizer steps.

Counts of training steps are steady; each decoded token misses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import clip_grad_norm_

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.plugin.fixtures import MeshFactory
from pytest_dtdispatch.steps.model import Steps
from pytest_dtdispatch.suite.decode import decode_steps, decode_token
from pytest_dtdispatch.suite.llama import Work, llama_step
from pytest_dtdispatch.suite.models import (
    fsdp_columns_step_or_skip,
    fsdp_hooks_step,
    fsdp_step_or_skip,
    fsdp_weight_sync,
    rows_split,
    tensor_parallel_step,
)

# By name: the options of AdamW. The learning rate is a number, or a tensor if the name says so.
ADAMW: Mapping[str, dict[str, Any]] = {
    "for_loop": {"foreach": False},
    "for_loop_tensor_lr": {"foreach": False},
    "foreach": {"foreach": True},
    "foreach_tensor_lr": {"foreach": True, "capturable": True},
    "fused": {"fused": True},
    "fused_tensor_lr": {"fused": True},
}


def parameters(mesh: DeviceMesh, number: int = 4) -> list[torch.nn.Parameter]:
    """Create parameters with gradients."""
    created = [torch.nn.Parameter(rows_split(mesh, 16, 16)) for _ in range(number)]
    for parameter in created:
        parameter.grad = rows_split(mesh, 16, 16)
    return created


def adamw_step_or_skip(mesh: DeviceMesh, name: str, number: int = 4) -> Work:
    """Prepare a step of AdamW, and run the first one; skip the test if this torch does not support it.

    The first step creates the state of the optimizer, which later steps only update.
    """
    rate = torch.tensor(1e-3, device=mesh.device_type) if name.endswith("_tensor_lr") else 1e-3
    try:
        optimizer = torch.optim.AdamW(parameters(mesh, number), lr=rate, **ADAMW[name])
        optimizer.step()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        unsupported = ("sharding strategy", "capturable", "`fused=True`", "fused kernels")
        if not any(words in str(error) for words in unsupported):
            raise
        pytest.skip(f"torch {torch.__version__}: {error}")
    return optimizer.step


def assert_steady(steps: Steps) -> None:
    """Check that steps have no misses, and that caches do not grow."""
    assert steps.misses_per_step == 0
    assert steps.cache_growth_per_step == 0


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


def test_tensor_parallel_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count forward and backward of an MLP block on a 2x4 mesh."""
    assert_steady(dtdispatch.steps(tensor_parallel_step(mesh_factory((2, 4), dim_names=("dp", "tp")))))


def test_fsdp2_adamw_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count training steps of four linear layers under FSDP2 with AdamW on 8 ranks."""
    assert_steady(dtdispatch.steps(fsdp_step_or_skip(mesh_factory((8,), dim_names=("dp",)))))


def test_fsdp2_columns_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count the same steps with each weight split by its columns."""
    assert_steady(dtdispatch.steps(fsdp_columns_step_or_skip(mesh_factory((8,), dim_names=("dp",)))))


def test_llama_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count forward and backward of two Llama layers, tensor and sequence parallel on 4 ranks."""
    assert_steady(dtdispatch.steps(llama_step(mesh_factory((4,), dim_names=("tp",)))))


def test_decode_steps(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Count decoded tokens, whose caches of keys and values grow: such steps are never steady.

    Each token adds an entry to the cache and so changes its shapes: every op on the cache misses once for
    both layers, and adds an entry to the sharding caches.
    """
    steps = dtdispatch.steps(decode_steps(mesh_factory((4,), dim_names=("tp",))))
    if steps.steps:  # they are not counted in a run that verifies ops
        assert min(each.misses for each in steps.steps) >= 4
        assert steps.collectives_per_step == 4


def test_tensor_parallel_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Measure the budget of an MLP block on a 2x4 mesh."""
    dtdispatch.budget(tensor_parallel_step(mesh_factory((2, 4), dim_names=("dp", "tp"))))


def test_fsdp2_adamw_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Measure the budget of training steps of four linear layers under FSDP2 with AdamW on 8 ranks."""
    dtdispatch.budget(fsdp_step_or_skip(mesh_factory((8,), dim_names=("dp",))))


def test_fsdp2_hooks_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Measure the budget of forward and backward of 16 small FSDP2 groups on 8 ranks."""
    step = fsdp_step_or_skip(mesh_factory((8,), dim_names=("dp",)), fsdp_hooks_step)
    dtdispatch.budget(step, steps=2)


def test_llama_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Measure the budget of a Llama-like model of two layers, tensor and sequence parallel."""
    dtdispatch.budget(llama_step(mesh_factory((4,), dim_names=("tp",))), steps=10)


def test_decode_budget(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Measure the budget of a decoded token, which misses because it grows the cache."""
    dtdispatch.budget(decode_steps(mesh_factory((4,), dim_names=("tp",))), steps=8)


def test_weight_sync(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Gather the eight parameters of an FSDP2 model one by one, as trainers with an inference engine do."""
    sync = fsdp_step_or_skip(mesh_factory((8,), dim_names=("dp",)), fsdp_weight_sync)
    dtdispatch.call(sync, name="weight_sync")
    assert_steady(dtdispatch.steps(sync))


def test_clip_grad_norm(dtdispatch: DtDispatch, mesh_factory: MeshFactory) -> None:
    """Clip four gradients by their total norm."""
    clipped = parameters(mesh_factory((8,), dim_names=("dp",)))
    assert_steady(measure(dtdispatch, lambda: clip_grad_norm_(clipped, max_norm=1.0)))


@pytest.mark.parametrize("implementation", ADAMW)
def test_adamw(dtdispatch: DtDispatch, mesh_factory: MeshFactory, implementation: str) -> None:
    """Run steps with four parameters; the learning rate is a number or a tensor.

    The loop over parameters passes a different number to ``addcdiv_`` in each step. In torch 2.10 and 2.11
    that number is part of the cache key, so this op may miss; no other does.
    """
    mesh = mesh_factory((8,), dim_names=("dp",))
    steps = measure(dtdispatch, adamw_step_or_skip(mesh, implementation))
    misses = [miss for miss in steps.missed if not miss.signature.startswith("addcdiv_")]
    assert not misses


@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_adamw_parameters(dtdispatch: DtDispatch, mesh_factory: MeshFactory, implementation: str) -> None:
    """Run steps with 2 to 8 parameters."""
    mesh = mesh_factory((8,), dim_names=("dp",))
    dtdispatch.scaling(lambda number: adamw_step_or_skip(mesh, implementation, number), (2, 4, 8))


def measure(dtdispatch: DtDispatch, step: Work) -> Steps:
    """Capture a step, and count others."""
    with dtdispatch.capture():
        step()
    return dtdispatch.steps(step)
