"""DTensors and numbers: each type of number promotes as it does plain tensors, and none misses again."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.api import DtDispatch
from pytest_dtdispatch.suite.models import rows_split

NUMBERS = {"int": 2, "float": 2.5, "0-dim tensor": 2.5}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=["f32", "i64"])
def test_add_number(dtdispatch: DtDispatch, device_mesh: DeviceMesh, dtype: torch.dtype, number: str) -> None:
    """Add a number to a DTensor, and count steps each of which adds another one."""
    a = rows_split(device_mesh, 16, 16).to(dtype)
    numbers = (promoting(number, device_mesh.device_type, step) for step in itertools.count())
    first = next(numbers)
    with dtdispatch.capture():
        result: Any = a + first
    assert result.dtype == (torch.ones(1, dtype=dtype, device=device_mesh.device_type) + first).dtype
    steps = dtdispatch.steps(lambda: a + next(numbers))
    assert steps.misses_per_step == 0


def promoting(number: str, device: str, step: int) -> Any:
    """Make a number of a step."""
    value = NUMBERS[number] + step
    return torch.tensor(value, device=device) if "tensor" in number else value
