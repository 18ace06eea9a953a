"""What was found in one test: results of every kind, under one protocol, and names for their numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from pytest_dtdispatch.core.measurement import TIME, Contains, Figures, Measurement, Samples, State
from pytest_dtdispatch.core.plain_data import Size
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import Signature, shorten
from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.core.verdicts import RowVerdict
from pytest_dtdispatch.errors import GateError

FEW_SAMPLES = "few samples"  # begins the note of a row whose misses are too few to be judged
LONGEST_NAME = 4000  # in files: with it, quoted, a line stays within what readers accept
# Kinds whose results have no rows, and no metric that another kind has: their names meet those of no other.
APART = frozenset({"steps", "budget"})

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


@dataclass(frozen=True)
class Uncaptured:
    """What a capture does not see.

    Args:
        threads: of the program, that ran DTensor ops where no capture was open.
        ops: that they ran, at least.
        processes: that were started to run functions of the program; what they ran is not known.
        modes: names of modes that hid DTensor ops.
        notes: what else slows down or hides what is measured.

    Example:
        >>> Uncaptured(threads=1, ops=2) + Uncaptured(threads=1, ops=3)
        Uncaptured(threads=2, ops=5, processes=0, modes=(), notes=())
    """

    threads: int = 0
    ops: int = 0
    processes: int = 0
    modes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: Uncaptured) -> Uncaptured:
        modes = tuple(dict.fromkeys((*self.modes, *other.modes)))
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        processes = self.processes + other.processes
        return Uncaptured(self.threads + other.threads, self.ops + other.ops, processes, modes, notes)


@dataclass(eq=False, repr=False)
class TestResults:
    """Everything that was found in one test.

    Args:
        test: name of the test in its rows.
        uncaptured: DTensor ops and processes that no capture received.
        is_simulated: whether figures hold the work of all ranks, simulated in one process.
        passed_over: ops on DTensors in captures that ``ops`` excluded from measuring.
        calls_passed_over: number of calls of these ops.
        verdicts: of limits on its results.
        unraised: errors of limits that have not failed the test yet.
        traces: JSON that torch's profiler wrote, by region.
        uncounted: kind and name of limited results that raised before they had counts.

    Example:
        >>> results = TestResults()
        >>> results.enter_call("warm start", "4", Figures())
        >>> [measurement.label for measurement in results.measurements()]
        ['warm start']
    """

    __test__ = False  # pytest collects classes by such names

    test: str = ""
    uncaptured: Uncaptured = field(default_factory=Uncaptured)
    is_simulated: bool = False
    passed_over: set[str] = field(default_factory=set)
    calls_passed_over: int = 0
    verdicts: list[RowVerdict] = field(default_factory=list)
    unraised: list[GateError] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    uncounted: set[tuple[str, str]] = field(default_factory=set)
    _calls: dict[Signature, int] = field(default_factory=dict)
    _figures: dict[Signature, Figures] = field(default_factory=dict)
    _found: dict[str, dict[str, Finding]] = field(default_factory=dict)
    _merged: tuple[Measurement, ...] | None = None
    _numbers: Sequence[MetricValue] | None = None

    def __bool__(self) -> bool:
        return bool(self._figures or any(self._found.values()))

    def count(self, signature: Signature) -> bool:
        """Count a call of a signature; say whether it is known, and only its number grows."""
        if signature not in self._figures:
            return False
        self._calls[signature] += 1
        return True

    def enter(self, signature: Signature, figures: Figures) -> None:
        """Enter a new signature with what its first call gave."""
        self._calls[signature] = 1
        self._figures[signature] = figures

    def enter_call(self, name: str, mesh: str, figures: Figures) -> None:
        """Enter a named call that was made on a mesh, ``2x4``, or on none known."""
        self.add(NamedCall(name, Measurement(name, name, name, mesh, Contains.END_TO_END, 1, figures)))

    def add(self, result: Finding) -> None:
        """Add a result of any kind; one of the same kind and name is replaced."""
        self._found.setdefault(result.kind, {})[result.name] = result

    def add_unmeasured(self, earlier: TestResults) -> None:
        """Add what an earlier attempt of the test measured and this one did not, with its verdicts."""
        again = {name for found in self._found.values() for name in found}
        again |= {""} if self else set()  # the verdict that the test measured nothing
        before = [verdict for verdict in earlier.verdicts if verdict.row.label not in again]
        self.verdicts = [*before, *(verdict for verdict in self.verdicts if verdict not in before)]
        self._calls = {**earlier._calls, **self._calls}
        self._figures = {**earlier._figures, **self._figures}
        self._found = {
            kind: {**earlier._found.get(kind, {}), **self._found.get(kind, {})}
            for kind in {**earlier._found, **self._found}
        }

    def names_beside(self, kind: str) -> set[str]:
        """Keys in files that are taken, so that no further result of a kind can have them."""
        kinds = {kind} if kind in APART else self._found.keys() - APART
        return {row_key(name) for each in kinds for name in self._found.get(each, ())}

    def key_of_two(self) -> str:
        """Return a key that two rows share, such as a call named like an op; empty if there is none."""
        [(key, rows)] = Counter(row_key(row.label) for row in self.measurements()).most_common(1) or [("", 0)]
        return key if rows > 1 else ""

    def ops(self) -> set[str]:
        """Every op on DTensors that captures saw."""
        return self.passed_over | {signature.op for signature in self._figures}

    def of(self, kind: str) -> tuple[Any, ...]:
        """Every result of one kind, in the order they were found; of ops and named calls their rows."""
        if kind == NamedCall.kind:
            return self.calls()
        return tuple(self._found.get(kind, {}).values())

    @property
    def seen_calls(self) -> int:
        """Calls that captures saw so far, or captures and steps that were counted."""
        return sum(self._calls.values()) + self.calls_passed_over + len(self.of("steps"))

    def calls(self) -> tuple[Measurement, ...]:
        """Return rows of signatures in the order of their first calls, then those of named calls."""
        others = {
            (row.full_label, row.contains)
            for kind, found in self._found.items()
            if kind != NamedCall.kind
            for result in found.values()
            for row in result.rows()
        }
        return tuple(row for row in self.measurements() if (row.full_label, row.contains) not in others)

    def measurements(self) -> tuple[Measurement, ...]:
        """Every row: signatures in the order of their first call, named calls, then rows of other results."""
        if self._merged is not None:
            return self._merged
        ops = (
            Measurement(str(op), op.full, op.op, op.place[1:], Contains.DISPATCH, self._calls[op], figures)
            for op, figures in self._figures.items()
        )
        calls = self._found.get(NamedCall.kind, {})
        others = [of_kind for kind, of_kind in self._found.items() if kind != NamedCall.kind]
        found = (result for of_kind in (calls, *others) for result in of_kind.values())
        return (*ops, *(row for result in found for row in result.rows()))

    def times(self) -> Iterator[tuple[RowId, Measurement, Samples]]:
        """Yield every state with latencies of every row."""
        for row in self.measurements():
            for samples in row.times():
                yield RowId(self.test, row.label, samples.state), row, samples

    def metrics(self, kinds: Iterable[str]) -> Iterator[MetricValue]:
        """Name every number of the test: those of its rows, then those of results of these kinds."""
        yield from row_metrics(self.test, self.measurements())
        yield from self.numbers(kinds)

    def numbers(self, kinds: Iterable[str]) -> Iterator[MetricValue]:
        """Name the numbers that results of these kinds have beside rows; of many ranks the largest."""
        if self._numbers is not None:
            yield from self._numbers
            return
        for kind in kinds:
            for result in self._found.get(kind, {}).values():
                row = RowId(self.test, result.name)
                yield from (MetricValue(row, *metric) for metric in result.metrics())

    def merged(
        self, rows: Sequence[Measurement], numbers: Sequence[MetricValue], verdicts: Sequence[RowVerdict]
    ) -> TestResults:
        """Return these results with the rows, numbers and verdicts of all ranks."""
        by_key = {(row.full_label, row.contains): row for row in rows}

        def merge(result: Any) -> Any:
            if not isinstance(result, OneRow):
                return result
            own = result.measurement
            return replace(result, measurement=by_key.get((own.full_label, own.contains), own))  # type: ignore[type-var]

        found = {kind: {name: merge(one) for name, one in of.items()} for kind, of in self._found.items()}
        return replace(self, _found=found, _merged=tuple(rows), _numbers=tuple(numbers), verdicts=[*verdicts])

    @property
    def rank_numbers(self) -> tuple[MetricValue, ...]:
        """Numbers of results, merged over ranks; empty if the test ran in one process."""
        return tuple(self._numbers or ())


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
    has_few = any(FEW_SAMPLES in note for note in measurement.figures.notes)
    for metric, samples in taken.items():
        if metric and samples:
            unknown = math.inf if has_few and samples.state is State.MISS else 0.0
            yield metric, round(samples.figure), unknown or (samples.scatter or 0.0) * samples.is_noisy
    first, call = (measurement.figure(state) for state in (State.COMPILE_COLD, State.CALL))
    if unit.compile and first is not None and call is not None:
        yield unit.compile, round(first - call), 0.0  # the first call compiles, and then runs once
