"""Record of a traced line. Does not import torch."""

from __future__ import annotations

from typing import NamedTuple

from pytest_dtdispatch.core.events import CodePlace, Part


class TracedLine(NamedTuple):
    """A line that the program reached while it was traced.

    Args:
        begin_ns: time of the call of the tracer.
        at_ns: time when the tracer returned and the line began to run.
        place: source line; None at the end of tracing.
        in_engine: whether it is user code that the autograd engine called, such as a checkpoint.
        part: of Python that runs from here on outside of ops.
    """

    begin_ns: int
    at_ns: int
    place: CodePlace | None
    in_engine: bool
    part: Part = Part.OTHER
