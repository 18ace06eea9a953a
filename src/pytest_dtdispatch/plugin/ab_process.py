"""What a process of an A/B run is loaded with: ``pytest -p pytest_dtdispatch.plugin.ab_process``.

Where times are measured, all tests run several times over, so that a slow second of the machine hits one
pass of a row and not all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.ab_answer import GO_ON, KIND, OUTPUT, PASSES, Answer, AnswerKind, RowSample
from pytest_dtdispatch.core.files import write_atomic
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.plain_data import encode
from pytest_dtdispatch.core.results import MOST_LISTED, Count, TestResults, row_key, state_name
from pytest_dtdispatch.measuring.sampler import SAMPLERS
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.resolve import row_nodeid, run_settings
from pytest_dtdispatch.stats.medians import quietest_block
from pytest_dtdispatch.steps.model import Steps

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.session import Session

# Of each pass and row. At 20 rounds a block of misses is one miss, of hits 30: some milliseconds, in which a
# machine is quiet when it is never quiet for as long as a pass takes.
BLOCKS = 20
LONGEST_DETAIL, LONGEST_REASON = 500, 300


class Collected:
    """Collects an answer, pass by pass."""

    def __init__(self, kind: AnswerKind) -> None:
        self.absent: dict[str, str] = {}
        self._kind = kind
        self._rows: dict[str, RowSample] = {}
        self._numbers: dict[str, float] = {}
        self._details: dict[str, tuple[str, ...]] = {}

    def add(self, found: Iterable[TestResults]) -> None:
        """Add what was found in the pass that just ended."""
        for results in found:
            if self._kind in (AnswerKind.TIMES, AnswerKind.INSTRUCTIONS):
                self.absent |= absences(results)
            if self._kind is AnswerKind.TIMES:
                self._add_times(results)
                continue
            for name, number in _NUMBERS[self._kind](results):
                self._numbers[name] = float(number)
                if isinstance(number, Count) and number.details:
                    lines = number.details[:MOST_LISTED]
                    self._details[name] = tuple(line[:LONGEST_DETAIL] for line in lines)

    def _add_times(self, results: TestResults) -> None:
        for name, _, samples in results.times():
            quietest_ns = quietest_block(samples.ns, BLOCKS, least=1)
            before = self._rows.get(name, RowSample((), quietest_ns, 0))
            self._rows[name] = RowSample(
                (*before.medians_ns, float(samples.median_ns)),
                float(min(before.quietest_ns, quietest_ns)),
                before.samples + len(samples.ns),
            )

    def answer(self) -> Answer:
        """Return all of it."""
        return Answer(self._rows, self._numbers, self._details, self.absent)


def absences(results: TestResults) -> Iterator[tuple[str, str]]:
    """Yield the names of states and rows of a test that have no figure, each with the reason."""
    for row in results.measurements():
        for samples in row.samples:
            if samples.refused and not samples.values:
                why = row.notes or tuple(map(str, samples.refused))
                yield state_name(results.test, row, samples), "; ".join(why)
        if not any(row.recorded()):
            yield f"{results.test}::{row.label}", "; ".join(row.notes) or row.proof


def counts(results: TestResults) -> Iterator[tuple[str, float]]:
    """Yield every count of a test: those of its steps, captures and calls, then those of other kinds."""
    for steps in results.counts():
        if steps.steps:
            name = row_key(f"{results.test}::{steps.name}")
            yield from ((f"{name}::{metric}", number) for metric, number in _counts_of_steps(steps))
    for one in results.numbers(kind for kind in KINDS if kind != Steps.kind):
        yield f"{one.name}::{one.metric}", float(one.value)


def _counts_of_steps(steps: Steps) -> Iterator[tuple[str, float]]:
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
    """Yield 0 for every row whose later calls were proved to hit, or to need no cache, else 1."""
    for row in results.measurements():
        recorded = {samples.state for samples in row.recorded()}
        refused = {samples.state for samples in row.samples if samples.refused}
        if recorded & {State.HIT, State.CALL} or State.HIT in refused:
            never = not recorded & {State.HIT, State.CALL}
            yield f"{row_key(f'{results.test}::{row.label}')}::never_hits", float(never)


def instructions(results: TestResults) -> Iterator[tuple[str, float]]:
    """Yield the least count of every state of every row."""
    for row in results.measurements():
        for samples in row.recorded():
            if not samples.unit.is_time:
                yield state_name(results.test, row, samples), float(samples.figure)


_NUMBERS = {AnswerKind.COUNTS: counts, AnswerKind.PROOFS: proofs, AnswerKind.INSTRUCTIONS: instructions}


class AbsentTests:
    """The plugin object that leaves tests that failed or were skipped out of later passes, and says why."""

    def __init__(self, absent: dict[str, str]) -> None:
        self._absent = absent
        self._why: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a file has no tests; no test of it has a name yet."""
        if report.failed or report.skipped:
            self._absent[report.nodeid] = outcome_text(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep why a test has no result; one that is expected to fail has one."""
        if (report.failed or report.skipped) and not hasattr(report, "wasxfail"):
            self._why[report.nodeid] = outcome_text(report)

    def leave_out(self, session: pytest.Session) -> None:
        """Take from the session what gave no result, and let it go on."""
        absent = [item for item in session.items if item.nodeid in self._why]
        self._absent |= {row_nodeid(item): self._why[item.nodeid] for item in absent}
        session.items[:] = [item for item in session.items if item not in absent]
        session.testsfailed = 0


class Passes:
    """The plugin object that runs all tests several times, and then writes the answer."""

    def __init__(
        self, count: int, output: Path, collected: Collected, absent: AbsentTests | None = None
    ) -> None:
        self._count = count
        self._output = output
        self._collected = collected
        self._absent = absent

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run every test, and then every test again; stop after a pass in which one failed."""
        measuring: Session | None = session.config.pluginmanager.get_plugin("dtdispatch-session")
        if self._absent:
            self._absent.leave_out(session)
        if session.testsfailed or session.config.option.collectonly or measuring is None:
            return None
        own_loop: Any = session.config.pluginmanager.get_plugin("main")  # of pytest
        for _ in range(self._count):
            own_loop.pytest_runtestloop(session)
            if self._absent:
                self._absent.leave_out(session)
            self._collected.add(measuring.results.values())
            if session.testsfailed:
                break
        write_atomic(self._output, json.dumps(encode(self._collected.answer())))
        return True


def pytest_configure(config: pytest.Config) -> None:
    """Take part only in a process that was told where to write; refuse a metric that it is not to measure."""
    if output := os.environ.get(OUTPUT):
        kind = AnswerKind(os.environ.get(KIND, AnswerKind.TIMES))
        metric = run_settings(config).metric
        is_time = metric in SAMPLERS and SAMPLERS[metric].unit.is_time
        if not (is_time if kind in (AnswerKind.TIMES, AnswerKind.PROOFS) else metric == kind):
            raise pytest.UsageError(
                f"--dtdispatch-metric {metric}: this A/B run compares {kind}; say before -- what it "
                "compares: --metric time, counts or instructions"
            )
        collected, absent = Collected(kind), None
        if os.environ.get(GO_ON):
            config.option.continue_on_collection_errors = True
            absent = AbsentTests(collected.absent)
            config.pluginmanager.register(absent, "dtdispatch-absent-tests")
        passes = Passes(int(os.environ[PASSES]), Path(output), collected, absent)
        config.pluginmanager.register(passes, "dtdispatch-passes")


def outcome_text(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Say how a test or a file failed, or why it was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"[:LONGEST_REASON]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines()
    # Of a file the last line says it, of an exception the first.
    return f"failed: {(lines or [report.outcome])[0 if crash else -1].removeprefix('E   ')}"[:LONGEST_REASON]
