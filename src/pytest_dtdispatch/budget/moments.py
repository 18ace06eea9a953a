"""Moments at which a program went to another place. Without torch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from pytest_dtdispatch.core.places import CodePlace


class Moment(NamedTuple):
    """From when on the program is at a place.

    Args:
        noted_ns: when it came there, and noting that began.
        at_ns: when that ended, and the program went on.
        place: where it is.
        in_engine: whether that is code of the user's which autograd's engine called, as a checkpoint does.
    """

    noted_ns: int
    at_ns: int
    place: CodePlace
    in_engine: bool


def pieces(moments: Sequence[Moment], begin_ns: int, end_ns: int) -> list[tuple[Moment, float]]:
    """Cut a time where the program went from one place to the next; give the share that each has of it.

    Time that noting took belongs to no place.

    Example:
        >>> here = Moment(0, 0, CodePlace("a.py", 1), False)
        >>> there = Moment(30, 35, CodePlace("a.py", 2), False)
        >>> [(moment.place.line, share) for moment, share in pieces([here, there], 20, 45)]
        [(1, 0.5), (2, 0.5)]
    """
    first = max(bisect.bisect_right(moments, begin_ns, key=lambda moment: moment.noted_ns) - 1, 0)
    last = max(bisect.bisect_left(moments, end_ns, key=lambda moment: moment.noted_ns), first + 1)
    inside = moments[first:last]
    if not inside:
        return []
    ends = [*(moment.noted_ns for moment in inside[1:]), end_ns]
    lengths = [
        max(0, min(end, end_ns) - max(moment.at_ns, begin_ns))
        for moment, end in zip(inside, ends, strict=True)
    ]
    if not sum(lengths):
        return [(moment, 1.0) for moment in inside[:1]]
    shares = ((moment, length / sum(lengths)) for moment, length in zip(inside, lengths, strict=True))
    return [(moment, share) for moment, share in shares if share]


def noting_ns(moments: Sequence[Moment], begin_ns: int, end_ns: int) -> int:
    """Add up the time of a span that was spent on noting.

    Example:
        >>> noting_ns([Moment(30, 35, CodePlace("a.py", 2), False)], 20, 32)
        2
    """
    first = bisect.bisect_right(moments, begin_ns, key=lambda moment: moment.at_ns)
    last = bisect.bisect_left(moments, end_ns, key=lambda moment: moment.noted_ns)
    inside = moments[first:last]
    return sum(min(each.at_ns, end_ns) - max(each.noted_ns, begin_ns) for each in inside)
