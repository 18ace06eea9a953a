"""What there is at a moment: entries of caches, live objects, resident memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.torchapi.propagator import ShardingCaches
from pytest_dtdispatch.torchapi.tensors import spec_type

STATM = Path("/proc/self/statm")


class Held(NamedTuple):
    """What there is at one moment; objects up to a constant: each holds a reference to its class."""

    entries: dict[str, int]
    specs: int
    dtensors: int
    host_memory_bytes: int | None

    @classmethod
    def by(cls, caches: ShardingCaches) -> Held:
        """Look what there is."""
        return cls(caches.entries(), sys.getrefcount(spec_type()), sys.getrefcount(DTensor), resident_bytes())

    def memory_since(self, earlier: Held) -> int | None:
        """Say how many bytes of resident memory were gained; None where the system does not tell."""
        now, before = self.host_memory_bytes, earlier.host_memory_bytes
        return None if now is None or before is None else now - before


def gained(entries: dict[str, int], before: dict[str, int]) -> Iterator[tuple[str, int]]:
    """Give how many entries each cache gained."""
    return ((name, count - before[name]) for name, count in entries.items())


def resident_bytes() -> int | None:
    """Read the resident memory of this process; None where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
