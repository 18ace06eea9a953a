"""Errors for users' mistakes, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class DtDispatchError(Exception):
    """A user's mistake. The message is one line: what is wrong, where, and what is valid."""


class UnsupportedTorchError(DtDispatchError):
    """The installed torch has no sharding-propagation cache that can be cleared and counted."""


class MeasurementError(DtDispatchError):
    """The requested measurement is invalid or impossible here."""


class MeshError(DtDispatchError):
    """The requested mesh or process group is not available here."""


class UnequalError(MeasurementError, AssertionError):
    """Compared variants return different results."""


class GateError(DtDispatchError, AssertionError):
    """A figure exceeds a limit of the test, or could not be compared with it."""

    at: TracebackType | None = None  # the line of the test, also if its traceback is cleared


class MeterError(DtDispatchError):
    """Instructions cannot be counted here."""


class RanksError(DtDispatchError):
    """Rank synchronization failed: a rank died, diverged, or the store is unreachable."""


class DevicesError(MeshError):
    """There are fewer devices than ranks."""


class ProcessError(DtDispatchError):
    """A process of an A/B run could not measure."""


class LimitExceeded(SystemExit):
    """A watched step exceeded a limit: ends the program with status 1, also below ``except Exception``."""


class DtDispatchWarning(UserWarning):
    """Something slows down or hides measured ops."""


listener: Callable[[str], object] | None = None  # receives warnings of tests that do not use this plugin


def warn(message: str, stacklevel: int, is_reported: bool = False) -> None:
    """Issue a warning; if there is a listener, it receives the message unless a report has it anyway."""
    if listener is None:
        warnings.warn(message, DtDispatchWarning, stacklevel=stacklevel + 1)
    elif not is_reported:
        listener(message)


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message.

    Example:
        >>> first_line(ValueError("no such op"))
        'ValueError: no such op'
    """
    name, message = type(error).__name__, first_message(error)
    return name if message == name else f"{name}: {message}"


def first_message(error: BaseException) -> str:
    r"""Return the first line of the message of an error, or its type if the message is empty.

    Example:
        >>> first_message(OSError("disk full\nretry")), first_message(OSError())
        ('disk full', 'OSError')
    """
    lines: list[str] = []
    with suppress(Exception):  # a user's error can raise when it is formatted
        lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
