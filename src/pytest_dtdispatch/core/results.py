"""Protocol of results of all kinds, and the names of their metrics in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pytest_dtdispatch.core.measurement import TIME, Contains, Measurement, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.text import TextEnum, escape_controls

LONGEST_NAME = 4000  # characters in files; with longer quoted names, a line exceeds the limits of CSV readers

CALLS = "measured"  # kind of the table of signatures and named calls
# Every metric that files of results may have, and whether it is an exact count.
MetricNames = Mapping[str, bool]


@dataclass(frozen=True)
class MetricValue:
    """Value of one metric of a row or of another result.

    Args:
        row: identity of the row, without a state.
        metric: name of the metric.
        value: value rounded to a whole number; times are in nanoseconds.
        signature: full signature if the label is shortened, else empty.
        ranks: ranks with this value, if other ranks have a smaller one.
        tracers: names of tools that made the calls longer; no gate judges such a value.
    """

    row: RowId
    metric: str
    value: int
    signature: str = ""
    ranks: tuple[int, ...] = ()
    tracers: tuple[str, ...] = ()


class Count(float):
    """Count per step. A failing ``assert`` on it lists the counted events.

    Properties that return it are annotated as ``float``, because type checkers reject a comparison of ``int``
    with a subclass of ``float``.

    Args:
        total: sum over all steps.
        steps: number of steps.
        details: lines that a failing ``assert`` lists.

    Example:
        >>> Count(10, 5) == 2, str(Count(10, 5)), str(Count(1, 4))
        (True, '2', '0.25')
    """

    details: tuple[str, ...]

    def __new__(cls, total: float, steps: int, details: Iterable[str] = ()) -> Count:
        """Divide the total by the steps; 0 without steps."""
        count = super().__new__(cls, total / steps if steps else 0.0)
        count.details = tuple(details)
        return count

    def __getnewargs__(self) -> tuple[float, int, tuple[str, ...]]:  # type: ignore[override]
        return float(self), 1, self.details

    def __repr__(self) -> str:
        return f"{float(self):g}"

    __str__ = __repr__


class AdviceKind(TextEnum):
    """Class of advice: what the change saves. In the order in which advice is listed."""

    CPU_TIME = "CPU time"
    COMMUNICATION = "communication"
    WAITS = "waits"
    MEMORY = "memory"


PARTIAL_READS = "partial reads"  # the rule on wrong values, whose findings are listed first


@dataclass(frozen=True)
class Advice:
    r"""Suggested change of a step, or a fact about it without a change.

    Args:
        seen: the finding, with its source line.
        change: the suggested code; empty if no change is proved.
        saves: description of the saving, without the time and the bytes; empty without a change.
        count: number of saved ops, collectives or other events; 0 without a change.
        ns: nanoseconds per step that the change may save; 0 if unknown.
        share: fraction of the step that the change may save; 0 if unknown.
        source_lines: source lines of the finding, such as ``train.py:41``.
        rule: name of the rule in the documentation.
        kind: class of the saving.
        bytes: bytes of collectives that the change may save; 0 if unknown.
        unit: noun of what ``count`` counts, such as ``redistribution``; empty without a change.

    Example:
        >>> saves = "saves at most 2 redistributions"
        >>> advice = Advice("x redistributed 3 times", "do it once", saves, 2, 9e3, 0.1)
        >>> print("\n".join(advice.lines))
        x redistributed 3 times: do it once
          saves at most 2 redistributions, about 9 us (10.0%), in each step
        >>> sent = Advice("x sent 3 times", "do it once", saves, 2, kind=AdviceKind.COMMUNICATION, bytes=64)
        >>> print(sent.lines[1])
          saves at most 2 redistributions of 64 bytes in all, in each step
    """

    seen: str
    change: str
    saves: str
    count: int = 0
    ns: float = 0.0
    share: float = 0.0
    source_lines: tuple[str, ...] = ()
    rule: str = ""
    kind: AdviceKind = AdviceKind.CPU_TIME
    bytes: int = 0
    unit: str = ""

    @property
    def is_timed(self) -> bool:
        """Whether the time of its saving was measured. Times of collectives hold for this mesh only."""
        return self.kind is AdviceKind.CPU_TIME and self.ns > 0

    @property
    def saving(self) -> str:
        """Text of the saving, with its time or bytes; empty without a change."""
        size = f", about {self.ns / 1e3:,.0f} us ({self.share:.1%})" if self.is_timed else ""
        if self.kind is AdviceKind.COMMUNICATION and self.bytes:
            size = f" of {self.bytes:,} bytes{' in all' if self.count > 1 else ''}"
        return f"{self.saves}{size}, in each step" if self.change else ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The finding with the change, and the saving; the finding alone without a change."""
        return (f"{self.seen}: {self.change}", f"  {self.saving}") if self.change else (self.seen,)

    @property
    def order(self) -> tuple[bool, bool, bool, int, float, int]:
        """Sort key: wrong values, then over a third of the step, then by class and saving; facts last."""
        sizes = {AdviceKind.CPU_TIME: self.ns, AdviceKind.COMMUNICATION: float(self.bytes)}
        is_fact, is_valid, is_small = not self.change, self.rule != PARTIAL_READS, self.share < 1 / 3
        size = sizes.get(self.kind, 0.0)
        return is_fact, is_valid, is_small, [*AdviceKind].index(self.kind), -size, -self.count


