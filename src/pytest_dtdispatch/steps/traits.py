"""Describe a call by what the caches may tell it apart by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pytest_dtdispatch.core.results import mesh_text
from pytest_dtdispatch.measuring.op_call import dtype_text, placements_text, shape_text
from pytest_dtdispatch.steps.reasons import Trait, Traits
from pytest_dtdispatch.torchapi.ops import arguments_of, leaves_of
from pytest_dtdispatch.torchapi.tensors import mesh_among, ranks_of, stride_of, tensor_traits


class Describer:
    """Describe calls; meshes are described once, as one may have many ranks."""

    def __init__(self) -> None:
        # By id: the mesh is held, so its id stays its own.
        self._meshes: dict[int, tuple[Any, dict[Trait, str]]] = {}

    def traits_of(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Traits:
        """Describe a call on DTensors, or on the specs that stand for them in propagation."""
        traits: dict[Trait, str] = {}
        mesh = mesh_among(leaves_of(args, kwargs))
        if mesh is not None:
            traits.update(self._mesh_traits(mesh))
        for argument in arguments_of(func, args, kwargs):
            self._add(traits, argument.name, argument.value, mesh)
        return traits

    def _add(self, traits: dict[Trait, str], of: str, value: Any, mesh: Any) -> None:
        tensor = tensor_traits(value)
        if tensor is not None:
            traits[Trait(of, "kind")] = "a tensor"
            replicated = "R" * (mesh.ndim if mesh is not None else 1)  # as torch takes a plain tensor
            traits[Trait(of, "dtype")] = dtype_text(tensor.dtype)
            traits[Trait(of, "shape")] = shape_text(tensor.shape)
            traits[Trait(of, "placements")] = placements_text(tensor.placements) or replicated
            traits[Trait(of, "stride")] = shape_text(stride_of(value))
        elif isinstance(value, (list, tuple)):
            traits[Trait(of, "kind")] = "a list"
            traits[Trait(of, "length")] = str(len(value))
            for i, item in enumerate(value):
                self._add(traits, f"{of}[{i}]", item, mesh)
        else:
            traits[Trait(of, "kind")] = "no tensor"
            traits[Trait(of, "type")] = type(value).__name__
            traits[Trait(of, "value")] = str(value)

    def _mesh_traits(self, mesh: Any) -> dict[Trait, str]:
        if id(mesh) not in self._meshes:
            ranks = ",".join(map(str, ranks_of(mesh)))
            traits = {
                Trait("mesh", "shape"): mesh_text(tuple(mesh.shape)),
                Trait("mesh", "device"): str(mesh.device_type),
                Trait("mesh", "dim_names"): str(mesh.mesh_dim_names),
                Trait("mesh", "ranks"): _shortened(ranks),
            }
            self._meshes[id(mesh)] = (mesh, traits)
        return self._meshes[id(mesh)][1]


def _shortened(ranks: str) -> str:
    if len(ranks) <= 20:
        return ranks
    return f"{ranks[:8]}...#{hashlib.sha256(ranks.encode()).hexdigest()[:8]}"
