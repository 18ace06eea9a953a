"""What takes long says what it is at; nobody hears it, unless somebody shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Listener = Callable[[str], object]
NOTHING = ""  # what is told where nothing goes on that is worth a word
_listeners: list[Listener] = []


@contextmanager
def told_to(listener: Listener) -> Iterator[None]:
    """Let somebody hear what is going on, while a block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(form: str, *values: object) -> None:
    """Say what begins now: a form, and what stands in its braces; it is written for a listener alone.

    Example:
        >>> with told_to(print):
        ...     tell("round {} of {}", 1, 20)
        round 1 of 20
    """
    for listener in _listeners:
        listener(form.format(*values))
