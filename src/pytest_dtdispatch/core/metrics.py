"""Named metrics of a run: whole numbers under names that outlive it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.units import TIME


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

    def __contains__(self, name: str) -> bool:
        return name in self.of_rows or name in self.exact


@dataclass(frozen=True)
class MetricValue:
    """What a run found of one metric.

    Args:
        name: of the test with the signature, the call or the step: ``t.py::test_add::mm.default(...)@4``.
        metric: what was measured; a time is in nanoseconds.
        value: rounded to a whole number.
    """

    name: str
    metric: str
    value: int


def call_metrics(measurement: Measurement) -> Iterator[tuple[str, int]]:
    """Give every metric of a row, with its value."""
    for metric, value in _figures(measurement).items():
        if metric and value is not None:
            yield metric, round(value)


def plain_name(name: str) -> str:
    r"""Make a name one line without spaces at its ends, as readers of CSV files strip them.

    Example:
        >>> plain_name(" two\n lines ")
        'two lines'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def _figures(measurement: Measurement) -> dict[str, float | None]:
    """Name the figures of a row, by the names that their unit gives."""
    unit = next((samples.unit for samples in measurement.recorded()), TIME)
    return {
        unit.steady: measurement.steady.figure if measurement.steady else None,
        unit.hit: measurement.figure(State.HIT),
        unit.miss: measurement.figure(State.MISS),
        unit.compile: _compile_alone(measurement),
    }


def _compile_alone(measurement: Measurement) -> float | None:
    """Take one steady call from the first one, which compiles and then runs once as they do."""
    first, call = (measurement.figure(state) for state in (State.COMPILE_COLD, State.CALL))
    return None if first is None or call is None else first - call
