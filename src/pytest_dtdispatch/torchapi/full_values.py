"""What tensors hold, all of it or what this rank knows of it, as plain tensors."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils._pytree import keystr as _keystr
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from pytest_dtdispatch.torchapi.ops import without_outer_modes
from pytest_dtdispatch.torchapi.process_groups import is_group_fake
from pytest_dtdispatch.torchapi.tensors import shards_of_simulated_ranks, wait_for


@dataclass(frozen=True)
class KnownPart:
    """What this rank knows of a tensor: all of it, but of a sharded DTensor on a fake process group.

    Args:
        shape: of the whole tensor.
        values: of the part, a plain tensor of its own memory.
        offset: of the part in the whole.
    """

    shape: tuple[int, ...]
    values: torch.Tensor
    offset: tuple[int, ...]


def flatten(result: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Take a nested result apart: its leaves with where they stand, and what puts them together again."""
    leaves, spec = tree_flatten_with_path(result)
    return [(_keystr(path), leaf) for path, leaf in leaves], spec


def unflatten(leaves: Sequence[Any], spec: Any) -> Any:
    """Put leaves together again."""
    return tree_unflatten(leaves, spec)


def known_part(tensor: torch.Tensor) -> KnownPart:
    """Copy what this rank knows of a tensor."""
    wait_for(tensor)
    with torch.no_grad():
        if not isinstance(tensor, DTensor):
            return _whole(tensor)
        region = _region(tensor) if is_group_fake() else None
        if region is None:
            return _whole(tensor.full_tensor())
        return KnownPart(tuple(tensor.shape), _copy(tensor.to_local()), region)


def common(first: KnownPart, other: KnownPart) -> tuple[torch.Tensor, torch.Tensor]:
    """Give what is known of both of two tensors of one shape."""
    corners = [
        (max(begin, start), min(begin + extent, start + length))
        for begin, extent, start, length in zip(
            first.offset, first.values.shape, other.offset, other.values.shape, strict=True
        )
    ]

    def cut(part: KnownPart) -> torch.Tensor:
        return part.values[
            tuple(
                slice(max(low - begin, 0), max(high - begin, 0))
                for (low, high), begin in zip(corners, part.offset, strict=True)
            )
        ]

    return cut(first), cut(other)


def _whole(tensor: torch.Tensor) -> KnownPart:
    values = _copy(tensor)
    return KnownPart(tuple(values.shape), values, (0,) * values.ndim)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the memory of the host, of the first rank where all are simulated."""
    wait_for(tensor)
    with without_outer_modes():
        plain = shards_of_simulated_ranks(tensor)[0].detach()
        return (plain if plain.layout is torch.strided else plain.to_dense()).cpu().clone()


def _region(tensor: DTensor) -> tuple[int, ...] | None:
    """Find where the local shard lies in the whole; None where it is no region of it."""
    if any(type(placement) not in (Shard, Replicate, Partial) for placement in tensor.placements):
        return None
    utils = importlib.import_module("torch.distributed.tensor._utils")
    shape, offset = utils.compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(offset) if tuple(shape) == tuple(tensor.to_local().shape) else None
