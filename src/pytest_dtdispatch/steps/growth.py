"""Growth of live objects: DTensors and sharding specs that remain after a step."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.torchapi.signatures import dtype_text, placement_text, shape_text
from pytest_dtdispatch.torchapi.tensors import DTensorSpec, ask_tensor

# Python 3.12 counts about 400 immortal objects as frozen; a program that freezes has thousands.
MIN_FROZEN = 1_000


SPECS, DTENSORS = "sharding specs", "DTensors"


def live_objects() -> Counter[str]:
    """Count live objects, including garbage, up to a constant: each references its class."""
    return Counter({SPECS: sys.getrefcount(DTensorSpec), DTENSORS: sys.getrefcount(DTensor)})


class Objects(NamedTuple):
    """Objects that the garbage collector visits: those that were not frozen.

    Args:
        specs: number of sharding specs.
        tensors: number of DTensors by origin and description.
    """

    specs: int
    tensors: Counter[tuple[str, str]]


def visited_objects() -> Objects:
    """Count visited objects, including garbage."""
    new = gc.get_objects()
    tensors = Counter(ask_tensor(_kind, value, ("", "")) for value in new if type(value) is DTensor)
    return Objects(sum(type(value) is DTensorSpec for value in new), tensors)


def growing_tensors(before: Objects, now: Objects) -> str:
    """Describe up to three kinds of DTensors that grew in number, the largest growth first.

    Kinds that differ only in sizes are compared together: a growing cache is replaced by a longer one.
    """
    grown, by_origin = Counter(now.tensors), Counter[str]()
    grown.subtract(before.tensors)
    for (origin, _), count in grown.items():
        by_origin[origin] += count
    return ", ".join(
        max((count, text) for (of, text), count in grown.items() if of == origin)[1]
        for origin, more in by_origin.most_common(3)
        if more > 0
    )


def _kind(tensor: Any) -> tuple[str, str]:
    """Return a key of a DTensor without its sizes, and its description."""
    dtype, shape = dtype_text(tensor.dtype), tensor.shape
    placements = " ".join(map(placement_text, tensor.placements))
    return f"{dtype} {len(shape)} {placements}", f"{dtype}{shape_text(shape)} {placements}"


class _Canary:
    """A cycle, which the next collection frees unless it is frozen."""

    def __init__(self) -> None:
        self.itself = self


class LiveObjects:
    """Live objects from one lap to the next, without garbage. Earlier objects are frozen, to collect fast."""

    def __init__(self) -> None:
        self._is_ours = gc.get_freeze_count() < MIN_FROZEN  # objects that the program froze stay frozen
        if self._is_ours:
            gc.freeze()
        self._references, self._objects = live_objects(), visited_objects()
        self._canary = _Canary()

    def with_growth(self, counts: StepCounts) -> StepCounts:
        """Collect garbage; return the counts of a lap with the growth since the last one."""
        canary, self._canary = weakref.ref(self._canary), _Canary()
        gc.collect()
        references, self._references = self._references, live_objects()
        before, self._objects = self._objects, visited_objects()
        specs = self._references[SPECS] - references[SPECS]
        tensors = self._references[DTENSORS] - references[DTENSORS]
        if canary() is not None:  # the program froze the new objects
            self._is_ours = False
            return replace(counts, spec_growth=specs, dtensor_growth=tensors)
        # The minimum of two counts: classes have other references, and a new object may replace a frozen one.
        specs = min(specs, self._objects.specs - before.specs)
        tensors = min(tensors, self._objects.tensors.total() - before.tensors.total())
        kinds = growing_tensors(before, self._objects) if tensors > 0 else ""
        return replace(counts, spec_growth=specs, dtensor_growth=tensors, kept=kinds)

    def close(self) -> None:
        """Unfreeze the objects, unless the program has frozen them too."""
        if self._is_ours:
            gc.unfreeze()
