"""What was found in one test: results of every kind, under one protocol, and names for their numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from pytest_dtdispatch.core.measurement import TIME, Contains, Measurement, State
from pytest_dtdispatch.core.plain_data import Size
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.text import escape_controls

LONGEST_NAME = 4000  # in files: with it, quoted, a line stays within what readers accept

# Every metric that files of results may have, and whether it is a count, which has no noise.
MetricNames = Mapping[str, bool]


@dataclass(frozen=True)
class MetricValue:
    """Value of one metric of a row or of another result.

    Args:
        row: its identity, without a state.
        metric: name of the metric; a time is in nanoseconds.
        value: rounded to a whole number.
        scatter: of its samples, if they scatter too far to judge it; infinite if there are too few; else 0.
        signature: the whole signature, if the label is cut.
        ranks: that found this value, if others found less.
        is_traced: whether a tracer of Python ran, so that no gate judges it.
    """

    row: RowId
    metric: str
    value: int
    scatter: Size = 0.0
    signature: str = ""
    ranks: tuple[int, ...] = ()
    is_traced: bool = False


class Count(float):
    """A number a step. A failing ``assert`` on it lists what it consists of.

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


@dataclass(frozen=True)
class Advice:
    r"""What to change in a step.

    Args:
        seen: what was seen, and where.
        change: what to write instead.
        saves: what it saves in a step, without the time.
        count: of the ops, collectives or other things that it saves.
        ns: nanoseconds a step that it may save; 0 if that is not known.
        share: of the step that it may save; 0 if that is not known.
        grows: whether it saves memory and no time.
        source_lines: where it was seen, such as ``train.py:41``.

    Example:
        >>> saves = "saves at most 2 redistributions"
        >>> advice = Advice("x redistributed 3 times", "do it once", saves, 2, 9e3, 0.1)
        >>> print("\n".join(advice.lines))
        x redistributed 3 times: do it once
          saves at most 2 redistributions, about 9 us (10.0%), in each step
    """

    seen: str
    change: str
    saves: str
    count: int = 0
    ns: float = 0.0
    share: float = 0.0
    grows: bool = False
    source_lines: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, str]:
        """What was seen and what to change; what that saves."""
        time = f", about {self.ns / 1e3:,.0f} us ({self.share:.1%})" if self.ns else ""
        return f"{self.seen}: {self.change}", f"  {self.saves}{time}, in each step"


def repeated(items: Iterable[object]) -> list[str]:
    """List equal items once, with how often they came."""
    counted = Counter(str(item) for item in items)
    return [text if count == 1 else f"{text} ({count}x)" for text, count in counted.items()]


def plain_name(name: str) -> str:
    r"""Make a text one line, with one space between words.

    Example:
        >>> plain_name(" two\n lines ")
        'two lines'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def row_name(name: str, one: object) -> str:
    """Name the row of one size, or of one variant: ``stack[8]``, ``mlp[plain]``."""
    return f"{name}[{one}]"


def row_key(name: str) -> str:
    r"""Return the key of a name in files: on one line, without spaces at its ends, which CSV readers strip.

    Example:
        >>> row_key(" my  step\n2 ")
        'my  step\\n2'
    """
    return escape_controls(name.strip())


def name_in_files(row: RowId) -> str:
    """Return the name of a row in files of results and in lists of verdicts."""
    return shorten(row_key(str(row)), limit=LONGEST_NAME)


class Finding(Protocol):
    """One result of any kind."""

    @property
    def kind(self) -> str:
        """The name that its kind is registered under."""

    @property
    def name(self) -> str:
        """Its name, which is unique in its test, as files and gates find it by name."""

    def rows(self) -> Sequence[Measurement]:
        """Rows that it has for files of runs, and for gates that compare samples."""

    def metrics(self) -> Iterable[tuple[str, int]]:
        """Named whole numbers that it has beside its rows, for files of results and their gates."""


class NoRows:
    """Defaults of a result without rows and metrics."""

    def rows(self) -> Sequence[Measurement]:
        """None."""
        return ()

    def metrics(self) -> Iterable[tuple[str, int]]:
        """None."""
        return ()


class OneRow(NoRows):
    """Defaults of a result that is one row."""

    measurement: Measurement

    def rows(self) -> Sequence[Measurement]:
        """Its one row."""
        return (self.measurement,)


@dataclass(frozen=True)
class NamedCall(OneRow):
    """A whole callable that was measured under a name."""

    kind: ClassVar[str] = "measured"
    name: str
    measurement: Measurement


def row_metrics(test: str, rows: Iterable[Measurement]) -> Iterator[MetricValue]:
    """Yield every metric of the rows of a test."""
    for row in rows:
        whole = row.full_label if row.full_label != row.label else ""
        row_id, is_traced = RowId(test, row.label), row.figures.is_traced
        yield from (MetricValue(row_id, *each, whole, is_traced=is_traced) for each in call_metrics(row))


def call_metrics(measurement: Measurement) -> Iterator[tuple[str, int, float]]:
    """Give every metric of a row, under the names that its unit gives, and how far it scatters if too far."""
    unit = next((samples.unit for samples in measurement.recorded()), TIME)
    taken = {
        unit.steady: measurement.steady,
        unit.hit: measurement.of(State.HIT),
        unit.miss: measurement.of(State.MISS),
        unit.call: None if measurement.contains is Contains.COMPILED else measurement.of(State.CALL),
    }
    for metric, samples in taken.items():
        if metric and samples:
            unknown = math.inf if measurement.figures.few_misses and samples.state is State.MISS else 0.0
            yield metric, round(samples.figure), unknown or (samples.scatter or 0.0) * samples.is_noisy
    first, call = (measurement.figure(state) for state in (State.COMPILE_COLD, State.CALL))
    if unit.compile and first is not None and call is not None:
        yield unit.compile, round(first - call), 0.0  # the first call compiles, and then runs once
