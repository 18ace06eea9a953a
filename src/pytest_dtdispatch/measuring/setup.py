"""What is called, where something else makes it: arguments from a setup, a callable for a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_dtdispatch.errors import CaptureError, ScalingError

Setup = Callable[[], "tuple[Any, ...] | None"]


def given_arguments(args: tuple[Any, ...], setup: Setup | None) -> tuple[Any, ...]:
    """Run the setup of a call, if it has one, and return the arguments to call with."""
    given = setup() if setup else None
    if given is None:
        return args
    if not isinstance(given, tuple):
        raise CaptureError(f"setup returned {given!r}: it must return a tuple of arguments, or nothing")
    return given


def callable_at(make: Callable[[int], Callable[[], Any]], size: int) -> Callable[[], Any]:
    """Make what is called at a size."""
    __tracebackhide__ = True
    made = make(size)
    if not callable(made):
        raise ScalingError(f"make({size}) returned {made!r}: it must return a callable without arguments")
    return made
