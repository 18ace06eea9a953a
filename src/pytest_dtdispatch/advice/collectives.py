"""Rules on collectives outside of redistributions and of FSDP."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dtdispatch.advice.model import MIN_SUMS, Finding, Observed, line_of, phase_of
from pytest_dtdispatch.core.text import grouped
from pytest_dtdispatch.steps.events import Collective, Wrapping


def _own_collectives(observed: Observed) -> list[Collective]:
    """Return the collectives at lines of the program, outside of redistributions."""
    every = observed.last(Collective) if observed.is_proved else []
    return [one for one in every if not (one.is_redistributing or one.via or one.fsdp_group)]


def numbers_one_by_one(observed: Observed) -> Iterator[Finding]:
    """Advise if independent plain tensors of one number are reduced one by one, such as logged metrics."""
    every = (one for one in _own_collectives(observed) if one.kind == "all_reduce" and one.reduction)
    keyed = (
        ((one.mesh_dim, one.group, one.reduction, one.dtype, one.shape, one.depth, phase_of(one)), one)
        for one in every
        if one.bytes <= 8  # f64 at most
    )
    for alike in grouped(keyed).values():
        if len(alike) >= MIN_SUMS:
            seen, ns = f"{len(alike)} numbers reduced one by one", observed.ns_of(alike[1:])
            change = "stack them, and reduce the stack once"
            yield Finding(alike, seen, change, len(alike) - 1, "collective", ns=ns)


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
