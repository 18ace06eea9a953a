"""Repeat a call that the program has made, and leave everything as that call left it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from traceback import clear_frames
from typing import Any, Protocol

from pytest_dtdispatch.errors import RanksError, first_line
from pytest_dtdispatch.measuring import torchapi
from pytest_dtdispatch.measuring.interrupts import Signals
from pytest_dtdispatch.measuring.quiet import nothing_warned
from pytest_dtdispatch.records.measurement import Figures


class Replay(Protocol):
    """What puts back what a call changes; it has settled what the program's call left behind."""

    def repeating(self) -> AbstractContextManager[None]:
        """Note what repetitions change."""

    def restore(self) -> None:
        """Leave behind what the program's own call left behind."""


def repeated(
    replay: Replay, take: Callable[[Signals], Figures], once_more: Callable[[], Any] | None
) -> Figures:
    """Measure by repeating a call, without the program noticing.

    What a repetition raises is a note beside the figures, as the program's own call succeeded. What comes
    from elsewhere while one runs, the program sees as if its own call had raised it: what a signal handler
    raises, or another thread sets for this one to raise.

    Args:
        replay: puts back what the call changes.
        take: takes the figures; lets signals in while it calls what is measured.
        once_more: makes one more repetition, on a miss, to see whether it raises what another raised; None
            where other ranks would have to make it too.

    Returns:
        The figures, or a note that says why there are none.

    Raises:
        RanksError: other ranks went another way, and this rank cannot go on alone.
        BaseException: what came from elsewhere.
    """
    __tracebackhide__ = True
    with Signals() as signals, nothing_warned(), torchapi.without_outer_modes():
        try:
            with replay.repeating():
                return take(signals)
        except RanksError:
            raise
        except Exception as error:
            if once_more and is_from_elsewhere(error, once_more):
                raise error.with_traceback(None) from None
            clear_frames(error.__traceback__)  # torch may keep it, and with it what was repeated
            return Figures(notes=(f"repeating it raised {first_line(error)}",))
        finally:
            signals.is_open = False
            replay.restore()


def is_from_elsewhere(error: Exception, once_more: Callable[[], Any]) -> bool:
    """Tell what another thread made this one raise: it says nothing, and does not come again."""
    if error.args:
        return False
    try:
        once_more()
    except Exception as again:
        return type(again) is not type(error)
    return True
