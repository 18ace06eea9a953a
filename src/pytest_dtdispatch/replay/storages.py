"""Contents of tensors: copies, and storages that a call frees, resizes or allocates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdRef

from pytest_dtdispatch.torchapi.tensors import (
    Heap,
    StorageReference,
    ask_tensor,
    bytes_of,
    has_graph,
    memory_key,
    storage_behind,
    storage_of,
    storages_of,
)


class NoCopyError(Exception):
    """What a call changes cannot be restored; the text is the reason why it runs once."""


def is_freed(plain: torch.Tensor) -> bool:
    """Return whether no memory is allocated for the elements of a tensor."""
    return plain.numel() > 0 and plain.untyped_storage().nbytes() == 0


class Copy:
    """Contents of a tensor, without those of inner tensors that ``is_free`` reports as not allocated."""

    def __init__(self, tensor: torch.Tensor, is_free: Callable[[torch.Tensor], bool] = is_freed) -> None:
        self.tensor = tensor
        self._parts = [None if is_free(plain) else _part_of(plain) for plain in storages_of(tensor)]

    def restore(self) -> bool:
        """Write the contents to the tensor if its layout is unchanged; return whether all were written."""
        is_whole = True
        for plain, part in zip(storages_of(self.tensor), self._parts, strict=False):
            if part is None:
                continue
            storage, layout, region, contents = part
            # This runs between timed calls: the less it does, the faster is the next call.
            if plain.untyped_storage() is not storage or storage.nbytes() != layout[1]:
                if _layout(plain) != layout:
                    is_whole = False
                    continue
                region = _region(plain)
            region.copy_(contents)
        return is_whole


def restore_all(copies: Iterable[Copy]) -> None:
    """Write copies to their tensors before a repetition; raise if a tensor has no room for its contents."""
    if not all(copy.restore() for copy in copies):
        raise NoCopyError(
            "not repeated: a tensor that it writes to was freed, resized or moved after the first call"
        )


def refuse_uncopyable(tensor: torch.Tensor) -> None:
    """Raise if the contents of a tensor that a call writes to cannot be copied."""
    for plain in storages_of(tensor):
        if kind := ask_tensor(_uncopyable_kind, plain, "wrapped"):
            raise NoCopyError(f"runs once: it writes to a {kind} tensor, whose contents cannot be restored")


def _uncopyable_kind(plain: torch.Tensor) -> str:
    if plain.layout is not torch.strided:
        return str(plain.layout).removeprefix("torch.").lstrip("_")
    if plain.is_nested:
        return "nested"
    return "" if memory_key(plain) else "wrapped"


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what an op may change of the layout of a tensor in memory."""
    placements = tuple(tensor.placements) if isinstance(tensor, DTensor) else ()
    return tensor.shape, placements, [*map(_layout, storages_of(tensor))]


def _layout(plain: torch.Tensor) -> tuple[Any, ...]:
    size = plain.untyped_storage().nbytes()
    return plain.device, size, plain.storage_offset(), plain.shape, plain.stride()


def _part_of(plain: torch.Tensor) -> tuple[torch.UntypedStorage, tuple[Any, ...], torch.Tensor, torch.Tensor]:
    region = _region(plain)
    return plain.untyped_storage(), _layout(plain), region, _cloned(region)


def _region(plain: torch.Tensor) -> torch.Tensor:
    """Return a tensor that autograd and version counters ignore; without the repeats of an expanded one.

    Torch does not copy to expanded tensors.
    """
    contents = plain.data
    stride = contents.stride()
    if 0 not in stride:
        return contents
    in_memory = [
        extent if step else min(extent, 1) for extent, step in zip(contents.shape, stride, strict=True)
    ]
    return contents.as_strided(in_memory, stride)


def _cloned(region: torch.Tensor) -> torch.Tensor:
    try:
        return region.clone()
    except (RuntimeError, MemoryError):  # torch has no error of its own for a CPU that is out of memory
        size = region.numel() * region.element_size()
        raise NoCopyError(f"runs once: no memory for a copy of the {size:,} bytes that it writes") from None


def keys_of(tensor: torch.Tensor) -> set[Any]:
    """Return keys that identify the storages of a tensor, also among later ones at the same address.

    Tensors with a storage get no weak reference: ``torch.utils.swap_tensors`` would refuse them.
    """
    plains = ((plain, storage_of(plain)) for plain in storages_of(tensor))
    return {WeakIdRef(plain) if storage is None else StorageReference(storage) for plain, storage in plains}


