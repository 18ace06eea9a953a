"""Arguments of a call, which its setup may replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_dtdispatch.errors import CaptureError

Setup = Callable[[], "tuple[Any, ...] | None"]


def given_arguments(args: tuple[Any, ...], setup: Setup | None) -> tuple[Any, ...]:
    """Run the setup of a call, if it has one, and return the arguments to call with.

    Args:
        args: the arguments where the setup returns nothing.
        setup: called without arguments.

    Raises:
        CaptureError: the setup returned something that is not a tuple.
    """
    given = setup() if setup else None
    if given is None:
        return args
    if not isinstance(given, tuple):
        raise CaptureError(f"setup returned {given!r}: it must return a tuple of arguments, or nothing")
    return given
