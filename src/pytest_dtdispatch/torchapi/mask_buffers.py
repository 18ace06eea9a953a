"""Buffers in which cached plans keep masks from one call to the next."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_dtdispatch.torchapi.shared_hook import SharedHook

MASK_HOMES = ("torch.distributed.tensor._ops._mask_buffer", "torch.distributed.tensor._ops._embedding_ops")
MASK_METHODS = ("materialize_mask", "release_mask")


def mask_of(buffer: Any) -> tuple[Any, int]:
    """Read the mask that a buffer holds, and how many results still need it."""
    return buffer.data, buffer.refcount


def set_mask(buffer: Any, mask: tuple[Any, int]) -> None:
    """Give a buffer a mask."""
    buffer.data, buffer.refcount = mask


class _Listeners(threading.local):
    """Who is told, in this thread, of masks that are put into buffers and taken out."""

    def __init__(self) -> None:
        self.notes: list[Callable[[Any], None]] = []


class MaskHook:
    """Tells of every buffer of a masked partial placement, before it changes.

    Such a placement stands in a cached plan and is shared by all results of that plan. The hook is put in
    torch's place once a process, when the first listener comes, and taken out when the last one goes; a
    listener hears of its own thread alone.
    """

    def __init__(self) -> None:
        self._listeners = _Listeners()
        kind = mask_buffer_type()
        self._hooks = [SharedHook(kind, name, self._watched) for name in MASK_METHODS] if kind else []

    @contextmanager
    def telling(self, note: Callable[[Any], None]) -> Iterator[None]:
        """Call ``note`` with each buffer before it changes."""
        with ExitStack() as stack:
            for hook in self._hooks:
                stack.enter_context(hook.in_place())
            self._listeners.notes.append(note)
            stack.callback(self._listeners.notes.remove, note)
            yield

    def _watched(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(buffer: Any, *args: Any) -> Any:
            for note in self._listeners.notes:
                note(buffer)
            return change(buffer, *args)

        return changed


def mask_buffer_type() -> type | None:
    """Find the class of what keeps a mask in a placement; None where this torch has none."""
    for home in MASK_HOMES:
        try:
            kind = getattr(importlib.import_module(home), "MaskBuffer", None)
        except ImportError:
            continue
        if isinstance(kind, type):
            return kind
    return None


mask_hook = MaskHook()
