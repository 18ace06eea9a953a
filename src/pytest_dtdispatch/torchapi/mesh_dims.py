"""Mesh dimensions of process groups."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.weak import WeakIdKeyDictionary

from pytest_dtdispatch.core.environment import ranks_range
from pytest_dtdispatch.core.text import ask
from pytest_dtdispatch.torchapi.tensors import dead_reference


class GroupDims(NamedTuple):
    """Mesh dimensions and ranks of a process group.

    Args:
        dims: names of the dimensions, or their numbers in meshes without names; empty if the group is not
            that of a dimension. Meshes with equal ranks may share a group, such as the default group.
        ranks: ranks of the group as text, such as ``0-3``.
    """

    dims: tuple[str, ...] = ()
    ranks: str = ""


class MeshDims:
    """Mesh dimensions of process groups. Torch has no list of meshes: they are found on the heap."""

    def __init__(self) -> None:
        self._meshes = WeakIdKeyDictionary()  # reference to the default group when a mesh was found
        self._ids: set[int] = set()
        self._searched = 0, 0  # references to the class of meshes, and number of known meshes
        self._world: Any = None  # reference to the default group of the names in the next attribute
        self._found: dict[str, GroupDims] = {}  # by the name of the group
        self._lock = threading.RLock()  # a program may create meshes in several threads

    def find_meshes(self) -> None:
        """Find meshes that were created since the last call, except those that ``gc.freeze`` hides."""
        now = self._state()
        if now != self._searched:  # a search takes 25 ms
            self._ids = {*map(id, self._meshes)}  # a new mesh may have the id of a deleted one
            for each in gc.get_referrers(DeviceMesh):
                self.add(each)
            self._searched = now[0], len(self._meshes)

    def _state(self) -> tuple[int, int]:
        return sys.getrefcount(DeviceMesh), len(self._meshes)  # each mesh references its class

    def add(self, mesh: Any) -> None:
        """Add a mesh that is in use, unless it is known."""
        if id(mesh) not in self._ids and type(mesh) is DeviceMesh:
            world = torch.distributed.group.WORLD
            with self._lock:
                self._ids.add(id(mesh))
                self._meshes.setdefault(mesh, dead_reference if world is None else weakref.ref(world))
                self._found = {}

    def names(self) -> tuple[str, ...]:
        """Return the names of all dimensions of live meshes."""
        with self._lock:
            self.find_meshes()
            return _preferred({name for mesh in self._meshes for _, name in self._groups_of(mesh)})

    def of(self, group: Any, mesh: Any = None) -> GroupDims:
        """Return the dimensions of a group; if several share it, those of the given mesh."""
        world, key = torch.distributed.group.WORLD, str(ask(attrgetter("group_name"), group, ""))
        if world is None or not key:  # the program created the group itself
            return GroupDims()
        if self._world is None or self._world() is not world:
            self._world, self._found = weakref.ref(world), {}
        found = self._found.get(key)
        if found is None or not (found.dims or self._state()[0] <= self._searched[0]):
            with self._lock:
                self.find_meshes()
                names = {name for mesh in self._meshes for own, name in self._groups_of(mesh) if own is group}
            described = _described(group)  # its mesh may be gone
            found = GroupDims(_preferred(names or {described} - {""}), ranks_range(_ranks(group)))
            self._found[key] = found
        if len(found.dims) > 1 and mesh is not None:
            own = {name for of_mesh, name in self._groups_of(mesh) if of_mesh is group}
            return found._replace(dims=_preferred(own) or found.dims)
        return found

    def _groups_of(self, mesh: Any) -> Iterator[tuple[Any, str]]:
        """Yield the current group of each dimension of a mesh, and the name or number of the dimension.

        Meshes of destroyed groups are skipped: a mesh finds its groups by name, and later groups may have
        these names. Newer meshes also reference their groups; up to torch 2.10 descriptions may differ.
        """
        first_seen = self._meshes.get(mesh)
        if first_seen is None or first_seen() is not torch.distributed.group.WORLD:
            return
        names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
        if ask(methodcaller("get_coordinate"), mesh, ()) is None:  # this rank is outside of the mesh
            yield from ((None, name) for name in names)
            return
        groups: list[Any] = ask(methodcaller("get_all_groups"), mesh, [])
        registry = getattr(getattr(mesh, "_root_mesh", None) or mesh, "_pg_registry", None)
        for number, (group, name) in enumerate(zip(groups, names, strict=False)):
            if registry is None:
                is_own = _described(group) in ("", name)
            else:
                is_own = registry.get(group.group_name) is group
            if is_own and ask(mesh.size, number, 0) == len(_ranks(group)):
                yield group, name


MESH_DIMS = MeshDims()  # shared: a mesh of an earlier group must be known as such


def group_among(arguments: Sequence[Any]) -> Any:
    """Return the process group among the arguments of a collective, or None.

    Ops of c10d take it as their first boxed object, functional ops take its name as their last text, and
    methods the group itself.
    """
    for each in arguments:
        if type(each) is torch.ScriptObject:
            return ask(ProcessGroup.unbox, each, None)
    for each in reversed(arguments):
        if isinstance(each, ProcessGroup):
            return each
        if isinstance(each, str):
            c10d: Any = torch.distributed.distributed_c10d
            return ask(c10d._resolve_process_group, each, None)
    return None


def _described(group: Any) -> str:
    """Return the dimension that torch's description of a group names; empty if it names none."""
    text = str(ask(attrgetter("group_desc"), group, ""))
    # From torch 2.6, this is the prefix of groups that it creates for mesh dimensions.
    if not text.startswith("mesh_") or text == "mesh_default":
        return ""
    name = text.removeprefix("mesh_")
    number = name.removeprefix("dim_")
    return number if number.isdecimal() else name


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(ask(torch.distributed.get_process_group_ranks, group, []))


def _preferred(names: set[str]) -> tuple[str, ...]:
    """Sort names of dimensions; numbers are left out if there are names."""
    return tuple(sorted({name for name in names if not name.isdecimal()} or names))
