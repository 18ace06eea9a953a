"""What tensors hold: copied, and put back bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.tensor_state import contents_of, storages_of


class NoCopyError(Exception):
    """What a tensor holds cannot be copied; the text says why a call that writes to it runs once."""


class Copy:
    """What a tensor holds at one moment."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # Bound methods: this runs between timed calls, and the less there is of it the better.
        self._parts: list[tuple[Callable[[torch.Tensor], object], torch.Tensor]] = []
        for plain in storages_of(tensor):
            if not _is_freed(plain):
                region = _region(plain)
                self._parts.append((region.copy_, _cloned(region)))

    def put_back(self) -> None:
        """Write it to the tensor again."""
        for put, contents in self._parts:
            put(contents)


def why_no_copy(tensor: torch.Tensor) -> str:
    """Say why a call that writes to a tensor runs once, judged without copying; empty where it does not."""
    for plain in storages_of(tensor):
        if plain.layout is not torch.strided:
            kind = str(plain.layout).removeprefix("torch.").lstrip("_")
            return f"runs once: it writes to a {kind} tensor, whose contents cannot be put back"
        if plain.is_nested:
            return "runs once: it writes to a nested tensor, whose contents cannot be put back"
    return ""


def layout_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Describe where a tensor's contents lie, as far as an op may change it."""
    placements = tuple(tensor.placements) if isinstance(tensor, DTensor) else ()
    plains = [
        (p.shape, p.stride(), p.storage_offset(), p.untyped_storage().nbytes()) for p in storages_of(tensor)
    ]
    return tensor.shape, placements, plains


def copy_in_layout(tensor: torch.Tensor, layout: tuple[Any, ...]) -> Copy | None:
    """Copy what a tensor holds where it still lies as it did; None where the program freed what it held."""
    if all(map(_is_freed, storages_of(tensor))):
        return None
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


def _is_freed(plain: torch.Tensor) -> bool:
    return plain.numel() > 0 and plain.untyped_storage().nbytes() == 0


def _region(plain: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself, or where its elements overlap the memory that they span."""
    contents = contents_of(plain)
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
