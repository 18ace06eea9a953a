"""What a test gives to be measured: checked, and made ready. Without torch."""

from __future__ import annotations

import inspect
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


def check_steps(step: Callable[[], object], warmup: int, steps: int) -> None:
    """Refuse what cannot be counted."""
    __tracebackhide__ = True
    for keyword, value, least in (("warmup", warmup, 0), ("steps", steps, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CaptureError(f"steps(): {keyword}={value!r} is not a whole number of at least {least}")
    if not callable(step):
        raise CaptureError(f"steps({step!r}): give a callable that runs one step")
    required = _required_arguments(step)
    if required:
        raise CaptureError(
            f"the step takes arguments ({', '.join(required)}), and steps() gives none: "
            "wrap it, as in dtdispatch.steps(lambda: step(x))"
        )


def _required_arguments(step: Callable[[], object]) -> list[str]:
    try:
        parameters = inspect.signature(step).parameters.values()
    except ValueError:  # a function of C that does not tell
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
