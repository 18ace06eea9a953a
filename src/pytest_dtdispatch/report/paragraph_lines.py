"""Paragraphs as lines of a terminal, in colours."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from pytest_dtdispatch.report.document import Paragraph, Span, Tone, Wrap

NO_EDGE = sys.maxsize  # the width of a pipe and of a file
INDENT = "  "
COLORS = {Tone.STRONG: "bold", Tone.GOOD: "green", Tone.NOTICE: "yellow", Tone.BAD: "red"}


@dataclass(frozen=True)
class Text:
    """A piece of a line, and the colour that it has where colours are wanted."""

    text: str
    color: str = ""


def paragraph_lines(block: Paragraph, width: int) -> Iterator[tuple[Text, ...]]:
    """Wrap a paragraph as it asks for."""
    indent = INDENT * block.indent
    if block.wrap is Wrap.NEVER:
        first, *others = block.spans
        yield tuple(text_of(span) for span in (Span(indent + first.text, first.tone), *others))
        return
    lines = textwrap.wrap(
        "".join(span.text for span in block.spans),
        width - 1,
        initial_indent=indent,
        subsequent_indent=indent + INDENT * block.hanging,
        break_long_words=block.wrap is Wrap.ANYWHERE,
        break_on_hyphens=block.wrap is Wrap.ANYWHERE,
    )
    yield from _colored(lines, block.spans)


def _colored(lines: Sequence[str], spans: Sequence[Span]) -> Iterator[tuple[Text, ...]]:
    """Give wrapped lines the colours of their spans; a blank has that of the letter before it."""
    tones = iter([span.tone for span in spans for _ in re.findall(r"\S", span.text, re.ASCII)])
    for line in lines:
        letters = [(next(tones), letter) for letter in re.findall(r"(?:^\s*)?\S\s*", line, re.ASCII)]
        same_tone = groupby(letters, key=itemgetter(0))
        yield tuple(text_of(Span("".join(map(itemgetter(1), same)), tone)) for tone, same in same_tone)


def text_of(span: Span) -> Text:
    """Give a piece the colour of its tone."""
    return Text(span.text, COLORS.get(span.tone, ""))
