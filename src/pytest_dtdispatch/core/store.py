"""What is found in one test: a store while the test runs, and a frozen record once it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, Samples
from pytest_dtdispatch.core.results import Finding, MetricValue, NamedCall, row_key, row_metrics
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.verdicts import RowVerdict, Threshold
from pytest_dtdispatch.errors import GateError


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


@dataclass(frozen=True)
class TestRecord:
    """Everything that was found in one test.

    Args:
        test: its name in rows.
        measured: rows of signatures in the order of their first calls, then those of named calls.
        results: all other results by kind, in the order of kinds.
        merged_numbers: of results, merged over processes; None if the test ran in one.
        verdicts: of limits on its results.
        thresholds: that its marker has.
        ops: on DTensors that its captures saw.
        globs: that select ops to measure.
        uncaptured: DTensor ops and processes that no capture received.
        is_simulated: whether figures hold the work of all ranks, simulated in one process.
        unmeasured: why it has no result although it uses the fixture; empty if it has one.
        traces: JSON that torch's profiler wrote, by region.

    Example:
        >>> store = ResultStore("t.py::test_a")
        >>> store.enter_call("warm start", "4", Figures())
        >>> [row.label for row in store.freeze().rows()]
        ['warm start']
    """

    __test__ = False  # pytest collects classes by such names

    test: str = ""
    measured: tuple[Measurement, ...] = ()
    results: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    merged_numbers: tuple[MetricValue, ...] | None = None
    verdicts: tuple[RowVerdict, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    ops: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    uncaptured: Uncaptured = field(default_factory=Uncaptured)
    is_simulated: bool = False
    unmeasured: str = ""
    traces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.measured or any(self.results.values()))

    def rows(self) -> tuple[Measurement, ...]:
        """Return every row: signatures, named calls, then rows of other results."""
        found = (result for of_kind in self.results.values() for result in of_kind)
        return (*self.measured, *(row for result in found for row in result.rows()))

    def times(self) -> Iterator[tuple[RowId, Measurement, Samples]]:
        """Yield every state with latencies of every row."""
        for row in self.rows():
            for samples in row.times():
                yield RowId(self.test, row.label, samples.state), row, samples

    def numbers(self, excluded: Collection[str] = ()) -> Iterator[MetricValue]:
        """Yield numbers that results have beside rows, but for excluded kinds; of many ranks the largest."""
        if self.merged_numbers is not None:
            yield from self.merged_numbers
            return
        for kind, of_kind in self.results.items():
            for result in () if kind in excluded else of_kind:
                row = RowId(self.test, result.name)
                yield from (MetricValue(row, *metric) for metric in result.metrics())

    def metrics(self) -> Iterator[MetricValue]:
        """Yield every number of the test: those of its rows, then those of results."""
        yield from row_metrics(self.test, self.rows())
        yield from self.numbers()

    def shared_key(self) -> str:
        """Return a key in files that two rows share; empty if there is none."""
        [(key, rows)] = Counter(row_key(row.label) for row in self.rows()).most_common(1) or [("", 0)]
        return key if rows > 1 else ""

    def with_earlier(self, earlier: TestRecord) -> TestRecord:
        """Add what an earlier attempt of the test measured and this one did not, with its verdicts."""
        again = {result.name for of_kind in self.results.values() for result in of_kind}
        again |= {row.label for row in self.measured}
        again |= {""} if self else set()  # the verdict that the test measured nothing
        before = [verdict for verdict in earlier.verdicts if verdict.row.label not in again]
        rows = {(row.full_label, row.contains): row for row in (*earlier.measured, *self.measured)}
        results = {}
        for kind in {**earlier.results, **self.results}:
            found = (*earlier.results.get(kind, ()), *self.results.get(kind, ()))
            results[kind] = tuple({result.name: result for result in found}.values())
        verdicts = (*before, *(verdict for verdict in self.verdicts if verdict not in before))
        return replace(self, measured=tuple(rows.values()), results=results, verdicts=verdicts)


@dataclass(eq=False, repr=False)
class ResultStore:
    """What was found in a test so far.

    Args:
        test: its name in rows.
        uncaptured: DTensor ops and processes that no capture received.
        is_simulated: whether figures hold the work of all ranks, simulated in one process.
        passed_over: ops on DTensors in captures that ``ops`` excluded from measuring.
        calls_passed_over: number of calls of these ops.
        verdicts: of limits on its results.
        unraised: errors of limits that have not failed the test yet.
        traces: JSON that torch's profiler wrote, by region.
        uncounted: kind and name of limited results that raised before they had counts.

    Example:
        >>> results = ResultStore()
        >>> results.enter_call("warm start", "4", Figures())
        >>> [measurement.label for measurement in results.measurements()]
        ['warm start']
    """

    __test__ = False  # users may import it under the name of a test class

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

    def names_beside(self, kind: str) -> set[str]:
        """Keys in files that are taken, so that no further result of a kind can have them."""
        # Results of these kinds have no rows, and no metric that another kind has.
        apart = {"steps", "budget"}
        kinds = {kind} if kind in apart else self._found.keys() - apart
        return {row_key(name) for each in kinds for name in self._found.get(each, ())}

    def ops(self) -> set[str]:
        """Every op on DTensors that captures saw."""
        return self.passed_over | {signature.op for signature in self._figures}

    def of(self, kind: str) -> tuple[Any, ...]:
        """Every result of one kind, in the order they were found."""
        return tuple(self._found.get(kind, {}).values())

    @property
    def seen_calls(self) -> int:
        """Calls that captures saw so far, or captures and steps that were counted."""
        return sum(self._calls.values()) + self.calls_passed_over + len(self.of("steps"))

    def measurements(self) -> tuple[Measurement, ...]:
        """Every row: signatures in the order of their first call, named calls, then rows of other results."""
        return self.freeze(self._found).rows()

    def freeze(self, kinds: Iterable[str] = ()) -> TestRecord:
        """Return the record of the test, with its results in the order of kinds."""
        ops = (
            Measurement(str(op), op.full, op.op, op.mesh_device, Contains.DISPATCH, self._calls[op], figures)
            for op, figures in self._figures.items()
        )
        calls = (row for call in self.of(NamedCall.kind) for row in call.rows())
        others = [kind for kind in kinds if kind != NamedCall.kind and kind in self._found]
        return TestRecord(
            self.test,
            (*ops, *calls),
            {kind: self.of(kind) for kind in others},
            verdicts=tuple(self.verdicts),
            ops=tuple(sorted(self.ops())),
            uncaptured=self.uncaptured,
            is_simulated=self.is_simulated,
            traces=tuple(self.traces),
        )
