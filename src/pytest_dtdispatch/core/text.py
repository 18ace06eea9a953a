"""Texts: what is shown of values and of names that anybody may have given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_SHOWN = 120
LONGEST_ERROR = 400


def many(number: int, noun: str, plural: str = "s") -> str:
    """Write how many there are of something.

    Example:
        >>> many(1, "op"), many(1200, "miss", "es")
        ('1 op', '1,200 misses')
    """
    return f"{number:,} {noun}{plural * (number != 1)}"


def printable(text: str) -> str:
    r"""Write letters that no terminal shows, such as ESC or a right-to-left mark, by their numbers.

    Example:
        >>> print(printable("\x1b[31mred\r"))
        \x1b[31mred\r
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def shown(value: object) -> str:
    """Show a value that is not valid, in one line; one that cannot show itself is named by its type.

    Example:
        >>> shown([1, "two"]), len(shown("9" * 5000))
        ("[1, 'two']", 120)
    """
    try:
        text = repr(value)
    except Exception:  # it is the user's, and can raise anything
        return f"<{type(value).__name__} that cannot be shown>"
    text = printable(" ".join(text.split()))
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def brief(error: object) -> str:
    """Cut what an error says in its middle, where it quotes a long text.

    Example:
        >>> len(brief("x" * 10_000)), brief("it is no text")
        (400, 'it is no text')
    """
    text, half = str(error), LONGEST_ERROR // 2
    return text if len(text) <= LONGEST_ERROR else f"{text[: half - 3]}...{text[-half:]}"


def own_name(fn: Callable[..., Any]) -> str:
    """Name a callable; what has no name of its own is named in angle brackets."""
    return str(getattr(fn, "__name__", "<unnamed>"))


def step_name(step_fn: Callable[[], object]) -> str:
    """Name a step: a lambda is a ``step``."""
    name = own_name(step_fn)
    return "step" if name.startswith("<") else name
