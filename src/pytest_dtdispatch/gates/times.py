"""The rule on times: which rows became slower by more than their threshold. It reads no clock.

Interference only adds time, so the least sample of several passes is reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from pytest_dtdispatch.core.measurement import (
    MIN_PASSES,
    PASSES,
    Clock,
    Measurement,
    Samples,
    State,
    common_clock,
    traced_text,
)
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import shorten
from pytest_dtdispatch.core.verdicts import RowVerdict, Threshold, TimeChange, Verdict

Passes = Sequence[Sequence[float]]
MAX_SHIFT = 0.03  # of plain ops, which contain no dispatch
# Share of the time for which a thread waited for a core. Above it, the caches of the core are cold after each
# wait, which CPU time contains: beside four loops on two cores it is 0.60 to 0.72, beside eight 0.76 to 0.83.
MAX_WAITED = 0.75


@dataclass(frozen=True)
class TimedRow:
    """Latencies of a row in one state.

    Args:
        row: identity of the row, with the state.
        samples: its samples.
        mesh: mesh as text; empty if it used none.
        tracers: names of tools that made the calls longer.
    """

    row: RowId
    samples: Samples
    mesh: str = ""
    tracers: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """State of its samples."""
        return State(self.row.state)


def timed_rows(rows: Iterable[tuple[str, Measurement]]) -> list[TimedRow]:
    """Return every state with latencies of rows, each with its test."""
    return [
        TimedRow(RowId(test, row.label, samples.state), samples, row.mesh, row.figures.tracers)
        for test, row in rows
        for samples in row.times()
    ]


def unusable(row: TimedRow) -> str:
    """Return why the samples of a row cannot be judged; empty if they can."""
    passes = len(row.samples.passes(row.samples.clock))
    if row.state in (State.COMPILE_COLD, State.COMPILE_WARM):
        if passes < PASSES:
            return f"fewer than {PASSES} compiles: raise compile_rounds of its marker, in the saved run too"
    elif passes < MIN_PASSES:
        return f"fewer than {MIN_PASSES} passes: raise --dtdispatch-max-time, in the saved run too"
    if row.tracers:
        return f"{traced_text(row.tracers)}: compare two runs without it"
    if not (row.samples.figure and row.samples.least(Clock.WALL)):
        return "a sample of it is 0 ns: its clock is too coarse, or its file was changed"
    return ""


def judge_row(
    row: RowId, base: TimedRow | None, head: TimedRow | None, threshold: Threshold, shift: float = 0.0
) -> RowVerdict:
    """Judge one row against a threshold.

    It is regressed if its least sample grew by more than the threshold, and improved if it fell by as much. A
    threshold of the median applies to the median as well; a median that grew alone is inconclusive. CPU time
    that grew in a thread which got less than a quarter of a core is contaminated.

    Args:
        row: judged row.
        base: row of the saved run; None if it has none.
        head: row of this run; None if it was not measured.
        threshold: largest growth.
        shift: relative slowdown of plain ops; above 3 %, a row that would pass without it is contaminated.
    """

    def verdict_of(verdict: Verdict, remedy: str = "", change: TimeChange | None = None) -> RowVerdict:
        return RowVerdict(row, verdict, change, remedy, str(threshold), is_strict=threshold.is_strict)

    if head is None:
        return verdict_of(Verdict.MISSING, "saved, but not measured: restore the test, or save a new run")
    if base is None:
        return verdict_of(Verdict.NEW, "not in the saved run: save a new one if the row belongs there")
    if base.mesh != head.mesh:
        meshes = f"mesh: {shorten(base.mesh) or 'none'} then, {head.mesh or 'none'} now"
        return verdict_of(Verdict.MISMATCHED, f"{meshes}; save a new run on this mesh")
    if bool(base.tracers) != bool(head.tracers):
        traced = "the saved run" if base.tracers else "this run"
        why = traced_text(base.tracers or head.tracers)
        return verdict_of(Verdict.MISMATCHED, f"in {traced} alone {why}: compare two runs without it")
    reason = unusable(base) or unusable(head)
    if reason:
        return verdict_of(Verdict.INCONCLUSIVE, reason)
    change = change_of(base.samples, head.samples)
    most, ratio = 1 + threshold.fraction, 1 + change.change_percent / 100
    median_ratio = 1 + change.median_percent / 100 if threshold.field == "median" else ratio
    if min(ratio, median_ratio) > most:
        if shift > MAX_SHIFT and ratio / (1 + shift) <= most:
            plain = "plain ops shifted too: run again on a quieter machine, or use dtdispatch ab"
            return verdict_of(Verdict.CONTAMINATED, plain, change)
        if change.clock == Clock.CPU and head.samples.waited > MAX_WAITED:
            waits = f"its thread waited for a core for {head.samples.waited:.0%} of the time"
            remedy = f"{waits}: run again on a quieter machine, or use dtdispatch ab"
            return verdict_of(Verdict.CONTAMINATED, remedy, change)
        remedy = "find what slowed it, or save a new run if the cost is wanted"
        return verdict_of(Verdict.REGRESSED, remedy, change)
    if median_ratio > most:
        alone = "the median moved, the least sample did not: other programs, or only some of the calls"
        return verdict_of(Verdict.INCONCLUSIVE, alone, change)
    if max(ratio, median_ratio) < 1 / most:
        return verdict_of(Verdict.IMPROVED, "save a new run to keep it", change)
    return verdict_of(Verdict.PASSED, "", change)


def change_of(base: Samples, head: Samples) -> TimeChange:
    """Compare the least samples of as many passes of two runs, with as many calls in each, by one clock."""
    clock = common_clock(base, head)
    then, now = equal_passes(base, head, clock)
    of_wall = ratio_of(min, *equal_passes(base, head, Clock.WALL)) if clock is Clock.CPU else None
    return TimeChange(
        base_ns=min(map(min, then)),
        head_ns=min(map(min, now)),
        change_percent=100 * (ratio_of(min, then, now) - 1),
        median_percent=100 * (ratio_of(median, then, now) - 1),
        samples=sum(map(len, now)),
        clock=str(clock),
        wall_percent=None if of_wall is None else 100 * (of_wall - 1),
    )


def plain_shifts(then: Mapping[RowId, TimedRow], now: Mapping[RowId, TimedRow]) -> list[float]:
    """Return the relative slowdown of each row on plain tensors that two runs have."""
    plain = [(then[name], row) for name, row in now.items() if row.state is State.LOCAL and name in then]
    usable = [pair for pair in plain if not any(map(unusable, pair))]
    return [change_of(base.samples, head.samples).change_percent / 100 for base, head in usable]


def equal_passes(base: Samples, head: Samples, clock: Clock) -> tuple[Passes, Passes]:
    """Return the first passes of two runs by a clock: as many of both, with as many calls in each."""
    then, now = base.passes(clock), head.passes(clock)
    calls = min(map(len, (*then, *now)))
    pairs = [*zip(then, now, strict=False)]
    return [before[:calls] for before, _ in pairs], [after[:calls] for _, after in pairs]


def ratio_of(statistic: Callable[[Iterable[float]], float], base: Passes, head: Passes) -> float:
    """Return the ratio of a statistic of all samples, ``head / base``."""
    return statistic(chain(*head)) / statistic(chain(*base))
