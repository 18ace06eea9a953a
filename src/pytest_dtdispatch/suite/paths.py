"""The paths through DTensor's dispatcher that PyTorch's own benchmark covers, under its names.

Source: ``benchmarks/dynamo/pr_time_benchmarks/benchmarks/dtensor.py`` in the PyTorch repository, which counts
their instructions on a hit. There, too, the work includes autograd's part: it is measured end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

WORLD_SIZE = 256
Work = Callable[[], Any]


def _ones(mesh: DeviceMesh, placement: Placement, *local_shape: int, grad: bool = False) -> DTensor:
    local = torch.ones(local_shape or (10, 10), device=mesh.device_type, requires_grad=grad)
    return DTensor.from_local(local, mesh, [placement])


def _to_from_local(mesh: DeviceMesh) -> Work:
    a = _ones(mesh, Replicate())
    return lambda: DTensor.from_local(a.to_local(), mesh, [Replicate()])


def _collectives(mesh: DeviceMesh) -> Work:
    replicated, partial = _ones(mesh, Replicate()), _ones(mesh, Partial())

    def work() -> None:
        sharded = replicated.redistribute(placements=[Shard(0)])
        other = sharded.redistribute(placements=[Shard(1)])
        other.redistribute(placements=[Replicate()])
        partial.redistribute(placements=[Replicate()])
        partial.redistribute(placements=[Shard(0)])

    return work


def _add_backward(mesh: DeviceMesh) -> Work:
    rows = 512 // mesh.size()
    a = _ones(mesh, Shard(0), rows, 512, grad=True)
    b = _ones(mesh, Shard(1), 512, rows, grad=True)

    def work() -> None:
        total: Any = (a + b).sum()
        total.backward()

    return work


def _inplace(mesh: DeviceMesh) -> Work:
    a, b = _ones(mesh, Replicate()), _ones(mesh, Replicate())
    return lambda: a.add_(b)


def _view(mesh: DeviceMesh) -> Work:
    a = _ones(mesh, Replicate())
    return lambda: a.view(100)


def _custom_handler(mesh: DeviceMesh) -> Work:
    a, b = _ones(mesh, Replicate()), _ones(mesh, Replicate())
    return lambda: torch.ops.aten.is_same_size(a, b)


# By the name of their rows: each prepares tensors on a mesh, and returns the work that is measured.
PATHS: Mapping[str, Callable[[DeviceMesh], Work]] = {
    "dtensor_dispatch_detach": lambda mesh: _ones(mesh, Replicate()).detach,
    "dtensor_dispatch_to_from_local": _to_from_local,
    "dtensor_dispatch_collectives": _collectives,
    "dtensor_dispatch_add_backward": _add_backward,
    "dtensor_dispatch_inplace": _inplace,
    "dtensor_dispatch_view": _view,
    "dtensor_dispatch_random": lambda mesh: _ones(mesh, Replicate()).uniform_,
    "dtensor_dispatch_custom_handler": _custom_handler,
}
