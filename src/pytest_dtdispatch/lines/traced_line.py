"""A line that was traced. Without torch."""

from __future__ import annotations

from typing import NamedTuple

from pytest_dtdispatch.core.events import CodePlace, Part


class TracedLine(NamedTuple):
    """A line that the program reached while it was traced.

    Args:
        begin_ns: when the tracer was called.
        at_ns: when the tracer returned, and the line began to run.
        place: the line; None if lines are no longer traced.
        in_engine: whether it is user code that the autograd engine called, such as a checkpoint.
        part: of Python that runs from here on outside of ops.
    """

    begin_ns: int
    at_ns: int
    place: CodePlace | None
    in_engine: bool
    part: Part = Part.OTHER
