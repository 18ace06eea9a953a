"""What was found in one test: results of every kind, under one protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pytest_dtdispatch.core.measurement import Contains, Figures, Measurement
from pytest_dtdispatch.core.metrics import MetricValue, call_metrics, plain_name
from pytest_dtdispatch.core.signature import Signature


class Finding(Protocol):
    """One result of any kind.

    Attributes:
        kind: names the kind, under which its results are registered.
    """

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """Its name, unique in its test."""

    def rows(self) -> Sequence[Measurement]:
        """Rows that it has for files of runs, and for gates that compare samples."""

    def metrics(self) -> Iterable[tuple[str, int]]:
        """Named whole numbers that it has beside its rows, for files of results and their gates."""


@dataclass(frozen=True)
class NamedCall:
    """A whole callable that was measured under a name."""

    kind: ClassVar[str] = "call"
    name: str
    measurement: Measurement

    def rows(self) -> Sequence[Measurement]:
        """Its one row."""
        return (self.measurement,)

    def metrics(self) -> Iterable[tuple[str, int]]:
        """None but those of its row."""
        return ()


class TestResults:
    """Everything that was found in one test.

    Args:
        test: name of the test in its rows.

    Example:
        >>> results = TestResults()
        >>> results.enter_call("warm start", "4", Figures())
        >>> [measurement.label for measurement in results.measurements()]
        ['warm start']
    """

    __test__ = False  # pytest collects classes by such names

    def __init__(self, test: str = "") -> None:
        self.test = test
        self._calls: dict[Signature, int] = {}
        self._figures: dict[Signature, Figures] = {}
        self._found: dict[str, dict[str, Finding]] = {}
        self._merged: tuple[Measurement, ...] | None = None

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

    def names(self) -> Collection[str]:
        """Names that are taken."""
        return {name for of_kind in self._found.values() for name in of_kind}

    def of(self, kind: str) -> tuple[Any, ...]:
        """Every result of one kind, in the order they were found."""
        return tuple(self._found.get(kind, {}).values())

    def compiled(self) -> tuple[Any, ...]:
        """Every compiled function in every setting, in the order they were compiled."""
        return self.of("compiled")

    def scalings(self) -> tuple[Any, ...]:
        """Every scaling, in the order they were taken."""
        return self.of("scaling")

    def counts(self) -> tuple[Any, ...]:
        """Everything that was counted, in the order it was."""
        return self.of("steps")

    def calls(self) -> tuple[Measurement, ...]:
        """Every signature in the order of its first call, then named calls."""
        return tuple(row for row in self.measurements() if row.contains is not Contains.COMPILED)

    def measurements(self) -> tuple[Measurement, ...]:
        """Every row: signatures in the order of their first call, named calls, then rows of other results."""
        if self._merged is not None:
            return self._merged
        ops = (_of_op(op, self._calls[op], figures) for op, figures in self._figures.items())
        calls = self._found.get(NamedCall.kind, {})
        others = [of_kind for kind, of_kind in self._found.items() if kind != NamedCall.kind]
        found = (result for of_kind in (calls, *others) for result in of_kind.values())
        return (*ops, *(row for result in found for row in result.rows()))

    def metrics(self, kinds: Iterable[str]) -> Iterator[MetricValue]:
        """Name every number of the test: those of its rows, then those of results of these kinds."""
        for row in self.measurements():
            yield from (self._value(row.label, metric, value) for metric, value in call_metrics(row))
        yield from self.numbers(kinds)

    def numbers(self, kinds: Iterable[str]) -> Iterator[MetricValue]:
        """Name the numbers that results of these kinds have beside rows."""
        for result in (result for kind in kinds for result in self._found.get(kind, {}).values()):
            yield from (self._value(result.name, metric, value) for metric, value in result.metrics())

    def _value(self, name: str, metric: str, value: int) -> MetricValue:
        return MetricValue(plain_name(f"{self.test}::{name}"), metric, value)

    def merged(self, rows: Sequence[Measurement]) -> TestResults:
        """Give the same results with rows that stand for those of all ranks."""
        merged = TestResults(self.test)
        merged._calls, merged._figures, merged._found = self._calls, self._figures, self._found
        merged._merged = tuple(rows)
        return merged


def _of_op(signature: Signature, calls: int, figures: Figures) -> Measurement:
    return Measurement(
        label=str(signature),
        full_label=signature.full,
        op=signature.op,
        mesh=signature.place.removeprefix("@"),
        contains=Contains.DISPATCH,
        calls=calls,
        figures=figures,
    )
