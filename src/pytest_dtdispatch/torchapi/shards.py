"""Full values of DTensors, computed from the shards of all ranks without torch's redistribution."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.testing._comparison import default_tolerances as default_tolerances
from torch.utils._pytree import tree_map as tree_map

from pytest_dtdispatch.torchapi.tensors import local_of, shards_of_simulated_ranks

REDUCTIONS = {"sum": "sum", "avg": "mean", "max": "amax", "min": "amin", "product": "prod"}


class NoValueError(Exception):
    """A tensor has no defined full value; the message is the reason."""


class MisfitError(Exception):
    """A DTensor contradicts its spec, or its local shape does not fit its placements."""


class Full(NamedTuple):
    """Full value of a tensor.

    Args:
        values: plain tensor.
        size: sum of the absolute partial values, which bounds rounding errors; None without partial sums.
    """

    values: torch.Tensor
    size: torch.Tensor | None = None


def shards_of(
    tensors: Sequence[torch.Tensor], mesh: Any, simulated: Sequence[int] = ()
) -> list[Sequence[torch.Tensor]]:
    """Return the shards of tensors on each rank of a mesh, in the order of the mesh.

    Args:
        tensors: DTensors, or plain tensors that each rank has.
        mesh: their mesh.
        simulated: ranks of the mesh if they are simulated in this process. Otherwise the processes run
            collectives, and all of them must call this.
    """
    if simulated:
        return [[_shard(each, rank) for rank in simulated] for each in tensors]
    found = [[_shard(each, 0).cpu() for each in tensors]]
    for dim in reversed(range(mesh.ndim)):
        gathered: list[Any] = [None] * mesh.size(dim)
        torch.distributed.all_gather_object(gathered, found, mesh.get_group(dim))
        found = list(itertools.chain.from_iterable(gathered))
    columns = zip(tensors, zip(*found, strict=True), strict=True)
    return [[shard.to(local_of(each).device) for shard in shards] for each, shards in columns]


def _shard(tensor: Any, rank: int) -> torch.Tensor:
    """Copy the shard of a simulated rank, or of this process; masked elements of a partial sum are 0."""
    local = local_of(tensor)
    if isinstance(local, AsyncCollectiveTensor):
        local = local.trigger_wait()
    shard = _on_rank(local, rank).detach().clone()
    for placement in getattr(tensor, "placements", ()):
        if buffer := getattr(placement, "mask_buffer", None):
            if buffer.data is None:
                raise NoValueError("with an embedding whose mask was released")
            shard[_on_rank(buffer.data, rank)] = 0
    return shard


def is_shared_by_ranks(tensor: torch.Tensor) -> bool:
    """Return whether simulated ranks have one local tensor, as of a plain tensor that was distributed."""
    return not hasattr(local_of(tensor), "_local_tensors")


def _on_rank(local: torch.Tensor, rank: int) -> torch.Tensor:
    shards = shards_of_simulated_ranks(local)
    return shards[rank] if len(shards) > 1 else shards[0]


def full_values(tensor: Any, shards: Sequence[torch.Tensor]) -> list[Full]:
    """Return the full value by each group of ranks that has all shards; replicated tensors have several.

    Args:
        tensor: a DTensor.
        shards: its shards on all ranks, in the order of the mesh.

    Raises:
        MisfitError: its dtype or shape, its spec and its shards contradict each other.
        NoValueError: a placement has no defined full value.
    """
    spec, dtypes = tensor._spec, (tensor.dtype, tensor._spec.tensor_meta.dtype, shards[0].dtype)
    if tensor.shape != spec.shape or len({*dtypes}) > 1:
        actual, planned = ([*each.shape] for each in (tensor, spec))
        raise MisfitError(
            f"the tensor is {dtypes[0]} {actual}, its spec {dtypes[1]} {planned}, its shard {dtypes[2]}"
        )
    replicas: dict[Any, dict[Any, torch.Tensor]] = {}
    coordinates = itertools.product(*map(range, spec.mesh.shape))
    for coordinate, shard in zip(coordinates, shards, strict=True):
        indices = _indices(spec, coordinate)
        if [*shard.shape] != [*map(len, indices)]:
            implied = [*map(len, indices)]
            raise MisfitError(f"a shard is {[*shard.shape]} where its placements imply {implied}")
        at = [*zip(coordinate, spec.placements, strict=True)]
        replica = tuple(number for number, placement in at if placement.is_replicate())
        part = tuple(number for number, placement in at if placement.is_partial())
        whole = replicas.setdefault(replica, {}).setdefault(part, shard.new_empty(spec.shape))
        region: Any = tuple(
            slice(int(each[0]), int(each[-1]) + 1) if len(each) else slice(0) for each in indices
        )
        if whole[region].shape != shard.shape:  # a strided placement leaves gaps
            region = torch.meshgrid(*indices, indexing="ij")
        whole[region] = shard
    partial = [placement for placement in spec.placements if placement.is_partial()]
    return [_reduced(partial, [*parts.values()]) for parts in replicas.values()]


def _indices(spec: Any, coordinate: Sequence[int]) -> list[torch.Tensor]:
    """Return the indices in each tensor dimension that a rank has."""
    order = [dim for entry in getattr(spec, "shard_order", None) or () for dim in entry.mesh_dims]
    indices = [torch.arange(size) for size in spec.shape]
    for mesh_dim in dict.fromkeys((*order, *range(spec.mesh.ndim))):
        placement, ranks = spec.placements[mesh_dim], spec.mesh.size(mesh_dim)
        if hasattr(placement, "dim"):
            along = indices[placement.dim].view(*[1] * placement.dim, -1)
            parts, _ = placement._split_tensor(along, ranks, with_padding=False, contiguous=False)
            indices[placement.dim] = parts[coordinate[mesh_dim]].flatten()
    return indices


def _reduced(placements: Sequence[Any], parts: list[torch.Tensor]) -> Full:
    """Reduce partial values; torch requires one kind of reduction for all mesh dimensions."""
    if not placements:
        return Full(parts[0])
    stacked, reductions = torch.stack(parts), {placement.reduce_op for placement in placements}
    if power := getattr(placements[0], "norm_type", None):
        return Full((stacked**power).sum(0) ** (1 / power))
    reduction = reductions.pop()
    if reductions or reduction not in REDUCTIONS:
        raise NoValueError("with a partial value that is not defined")
    values = getattr(stacked, REDUCTIONS[reduction])(0).to(stacked.dtype)  # of booleans: whether any is true
    is_sum = reduction in ("sum", "avg") and (stacked.is_floating_point() or stacked.is_complex())
    return Full(values, stacked.abs().sum(0) if is_sum else None)


def is_fused_elsewhere(func: Any) -> bool:
    """Return whether ``loss_parallel`` or ``context_parallel`` computes an op together with another one."""
    handler = DTensor._op_dispatcher._custom_op_handlers.get(func)
    module = str(getattr(handler, "__module__", ""))
    if module == "torch.distributed.tensor.parallel.loss":
        return "backward" in str(func)
    return module.startswith("torch.distributed.tensor.experimental")
