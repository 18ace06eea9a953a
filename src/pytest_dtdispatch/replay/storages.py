"""Contents of tensors: copies, and storages that a call frees, resizes or allocates."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.weak import WeakIdRef

from pytest_dtdispatch.torchapi.tensors import (
    Heap,
    StorageReference,
    bytes_of,
    has_graph,
    is_being_freed,
    keep_alive,
    memory_key,
    storage_behind,
    storage_of,
    storages_of,
    tensor_query,
)

# Their Python values are restored.
STATEFUL = (Optimizer, LRScheduler, torch.amp.GradScaler, torch.quasirandom.SobolEngine)


def host_generator_types() -> list[type]:
    """Return the classes of random generators of Python, and of NumPy if it is loaded."""
    numpy = sys.modules.get("numpy.random")
    of_numpy = (getattr(numpy, name, None) for name in ("RandomState", "BitGenerator"))
    return [random.Random, *filter(None, of_numpy)]


class NoCopyError(Exception):
    """A change by a call cannot be restored; the message is the reason why the call is not repeated."""


def is_freed(plain: torch.Tensor) -> bool:
    """Return whether no memory is allocated for the elements of a tensor."""
    return plain.numel() > 0 and plain.untyped_storage().nbytes() == 0


class CopiedPart(NamedTuple):
    """Copy of an inner tensor.

    Args:
        storage: its storage.
        size: bytes of the storage.
        layout: its memory layout.
        region: alias of its elements.
        contents: copy of its elements.
    """

    storage: torch.UntypedStorage
    size: int
    layout: tuple[Any, ...]
    region: torch.Tensor
    contents: torch.Tensor


class Copy:
    """Copy of the contents of a tensor, without inner tensors that ``is_free`` reports as not allocated."""

    def __init__(self, tensor: torch.Tensor, is_free: Callable[[torch.Tensor], bool] = is_freed) -> None:
        self.tensor = tensor
        self._parts: list[CopiedPart | None] = []
        for plain in storages_of(tensor):
            part = None
            if not is_free(plain):
                storage, region = plain.untyped_storage(), _region(plain)
                part = CopiedPart(storage, storage.nbytes(), _layout(plain), region, _cloned(region))
            self._parts.append(part)

    def restore(self) -> bool:
        """Write the contents to the tensor if its layout is unchanged; return whether all were written."""
        is_whole = True
        for plain, part in zip(storages_of(self.tensor), self._parts, strict=False):
            if part is None:
                continue
            region = part.region
            # Do as little as possible here: a timed call follows.
            if plain.untyped_storage() is not part.storage or part.storage.nbytes() != part.size:
                if _layout(plain) != part.layout:
                    is_whole = False
                    continue
                region = _region(plain)
            region.copy_(part.contents)
        return is_whole


def restore_all(copies: Iterable[Copy]) -> None:
    """Write copies to their tensors before a repetition.

    Raises:
        NoCopyError: the layout of a tensor has changed.
    """
    if not all(copy.restore() for copy in copies):
        raise NoCopyError(
            "not repeated: a tensor that it writes to was freed, resized or moved after the first call"
        )


def refuse_uncopyable(tensor: torch.Tensor) -> None:
    """Check that the contents of a tensor that a call writes to can be copied.

    Raises:
        NoCopyError: they cannot.
    """
    for plain in storages_of(tensor):
        kind = uncopyable_kind(plain)
        if kind:
            raise NoCopyError(f"runs once: it writes to a {kind} tensor, whose contents cannot be restored")


@tensor_query("wrapped")
def uncopyable_kind(plain: torch.Tensor) -> str:
    """Return why the contents of a tensor cannot be copied, as an adjective; empty if they can."""
    if plain.layout is not torch.strided:
        return str(plain.layout).removeprefix("torch.").lstrip("_")
    if plain.is_nested:
        return "nested"
    return "" if memory_key(plain) else "wrapped"


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the shape, placements and memory layout of a tensor, which an op may change."""
    placements = tuple(tensor.placements) if isinstance(tensor, DTensor) else ()
    return tensor.shape, placements, [*map(_layout, storages_of(tensor))]


def _layout(plain: torch.Tensor) -> tuple[Any, ...]:
    size = plain.untyped_storage().nbytes()
    return plain.device, size, plain.storage_offset(), plain.shape, plain.stride()


