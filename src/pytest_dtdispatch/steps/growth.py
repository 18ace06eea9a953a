"""Growth of live objects: DTensors and sharding specs that remain after a step."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import Any, NamedTuple

from torch.distributed.tensor import DTensor

from pytest_dtdispatch.replay.call import dtype_text, placement_text, shape_text
from pytest_dtdispatch.torchapi.tensors import ask_tensor, spec_type

# Python 3.12 counts about 400 immortal objects as frozen; a program that freezes has thousands.
MIN_FROZEN = 1_000


SPECS, DTENSORS = "sharding specs", "DTensors"


def live_objects() -> Counter[str]:
    """Count live objects, including garbage, up to a constant: each references its class."""
    return Counter({SPECS: sys.getrefcount(spec_type()), DTENSORS: sys.getrefcount(DTensor)})


class NewObjects(NamedTuple):
    """Live objects that were created since the garbage collector was frozen.

    Args:
        specs: number of sharding specs.
        tensors: number of DTensors by origin and description.
    """

    specs: int
    tensors: Counter[tuple[str, str]]


def new_objects() -> NewObjects:
    """Count new objects, including garbage."""
    new = gc.get_objects()
    tensors = Counter(ask_tensor(_kind, value, ("", "")) for value in new if type(value) is DTensor)
    return NewObjects(sum(type(value) is spec_type() for value in new), tensors)


def growing_tensors(before: NewObjects, now: NewObjects) -> str:
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
