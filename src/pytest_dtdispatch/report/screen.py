"""Terminal output of commands, in colours if supported, and the progress line."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TextIO

from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.report.document import Document, Span, Tone, View
from pytest_dtdispatch.report.terminal import document_lines, page_width

SAVE, RESTORE, ERASE = "\x1b7", "\x1b8", "\x1b[K"


def show(document: Document) -> None:
    """Print a document to standard output, in its width."""
    width = page_width(sys.stdout.isatty(), shutil.get_terminal_size().columns)
    for line in document_lines(document, width, View()):
        _print(line, sys.stdout)


def say(text: str, tone: Tone = Tone.PLAIN, stream: TextIO | None = None) -> None:
    """Print a line, by default to standard output."""
    _print([Span(escape_controls(text), tone)], stream or sys.stdout)


def print_text(text: str) -> None:
    """Write the text of a file to standard output, in the encoding of files."""
    sys.stdout.flush()
    binary = getattr(sys.stdout, "buffer", None)
    if binary:
        binary.write(text.encode("utf-8", "backslashreplace"))
        binary.flush()
    else:
        sys.stdout.write(text)


def has_colors(stream: TextIO) -> bool:
    """Return whether to write colours; environment variables have the same precedence as in pytest."""
    color = os.environ.get("PY_COLORS")
    if color in ("0", "1"):
        return color == "1"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _print(pieces: Iterable[Span], stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    codes = {Tone.STRONG: 1, Tone.GOOD: 32, Tone.NOTICE: 33, Tone.BAD: 31} if has_colors(stream) else {}
    *first, last = pieces
    line = ""
    for piece in (*first, Span(last.text.rstrip(), last.tone)):
        has_color = piece.text and piece.tone in codes
        line += f"\x1b[{codes[piece.tone]}m{piece.text}\x1b[0m" if has_color else piece.text
    shown = line.encode(encoding, "backslashreplace").decode(encoding)
    print(shown, file=stream, flush=True)


def is_watched(is_terminal: bool) -> bool:
    """Return whether the terminal is interactive and can erase text."""
    return is_terminal and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"


class ProgressLine:
    """Progress message in the rest of the cursor's line; the position of the cursor is preserved.

    Args:
        stream: a terminal.
        room: function that returns the number of columns right of the cursor.
        reached: context manager that suspends output capturing while a message is written.
        clock: clock in seconds.
        delay_s: duration of a wait that shows no message, in seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        room: Callable[[], int],
        reached: Callable[[], AbstractContextManager[None]] = nullcontext,
        clock: Callable[[], float] = time.monotonic,
        delay_s: float = 2.0,
    ) -> None:
        self._stream, self._room, self._reached, self._clock = stream, room, reached, clock
        self._delay_s = delay_s
        self._next = clock() + delay_s
        self._is_there = False

    def show(self, text: str) -> None:
        """Write a message unless the wait is short so far or fewer than 20 columns are free; "" erases it."""
        if not text:
            self.clear()
            return
        if self._clock() < self._next:
            return
        with self._reached():
            room = self._room() - 2
            if room >= 20:
                self._is_there = True
                text = escape_controls(text).encode("ascii", "replace").decode("ascii")  # one column each
                fitted = text if len(text) <= room else f"{text[: room - 3]}..."
                self._write(f"{SAVE} {fitted}{ERASE}{RESTORE}")
        self._next = self._clock() + 0.1

    def clear(self) -> None:
        """Erase the message, and restart the delay of the next one."""
        if self._is_there:
            with self._reached():
                self._write(ERASE)
        self._is_there = False
        self._next = self._clock() + self._delay_s

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the stream was closed; progress can be lost
            self._stream.write(text)
            self._stream.flush()
