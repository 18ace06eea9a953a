"""What a call changes and no schema tells: storages, versions, specs, masks, random states."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

from pytest_dtdispatch.torchapi.shared_hook import CallHook


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


def place_in_memory(plain: torch.Tensor) -> tuple[Any, ...]:
    """Tell two tensors apart that do not show the same elements of the same storage."""
    return (
        plain.untyped_storage()._cdata,
        plain.storage_offset(),
        tuple(plain.shape),
        plain.stride(),
        plain.dtype,
    )


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor, of its own class or a subclass; None of one that has no storage."""
    with torch._C.DisableTorchFunctionSubclass():
        try:
            return tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse and wrapped tensors raise
            return None


def live_tensors() -> list[tuple[torch.Tensor, torch.UntypedStorage]]:
    """Return every live tensor that has memory, and its storage."""
    tensors = [each for each in gc.get_objects() if torch.Tensor in type(each).__mro__]
    held = ((tensor, storage_of(tensor)) for tensor in tensors)
    return [(tensor, own) for tensor, own in held if own is not None and own.device.type != "meta"]


def has_graph(tensor: torch.Tensor) -> bool:
    """Tell whether a graph of autograd stands behind a tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.requires_grad and not tensor.is_leaf


def storage_behind(reference: StorageWeakRef) -> torch.UntypedStorage | None:
    """Return the storage that a weak reference stands for, or None where nothing has it any more."""
    storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
    return storage


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a whole storage as a tensor of bytes."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)


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


MASK_HOMES = ("torch.distributed.tensor._ops._mask_buffer", "torch.distributed.tensor._ops._embedding_ops")
MASK_METHODS = ("materialize_mask", "release_mask")


def mask_of(buffer: Any) -> tuple[Any, int]:
    """Read the mask that a buffer holds, and how many results still need it."""
    return buffer.data, buffer.refcount


def set_mask(buffer: Any, mask: tuple[Any, int]) -> None:
    """Give a buffer a mask."""
    buffer.data, buffer.refcount = mask


def mask_buffer_type() -> type | None:
    """Find the class of what keeps a mask in a placement; None where this torch has none."""
    for home in MASK_HOMES:
        with suppress(ImportError):
            kind = getattr(importlib.import_module(home), "MaskBuffer", None)
            if isinstance(kind, type):
                return kind
    return None


# Tells of every mask buffer before it changes. An embedding on a table that is sharded by rows gives a masked
# partial sum: its placement keeps the mask of the ids until the sum is reduced. The placement stands in a
# cached plan, and all results of that plan share it: one that is dropped before it is reduced, as that of a
# repetition is, leaves its mask behind.
_kind = mask_buffer_type()
mask_hook = CallHook(_kind, MASK_METHODS if _kind else ())


def random_tracker_states() -> dict[str, torch.Tensor]:
    """Return the states that DTensor's random tracker keeps, to read and to write.

    Older trackers keep their own; newer ones use the device's generator and give an empty dictionary.
    """
    tracker = importlib.import_module("torch.distributed.tensor._random")._rng_tracker
    states = getattr(tracker, "rng_states", None)
    return states if isinstance(states, dict) else {}


def cuda_generator(device: torch.device) -> torch.Generator:
    """Return the generator that random ops on a CUDA device draw from."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator
