"""Results of one test: a mutable store while the test runs, and a frozen record after its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement, fastest
from pytest_dtdispatch.core.results import Finding, MetricValue, row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.verdicts import RowVerdict, Threshold
from pytest_dtdispatch.errors import GateError


@dataclass(frozen=True)
class Uncaptured:
    """Work of the program that captures cannot observe.

    Args:
        threads: number of threads that ran DTensor ops without an open capture.
        ops: minimum number of these ops.
        processes: number of processes that were started to run functions of the program, with unknown ops.
        modes: names of modes that hid DTensor ops.
        notes: other causes that slow down or hide measured ops.

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
    """All results of one test.

    Args:
        test: name of the test in rows.
        measured: rows of signatures in the order of their first calls, then those of named calls.
        results: all other results by kind, in the order of registered kinds.
        merged_numbers: numbers of results, merged over processes; None if the test ran in one process.
        verdicts: verdicts of limits on its results.
        thresholds: thresholds of its marker.
        ops: DTensor ops that its captures received.
        globs: globs that select the ops to measure.
        uncaptured: DTensor ops and processes that no capture received.
        is_simulated: whether figures include the work of all ranks, simulated in one process.
        unmeasured: why it has no result although it uses the fixture; empty if it has one.
        traces: JSON traces of torch's profiler, one for each region.

    Example:
        >>> store = ResultStore("t.py::test_a")
        >>> store.enter_call("warm start", "4", Figures())
        >>> [row.label for row in store.freeze().rows()]
        ['warm start']
    """

    __test__ = False  # pytest collects classes whose names begin with Test

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
        """Return all rows: signatures, named calls, then rows of other results."""
        results = (result for of_kind in self.results.values() for result in of_kind)
        return (*self.measured, *(row for result in results for row in result.rows()))

    def numbers(self) -> Iterator[MetricValue]:
        """Yield numbers of results that are not part of rows; maxima of ranks."""
        if self.merged_numbers is not None:
            yield from self.merged_numbers
            return
        for of_kind in self.results.values():
            for result in of_kind:
                row = RowId(self.test, result.name)
                yield from (MetricValue(row, *metric) for metric in result.metrics())

    def shared_key(self) -> str:
        """Return a key that several rows have in files; empty if all keys are unique."""
        [(key, rows)] = Counter(row_key(row.label) for row in self.rows()).most_common(1) or [("", 0)]
        return key if rows > 1 else ""

    def fastest(self, earlier: TestRecord) -> TestRecord:
        """Return a record whose signatures and calls have the samples of the faster of two attempts."""
        rows = {row.key: row for row in earlier.measured}
        pairs = ((row, rows.get(row.key, row)) for row in self.measured)
        measured = (replace(row, figures=fastest(before.figures, row.figures)) for row, before in pairs)
        return replace(self, measured=tuple(measured))

    def with_earlier(self, earlier: TestRecord) -> TestRecord:
        """Return a record with the results and verdicts that only an earlier attempt of the test has."""
        repeated = {result.name for of_kind in self.results.values() for result in of_kind}
        repeated |= {row.label for row in self.measured}
        repeated |= {""} if self else set()  # the verdict that the test measured nothing
        before = [verdict for verdict in earlier.verdicts if verdict.row.label not in repeated]
        rows = {row.key: row for row in (*earlier.measured, *self.measured)}
        results = {}
        for kind in {**earlier.results, **self.results}:
            found = (*earlier.results.get(kind, ()), *self.results.get(kind, ()))
            results[kind] = tuple({result.name: result for result in found}.values())
        verdicts = (*before, *(verdict for verdict in self.verdicts if verdict not in before))
        return replace(self, measured=tuple(rows.values()), results=results, verdicts=verdicts)


@dataclass(eq=False, repr=False)
class ResultStore:
    """Results of a running test.

    Args:
        test: name of the test in rows.
        uncaptured: DTensor ops and processes that no capture received.
        is_simulated: whether figures include the work of all ranks, simulated in one process.
        passed_over: captured DTensor ops that ``ops`` excludes from measuring.
        calls_passed_over: number of calls of these ops.
        verdicts: verdicts of limits on its results.
        unraised: errors of limits that have not failed the test yet.
        traces: JSON traces of torch's profiler, one for each region.
        uncounted: kind and name of results with limits that raised before they were counted.

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
    _first: dict[Signature, Measurement] = field(default_factory=dict)
    _named: dict[str, Measurement] = field(default_factory=dict)
    _found: dict[str, dict[str, Finding]] = field(default_factory=dict)

    def count(self, signature: Signature) -> bool:
        """Count a call of a recorded signature; return False, and count nothing, if it is new."""
        if signature not in self._calls:
            return False
        self._calls[signature] += 1
        return True

    def enter(self, signature: Signature, figures: Figures, backend: str = "") -> None:
        """Record a new signature with the figures and the backend of its first call."""
        self._calls[signature] = 1
        self._first[signature] = Measurement.of_signature(signature, 1, figures, backend)

    def enter_call(self, name: str, mesh: str, figures: Figures, backend: str = "") -> None:
        """Record a named call on a mesh, as text: ``2x4``, or empty if unknown."""
        row = Measurement(name, name, name, mesh, Contains.END_TO_END, 1, figures, backend)
        self._named[name] = row

    def add(self, result: Finding) -> None:
        """Add a result, or replace the result of the same kind and name."""
        self._found.setdefault(result.kind, {})[result.name] = result

    def names_beside(self, kind: str) -> set[str]:
        """Return the keys in files that another call, or another result of this kind, must not have."""
        # Results of these kinds have no rows, and no metric in common with another kind.
        separate = {"steps", "budget", "verified"}
        kinds = {kind} if kind in separate else self._found.keys() - separate
        names = [name for each in kinds for name in self._found.get(each, ())]
        return set(map(row_key, names if kind in separate else [*names, *self._named]))

    def ops(self) -> set[str]:
        """Return every DTensor op that captures received."""
        return self.passed_over | {signature.op for signature in self._calls}

    def of(self, kind: str) -> tuple[Any, ...]:
        """Return the results of one kind in the order they were added."""
        return tuple(self._found.get(kind, {}).values())

    @property
    def seen_calls(self) -> int:
        """Number of captured calls, counted steps and verified steps so far."""
        others = len(self.of("steps")) + len(self.of("verified"))
        return sum(self._calls.values()) + self.calls_passed_over + others

    def measurements(self) -> tuple[Measurement, ...]:
        """Return all rows: signatures by their first call, named calls, then rows of other results."""
        return self.freeze(self._found).rows()

    def freeze(self, kinds: Iterable[str] = ()) -> TestRecord:
        """Return the record of the test, with results of these kinds in their order."""
        ops = (replace(self._first[signature], calls=calls) for signature, calls in self._calls.items())
        return TestRecord(
            self.test,
            (*ops, *self._named.values()),
            {kind: self.of(kind) for kind in kinds if kind in self._found},
            verdicts=tuple(self.verdicts),
            ops=tuple(sorted(self.ops())),
            uncaptured=self.uncaptured,
            is_simulated=self.is_simulated,
            traces=tuple(self.traces),
        )
