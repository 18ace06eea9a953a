"""Spans of time in which a program did something: what a trace consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Interval(NamedTuple):
    """A time from its beginning to its end, in one thread, by a clock that starts anywhere.

    Example:
        >>> Interval(1, 1_000, 9_000).holds(Interval(1, 2_000, 3_000))
        True
    """

    thread: int
    begin_ns: int
    end_ns: int

    def holds(self, other: Interval) -> bool:
        """Tell whether another interval lies in this one, in the same thread."""
        inside = self.begin_ns <= other.begin_ns and other.end_ns <= self.end_ns
        return inside and self.thread == other.thread


def label(kind: str, name: str) -> str:
    """Write what a viewer shows on a span.

    Example:
        >>> label("module", "layers.0.wq")
        'module layers.0.wq'
    """
    return f"{kind} {name}"


@dataclass(frozen=True)
class TraceSpan:
    """Something that took a time.

    Args:
        kind: what it is: ``step``, ``phase``, ``module``, ``miss``, ``redistribution``, ``wrap``, ``unwrap``
            or ``collective``.
        name: which of its kind.
        when: it was.
        arguments: what else is known of it, by name.
    """

    kind: str
    name: str
    when: Interval
    arguments: Mapping[str, str | int] = field(default_factory=dict)
