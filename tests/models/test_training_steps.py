"""Training steps by every method: losses and parameters are bitwise equal to those of a plain loop."""

from __future__ import annotations

import pytest
from torch.distributed.device_mesh import DeviceMesh

from tests.models.training_steps import METHODS, differences, small_trainings

pytestmark = [pytest.mark.torch, pytest.mark.long]

SWEEP = pytest.mark.sweep
NAMES = [
    pytest.param("MLP, SGD", marks=SWEEP),
    "tensor-parallel MLP, AdamW foreach",
    "reentrant checkpoint",
    pytest.param("optimizer in backward", marks=SWEEP),
    pytest.param("torch.func", marks=SWEEP),
]


@pytest.mark.parametrize("name", NAMES)
def test_measured_steps_equal_plain_steps(name: str, mesh: DeviceMesh) -> None:
    build = small_trainings(mesh)[name]
    assert not {method: found for method in METHODS if (found := differences(build, method))}