def repeated(items: Iterable[object]) -> list[str]:
    """Return the distinct items as texts, with their numbers of occurrences."""
    counted = Counter(str(item) for item in items)
    return [text if count == 1 else f"{text} ({count}x)" for text, count in counted.items()]


def plain_name(name: str) -> str:
    r"""Convert a text to one line, with one space between words.

    Example:
        >>> plain_name(" two\n lines ")
        'two lines'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def row_name(name: str, one: object) -> str:
    """Return the row name of one size or one variant: ``stack[8]``, ``mlp[plain]``."""
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
    """Result of any kind."""

    @property
    def kind(self) -> str:
        """Registered name of its kind."""

    @property
    def name(self) -> str:
        """Name of the result, unique within its test: files and gates identify it by name."""

    def rows(self) -> Sequence[Measurement]:
        """Return its rows, for saved runs and for gates that compare samples."""

    def metrics(self) -> Iterable[tuple[str, int]]:
        """Return its named numbers that are not part of rows, for files of results and their gates."""


class NoRows:
    """Defaults of a result without rows and metrics."""

    def rows(self) -> Sequence[Measurement]:
        """Return no rows."""
        return ()

    def metrics(self) -> Iterable[tuple[str, int]]:
        """Return no metrics."""
        return ()


class OneRow(NoRows):
    """Defaults of a result with exactly one row."""

    measurement: Measurement

    def rows(self) -> Sequence[Measurement]:
        """Return its only row."""
        return (self.measurement,)


def row_metrics(test: str, rows: Iterable[Measurement]) -> Iterator[MetricValue]:
    """Yield every metric of the rows of a test."""
    for row in rows:
        whole = row.full_label if row.full_label != row.label else ""
        row_id, tracers = RowId(test, row.label), row.figures.tracers
        yield from (MetricValue(row_id, *each, whole, tracers=tracers) for each in call_metrics(row))


def call_metrics(measurement: Measurement) -> Iterator[tuple[str, int]]:
    """Yield the name and value of every metric of a row."""
    unit = next((samples.unit for samples in measurement.recorded()), TIME)
    samples_by_metric = {
        unit.steady: measurement.steady,
        unit.hit: measurement.of(State.HIT),
        unit.miss: measurement.of(State.MISS),
        unit.call: None if measurement.contains is Contains.COMPILED else measurement.of(State.CALL),
    }
    for metric, samples in samples_by_metric.items():
        if metric and samples:
            yield metric, round(samples.figure)
    first, call = (measurement.figure(state) for state in (State.COMPILE_COLD, State.CALL))
    if unit.compile and first is not None and call is not None:
        yield unit.compile, round(first - call)  # the first call compiles and also runs
