"""From slices of timed steps, and from places of located ones, to cells. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_dtdispatch.budget.model import Cell
from pytest_dtdispatch.budget.moments import Moment, pieces
from pytest_dtdispatch.budget.timeline import Course, same_course
from pytest_dtdispatch.core.places import CodePlace, Phase

Shares = list[tuple["CodePlace | None", float]]  # of a slice, at places


def cells_of(
    courses: Sequence[Course], moments: Sequence[Moment], located: Sequence[Course]
) -> tuple[Cell, ...]:
    """Add up the slices of several steps by part, op and place, and divide by the number of steps.

    Args:
        courses: what each step consists of.
        moments: where the program was while steps were located.
        located: what each of those consists of, on the clock of the moments. A step of the same course gives
            its places to the slices of others; of a step of another course no places are known.
    """
    ns: Counter[tuple[str, str, CodePlace | None]] = Counter()
    timing: Counter[tuple[str, str, CodePlace | None]] = Counter()
    calls: Counter[tuple[str, str, CodePlace | None]] = Counter()
    places = _Places(moments, located)
    for course in courses:
        for one, shares in zip(course, places.of(course), strict=True):
            for number, (place, share) in enumerate(shares):
                key = str(one.part), one.op, place
                ns[key] += (one.end_ns - one.begin_ns - one.timing_ns) * share  # type: ignore[assignment]
                timing[key] += one.timing_ns * share  # type: ignore[assignment]
                calls[key] += one.calls if number == 0 else 0
    count = len(courses)
    return tuple(
        Cell(*key, spent / count, calls[key] / count, timing[key] / count) for key, spent in ns.items()
    )


class _Places:
    """Where the slices of a step were spent, by located steps of the same course."""

    def __init__(self, moments: Sequence[Moment], located: Sequence[Course]) -> None:
        self._moments = moments
        self._located = located
        self._known: dict[int, list[Shares]] = {}

    def of(self, course: Course) -> list[Shares]:
        """Give the shares of places of each slice of a step."""
        for number, one in enumerate(self._located):
            if same_course(one, course):
                if number not in self._known:
                    self._known[number] = list(self._find(one))
                return self._known[number]
        return [[(None, 1.0)]] * len(course)

    def _find(self, course: Course) -> Iterator[Shares]:
        made: dict[int, CodePlace] = {}  # where nodes of autograd were made, by their number
        backward: CodePlace | None = None
        for one in course:
            span = (one.since_ns,) * 2 if one.since_ns >= 0 else (one.begin_ns, one.end_ns)
            found = pieces(self._moments, *span)
            origin = made.get(one.running)
            in_code = [
                (_in_module(moment.place, origin), share)
                for moment, share in found
                if moment.in_engine == one.in_engine
            ]
            if in_code and one.made >= 0:
                made[one.made] = in_code[-1][0]
            if one.in_engine and not in_code:
                backward = found[-1][0].place if found else backward
                yield [(_in_backward(origin or backward), 1.0)]
            else:
                total = sum(share for _, share in in_code)
                yield [(place, share / total) for place, share in in_code] or [(None, 1.0)]


def _in_module(place: CodePlace, origin: CodePlace | None) -> CodePlace:
    """Put what a node calls outside of modules, as a function of the user's, in the module that made it."""
    return replace(place, module=origin.module) if origin and not place.module else place


def _in_backward(place: CodePlace | None) -> CodePlace | None:
    if place is None:
        return None
    return replace(place, phase=Phase.BACKWARD)
