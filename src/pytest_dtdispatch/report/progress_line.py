"""A line on a terminal that says what is going on, while that takes long; it is gone when it is over."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TextIO

from pytest_dtdispatch.core.progress import NOTHING
from pytest_dtdispatch.core.shown import printable

LONG_S = 2.0  # what is over sooner is not spoken of
BETWEEN_S = 0.1
LEAST_ROOM = 20  # columns
SAVE, RESTORE, ERASE = "\x1b7", "\x1b8", "\x1b[K"


def is_watched(is_terminal: bool) -> bool:
    """Ask whether somebody looks on, and what stands there can be taken back."""
    return is_terminal and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


class ProgressLine:
    """The rest of the line that a cursor is in, which stays where it is.

    Args:
        stream: a terminal.
        room: says how many columns there are beside the cursor.
        reached: holds what stands between the stream and the terminal aside, while we write.
        clock: in seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        room: Callable[[], int],
        reached: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._room, self._reached, self._clock = stream, room, reached, clock
        self._next = clock() + LONG_S
        self._is_there = False

    def tell(self, text: str) -> None:
        """Write what is going on, if it has gone on for long, and there is room."""
        if text == NOTHING:
            self.clear()
        if self._clock() < self._next:
            return
        with self._reached():
            room = self._room() - 2
            if room >= LEAST_ROOM:
                self._is_there = True
                self._write(f"{SAVE} {_fitted(text, room)}{ERASE}{RESTORE}")
        self._next = self._clock() + BETWEEN_S

    def clear(self) -> None:
        """Take it away, and wait again for long before the next."""
        if self._is_there:
            with self._reached():
                self._write(ERASE)
        self._is_there = False
        self._next = self._clock() + LONG_S

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it was closed: nobody misses a word of progress
            self._stream.write(text)
            self._stream.flush()


def _fitted(text: str, room: int) -> str:
    """Write letters that take one column each, no more of them than there is room for."""
    text = printable(text).encode("ascii", "replace").decode("ascii")
    return text if len(text) <= room else f"{text[: room - 3]}..."
