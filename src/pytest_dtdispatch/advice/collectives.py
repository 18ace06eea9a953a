"""Rules on collectives outside of redistributions and of FSDP."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dtdispatch.advice.model import MIN_SUMS, Finding, Observed, alike, line_of
from pytest_dtdispatch.steps.events import Collective, Wrapping


def _own_collectives(observed: Observed) -> list[Collective]:
    """Return the collectives at lines of the program, outside of redistributions."""
    every = observed.last(Collective) if observed.is_proved else []
    return [one for one in every if not (one.is_redistributing or one.via or one.fsdp_group)]


def numbers_one_by_one(observed: Observed) -> Iterator[Finding]:
    """Advise if independent plain tensors of one number are reduced one by one, such as logged metrics."""
    every = (one for one in _own_collectives(observed) if one.kind == "all_reduce" and one.reduction)
    numbers = (one for one in every if one.bytes <= 8)  # f64 at most
    for same in alike(numbers, "mesh_dim", "group", "reduction", "dtype", "shape", "depth", "phase"):
        if len(same) >= MIN_SUMS:
            seen, ns = f"{len(same)} numbers reduced one by one", observed.ns_of(same[1:])
            change = "stack them, and reduce the stack once"
            yield Finding(same, seen, change, len(same) - 1, "collective", ns=ns)


def scattered_tensors(observed: Observed) -> Iterator[Finding]:
    """Advise if ``distribute_tensor`` sends several tensors, which every rank may already have."""
    wraps = (one for one in observed.every(Wrapping) if one.name == "distribute_tensor" and not one.via)
    lines = {line_of(one.place) for one in wraps}
    moving = (one for one in _own_collectives(observed) if one.kind in ("scatter", "broadcast"))
    sent = [one for one in moving if line_of(one.place) in lines]
    if len(sent) > 1:
        seen = f"{len(sent)} tensors sent to all ranks by distribute_tensor"
        change = "if every rank has them, pass src_data_rank=None"
        yield observed.saving(sent, seen, change, sent, "collective")
