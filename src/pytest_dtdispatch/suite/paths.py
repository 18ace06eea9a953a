"""Paths of PyTorch's own benchmark of the dispatcher, under its names.

They are those of ``benchmarks/dynamo/pr_time_benchmarks/benchmarks/dtensor.py`` in the PyTorch repository,
which counts their instructions on a hit, end to end: autograd's part is included, as here. PyTorch changed
two things. ``add_backward`` redistributes nothing since January 2026: so it does here, and the former
version is ``add_backward_redistribute``. Paths that only read metadata run on ``meta`` tensors since July
2026, so that no code of a device is counted: here they run on the device of the mesh, and their variants
on ``meta`` tensors are named ``..._meta``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from pytest_dtdispatch.suite.llama import Work


def _ones(
    mesh: DeviceMesh, placement: Placement, *local_shape: int, grad: bool = False, device: str = ""
) -> DTensor:
    on = device or mesh.device_type
    local = torch.ones(local_shape or (10, 10), device=on, requires_grad=grad)
    return DTensor.from_local(local, mesh, [placement])


def _detach(mesh: DeviceMesh, device: str = "") -> Work:
    return _ones(mesh, Replicate(), device=device).detach


def _to_from_local(mesh: DeviceMesh, device: str = "") -> Work:
    a = _ones(mesh, Replicate(), device=device)
    return lambda: DTensor.from_local(a.to_local(), mesh, [Replicate()])


def _collectives(mesh: DeviceMesh) -> Work:
    replicated, summands = _ones(mesh, Replicate()), _ones(mesh, Partial())

    def work() -> None:
        sharded = replicated.redistribute(placements=[Shard(0)])
        other = sharded.redistribute(placements=[Shard(1)])
        other.redistribute(placements=[Replicate()])
        summands.redistribute(placements=[Replicate()])
        summands.redistribute(placements=[Shard(0)])

    return work


def _add_backward(mesh: DeviceMesh) -> Work:
    a, b = (_ones(mesh, Replicate(), 512, 512, grad=True) for _ in range(2))
    return partial(_sum_backward, a, b)


def _add_backward_redistribute(mesh: DeviceMesh) -> Work:
    rows = 512 // mesh.size()
    a = _ones(mesh, Shard(0), rows, 512, grad=True)
    b = _ones(mesh, Shard(1), 512, rows, grad=True)
    return partial(_sum_backward, a, b)


def _sum_backward(a: DTensor, b: DTensor) -> None:
    total: Any = (a + b).sum()
    total.backward()


def _inplace(mesh: DeviceMesh) -> Work:
    a, b = _ones(mesh, Replicate()), _ones(mesh, Replicate())
    return lambda: a.add_(b)


def _view(mesh: DeviceMesh, device: str = "") -> Work:
    a = _ones(mesh, Replicate(), device=device)
    return lambda: a.view(100)


def _random(mesh: DeviceMesh) -> Work:
    return _ones(mesh, Replicate()).uniform_


def _custom_handler(mesh: DeviceMesh, device: str = "") -> Work:
    a, b = _ones(mesh, Replicate(), device=device), _ones(mesh, Replicate(), device=device)
    return lambda: torch.ops.aten.is_same_size(a, b)


# By the name of their rows: each prepares tensors on a mesh, and returns the work to measure.
PATHS: Mapping[str, Callable[[DeviceMesh], Work]] = {
    "dtensor_dispatch_detach": _detach,
    "dtensor_dispatch_to_from_local": _to_from_local,
    "dtensor_dispatch_collectives": _collectives,
    "dtensor_dispatch_add_backward": _add_backward,
    "dtensor_dispatch_inplace": _inplace,
    "dtensor_dispatch_view": _view,
    "dtensor_dispatch_random": _random,
    "dtensor_dispatch_custom_handler": _custom_handler,
    "dtensor_dispatch_add_backward_redistribute": _add_backward_redistribute,
    "dtensor_dispatch_detach_meta": partial(_detach, device="meta"),
    "dtensor_dispatch_to_from_local_meta": partial(_to_from_local, device="meta"),
    "dtensor_dispatch_view_meta": partial(_view, device="meta"),
    "dtensor_dispatch_custom_handler_meta": partial(_custom_handler, device="meta"),
}
