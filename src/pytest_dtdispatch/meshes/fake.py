"""A mesh of fake ranks for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_dtdispatch.core.parsing import read_choice, read_mesh, read_names
from pytest_dtdispatch.core.shown import shown
from pytest_dtdispatch.errors import MeshError
from pytest_dtdispatch.meshes.groups import ProcessGroupOwner
from pytest_dtdispatch.meshes.place import choose_place

DEVICES = ("cpu", "cuda", "auto")


@contextmanager
def fake_mesh(
    mesh: int | str | Sequence[int], dim_names: Sequence[str] | None = None, device: str = "cpu"
) -> Iterator[DeviceMesh]:
    """Open a fake process group in this one process, with a mesh on it; close it at the end.

    Ops on DTensors run on one rank's shards, and every collective is a fake that sends nothing: results of a
    redistribution are no real numbers. The process group is the default one meanwhile; at the end it is
    destroyed, and what torch cached of it is forgotten.

    Args:
        mesh: the shape, ``(2, 4)``, ``"2x4"`` or ``4``.
        dim_names: names of its dimensions.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for CUDA where torch sees a device.

    Returns:
        A context manager, which gives the mesh.

    Raises:
        MeshError: a process group is open already, or there can be no such mesh here.

    Example:
        >>> with fake_mesh((2, 4), dim_names=("dp", "tp")) as mesh:
        ...     mesh.size()
        8
    """
    __tracebackhide__ = True
    shape = _read("mesh", mesh, read_mesh)
    names = None if dim_names is None else _read("dim_names", dim_names, read_names)
    place = choose_place(shape, _read("device", device, lambda value: read_choice(value, DEVICES)), "fake")
    if dist.is_initialized():
        raise MeshError(
            f"fake_mesh: a process group is open ({dist.get_backend()}, {dist.get_world_size()} ranks): "
            "make the mesh on it with torch's init_device_mesh, or destroy it first"
        )
    owner = ProcessGroupOwner()
    try:
        yield owner.mesh(place, names)
    finally:
        owner.close()


def _read(name: str, value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise MeshError(f"fake_mesh: {name}={shown(value)} is not {error}") from None
