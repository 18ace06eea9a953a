"""What a measuring process of an A/B run answers with, where it is not asked for times: numbers by name."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.metrics import row_key
from pytest_dtdispatch.core.pass_rows import AnswerKind, PassRows, RunNumbers, absences
from pytest_dtdispatch.core.results import TestResults, state_name
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.steps.model import Steps

NEVER_HITS = "never_hits"


def recorder_of(asked: AnswerKind) -> PassRows | RunNumbers:
    """Make what keeps the answer."""
    if asked is AnswerKind.INSTRUCTIONS:
        return RunNumbers(instructions, absences)
    numbers = {AnswerKind.COUNTS: counts, AnswerKind.PROOFS: proofs}
    return RunNumbers(numbers[asked]) if asked in numbers else PassRows()


def counts(results: TestResults) -> Iterator[tuple[str, float]]:
    """Name every count of a test: those of its steps, captures and calls, then those of other kinds."""
    for steps in results.counts():
        if steps.steps:
            name = row_key(f"{results.test}::{steps.name}")
            yield from ((f"{name}::{metric}", number) for metric, number in _of_steps(steps))
    for one in results.numbers(kind for kind in KINDS if kind != Steps.kind):
        yield f"{one.name}::{one.metric}", float(one.value)


def _of_steps(steps: Steps) -> Iterator[tuple[str, float]]:
    yield "calls_per_step", steps.calls / len(steps.steps)
    yield "misses_per_step", steps.misses_per_step
    yield "redistributes_per_step", steps.redistributes_per_step
    yield "collectives_per_step", steps.collectives_per_step
    yield "wraps_per_step", steps.wraps_per_step
    yield "unwraps_per_step", steps.unwraps_per_step
    if steps.warmup or len(steps.steps) > 1:  # a step from empty caches fills them: that is no growth
        yield "cache_growth_per_step", steps.cache_growth_per_step
        yield "spec_growth_per_step", steps.spec_growth_per_step
        yield "dtensor_growth_per_step", steps.dtensor_growth_per_step


def proofs(results: TestResults) -> Iterator[tuple[str, float]]:
    """Say of every row whether later calls were proved to hit, or to need no cache: 0, else 1."""
    for row in results.measurements():
        recorded = {samples.state for samples in row.recorded()}
        refused = {samples.state for samples in row.samples if samples.refused}
        if recorded & {State.HIT, State.CALL} or State.HIT in refused:
            never = not recorded & {State.HIT, State.CALL}
            yield f"{row_key(f'{results.test}::{row.label}')}::{NEVER_HITS}", float(never)


def instructions(results: TestResults) -> Iterator[tuple[str, float]]:
    """Name the least count of every state of every row."""
    for row in results.measurements():
        for samples in row.recorded():
            if not samples.unit.is_time:
                yield state_name(results.test, row, samples), float(samples.figure)
