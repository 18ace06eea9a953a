"""What tests on real DTensors share. Torch is imported inside fixtures: unit tests run without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    from pytest_dtdispatch.core.measurement import Measurement
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

Shard = Callable[..., "DTensor"]
Capture = Callable[..., "dict[str, Measurement]"]


@pytest.fixture
def group_owner() -> Iterator[ProcessGroupOwner]:
    """Own the process group of a test."""
    from pytest_dtdispatch.meshes.groups import ProcessGroupOwner

    owner = ProcessGroupOwner()
    yield owner
    owner.close()


@pytest.fixture
def mesh(group_owner: ProcessGroupOwner) -> DeviceMesh:
    """Four ranks of a fake process group on the CPU."""
    from pytest_dtdispatch.meshes.place import Place

    return group_owner.mesh(Place((4,), "cpu", "fake"))


@pytest.fixture
def shard(mesh: DeviceMesh) -> Shard:
    """Make DTensors of random numbers: ``shard(8, 8)`` on Shard(0), or on the placement that is given."""
    import torch
    from torch.distributed import tensor

    def make(*shape: int, placement: Any = None, requires_grad: bool = False) -> DTensor:
        values = torch.rand(*shape, device=mesh.device_type)
        made = tensor.distribute_tensor(values, mesh, [placement or tensor.Shard(0)])
        local = made.to_local()
        local.copy_(torch.rand_like(local))  # old fake groups leave undefined what they scatter
        made.requires_grad_(requires_grad)
        return made

    return make


@pytest.fixture
def capture() -> Capture:
    """Run a callable in a capture of few rounds; return what was measured, by op."""
    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.measuring.capture import SignatureCapture
    from pytest_dtdispatch.measuring.plan import Plan

    def run(body: Callable[[], Any], rounds: int = 2, repeat: int = 3) -> dict[str, Measurement]:
        book = TestResults()
        with SignatureCapture(book, Plan(rounds, repeat)):
            body()
        return {measurement.op: measurement for measurement in book.measurements()}

    return run
