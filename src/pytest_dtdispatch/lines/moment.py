"""A time line of source lines. Without torch."""

from __future__ import annotations

from typing import NamedTuple

from pytest_dtdispatch.core.events import CodePlace


class Moment(NamedTuple):
    """A source line, from the time on at which it runs.

    Args:
        begin_ns: when the program reached it, and recording it began.
        at_ns: when recording it ended, and the program continued.
        place: the line; None if lines are no longer recorded.
        in_engine: whether it is the user's code that autograd's engine called, as in a checkpoint.
    """

    begin_ns: int
    at_ns: int
    place: CodePlace | None
    in_engine: bool
