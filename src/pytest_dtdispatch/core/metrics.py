"""Numbers of a run: under names that outlive it, and such as know what they consist of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.shown import printable

FEW_SAMPLES = "few samples"  # begins the note of a row whose misses are too few to be judged
MOST_LISTED = 20
LONGEST_NAME = 4000  # in files: with it, quoted, a line stays in what readers take


@dataclass(frozen=True)
class MetricNames:
    """Every metric that files of results may have.

    Args:
        of_rows: those of samples.
        exact: those of counts, which have no noise.
    """

    of_rows: tuple[str, ...]
    exact: tuple[str, ...]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.of_rows, *self.exact))


@dataclass(frozen=True)
class MetricValue:
    """What a run found of one metric.

    Args:
        name: of the test with the signature, the call or the step: ``t.py::test_add::mm.default(...)@4``.
        metric: what was measured; a time is in nanoseconds.
        value: rounded to a whole number.
        scatter: of the samples that it stands for, where that is too far to judge it; infinite where there
            are too few of them to tell; else 0.
        signature: the whole one, where the name has it cut.
        ranks: that found it, where others found less.
    """

    name: str
    metric: str
    value: int
    scatter: float = 0.0
    signature: str = ""
    ranks: tuple[int, ...] = ()


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

    def __new__(cls, total: float, steps: int, details: Iterable[str] = ()) -> Count:
        """Divide, where there is something to divide by."""
        made = super().__new__(cls, total / steps if steps else 0.0)
        made.details = tuple(details)
        return made

    def __getnewargs__(self) -> tuple[float, int, tuple[str, ...]]:  # type: ignore[override]
        return float(self), 1, self.details

    def __repr__(self) -> str:
        return f"{float(self):g}"

    __str__ = __repr__


def repeated(items: Iterable[object]) -> list[str]:
    """List equal items once, with how often they came."""
    counted = Counter(str(item) for item in items)
    return [text if count == 1 else f"{text} ({count}x)" for text, count in counted.items()]


def listed(items: Sequence[object], most: int = MOST_LISTED) -> list[str]:
    """List items below a line that speaks of them, and say how many are left out."""
    more = [f"    and {len(items) - most} more"] if len(items) > most else []
    return [*(f"    {item}" for item in items[:most]), *more]


def plain_name(name: str) -> str:
    r"""Make a text one line, with one space between words.

    Example:
        >>> plain_name(" two\n lines ")
        'two lines'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def row_key(name: str) -> str:
    r"""Give the key of a row in files: its name, on one line, without the spaces at its ends.

    Readers of CSV files strip those. What cannot be printed is escaped.

    Example:
        >>> row_key(" my  step\n2 ")
        'my  step\\n2'
    """
    return printable(name.strip())
