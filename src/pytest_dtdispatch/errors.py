"""What goes wrong by a user's mistake, and what a user is warned of."""

from __future__ import annotations


class DtDispatchError(Exception):
    """A mistake in what was asked for: one line that says what is wrong, where, and what is valid."""


class UnsupportedTorchError(DtDispatchError):
    """This build of torch has no sharding-propagation cache that can be cleared and counted."""


class CaptureError(DtDispatchError):
    """A capture was opened or closed where that is not possible."""


class WatchError(DtDispatchError):
    """A loop or a script cannot be watched as it was asked for."""


class MeshError(DtDispatchError):
    """The mesh or the process group that was asked for cannot be had here."""


class ScalingError(DtDispatchError):
    """A scaling was asked for over sizes, or with a limit, that make no sense."""


class CompileError(DtDispatchError):
    """A function cannot be compiled as it was asked for."""


class CompareError(DtDispatchError):
    """Variants were given that cannot be compared."""


class UnequalError(CompareError, AssertionError):
    """Variants that are compared give different results."""


class GateError(DtDispatchError, AssertionError):
    """A figure is past the limit that the test gave, or could not be held against it."""


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


def first_line(error: BaseException) -> str:
    """Name an error by its type and the first line of what it says.

    Example:
        >>> first_line(ValueError("no such op"))
        'ValueError: no such op'
    """
    name = type(error).__name__
    return f"{name}: {first_message(error)}" if str(error).strip() else name


def first_message(error: BaseException) -> str:
    r"""Take the first line of what an error says; its type where it says nothing.

    Example:
        >>> first_message(OSError("disk full\nretry")), first_message(OSError())
        ('disk full', 'OSError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
