"""What ends a training step: gradient clipping and AdamW on a list of DTensors, as FSDP2 leaves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils import clip_grad_norm_

from pytest_dtdispatch.suite.models import rows_split

PARAMETERS, ROWS, COLUMNS = 4, 16, 16
LACKING = ("sharding strategy", "capturable", "`fused=True`", "fused kernels")  # in torch's errors
Work = Callable[[], Any]


def _rate(device: str) -> torch.Tensor:
    return torch.tensor(1e-3, device=device)


# By name: the options of AdamW, on a device.
ADAMW: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "for_loop": lambda device: {"foreach": False},
    "for_loop_tensor_lr": lambda device: {"foreach": False, "lr": _rate(device)},
    "foreach": lambda device: {"foreach": True},
    "foreach_tensor_lr": lambda device: {"foreach": True, "capturable": True, "lr": _rate(device)},
    "fused": lambda device: {"fused": True},
    "fused_tensor_lr": lambda device: {"fused": True, "lr": _rate(device)},
}


def parameters(mesh: DeviceMesh) -> list[torch.nn.Parameter]:
    """Make parameters, and a gradient of each."""
    made = [torch.nn.Parameter(rows_split(mesh, ROWS, COLUMNS)) for _ in range(PARAMETERS)]
    for parameter in made:
        parameter.grad = rows_split(mesh, ROWS, COLUMNS)
    return made


def clipping(mesh: DeviceMesh) -> Work:
    """Prepare to clip the gradients of a list of DTensors by the norm of all."""
    clipped = parameters(mesh)
    return lambda: clip_grad_norm_(clipped, max_norm=1.0)


def adamw_step_or_skip(mesh: DeviceMesh, name: str) -> Work:
    """Prepare a step of AdamW, and take the first one; skip the test where this torch lacks what it needs.

    The first step makes the optimizer's state; those after it are what training repeats.
    """
    try:
        optimizer = torch.optim.AdamW(parameters(mesh), **ADAMW[name](mesh.device_type))
        optimizer.step()
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        if not any(words in str(error) for words in LACKING):
            raise
        pytest.skip(f"torch {torch.__version__}: {error}")
    return optimizer.step