def _region(plain: torch.Tensor) -> torch.Tensor:
    """Return an alias of a tensor that autograd and version counters ignore.

    Expanded dimensions have size 1: torch does not copy to expanded tensors.
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
    except (RuntimeError, MemoryError):  # torch raises RuntimeError if the CPU is out of memory
        size = region.numel() * region.element_size()
        raise NoCopyError(f"runs once: no memory for a copy of the {size:,} bytes that it writes") from None


def keys_of(tensor: torch.Tensor) -> set[Any]:
    """Return keys that identify the storages of a tensor, and differ from those of later ones at its address.

    There is no weak reference to a tensor with a storage: ``torch.utils.swap_tensors`` would reject the
    tensor.
    """
    plains = ((plain, storage_of(plain)) for plain in storages_of(tensor))
    return {WeakIdRef(plain) if storage is None else StorageReference(storage) for plain, storage in plains}


class Storages:
    """Snapshot of the storages of all live tensors, with their allocated bytes.

    Torch does not report that a storage is freed or resized, or that a tensor gets another storage. Tensors
    with an autograd graph are not referenced, as a graph may be large.

    Args:
        heap: query of objects; after its first query it returns only new ones.
        found: objects of earlier queries.
        keys: keys of other storages to include if they are alive.

    Attributes:
        stateful: live optimizers, and objects that adjust them.
        generators: live random generators of Python and NumPy.
    """

    def __init__(
        self, heap: Heap | None = None, found: Iterable[Any] = (), keys: Iterable[StorageReference] = ()
    ) -> None:
        self._heap = heap or Heap()
        self._sizes: dict[StorageReference, int] = {}
        self._tensors: list[tuple[torch.Tensor, StorageReference]] = []
        self.stateful: list[Any] = []
        self.generators: list[Any] = []
        found = (*found, *self._heap.instances(torch.Tensor, *STATEFUL, *host_generator_types()))
        for each in {id(one): one for one in found}.values():
            if issubclass(type(each), torch.Tensor):
                if not is_being_freed(each):
                    self._add(each)
            else:
                (self.stateful if issubclass(type(each), STATEFUL) else self.generators).append(each)
        for key in keys:
            storage = storage_behind(key)
            if storage is not None:
                self._sizes.setdefault(key, storage.nbytes())

    def renewed(self) -> Storages:
        """Return a new snapshot, including storages that were created since."""
        found = (*(tensor for tensor, _ in self._tensors), *self.stateful)
        return Storages(self._heap, found, self._sizes)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = storage_of(tensor)
        if storage is not None and storage.device.type != "meta":
            key = StorageReference(storage)
            self._sizes[key] = storage.nbytes()
            if not has_graph(tensor):
                keep_alive(tensor)
                self._tensors.append((tensor, key))

    def gradients(self) -> dict[int, tuple[torch.Tensor, torch.Tensor | None]]:
        """Return the leaves that require gradients, with their gradients, by the id of the leaf."""
        return {id(each): (each, each.grad) for each, _ in self._tensors if each.requires_grad}

    def differ(self, plain: torch.Tensor) -> bool:
        """Return whether the contents of a tensor are lost: its storage is free or had another size."""
        size = plain.untyped_storage().nbytes()
        return is_freed(plain) or any(self._sizes.get(key, size) != size for key in keys_of(plain))

    def refuse_changed(self, call: str) -> None:
        """Check that no call since the snapshot discarded the contents of a storage.

        Raises:
            NoCopyError: a call did; ``call`` is the subject of the message.
        """
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
        """Copy each storage that was free in the snapshot and is allocated now."""
        free = (storage_behind(key) for key, before in self._sizes.items() if not before)
        return GrownStorages(storage for storage in free if storage is not None and storage.nbytes())


class GrownStorages:
    """Storages that the program's call allocated, and that are freed before each repetition.

    A storage that a repetition does not allocate itself stays allocated: a Python object may record that it
    is allocated, as in FSDP2, and is not restored. Reading a freed storage crashes the process.
    """

    def __init__(self, storages: Iterable[torch.UntypedStorage] = ()) -> None:
        self._allocated = {StorageReference(each): (each, _cloned(bytes_of(each))) for each in storages}

    def rewind(self) -> None:
        """Free all of them."""
        for storage, _ in self._allocated.values():
            storage.resize_(0)

    def restore(self) -> None:
        """Allocate them, and write their contents after the program's call."""
        for storage, contents in self._allocated.values():
            storage.resize_(contents.numel())
            bytes_of(storage).copy_(contents)

    def keep_allocated(self, tensors: Iterable[torch.Tensor] | None = None) -> None:
        """Allocate free storages and keep them: all, or only those of tensors that are about to be read."""
        before = self._allocated
        if not before:
            return
        read = set(before) if tensors is None else {key for each in tensors for key in keys_of(each)}
        self._allocated = {key: before[key] for key in read & set(before) if not before[key][0].nbytes()}
        self.restore()
        self._allocated = {key: each for key, each in before.items() if key not in self._allocated}
