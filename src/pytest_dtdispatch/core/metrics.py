"""Named metrics of a run: whole numbers under names that outlive it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Instructions, Measurement, State

# What a metric is of a signature or a named call; nothing where it was not measured.
CALL_METRICS: dict[str, Callable[[Measurement], float | None]] = {
    "instruction_count": lambda measurement: _least(measurement.steady_instructions),
    "instruction_count_miss": lambda measurement: _least(measurement.instructions_of(State.MISS)),
    "compile_time_instruction_count": lambda measurement: _compile_alone(measurement),
    "dispatch_hit_ns": lambda measurement: measurement.median_ns(State.HIT),
    "dispatch_miss_ns": lambda measurement: measurement.median_ns(State.MISS),
}
INSTRUCTION_METRICS = tuple(metric for metric in CALL_METRICS if "instruction_count" in metric)


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
    for metric, of in CALL_METRICS.items():
        value = of(measurement)
        if value is not None:
            yield metric, round(value)


def plain_name(name: str) -> str:
    r"""Make a name one line without spaces at its ends, as readers of CSV files strip them.

    Example:
        >>> plain_name(" two\n lines ")
        'two lines'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def _least(counted: Instructions | None) -> int | None:
    return counted.least if counted else None


def _compile_alone(measurement: Measurement) -> int | None:
    """Take one steady call from the first one, which compiles and then runs once as they do."""
    first, call = (measurement.instructions_of(state) for state in (State.COMPILE_COLD, State.CALL))
    return first.least - call.least if first and call else None
