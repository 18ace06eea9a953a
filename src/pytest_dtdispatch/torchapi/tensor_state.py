"""What a call changes in tensors and no schema tells: storages, versions, specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor


def storages_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that hold what a tensor shows: local shards, inner tensors of a subclass."""
    if isinstance(tensor, DTensor):
        return storages_of(tensor._local_tensor)
    simulated = getattr(tensor, "_local_tensors", None)
    if simulated is not None:
        return [plain for shard in simulated.values() for plain in storages_of(shard)]
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    names, _ = flatten()
    return [plain for name in names for plain in storages_of(getattr(tensor, name))]


def contents_of(plain: torch.Tensor) -> torch.Tensor:
    """Return what can be copied to without autograd or version counters knowing of it."""
    return plain.data


def place_in_memory(plain: torch.Tensor) -> tuple[Any, ...]:
    """Tell two tensors apart that do not show the same elements of the same storage."""
    return (
        plain.untyped_storage()._cdata,
        plain.storage_offset(),
        tuple(plain.shape),
        plain.stride(),
        plain.dtype,
    )


def version_of(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written to, as autograd counts; None of an inference tensor."""
    return None if tensor.is_inference() else tensor._version


def set_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Make autograd count other numbers of writes."""
    set_version: Any = torch._C._autograd._unsafe_set_version_counter
    try:
        set_version(tuple(tensors), tuple(versions))
    except TypeError:  # up to torch 2.6 it took one tensor
        for tensor, version in zip(tensors, versions, strict=True):
            set_version(tensor, version)


def spec_of(tensor: DTensor) -> tuple[Any, Any]:
    """Return what says where a DTensor lives, and what it is made of there.

    An op that writes to the DTensor may give it another; up to torch 2.9 a miss may give the one that it has
    another shape.
    """
    return tensor._spec, tensor._spec.tensor_meta


def set_spec(tensor: DTensor, spec: tuple[Any, Any]) -> None:
    """Give a DTensor back what says where it lives."""
    own, meta = spec
    if tensor._spec is not own:
        tensor._spec = own
    if own.tensor_meta is not meta:
        own.tensor_meta = meta
