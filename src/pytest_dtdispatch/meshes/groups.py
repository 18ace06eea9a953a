"""The one owner of init and destroy: process groups for tests, and the meshes on them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_dtdispatch.errors import MeshError
from pytest_dtdispatch.measuring import torchapi
from pytest_dtdispatch.measuring.caches import ShardingCaches
from pytest_dtdispatch.meshes.place import Place, group_backend
from pytest_dtdispatch.records.signature import mesh_text


class ProcessGroupOwner:
    """Opens a process group for a test, and closes it after; a group that the user made is only used.

    Both forget everything that torch cached about meshes: an equal mesh on a new group equals the old one,
    and would be answered from entries that name the old group.

    Example:
        >>> owner = ProcessGroupOwner()
        >>> mesh = owner.mesh(Place((2, 4), "cpu", "fake"), ("dp", "tp"))
        >>> tuple(mesh.shape)
        (2, 4)
        >>> owner.close()
    """

    def __init__(self) -> None:
        self._ours: Any = None

    def group(self, place: Place, backend_is_chosen: bool = True, world_size: int | None = None) -> Any:
        """Open the process group, or use the one that is open.

        Args:
            place: the mesh that it must have room for.
            backend_is_chosen: whether a group of another backend, made by the user, is refused.
            world_size: ranks of a new group, where more than the mesh needs.

        Raises:
            MeshError: the group that is open is too small, or has another backend.
        """
        if dist.is_initialized():
            self._check_open_group(place, backend_is_chosen)
        else:
            self._open(place.backend, max(world_size or 0, place.world_size))
        return dist.group.WORLD

    def mesh(
        self,
        place: Place,
        dim_names: tuple[str, ...] | None = None,
        backend_is_chosen: bool = True,
        world_size: int | None = None,
    ) -> DeviceMesh:
        """Make a mesh, on the group that is open or on a new one; arguments as of :meth:`group`.

        Raises:
            MeshError: as of :meth:`group`, or there is not one name for each dimension.
        """
        if dim_names is not None and len(dim_names) != len(place.mesh):
            raise MeshError(f"mesh {mesh_text(place.mesh)} has {len(place.mesh)} dimensions, not {dim_names}")
        self.group(place, backend_is_chosen, world_size)
        return init_device_mesh(place.device, place.mesh, mesh_dim_names=dim_names)

    def close(self) -> None:
        """Destroy the group, if we made it and the test left it."""
        if self._ours is None:
            return
        if dist.is_initialized() and dist.group.WORLD is self._ours:
            dist.destroy_process_group()
        self._ours = None
        ShardingCaches().clear_all()

    def _open(self, backend: str, world_size: int) -> None:
        ShardingCaches().clear_all()
        if backend == "fake":
            torchapi.init_fake_group(world_size)
        else:
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=world_size)
        self._ours = dist.group.WORLD

    def _check_open_group(self, place: Place, backend_is_chosen: bool) -> None:
        size = dist.get_world_size()
        if place.world_size > size:
            advice = (
                "ask for the largest mesh of a test first, or name it in the marker"
                if dist.group.WORLD is self._ours
                else "it was open before the test; destroy it first, or ask for a smaller mesh"
            )
            raise MeshError(
                f"mesh {mesh_text(place.mesh)} needs {place.world_size} ranks, "
                f"and the process group that is open has {size}: {advice}"
            )
        if backend_is_chosen and group_backend() != place.backend:
            raise MeshError(
                f"backend {place.backend} was asked for, and the open process group is {group_backend()}"
            )
