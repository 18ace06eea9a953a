"""A step with two planted faults, and the same step without them."""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from pytest_dtdispatch import DtDispatch


class Decoder:
    def __init__(self, mesh: DeviceMesh) -> None:
        self.x = distribute_tensor(torch.ones(8, 16), mesh, [Shard(0)])
        self.cache: torch.Tensor = distribute_tensor(torch.ones(8, 1), mesh, [Shard(0)])
        self.weights = [distribute_tensor(torch.ones(16, 16), mesh, [Shard(1)]) for _ in range(3)]

    def project(self, weight: DTensor) -> torch.Tensor:
        whole = self.x.redistribute(placements=[Replicate()])
        return whole @ weight

    def before(self) -> torch.Tensor:
        q, k, v = map(self.project, self.weights)
        self.cache = torch.cat([self.cache, self.x[:, :1]], dim=1)
        return q * k + v

    def after(self) -> torch.Tensor:
        whole = self.x.redistribute(placements=[Replicate()])
        q, k, v = (whole @ weight for weight in self.weights)
        self.cache.copy_(self.x[:, :1])
        return q * k + v


def test_before(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    dtdispatch.steps(Decoder(device_mesh).before, name="train")


def test_after(dtdispatch: DtDispatch, device_mesh: DeviceMesh) -> None:
    dtdispatch.steps(Decoder(device_mesh).after, name="train")
