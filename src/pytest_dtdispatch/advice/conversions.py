"""Rules on conversions between local tensors and DTensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import chain

from pytest_dtdispatch.advice.model import (
    Finding,
    Observed,
    bytes_of,
    grouped,
    is_backward,
    layered,
    line_of,
    phase_of,
    repeats_of,
    times_text,
)
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.steps.events import Redistribution, Unwrapping, Wrapping


def wrapped_parameters(observed: Observed) -> Iterator[Finding]:
    """Advise if parameters are converted to DTensors in each step."""
    wrapped = observed.recurring(Wrapping, lambda one: one.is_parameter and one.tensor_number)
    own = (one for one in wrapped if one.is_parameter and one.tensor_number)
    parameters = ([one] for one in own if not (one.via or one.plain_uses))
    for groups in layered(parameters, lambda one: (one.name, one.placements)):
        every = [*chain(*groups)]
        count, name = len({one.tensor_number for one in every}), every[0].name
        seen = f"{plural(count, 'parameter')} given to {name} in each step"
        change, ns = "make the DTensor once, and let it be the parameter", observed.ns_of(every)
        yield Finding(every, seen, change, len(every), "call", f" of {name}", ns=ns)


def _by_wrap(observed: Observed) -> dict[Hashable, list[Redistribution]]:
    """Return redistributions in backward by line and tensor, except at lines that redistribute it."""
    found: dict[Hashable, list[Redistribution]] = {}
    for one in observed.every(Redistribution):
        if is_backward(one) and not one.is_implied:
            found.setdefault((line_of(one.place), one.tensor), []).append(one)
    for one in observed.every(Redistribution):
        if one.tensor_number and not one.is_implied:
            found.pop((line_of(one.place), one.tensor), None)
    return found


def repeated_conversions(observed: Observed) -> Iterator[Finding]:
    """Advise if a tensor is wrapped or unwrapped several times in a phase.

    Each wrap may redistribute a gradient.
    """
    gradients = _by_wrap(observed)
    for kind, result in ((Wrapping, "DTensor"), (Unwrapping, "local tensor")):
        numbered = [one for one in observed.last(kind) if one.tensor_number and not one.via]
        same = grouped(
            numbered,
            lambda one: (one.name, one.tensor_number, one.tensor, one.mesh, one.placements, phase_of(one)),
        )
        repeated = (group for group in same if len(group) > 1)
        for groups in layered(repeated, lambda one: (one.name, one.tensor)):
            every, saved = [*chain(*groups)], repeats_of(groups)
            wraps = dict.fromkeys((line_of(one.place), one.tensor) for one in every if kind is Wrapping)
            moved = [one for wrap in wraps for one in gradients.get(wrap, ())]
            share = len(saved.same) / len(every)
            count, name = round(len(moved) * share), every[0].name
            of = f" of {name} and {plural(count, 'redistribution')}" if count else f" of {name}"
            seen = f"{every[0].tensor} {' '.join(every[0].placements)} given to {name} {times_text(groups)}"
            ns = observed.ns_of(saved.same) + observed.ns_of(saved.leading, forward_only=True)
            ns, nbytes = ns + observed.ns_of(moved) * share, round(bytes_of(moved) * share)
            change = f"keep the {result} of the first call" if observed.is_proved else ""
            yield Finding(every, seen, change, len(saved.every), "call", of, ns=ns, bytes=nbytes)
