"""``dtdispatch aa`` and ``selftest``: one interpreter, many processes, what the rule says of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from pytest_dtdispatch.ab.judge import CONFIRM_LEVEL, SCREEN_LEVEL, Stage, Values, compare_sides, judge
from pytest_dtdispatch.ab.model import BASE, HEAD, POOL, SLOWER_BY, Request, dealt, state_of
from pytest_dtdispatch.ab.recording import Recorder
from pytest_dtdispatch.ab.worker import EMPTY, Progress, Workplace, run_process, run_processes, sample
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.errors import ProcessError

SHARES = (0.05, 0.10, 0.15, 0.20)
EXTRA_MISS = ("--pyargs", "pytest_dtdispatch.suite.extra_miss")
CLEAN, SPOILED = "clean", "with an extra miss"  # names of its steps
TRIPPED = "tripped"


@dataclass(frozen=True)
class VerdictCounts:
    """Rows of many windows of a pool, by what was said of them.

    Args:
        rule: what judged them.
        windows: how many runs were made of the pool; they overlap.
        rows: how many row comparisons these have.
        apart: how many of them are in windows that share no process.
        found: number of rows by verdict; in a screen ``tripped`` counts those that would be confirmed.
    """

    rule: str
    windows: int
    rows: int
    apart: int
    found: Mapping[str, int]


def run_pool(place: Workplace, recorder: Recorder) -> list[Values]:
    """Run what is missing of the pool."""
    run_processes(place, recorder, POOL, [BASE] * recorder.run.asked.processes)
    return [process.quietest_ns for process in recorder.run.of(POOL)]


def false_alarms(pool: Sequence[Values], asked: Request) -> Iterator[tuple[VerdictCounts, tuple[str, ...]]]:
    """Count what the screen and the whole rule say of processes that are all alike; nothing differs."""
    yield count_screens(pool, asked), (TRIPPED, Verdict.CONTAMINATED)
    verdicts = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.CONTAMINATED)
    yield count_runs(pool, asked), verdicts


def count_screens(pool: Sequence[Values], asked: Request, slowed_by: float = 0.0) -> VerdictCounts:
    """Count the rows that a screen alone does not clear, where the head is slowed by a share."""
    found: Counter[str] = Counter()
    rows, windows = 0, _windows(pool, 2 * asked.pairs)
    for window in windows:
        screen = _dealt_stage(window, asked, slowed_by, SCREEN_LEVEL)
        rows += len(screen.comparisons)
        found[TRIPPED] += len(screen.tripped())
        if screen.is_contaminated:
            found[Verdict.CONTAMINATED] += len(screen.comparisons)
    return _verdict_counts(f"screen of {asked.pairs} pairs", windows, rows, found)


def count_runs(pool: Sequence[Values], asked: Request, slowed_by: float = 0.0) -> VerdictCounts:
    """Count the verdicts of whole runs: a screen, and a confirmation on the processes that follow it."""
    found: Counter[str] = Counter()
    rows, cut = 0, 2 * asked.pairs
    windows = _windows(pool, cut + 2 * asked.confirm)
    for window in windows:
        screen, confirmation = _dealt_stage(window[:cut], asked, slowed_by, SCREEN_LEVEL), None
        if tripped := screen.tripped():
            confirmation = _dealt_stage(window[cut:], asked, slowed_by, CONFIRM_LEVEL, tripped)
        verdicts = judge(screen, confirmation)
        rows += len(verdicts)
        found.update(str(verdict.verdict) for verdict in verdicts)
    rule = f"screen of {asked.pairs} pairs, then {asked.confirm} fresh ones for what tripped"
    return _verdict_counts(rule, windows, rows, found)


def inject(place: Workplace) -> Iterator[tuple[float, Mapping[str, float]]]:
    """Slow calls for real, in one process of each pair.

    Gives each share with, by state, the median over rows of head over base, less 1.
    """
    loaded = ("-p", "pytest_dtdispatch.ab.slowdown", *place.arguments)
    with closing(Progress("injection", 2 * len(SHARES))) as progress:
        for share in SHARES:
            slowed = replace(place, arguments=loaded, environment={SLOWER_BY: str(share)})
            base, head = sample(place, BASE, POOL, progress), sample(slowed, HEAD, POOL, progress)
            yield share, _ratios(base.quietest_ns, head.quietest_ns)


def extra_misses(place: Workplace) -> tuple[list[bool], list[bool]]:
    """Run steps with a miss too many, and steps without; say of each whether it was counted as having one."""
    arm = replace(place.arms[BASE], folder=place.folder / EMPTY)
    answer = run_process(replace(place, arms={BASE: arm}, arguments=EXTRA_MISS, passes=1), BASE)
    spoiled, clean = (
        [misses > 0 for name, misses in answer.misses_per_step.items() if name.endswith(f"::{steps}")]
        for steps in (SPOILED, CLEAN)
    )
    if not spoiled or not clean:
        raise ProcessError("selftest: the steps with an extra miss counted nothing")
    return spoiled, clean


def slower(process: Values, by: float) -> dict[str, float]:
    """Slow every row of a process but those of plain tensors."""
    return {row: ns if state_of(row) == State.LOCAL else ns * (1 + by) for row, ns in process.items()}


def _windows(pool: Sequence[Values], length: int) -> list[Sequence[Values]]:
    return [pool[start : start + length] for start in range(len(pool) - length + 1)]


def _dealt_stage(
    window: Sequence[Values],
    asked: Request,
    slowed_by: float,
    level: float,
    only: Sequence[str] | None = None,
) -> Stage:
    """Compare processes that are all alike as if they were of two sides."""
    base, head = dealt(window)
    return compare_sides(base, [slower(process, slowed_by) for process in head], asked, level, only)


def _verdict_counts(
    rule: str, windows: Sequence[Sequence[Values]], rows: int, found: Mapping[str, int]
) -> VerdictCounts:
    """Count rows in windows that share no process, too: of as many as a window has processes, one."""
    apart = round(rows / len(windows) * -(-len(windows) // len(windows[0]))) if windows else 0
    return VerdictCounts(rule, len(windows), rows, apart, found)


def _ratios(before: Values, after: Values) -> dict[str, float]:
    by_state: dict[str, list[float]] = {}
    for row in before.keys() & after.keys():
        by_state.setdefault(state_of(row), []).append(after[row] / before[row] - 1)
    return {str(state): statistics.median(by_state[state]) for state in State if state in by_state}
