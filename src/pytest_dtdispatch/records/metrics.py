"""Named metrics of a run: whole numbers under names that outlive it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.records.measurement import Instructions, Measurement, State
from pytest_dtdispatch.records.steps import StepCounts, Steps

# What a metric is of a signature or a named call; nothing where it was not measured.
CALL_METRICS: dict[str, Callable[[Measurement], float | None]] = {
    "instruction_count": lambda measurement: _least(measurement.steady_instructions),
    "instruction_count_miss": lambda measurement: _least(measurement.instructions_of(State.MISS)),
    "dispatch_hit_ns": lambda measurement: measurement.median_ns(State.HIT),
    "dispatch_miss_ns": lambda measurement: measurement.median_ns(State.MISS),
}
# What a metric is of one counted step; the step that has most is taken, as limits take it.
STEP_METRICS: dict[str, Callable[[StepCounts], int]] = {
    "misses_per_step": lambda step: step.misses,
    "redistributes": lambda step: step.redistributes,
    "collectives": lambda step: step.collective_calls,
}
INSTRUCTION_METRICS = tuple(metric for metric in CALL_METRICS if metric.startswith("instruction_count"))
# Names that PyTorch's files use too, and that nothing here measures.
NOT_MEASURED = ("compile_time_instruction_count",)
METRICS = (*NOT_MEASURED, *CALL_METRICS, *STEP_METRICS)


@dataclass(frozen=True)
class Result:
    """What a run found of one metric.

    Args:
        name: of the test with the signature, the call or the step: ``t.py::test_add::mm.default(...)@4``.
        metric: one of :data:`METRICS`; a time is in nanoseconds.
        value: rounded to a whole number.
    """

    name: str
    metric: str
    value: int


def run_results(
    measured: Mapping[str, Sequence[Measurement]], counted: Mapping[str, Sequence[Steps]]
) -> tuple[Result, ...]:
    """Name everything that a run measured, in the order it did.

    A name is the one that a row has in a saved run, without its state: the metric tells that.

    Args:
        measured: by test.
        counted: steps by test.

    Example:
        >>> steps = Steps("train", (), (StepCounts(collectives=(("all_gather", 3),)), StepCounts()))
        >>> results = run_results({}, {"t.py::test_step": [steps]})
        >>> results[-1]
        Result(name='t.py::test_step::train', metric='collectives', value=3)
    """
    of_calls = (result for test, rows in measured.items() for result in _of_calls(test, rows))
    of_steps = (result for test, steps in counted.items() for result in _of_steps(test, steps))
    return (*of_calls, *of_steps)


def plain_name(name: str) -> str:
    r"""Make a name one line without spaces at its ends, as readers of CSV files strip them.

    Example:
        >>> plain_name(" two\n lines ")
        'two lines'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


def _least(counted: Instructions | None) -> int | None:
    return counted.least if counted else None


def _of_calls(test: str, measurements: Iterable[Measurement]) -> Iterator[Result]:
    for measurement in measurements:
        for metric, of in CALL_METRICS.items():
            value = of(measurement)
            if value is not None:
                yield Result(plain_name(f"{test}::{measurement.label}"), metric, round(value))


def _of_steps(test: str, counted: Iterable[Steps]) -> Iterator[Result]:
    for steps in counted:
        for metric, of in STEP_METRICS.items():
            if steps.steps:
                yield Result(plain_name(f"{test}::{steps.name}"), metric, max(map(of, steps.steps)))
