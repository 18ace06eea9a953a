"""Named metrics of a run: whole numbers under names that outlive it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.compiled.model import CompileCounts, CompiledVariant
from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.core.units import TIME, UNITS
from pytest_dtdispatch.steps.model import StepCounts, Steps

# What a metric is of one counted step; the step that has most is taken, as limits take it.
STEP_METRICS: dict[str, Callable[[StepCounts], int]] = {
    "misses_per_step": lambda step: step.misses,
    "redistributes": lambda step: step.redistributes,
    "collectives": lambda step: step.collective_calls,
}
# What a metric is of a compiled function; nothing where this torch does not count it.
COMPILE_METRICS: dict[str, Callable[[CompileCounts], int | None]] = {
    "graphs": lambda counts: counts.graphs,
    "graph_breaks": lambda counts: None if counts.graph_breaks is None else len(counts.graph_breaks),
    "recompiles": lambda counts: None if counts.recompiles is None else len(counts.recompiles),
}
EXACT_METRICS = (*STEP_METRICS, *COMPILE_METRICS)


@dataclass(frozen=True)
class Result:
    """What a run found of one metric.

    Args:
        name: of the test with the signature, the call or the step: ``t.py::test_add::mm.default(...)@4``.
        metric: one of :func:`metric_names`; a time is in nanoseconds.
        value: rounded to a whole number.
    """

    name: str
    metric: str
    value: int


def run_results(
    measured: Mapping[str, Sequence[Measurement]],
    counted: Mapping[str, Sequence[Steps]],
    compiled: Mapping[str, Sequence[CompiledVariant]] | None = None,
) -> tuple[Result, ...]:
    """Name everything that a run measured, in the order it did.

    A name is the one that a row has in a saved run, without its state: the metric tells that.

    Example:
        >>> steps = Steps("train", (), (StepCounts(collectives=(("all_gather", 3),)), StepCounts()))
        >>> results = run_results({}, {"t.py::test_step": [steps]})
        >>> results[-1]
        Result(name='t.py::test_step::train', metric='collectives', value=3)
    """
    of_calls = (result for test, rows in measured.items() for result in _of_calls(test, rows))
    of_steps = (result for test, steps in counted.items() for result in _of_steps(test, steps))
    of_compiles = (result for test, each in (compiled or {}).items() for result in _of_compiles(test, each))
    return (*of_calls, *of_steps, *of_compiles)


def metric_names() -> tuple[str, ...]:
    """Every metric that files of results may have: of calls, then those that are exact.

    Example:
        >>> "dispatch_hit_ns" in metric_names(), "dispatch_hit_ms" in metric_names()
        (True, False)
    """
    return (*(metric for unit in UNITS for metric in unit.metrics), *EXACT_METRICS)


def plain_name(name: str) -> str:
    r"""Make a name one line without spaces at its ends, as readers of CSV files strip them.

    Example:
        >>> plain_name(" two\n lines ")
        'two lines'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def _of_calls(test: str, measurements: Iterable[Measurement]) -> Iterator[Result]:
    for measurement in measurements:
        for metric, value in _figures(measurement).items():
            if metric and value is not None:
                yield Result(plain_name(f"{test}::{measurement.label}"), metric, round(value))


def _figures(measurement: Measurement) -> dict[str, float | None]:
    """Name the figures of a call, by the names that their unit gives."""
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


def _of_steps(test: str, counted: Iterable[Steps]) -> Iterator[Result]:
    for steps in counted:
        for metric, of in STEP_METRICS.items():
            if steps.steps:
                yield Result(plain_name(f"{test}::{steps.name}"), metric, max(map(of, steps.steps)))


def _of_compiles(test: str, variants: Iterable[CompiledVariant]) -> Iterator[Result]:
    for variant in variants:
        for metric, of in COMPILE_METRICS.items():
            value = of(variant.counts)
            if value is not None:
                yield Result(plain_name(f"{test}::{variant.name}"), metric, value)
