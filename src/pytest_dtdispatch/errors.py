"""Errors for users' mistakes, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress


class DtDispatchError(Exception):
    """A user's mistake. Its one line says what is wrong, where, and what is valid."""


class UnsupportedTorchError(DtDispatchError):
    """This build of torch has no sharding-propagation cache that can be cleared and counted."""


class MeasurementError(DtDispatchError):
    """The requested measurement is invalid, or not possible at this point."""


class MeshError(DtDispatchError):
    """The requested mesh or process group is not available here."""


class UnequalError(MeasurementError, AssertionError):
    """Compared variants return different results."""


class GateError(DtDispatchError, AssertionError):
    """A figure exceeds the limit of the test, or could not be compared with it."""


class MeterError(DtDispatchError):
    """Instructions cannot be counted here."""


class RanksError(DtDispatchError):
    """Ranks did not come together: one is lost, one did something else, or the store is gone."""


class DevicesError(MeshError):
    """There are fewer devices than ranks need."""


class ProcessError(DtDispatchError):
    """A process of an A/B run could not measure."""


class DtDispatchWarning(UserWarning):
    """Something slows down or hides what is measured."""


listener: Callable[[str], object] | None = None  # of warnings in a test that does not use this plugin


def warn(message: str, stacklevel: int, is_reported: bool = False) -> None:
    """Warn of what slows down or hides what is measured; a listener receives what is not reported anyway."""
    if listener is None:
        warnings.warn(message, DtDispatchWarning, stacklevel=stacklevel + 1)
    elif not is_reported:
        listener(message)


def first_line(error: BaseException) -> str:
    """Name an error by its type and the first line of what it says.

    Example:
        >>> first_line(ValueError("no such op"))
        'ValueError: no such op'
    """
    name, message = type(error).__name__, first_message(error)
    return name if message == name else f"{name}: {message}"


def first_message(error: BaseException) -> str:
    r"""Take the first line of what an error says; its type where it says nothing.

    Example:
        >>> first_message(OSError("disk full\nretry")), first_message(OSError())
        ('disk full', 'OSError')
    """
    lines: list[str] = []
    with suppress(Exception):  # of an error of the program that raises as it is described
        lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
