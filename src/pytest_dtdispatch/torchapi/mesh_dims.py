"""Mesh dimensions of process groups."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.weak import WeakIdKeyDictionary

from pytest_dtdispatch.core.text import ask

_default_groups = WeakIdKeyDictionary()  # default group when a mesh was first seen, by mesh
DESCRIBED = "mesh_"  # prefix of torch's description of a group that it creates for a mesh dimension, from 2.6


class GroupDims(NamedTuple):
    """Mesh dimensions and ranks of a process group.

    Args:
        dims: names of the dimensions, or their numbers in meshes without names; empty if the group is not
            that of a dimension. Meshes with equal ranks may share a group, such as the default group.
        ranks: ranks of the group.
    """

    dims: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


class MeshDims:
    """Mesh dimensions of process groups, by the live meshes. A mesh has no list in torch: the heap has."""

    def __init__(self) -> None:
        self._meshes = WeakIdKeyDictionary()
        self._references = 0
        self._found = WeakIdKeyDictionary()

    def find_meshes(self) -> None:
        """Find meshes that were created since the last call, except those that ``gc.freeze`` hides."""
        references = sys.getrefcount(DeviceMesh)  # each mesh references its class; a search takes 25 ms
        if references != self._references:
            self._references = references
            for each in gc.get_referrers(DeviceMesh):
                self.add(each)

    def add(self, mesh: Any) -> None:
        """Add a mesh that is in use, unless it is known."""
        if type(mesh) is DeviceMesh and mesh not in self._meshes:
            self._meshes[mesh] = True
            _default_groups.setdefault(mesh, torch.distributed.group.WORLD)
            self._found = WeakIdKeyDictionary()

    def names(self) -> tuple[str, ...]:
        """Return the names of all dimensions of live meshes."""
        self.find_meshes()
        return _preferred({name for mesh in self._meshes for _, name in _groups_of(mesh)})

    def of(self, group: Any, mesh: Any = None) -> GroupDims:
        """Return the dimensions of a group; if several share it, those of the given mesh."""
        if group is None:
            return GroupDims()
        found: GroupDims = self._found.get(group) or self._search(group)
        if found.dims:
            self._found[group] = found
        if len(found.dims) > 1 and mesh is not None:
            own = {name for of_mesh, name in _groups_of(mesh) if of_mesh is group}
            return found._replace(dims=_preferred(own) or found.dims)
        return found

    def _search(self, group: Any) -> GroupDims:
        self.find_meshes()
        names = {name for mesh in self._meshes for of_mesh, name in _groups_of(mesh) if of_mesh is group}
        described = _described(group)  # its mesh may be gone
        return GroupDims(_preferred(names or {described} - {""}), _ranks(group))


def group_among(arguments: tuple[Any, ...]) -> Any:
    """Return the process group among the arguments of a collective, or None.

    Ops of c10d take a boxed group, functional ops its name as their last text, methods the group itself.
    """
    for each in reversed(arguments):
        if isinstance(each, ProcessGroup):
            return each
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(ask(_type_name, each, "")):
            return ProcessGroup.unbox(each)
        if isinstance(each, str):
            c10d: Any = torch.distributed.distributed_c10d
            return ask(c10d._resolve_process_group, each, None)
    return None


def _type_name(boxed: Any) -> str:
    return str(boxed._type().qualified_name())


def _groups_of(mesh: Any) -> Iterator[tuple[Any, str]]:
    """Yield the current group of each dimension of a mesh, and the name or number of the dimension.

    Meshes of destroyed groups are skipped: a mesh finds its groups by name, and later groups may have these
    names. Newer meshes also reference their groups; up to torch 2.10 the descriptions of groups may differ.
    """
    if _default_groups.get(mesh) is not torch.distributed.group.WORLD:
        return
    groups: list[Any] = ask(lambda each: each.get_all_groups(), mesh, [])
    names = mesh.mesh_dim_names or tuple(map(str, range(len(groups))))
    own = getattr(getattr(mesh, "_root_mesh", None) or mesh, "_pg_registry", None)
    for number, (group, name) in enumerate(zip(groups, names, strict=False)):
        is_own = _described(group) in ("", name) if own is None else own.get(group.group_name) is group
        if is_own and ask(mesh.size, number, 0) == len(_ranks(group)):
            yield group, name


def _described(group: Any) -> str:
    """Return the dimension that torch's description of a group names; empty if it names none."""
    text = str(ask(lambda each: each.group_desc, group, ""))
    if not text.startswith(DESCRIBED) or text == "mesh_default":
        return ""
    name = text.removeprefix(DESCRIBED)
    number = name.removeprefix("dim_")
    return number if number.isdecimal() else name


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(ask(torch.distributed.get_process_group_ranks, group, []))


def _preferred(names: set[str]) -> tuple[str, ...]:
    """Sort names of dimensions; numbers are left out if there are names."""
    return tuple(sorted({name for name in names if not name.isdecimal()} or names))
