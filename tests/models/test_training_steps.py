"""Training steps by every method: losses and parameters are bitwise equal to those of a plain loop."""

from __future__ import annotations

import pytest
from torch.distributed.device_mesh import DeviceMesh

from tests.models.training_steps import METHODS, differences, small_trainings

pytestmark = [pytest.mark.torch, pytest.mark.long]

NAMES = (
    "MLP, SGD",
    "tensor-parallel MLP, AdamW foreach",
    "reentrant checkpoint",
    "optimizer in backward",
    "torch.func",
)


@pytest.mark.parametrize("name", NAMES)
def test_measured_steps_equal_plain_steps(name: str, mesh: DeviceMesh) -> None:
    build = small_trainings(mesh)[name]
    assert not {method: found for method in METHODS if (found := differences(build, method))}
