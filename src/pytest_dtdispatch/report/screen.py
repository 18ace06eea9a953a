"""What commands print: in colours where somebody sees them, in letters that the output has."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from pytest_dtdispatch.core.progress import told_to
from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.report.document import Document, Span, Tone, View
from pytest_dtdispatch.report.paragraph_lines import Text, text_of
from pytest_dtdispatch.report.progress_line import ProgressLine, is_watched
from pytest_dtdispatch.report.terminal import document_lines, page_width

CODES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}


def show(document: Document, view: View | None = None) -> None:
    """Print a document to standard output, as wide as that is."""
    for line in document_lines(document, shown_width(), view or View()):
        _print(line, sys.stdout)


def shown_width() -> int:
    """Give how wide standard output is."""
    return page_width(sys.stdout.isatty(), shutil.get_terminal_size().columns)


def say(text: str, tone: Tone = Tone.PLAIN, stream: TextIO | None = None) -> None:
    """Print a line, to standard output if no stream is named."""
    _print([text_of(Span(printable(text), tone))], stream or sys.stdout)


@contextmanager
def shown_progress() -> Iterator[None]:
    """Show on standard error what is going on while a block runs, if that is a terminal."""
    if not is_watched(sys.stderr.isatty()):
        yield
        return
    line = ProgressLine(sys.stderr, lambda: shutil.get_terminal_size().columns)
    try:
        with told_to(line.tell):
            yield
    finally:
        line.clear()


def has_colors(stream: TextIO) -> bool:
    """Ask whether to write in colours; variables are obeyed in the order in which pytest obeys them."""
    if (asked := os.environ.get("PY_COLORS")) in ("0", "1"):
        return asked == "1"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _print(pieces: Iterable[Text], stream: TextIO) -> None:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    *first, last = pieces or (Text(""),)
    stripped = (*first, Text(last.text.rstrip(), last.color))
    colored = has_colors(stream)
    line = "".join(_colored(piece) if colored else piece.text for piece in stripped)
    shown = line.encode(encoding, "backslashreplace").decode(encoding)
    print(shown, file=stream, flush=True)


def _colored(piece: Text) -> str:
    if not piece.color or not piece.text:
        return piece.text
    return f"\x1b[{CODES[piece.color]}m{piece.text}\x1b[0m"
