"""A step with two other faults of the same kinds, which the script was not written for, and without them."""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch import DtDispatch


class Logger:
    def __init__(self, mesh: DeviceMesh) -> None:
        self.x = distribute_tensor(torch.ones(8, 16), mesh, [Replicate()])
        self.up = distribute_tensor(torch.ones(16, 32), mesh, [Shard(1)])
        self.down = distribute_tensor(torch.ones(32, 16), mesh, [Shard(0)])
        self.norms: list[torch.Tensor] = []

    def block(self) -> torch.Tensor:
        return torch.relu(self.x @ self.up) @ self.down

    def before(self) -> torch.Tensor:
        partial = self.block()
        assert isinstance(partial, DTensor)
        total: torch.Tensor = self.x
        for _ in range(4):
            total = total + partial.redistribute(placements=[Replicate()])
        self.norms.append(self.x.sum(0))
        torch.stack(self.norms)
        return total

    def after(self) -> torch.Tensor:
        partial = self.block()
        assert isinstance(partial, DTensor)
        whole = partial.redistribute(placements=[Replicate()])
        total: torch.Tensor = self.x
        for _ in range(4):
            total = total + whole
        torch.stack([self.x.sum(0)])
        return total


def test_before(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    dtdispatch.steps(Logger(device_mesh).before, name="train")


def test_after(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    dtdispatch.steps(Logger(device_mesh).after, name="train")
