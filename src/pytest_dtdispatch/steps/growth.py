"""What a program leaves behind: cache entries, live objects, memory."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import spec_type

STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Grown:
    """What was gained in a lap."""

    caches: tuple[tuple[str, int], ...]
    specs: int
    dtensors: int
    host_memory_bytes: int | None


class Growth:
    """Compare what there is with what there was a lap ago."""

    def __init__(self, caches: ShardingCaches) -> None:
        self._caches = caches
        self._entries = caches.entries()
        self._specs, self._dtensors = _live_objects()
        self._memory = resident_bytes()

    def lap(self, native_entries: int) -> Grown:
        """Return what was gained since the last lap, or since the start."""
        gc.collect()
        entries = self._caches.entries()
        specs, dtensors = _live_objects()
        memory = resident_bytes()
        native = (("native", native_entries),) if self._caches.has_native else ()
        grown = Grown(
            caches=native + tuple((name, entries[name] - self._entries[name]) for name in entries),
            specs=specs - self._specs,
            dtensors=dtensors - self._dtensors,
            host_memory_bytes=None if memory is None or self._memory is None else memory - self._memory,
        )
        self._entries, self._specs, self._dtensors, self._memory = entries, specs, dtensors, memory
        return grown


@contextmanager
def older_objects_frozen() -> Iterator[None]:
    """Keep the garbage collector off what exists already, so that collecting what is new takes no time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def resident_bytes() -> int | None:
    """Read the resident memory of this process; None where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _live_objects() -> tuple[int, int]:
    """Count specs and DTensors, up to a constant: every object of a class holds a reference to it."""
    return sys.getrefcount(spec_type()), sys.getrefcount(DTensor)
