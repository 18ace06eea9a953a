"""Masks that cached plans carry from one call to the next.

An embedding on a table that is sharded by rows gives a masked partial sum: its placement keeps the mask of
the ids until the sum is reduced. The placement belongs to the cached plan, so a result that is dropped
before it is reduced, as that of a repetition is, leaves its mask behind for the next call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pytest_dtdispatch.torchapi.mask_buffers import mask_hook, mask_of, set_mask


class Masks:
    """Every mask buffer that a call and its repetitions change: what it held before, and after the call.

    Example:
        >>> masks = Masks()
        >>> with masks.watching():
        ...     result = 2 + 2
        >>> masks.settle()
        >>> bool(masks)
        False
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, Any]] = {}
        self._after: list[tuple[Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._before)

    def watching(self) -> AbstractContextManager[None]:
        """Note every buffer that is changed, as it was before."""
        return mask_hook.telling(self._note)

    def watching_repetitions(self) -> AbstractContextManager[None]:
        """Note the buffers of new plans too, where the call itself changed one; else cost nothing."""
        return self.watching() if self else nullcontext()

    def settle(self) -> None:
        """Note what the program's call left behind."""
        self._after = [(buffer, mask_of(buffer)) for buffer, _ in self._before.values()]

    def rewind(self) -> None:
        """Put every buffer back to what it was before it was first changed."""
        for buffer, mask in self._before.values():
            set_mask(buffer, mask)

    def restore(self) -> None:
        """Put the program's buffers back to what its call left behind, those of other plans to empty."""
        self.rewind()
        for buffer, mask in self._after:
            set_mask(buffer, mask)

    def _note(self, buffer: Any) -> None:
        if id(buffer) not in self._before:
            self._before[id(buffer)] = (buffer, mask_of(buffer))
