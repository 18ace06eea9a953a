"""Rules on conversions between local tensors and DTensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter

from pytest_dtdispatch.advice.model import (
    CONVERT_ONCE,
    Finding,
    Observed,
    alike,
    bytes_of,
    layered,
    repeats_in_pass,
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
    for groups in layered(parameters, attrgetter("name", "placements")):
        every = [*chain(*groups)]
        count, name = len({one.tensor_number for one in every}), every[0].name
        seen = f"{plural(count, 'parameter')} given to {name} in each step"
        change, ns = "make the DTensor once, and let it be the parameter", observed.ns_of(every)
        yield Finding(every, seen, change, len(every), "call", f" of {name}", ns=ns)


def converted_inputs(observed: Observed) -> Iterator[Finding]:
    """Advise if a parallel plan converts an argument of a module for several modules inside it."""
    wraps = [one for one in observed.last(Wrapping) if one.input]
    planned = (one for one in wraps if not (one.plain_uses or one.own_conversions))
    moves = [one for one in observed.last(Redistribution) if one.via and not one.is_implied]
    for groups in _repeated(planned):
        every = [*chain(*groups)]
        lines = {(one.place, one.tensor, one.placements) for one in every}
        moved = [one for one in moves if (one.place, one.tensor, one.source) in lines]
        if not moved:
            yield _saving(observed, groups, moved, CONVERT_ONCE)
        elif len(moved) == len(every) and len({one.target for one in moved}) == 1:
            yield _saving(observed, groups, moved, f"{CONVERT_ONCE}, and omit input_layouts inside it")


def repeated_conversions(observed: Observed) -> Iterator[Finding]:
    """Advise if a tensor is wrapped or unwrapped several times in a phase."""
    for kind, result in ((Wrapping, "DTensor"), (Unwrapping, "local tensor")):
        own = (one for one in observed.last(kind) if one.tensor_number and not one.via)
        for groups in _repeated(own):
            yield _saving(observed, groups, [], f"keep the {result} of the first call")


def _repeated(events: Iterable[Wrapping]) -> list[list[list[Wrapping]]]:
    """Group repeated conversions of one tensor, and those that differ only by layer or phase."""
    names = ("name", "tensor_number", "tensor", "mesh", "placements", "options", "input", "phase")
    repeated = (group for group in alike(events, *names) if len(group) > 1)
    return layered(repeated, attrgetter("name", "tensor"))


def _saving(
    observed: Observed, groups: Sequence[Sequence[Wrapping]], moved: Sequence[Redistribution], change: str
) -> Finding:
    """Return advice to convert once, with the redistributions of the results and of gradients."""
    first, every, saved = groups[0][0], [*chain(*groups)], repeats_of(groups)
    after = alike(moved, "tensor_number", "target")
    saved_in_pass = repeats_in_pass(groups)
    in_pass = [*saved_in_pass, *repeats_in_pass(after)]
    redistributions = [*repeats_of(after), *observed.gradients_of(in_pass, Redistribution)]
    count, unit, of = len(saved), "call", f" of {first.name}"
    if redistributions:
        count, unit, of = len(redistributions), "redistribution", f" and {plural(count, 'call')}{of}"
    seen = f"{first.tensor} {' '.join(first.placements)} given to {first.name} {times_text(groups)}"
    calls = [*saved, *observed.gradients_of(saved_in_pass, Wrapping), *redistributions]
    return Finding(
        every,
        seen,
        change if observed.is_proved and not any(one.is_result_unique for one in every) else "",
        count,
        unit,
        of,
        ns=observed.ns_of(calls),
        bytes=bytes_of(redistributions),
        claims=calls,
    )
