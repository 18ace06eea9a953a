"""Numbers that know what they consist of, and lists of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

MOST_LISTED = 20


class Count(float):
    """A number a step, which knows what it consists of: a failing ``assert`` on it lists that.

    Properties that return one are annotated as ``float``: type checkers let a float equal an ``int``, and no
    class derived from it.

    Args:
        total: over all steps.
        steps: number of steps.
        details: what is listed.

    Example:
        >>> Count(10, 5) == 2, str(Count(10, 5)), str(Count(1, 4))
        (True, '2', '0.25')
    """

    details: tuple[str, ...]

    def __new__(cls, total: int, steps: int, details: Iterable[str] = ()) -> Count:
        """Divide, where there is something to divide by."""
        made = super().__new__(cls, total / steps if steps else 0.0)
        made.details = tuple(details)
        return made

    def __repr__(self) -> str:
        return f"{float(self):g}"

    __str__ = __repr__


def repeated(items: Iterable[object]) -> list[str]:
    """List equal items once, with how often they came.

    Example:
        >>> repeated(["mm: another shape", "mm: another shape", "add: first call"])
        ['mm: another shape (2x)', 'add: first call']
    """
    counted = Counter(str(item) for item in items)
    return [text if count == 1 else f"{text} ({count}x)" for text, count in counted.items()]


def listed(items: Sequence[object], most: int = MOST_LISTED) -> list[str]:
    """List items below a line that speaks of them, and say how many are left out."""
    more = [f"    and {len(items) - most} more"] if len(items) > most else []
    return [*(f"    {item}" for item in items[:most]), *more]