class Storages:
    """The storage of every live tensor at one moment, and how many bytes are allocated for it.

    Torch reports neither that a storage is freed or resized, nor that a tensor gets another one. Tensors with
    an autograd graph are not referenced, as a graph may be large.

    Args:
        heap: finds tensors and optimizers; after its first query it returns only new ones.
        found: tensors and optimizers that earlier queries returned.
        keys: of storages that are included while they are alive.

    Attributes:
        optimizers: that are alive.
    """

    def __init__(
        self, heap: Heap | None = None, found: Iterable[Any] = (), keys: Iterable[StorageReference] = ()
    ) -> None:
        self._heap = heap or Heap()
        self._sizes: dict[StorageReference, int] = {}
        self._tensors: list[tuple[torch.Tensor, StorageReference]] = []
        self.optimizers: list[Optimizer] = []
        found = (*found, *self._heap.instances(torch.Tensor, Optimizer))
        for each in {id(one): one for one in found}.values():
            if issubclass(type(each), Optimizer):
                self.optimizers.append(each)
            else:
                self._add(each)
        for key in keys:
            if (storage := storage_behind(key)) is not None:
                self._sizes.setdefault(key, storage.nbytes())

    def renewed(self) -> Storages:
        """Return the storages of now, those created since included."""
        found = (*(tensor for tensor, _ in self._tensors), *self.optimizers)
        return Storages(self._heap, found, self._sizes)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage is not None and storage.device.type != "meta":
            key = StorageReference(storage)
            self._sizes[key] = storage.nbytes()
            if not has_graph(tensor):
                self._tensors.append((tensor, key))

    def gradients(self) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
        """Return the leaves that require gradients, with their gradients, by the id of the leaf."""
        return {id(each): (each, each.grad) for each, _ in self._tensors if each.requires_grad}

    def differ(self, plain: torch.Tensor) -> bool:
        """Return whether the storage of a tensor had another size then, so that its contents are lost."""
        size = plain.untyped_storage().nbytes()
        return is_freed(plain) or any(self._sizes.get(key, size) != size for key in keys_of(plain))

    def refuse_changed(self, call: str) -> None:
        """Raise if a call since then discarded the contents of a storage."""
        for tensor, key in self._tensors:
            storage = storage_of(tensor)
            if storage is None or StorageReference(storage) != key:
                raise NoCopyError(f"runs once: {call} gave a tensor another storage")
        for key, before in self._sizes.items():
            storage = storage_behind(key)
            if before and storage is not None and storage.nbytes() != before:
                how = "resized" if storage.nbytes() else "freed"
                raise NoCopyError(f"runs once: {call} {how} the storage of a tensor")

    def grown(self) -> GrownStorages:
        """Copy each storage that was free then and is allocated now."""
        free = (storage_behind(key) for key, before in self._sizes.items() if not before)
        return GrownStorages(storage for storage in free if storage is not None and storage.nbytes())


class GrownStorages:
    """Storages that the program's call allocated, and that are freed before each repetition.

    Those that a repetition does not allocate itself stay allocated: a Python object, which is not restored,
    may record that they are, as in FSDP2. Reading a freed storage ends the process.
    """

    def __init__(self, storages: Iterable[torch.UntypedStorage] = ()) -> None:
        self._allocated = {StorageReference(each): (each, _cloned(bytes_of(each))) for each in storages}

    def rewind(self) -> None:
        """Free them all."""
        for storage, _ in self._allocated.values():
            storage.resize_(0)

    def restore(self) -> None:
        """Allocate them, and write the contents that the program's call left."""
        for storage, contents in self._allocated.values():
            storage.resize_(contents.numel())
            bytes_of(storage).copy_(contents)

    def keep_allocated(self, tensors: Iterable[torch.Tensor] | None = None) -> None:
        """From now on, allocate those that are free: all, or those of tensors that are about to be read."""
        if not (before := self._allocated):
            return
        read = set(before) if tensors is None else {key for each in tensors for key in keys_of(each)}
        self._allocated = {key: before[key] for key in read & set(before) if not before[key][0].nbytes()}
        self.restore()
        self._allocated = {key: each for key, each in before.items() if key not in self._allocated}
