"""Plugin of a process of an A/B run: ``pytest -p pytest_dtdispatch.plugin.ab_process``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.ab.answer import CALLS_PER_STEP, CONTROL, Answer, AnswerKind, Variable
from pytest_dtdispatch.ab.checkout import Checkout, InstalledFinder, module_files
from pytest_dtdispatch.core.files import write_atomic
from pytest_dtdispatch.core.measurement import State, traced_text
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.results import Count
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.store import TestRecord
from pytest_dtdispatch.core.text import MAX_LISTED
from pytest_dtdispatch.plugin.guard import register
from pytest_dtdispatch.plugin.ranks import WRITES, reason_of
from pytest_dtdispatch.plugin.resolve import RUN, row_nodeid, run_settings
from pytest_dtdispatch.plugin.settings import SETTINGS
from pytest_dtdispatch.rounds.sampler import SAMPLERS, Sampler
from pytest_dtdispatch.steps.model import COUNTS, Steps

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.run import Run

# Checkout of a process that measures a commit. Other plugins may import packages before any hook runs.
COMMIT: Checkout | None = decode(Checkout | None, json.loads(os.environ.get(Variable.CHECKOUT, "null")))
if COMMIT and COMMIT.installed:
    sys.meta_path.insert(0, InstalledFinder(COMMIT.installed))


def absences(record: TestRecord) -> Iterator[tuple[RowId, str]]:
    """Yield states and rows of a test without a figure, with the reasons."""
    for row in record.rows():
        for samples in row.figures.samples:
            if samples.refused and not samples.values:
                why = row.figures.notes or tuple(map(str, samples.refused))
                yield RowId(record.test, row.label, samples.state), "; ".join(why)
        if row.figures.tracers:
            yield RowId(record.test, row.label), traced_text(row.figures.tracers)
        elif not any(row.recorded()):
            yield RowId(record.test, row.label), "; ".join(row.figures.notes) or row.proof


def times(record: TestRecord) -> Iterator[tuple[RowId, float]]:
    """Yield the figure of every state.

    Interference only increases times, so that the least sample is the most stable value of a process (Chen
    and Revels, 2016, https://arxiv.org/abs/1608.04295).
    """
    for row, measurement, samples in record.times():
        if not measurement.figures.tracers:
            yield row, samples.figure


def counts(record: TestRecord) -> Iterator[tuple[RowId, float]]:
    """Yield every count of a test: those of its steps, captures and calls, then those of other kinds."""
    for steps in record.results.get(Steps.kind, ()):
        if not steps.steps:
            continue
        last_warmup = steps.warmup[-1].called if steps.warmup else ()
        calls = Count(steps.calls, len(steps.steps), last_warmup)
        yield RowId(record.test, steps.name, CALLS_PER_STEP), calls
        for kind in COUNTS:
            if kind.per_step and not (kind.is_growth and steps.is_cold):
                yield RowId(record.test, steps.name, kind.per_step), getattr(steps, kind.per_step)
    for number in record.numbers(excluded=(Steps.kind,)):
        yield number.row._replace(state=number.metric), float(number.value)


def source_lines(record: TestRecord) -> Iterator[tuple[RowId, tuple[str, ...]]]:
    """Yield the source lines of the events behind each count of steps."""
    for steps in record.results.get(Steps.kind, ()):
        for kind in COUNTS:
            events = [event for step in steps.steps for event in kind.events(step)]
            lines = tuple(dict.fromkeys(event.place.line_text for event in events if event.place))
            if lines:
                yield RowId(record.test, steps.name, kind.per_step), lines[:MAX_LISTED]


def proofs(record: TestRecord) -> Iterator[tuple[RowId, float]]:
    """Yield 0 for rows whose later calls are proved hits or unpropagated, and 1 for rows that never hit."""
    for row in record.rows():
        hits = any(samples.state in (State.HIT, State.CALL) for samples in row.recorded())
        refused = {samples.state for samples in row.figures.samples if samples.refused}
        if hits or State.HIT in refused:
            yield RowId(record.test, row.label, "never_hits"), float(not hits)


def instructions(record: TestRecord) -> Iterator[tuple[RowId, float]]:
    """Yield the minimum count of every state of every row, with the functions of a profile as details."""
    for row in record.rows():
        for samples in row.recorded():
            if not (samples.unit.is_time or row.figures.tracers):
                shares = samples.profile.functions if samples.profile else ()
                lines = (f"{share.instructions} {share.function}" for share in shares)
                yield RowId(record.test, row.label, samples.state), Count(samples.figure, 1, lines)


def control(sampler: Sampler) -> dict[RowId, float]:
    """Measure six ops on plain tensors; the value of an op is its least sample."""
    import torch

    aten, a, b = torch.ops.aten, torch.ones(16, 8, device="cpu"), torch.ones(8, 8, device="cpu")
    binary = [(op, (a, a)) for op in (aten.add.Tensor, aten.mul.Tensor)]
    unary = [(op, (a,)) for op in (aten.relu.default, aten.sum.default, aten.clone.default)]
    meter = sampler.meter
    least: dict[RowId, float] = {}
    for _ in range(4):  # layouts of the method cache
        sampler.refresh()
        for op, args in (*binary, *unary, (aten.mm.default, (a, b))):
            readings = []
            for _ in range(300):
                begun = meter.begin()
                op(*args)
                readings.append(meter.end() - begun)
            row = RowId(CONTROL, str(op), CONTROL)
            least[row] = min(least.get(row, readings[0]), *readings)
    return least


VALUES = {
    AnswerKind.TIMES: times,
    AnswerKind.COUNTS: counts,
    AnswerKind.PROOFS: proofs,
    AnswerKind.INSTRUCTIONS: instructions,
}


class Measuring:
    """Plugin object that runs all tests, and then writes the answer.

    Args:
        kind: kind of the answer.
        goes_on: whether failed or skipped tests are absent, with the reason, and do not fail the session.
        sampler: sampler of the control; None if counts are compared.
    """

    def __init__(self, kind: AnswerKind, goes_on: bool, sampler: Sampler | None) -> None:
        self._kind, self._goes_on, self._sampler = kind, goes_on, sampler
        self._output = Path(os.environ[Variable.OUTPUT])
        self._values: dict[RowId, float] = {}
        self._details: dict[RowId, tuple[str, ...]] = {}
        self._lines: dict[RowId, tuple[str, ...]] = {}
        self._absent: dict[RowId, str] = {}
        self._why: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record why a file has no tests."""
        if self._goes_on and (report.failed or report.skipped):
            self._absent[RowId(report.nodeid)] = outcome_text(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record why a test has no result, unless it is expected to fail."""
        if (report.failed or report.skipped) and not hasattr(report, "wasxfail"):
            self._why[report.nodeid] = outcome_text(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the tests, then measure the control, and write the answer."""
        run: Run | None = session.config.stash.get(RUN, None)
        if self._refuse_other_code():
            session.testsfailed = 0  # tests of another commit may not even import
            return True
        if self._goes_on:
            session.testsfailed = 0  # files that cannot be imported are absent
        tests = json.loads(os.environ.get(Variable.ONLY, "[]"))
        if tests:
            session.items[:] = [item for item in session.items if row_nodeid(item) in tests]
        if session.testsfailed or session.config.option.collectonly or run is None:
            return None
        main: Any = session.config.pluginmanager.get_plugin("main")
        main.pytest_runtestloop(session)
        if self._goes_on:
            session.testsfailed = 0
            absent = [item for item in session.items if item.nodeid in self._why]
            self._absent |= {RowId(row_nodeid(item)): self._why[item.nodeid] for item in absent}
        for record in run.records.values():
            self._add(record)
        if self._sampler and self._values:
            self._values |= control(self._sampler)
        if not self._refuse_other_code():
            folders = COMMIT.import_folders(module_files(sys.modules)) if COMMIT else ()
            self._write(Answer(self._values, self._details, self._lines, self._absent, tuple(folders)))
        return True

    def _refuse_other_code(self) -> bool:
        """Write a refusal if a module of the repository is not from this checkout; return whether it was."""
        refusal = COMMIT.refusal(module_files(sys.modules)) if COMMIT else ""
        if refusal:
            self._write(Answer(refusal=refusal))
        return bool(refusal)

    def _write(self, answer: Answer) -> None:
        write_atomic(self._output, json.dumps(encode(answer)))

    def _add(self, record: TestRecord) -> None:
        """Add the results of a test; of rows with one name, the least value counts."""
        if self._kind in (AnswerKind.TIMES, AnswerKind.INSTRUCTIONS):
            self._absent |= absences(record)
        if self._kind is AnswerKind.COUNTS:
            self._lines |= dict(source_lines(record))
        for row, value in VALUES[self._kind](record):
            self._values[row] = min(float(value), self._values.get(row, value))
            if isinstance(value, Count) and value.details:
                # Calls that only one side has are listed.
                lines = value.details[: 2_000 if row.state == CALLS_PER_STEP else MAX_LISTED]
                self._details[row] = tuple(line[:500] for line in lines)


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark is configured
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Ignore flags in addopts that compare with a baseline, or that write files of other plugins."""
    flags = (SETTINGS[name].dest for name in ("max", "threshold", "any_machine", "expected", "export"))
    for dest in (*flags, *WRITES) if os.environ.get(Variable.OUTPUT) else ():
        if getattr(config.option, dest, None):
            setattr(config.option, dest, None)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin object in a process of an A/B run; reject a metric that is not compared."""
    if not os.environ.get(Variable.OUTPUT):
        return
    kind = AnswerKind(os.environ.get(Variable.KIND, AnswerKind.TIMES))
    metric = run_settings(config).metric
    is_time = metric in SAMPLERS and SAMPLERS[metric].unit.is_time
    if not (is_time if kind in (AnswerKind.TIMES, AnswerKind.PROOFS) else metric == kind):
        raise pytest.UsageError(
            f"--dtdispatch-metric {metric}: this A/B run compares {kind}; set before -- what it "
            "compares: --metric time, counts or instructions"
        )
    goes_on = bool(os.environ.get(Variable.GO_ON))
    config.option.continue_on_collection_errors |= goes_on
    sampler = SAMPLERS[metric] if kind in (AnswerKind.TIMES, AnswerKind.INSTRUCTIONS) else None
    register(config, Measuring(kind, goes_on, sampler), "dtdispatch-measuring")


def outcome_text(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Format the outcome of a test or a file and its reason, in one line."""
    return f"{report.outcome}: {reason_of(report)}"
