"""Values of saved runs that an A/B run compares: times, counts, proofs and instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from pytest_dtdispatch.core.measurement import State, traced_text
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import TextEnum
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.steps.model import COUNTS, Steps

CALLS_PER_STEP = "calls_per_step"  # a count that is reported but not judged
CONTROL = "control"  # state of the control rows: aten ops on plain tensors, not part of the code under test


class Metric(TextEnum):
    """Metric that an A/B run compares."""

    TIME = "time"
    COUNTS = "counts"
    INSTRUCTIONS = "instructions"


class Value(NamedTuple):
    """A number of a row, the events of a count or the functions of a profile, and their source lines."""

    number: float
    details: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Values of one process of a side, or of one for each pytest run of it.

    Args:
        runs: the saved runs.
        values: their values by row.
        absent: reasons why rows, or all rows of a test or a file, have no value.
    """

    runs: tuple[ReportedRun, ...]
    values: Mapping[RowId, Value]
    absent: Mapping[RowId, str]

    @property
    def is_profile(self) -> bool:
        """Whether it profiled rows, and is not judged."""
        return any(run.turn.is_profile for run in self.runs if run.turn)

    @cached_property
    def numbers(self) -> dict[RowId, float]:
        """The number of every row."""
        return {row: value.number for row, value in self.values.items()}


def metric_of(run: ReportedRun) -> Metric:
    """Return the metric of a run; those of registered samplers of times are times."""
    name = run.environment.get("metric")
    return Metric(name) if name in (Metric.COUNTS, Metric.INSTRUCTIONS) else Metric.TIME


def samples_of(runs: Sequence[ReportedRun], metric: Metric, proves_hits: bool = True) -> tuple[Sample, ...]:
    """Return the samples of a side: one for each run, which with counts has a run of times beside it.

    Counting repeats no call, so that a second run proves which calls hit.
    """
    groups: list[tuple[ReportedRun, ...]] = [(run,) for run in runs if metric_of(run) == metric]
    if metric == Metric.COUNTS and proves_hits:
        proofs = [run for run in runs if metric_of(run) == Metric.TIME]
        groups = [(*group, *proofs[number : number + 1]) for number, group in enumerate(groups)]
    return tuple(_sample(group, metric) for group in groups)


def _sample(runs: tuple[ReportedRun, ...], metric: Metric) -> Sample:
    values: dict[RowId, Value] = {}
    absent: dict[RowId, str] = {}
    for run in runs:
        failed = {RowId(failure.test): f"failed: {failure.reason}" for failure in run.failed_tests}
        absent |= {RowId(test): reason for test, reason in run.absent.items()} | failed
        if metric != Metric.COUNTS:
            found = _figures(run, metric)
            absent |= _absent_rows(run)
        else:
            found = _counts(run) if metric_of(run) == Metric.COUNTS else _proofs(run)
        for row, value in found:  # of rows with one name, the least value counts
            is_least = row not in values or value.number < values[row].number
            # A failed test may have values of its first calls.
            if is_least and not any(each.contains(row) for each in failed):
                values[row] = value
    return Sample(runs, values, absent)


def _figures(run: ReportedRun, metric: Metric) -> Iterator[tuple[RowId, Value]]:
    """Yield the figure of every state of times or instructions, with the functions of its profile.

    Interference only increases times, so that the least sample is the most stable value of a process (Chen
    and Revels, 2016, https://arxiv.org/abs/1608.04295).
    """
    for test, row in run.each_row():
        for samples in row.recorded():
            is_compared = samples.unit.is_time == (metric == Metric.TIME) and samples.figure > 0
            if is_compared and not row.figures.tracers:
                shares = samples.profile.functions if samples.profile else ()
                functions = tuple(f"{share.instructions} {share.function}" for share in shares)
                yield RowId(test, row.label, samples.state), Value(samples.figure, functions)
    for op, least in run.control.items():
        if least > 0:
            yield RowId(CONTROL, op, CONTROL), Value(float(least))


def _absent_rows(run: ReportedRun) -> dict[RowId, str]:
    """Return states and rows without a figure, with the reasons."""
    absent = {}
    for test, row in run.each_row():
        notes = "; ".join(row.figures.notes)
        for samples in row.figures.samples:
            if samples.refused and not samples.values:
                refused = "; ".join(map(str, samples.refused))
                absent[RowId(test, row.label, samples.state)] = notes or refused
        if row.figures.tracers:
            absent[RowId(test, row.label)] = traced_text(row.figures.tracers)
        elif not any(row.recorded()):
            absent[RowId(test, row.label)] = notes or row.proof
    return absent


def _counts(run: ReportedRun) -> Iterator[tuple[RowId, Value]]:
    """Yield every count: those of steps, captures and calls, then those of other kinds."""
    for row, steps in run.results_by_row(Steps.kind).items():
        if not steps.steps:
            continue
        called = steps.warmup[-1].called if steps.warmup else ()
        yield row._replace(state=CALLS_PER_STEP), Value(steps.calls / len(steps.steps), called)
        for kind in COUNTS:
            if not kind.per_step or (kind.is_growth and steps.is_cold):
                continue
            number = getattr(steps, kind.per_step)
            details = number.details if isinstance(number, Count) else ()
            events = [event for step in steps.steps for event in kind.events(step)]
            lines = dict.fromkeys(event.place.line_text for event in events if event.place)
            yield row._replace(state=kind.per_step), Value(float(number), details, tuple(lines))
    others = {kind: of_kind for kind, of_kind in run.results.items() if kind != Steps.kind}
    for one in replace(run, results=others).result_numbers():
        yield one.row._replace(state=one.metric), Value(float(one.value))


def _proofs(run: ReportedRun) -> Iterator[tuple[RowId, Value]]:
    """Yield 0 for rows whose later calls are proved hits or unpropagated, and 1 for rows that never hit."""
    for test, row in run.each_row():
        hits = any(samples.state in (State.HIT, State.CALL) for samples in row.recorded())
        refused = {samples.state for samples in row.figures.samples if samples.refused}
        if hits or State.HIT in refused:
            yield RowId(test, row.label, "never_hits"), Value(float(not hits))
