"""Rules on reads by the host."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from pytest_dtdispatch.advice.model import Finding, Observed, alike
from pytest_dtdispatch.core.text import grouped, plural
from pytest_dtdispatch.steps.events import Read


def partial_reads(observed: Observed) -> Iterator[Finding]:
    """Advise if the host reads a partial DTensor, whose value is the share of one rank."""
    partial = (one for one in observed.last(Read) if one.is_partial)
    for is_dtensor, reads in grouped((bool(one.placements), one) for one in partial).items():
        values = plural(len(reads), "partial value")
        # A program that reads a local tensor may want its own share.
        change = "reduce before the read, by full_tensor()" if is_dtensor else ""
        saves = f"makes {values} equal on all ranks"
        ending = ": each rank reads its own share"
        # No event is claimed: the host waits for the reduced values as well.
        seen = f"{values} read"
        yield Finding(reads, seen, change, len(reads), "read", saves=saves, ending=ending, claims=())


def repeated_reads(observed: Observed) -> Iterator[Finding]:
    """Advise if the host reads several numbers in each step that do not depend on each other."""
    every = observed.recurring(Read, attrgetter("op", "place")) if observed.is_proved else []
    items = (one for one in every if one.op == "item")
    numbers = (one for one in items if not (one.via or one.is_compared or one.is_written_later))
    # Tensors that `stack` takes without changing their type or placements.
    reads = [same for same in alike(numbers, "depth", "tensor", "mesh", "placements") if len(same) > 1]
    if reads:
        every, count = [*chain(*reads)], sum(len(same) - 1 for same in reads)
        change = "stack them, and read the stack once"
        yield Finding(every, f"{len(every)} reads by the host", change, count, "wait", " for the device")
