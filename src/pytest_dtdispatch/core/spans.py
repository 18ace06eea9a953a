"""Times in which a program did something."""

from __future__ import annotations

from typing import NamedTuple


class Interval(NamedTuple):
    """A time from its beginning to its end, in one thread, by a clock that starts anywhere."""

    thread: int
    begin_ns: int
    end_ns: int


def label(kind: str, name: str) -> str:
    """Write what a viewer shows on a span.

    Example:
        >>> label("module", "layers.0.wq")
        'module layers.0.wq'
    """
    return f"{kind} {name}"
