"""What tensors hold, and in which storages: copied before a call and after it, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakIdRef

from pytest_dtdispatch.torchapi.tensor_state import (
    bytes_of,
    has_graph,
    live_tensors,
    storage_behind,
    storage_of,
    storages_of,
)


class NoCopyError(Exception):
    """What a tensor holds cannot be copied; the text says why a call that writes to it runs once."""


def is_freed(plain: torch.Tensor) -> bool:
    """Tell whether nothing is allocated for the elements of a tensor."""
    return plain.numel() > 0 and plain.untyped_storage().nbytes() == 0


class Copy:
    """What a tensor holds at one moment, less what ``is_free`` says that nothing was allocated for."""

    def __init__(self, tensor: torch.Tensor, is_free: Callable[[torch.Tensor], bool] = is_freed) -> None:
        self.tensor = tensor
        self._parts = [
            None if is_free(plain) else (plain.untyped_storage(), *_contents_of(plain))
            for plain in storages_of(tensor)
        ]

    def put_back(self) -> bool:
        """Write it to what the tensor has now, where that lies as it did; tell whether all of it does."""
        is_whole = True
        for plain, part in zip(storages_of(self.tensor), self._parts, strict=False):
            if part is None:
                continue
            storage, layout, region, contents = part
            # This runs between timed calls, and the less there is of it the better.
            if plain.untyped_storage() is not storage or storage.nbytes() != layout[1]:
                if _layout(plain) != layout:
                    is_whole = False
                    continue
                region = _region(plain)
            region.copy_(contents)
        return is_whole


def put_back_all(copies: Iterable[Copy]) -> None:
    """Write copies to their tensors, before a repetition; refuse one that would not find what they hold."""
    if not all(copy.put_back() for copy in copies):
        raise NoCopyError("not repeated: a tensor that it writes to was freed, resized or moved meanwhile")


def why_no_copy(tensor: torch.Tensor) -> str:
    """Say why a call that writes to a tensor runs once, judged without copying; empty where it does not."""
    for plain in storages_of(tensor):
        if plain.layout is not torch.strided or plain.is_nested:
            layout = str(plain.layout).removeprefix("torch.").lstrip("_")
            kind = "nested" if layout == "strided" else layout
            return f"runs once: it writes to a {kind} tensor, whose contents cannot be put back"
    return ""


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Describe where a tensor's contents lie, as far as an op may change it."""
    placements = tuple(tensor.placements) if isinstance(tensor, DTensor) else ()
    return tensor.shape, placements, [*map(_layout, storages_of(tensor))]


def copy_in_layout(tensor: torch.Tensor, layout: tuple[Any, ...]) -> Copy:
    """Copy what a tensor holds where it still lies as it did."""
    if layout_of(tensor) != layout:
        raise NoCopyError("runs once: it changed the layout of a tensor that it wrote to")
    return Copy(tensor)


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Tell whether two elements of a strided tensor may be one place in memory."""
    reach = 0  # the farthest element of the dimensions so far
    for step, extent in sorted((step, extent) for extent, step in zip(shape, stride, strict=True)):
        if extent > 1:
            if step <= reach:
                return True
            reach += step * (extent - 1)
    return False


def _layout(plain: torch.Tensor) -> tuple[Any, ...]:
    size = plain.untyped_storage().nbytes()
    return plain.device, size, plain.storage_offset(), plain.shape, plain.stride()


def _contents_of(plain: torch.Tensor) -> tuple[tuple[Any, ...], torch.Tensor, torch.Tensor]:
    region = _region(plain)
    return _layout(plain), region, _cloned(region)


def _region(plain: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself, or where its elements overlap the memory that they span."""
    contents = plain.data  # what is copied to it, autograd and version counters do not see
    if not overlaps(contents.shape, contents.stride()):
        return contents
    steps = zip(contents.stride(), contents.shape, strict=True)
    span = 1 + sum(step * (extent - 1) for step, extent in steps)
    return contents.as_strided((span if contents.numel() else 0,), (1,))


def _cloned(region: torch.Tensor) -> torch.Tensor:
    try:
        return region.clone()
    except (RuntimeError, MemoryError):  # torch has no error of its own for a CPU that is out of memory
        size = region.numel() * region.element_size()
        raise NoCopyError(f"runs once: no copy could be made of the {size:,} bytes that it writes") from None


def keys_of(tensor: torch.Tensor) -> set[Any]:
    """Return what tells the storages of a tensor from all others, also from later ones at their address.

    No weak reference to a tensor that has one: ``torch.utils.swap_tensors`` would refuse it.
    """
    plains = ((plain, storage_of(plain)) for plain in storages_of(tensor))
    return {WeakIdRef(plain) if storage is None else StorageWeakRef(storage) for plain, storage in plains}


class Storages:
    """Which storage every live tensor has at one moment, and how many bytes are allocated for it.

    Torch tells nobody that a storage is freed or resized, or that a tensor is given another one. Tensors with
    a graph behind them are not held, as a graph may be large.
    """

    def __init__(self) -> None:
        found = [(each, StorageWeakRef(storage), storage.nbytes()) for each, storage in live_tensors()]
        self._sizes = {key: size for _, key, size in found}
        self._tensors = [(each, key) for each, key, _ in found if not has_graph(each)]

    def were_other(self, plain: torch.Tensor) -> bool:
        """Tell whether a storage had another size then: what it held then, if anything, is not there now."""
        size = plain.untyped_storage().nbytes()
        return is_freed(plain) or any(self._sizes.get(key, size) != size for key in keys_of(plain))

    def changed(self) -> str:
        """Say what a call that ran since did to storages, so that what they held then is lost; else empty."""
        for tensor, key in self._tensors:
            storage = storage_of(tensor)
            if storage is None or StorageWeakRef(storage) != key:
                return "gave a tensor another storage"
        for key, before in self._sizes.items():
            storage = storage_behind(key)
            if before and storage is not None and storage.nbytes() != before:
                return f"{'resized' if storage.nbytes() else 'freed'} the storage of a tensor"
        return ""

    def grown(self) -> Grown:
        """Copy each storage that was free then, and is not now."""
        free = (storage_behind(key) for key, before in self._sizes.items() if not before)
        return Grown(storage for storage in free if storage is not None and storage.nbytes())


class Grown:
    """Storages that were free before a call and that it left allocated: free again before each repetition.

    Less those that a repetition does not allocate itself: it may know of them by a Python object, as FSDP2
    does, which is not put back. What reads one of them while it is free ends the process.
    """

    def __init__(self, storages: Iterable[torch.UntypedStorage] = ()) -> None:
        self._held = {StorageWeakRef(each): (each, _cloned(bytes_of(each))) for each in storages}

    def free(self) -> None:
        """Free them all."""
        for storage, _ in self._held.values():
            storage.resize_(0)

    def put_back(self) -> None:
        """Allocate them, and write what the program's call left in them."""
        for storage, contents in self._held.values():
            storage.resize_(contents.numel())
            bytes_of(storage).copy_(contents)

    def keep(self, tensors: Iterable[torch.Tensor] | None = None) -> None:
        """Leave those allocated from now on that are free: all, or those that something is about to read."""
        if not (held := self._held):
            return
        read = set(held) if tensors is None else {key for each in tensors for key in keys_of(each)}
        self._held = {key: held[key] for key in read & set(held) if not held[key][0].nbytes()}
        self.put_back()
        self._held = {key: each for key, each in held.items() if key not in self._held}
