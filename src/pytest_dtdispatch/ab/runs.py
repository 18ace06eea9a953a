"""What ``dtdispatch ab``, ``aa`` and ``selftest`` run, and what the rule says of it."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.ab.judge import Sides, Values, compare_sides, judge, screen_and_confirm
from pytest_dtdispatch.ab.model import (
    BASE,
    HEAD,
    POOL,
    SCREEN,
    Request,
    Run,
    Side,
    dealt,
    state_of,
)
from pytest_dtdispatch.ab.recording import Recorder, check_sides
from pytest_dtdispatch.ab.sides import probe
from pytest_dtdispatch.ab.slowdown import SLOWER_BY
from pytest_dtdispatch.ab.worker import Progress, Workplace, run_process, run_processes, sample, workplace
from pytest_dtdispatch.core.files import checked_target
from pytest_dtdispatch.core.forms import AB_RUN
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.errors import ProcessError

SHARES = (0.05, 0.10, 0.15, 0.20)
EXTRA_MISS = ("--pyargs", "pytest_dtdispatch.suite.extra_miss")
CLEAN, SPOILED = "clean", "with an extra miss"  # names of its steps
TRIPPED = "tripped"
PASSED, REGRESSED, INCONCLUSIVE, CONTAMINATED = 0, 1, 3, 4
STATUS = (  # the first that a row has is the run's
    ({Verdict.REGRESSED, Verdict.MISSING}, REGRESSED),
    ({Verdict.CONTAMINATED}, CONTAMINATED),
    ({Verdict.INCONCLUSIVE}, INCONCLUSIVE),
)


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


@contextmanager
def recorded(
    known: Run, time_limit_s: float, output: Path | None, resume: Path | None
) -> Iterator[tuple[Workplace, Recorder]]:
    """Prepare all sides, ask them what they are, and begin or go on with a file."""
    with workplace(known.asked, time_limit_s) as place:
        target = output or resume
        if target is not None:
            checked_target(target, AB_RUN)
        told: dict[tuple[object, ...], Side] = {}  # each interpreter tells once what it is
        for arm in place.arms.values():
            if (arm.python, arm.import_path) not in told:
                told[arm.python, arm.import_path] = probe(arm, place.folder)
        sides = {name: told[arm.python, arm.import_path] for name, arm in place.arms.items()}
        if resume is not None:
            check_sides(resume, known.sides, sides)
        yield place, Recorder(replace(known, sides=sides), target)


def exit_status(has_compared: bool, verdicts: Sequence[RowVerdict]) -> int:
    """Give the status of the worst verdict; nothing compared is no success."""
    found = {verdict.verdict for verdict in verdicts}
    if not has_compared and Verdict.MISSING not in found:
        return INCONCLUSIVE
    return next((status for worst, status in STATUS if found & worst), PASSED)


def run_pool(place: Workplace, recorder: Recorder) -> list[Values]:
    """Run what is missing of the pool."""
    run_processes(place, recorder, POOL, [(BASE,)] * recorder.run.asked.processes)
    return [process.quietest_ns for process in recorder.run.of(POOL)]


def false_alarms(pool: Sequence[Values], asked: Request) -> Iterator[tuple[VerdictCounts, tuple[str, ...]]]:
    """Count what the screen and the whole rule say of processes that are all alike; nothing differs."""
    yield count_screens(pool, asked), (TRIPPED, Verdict.CONTAMINATED)
    verdicts = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.CONTAMINATED)
    yield count_runs(pool, asked), verdicts


def count_screens(pool: Sequence[Values], asked: Request, slowed_by: float = 0.0) -> VerdictCounts:
    """Count the rows that a screen alone does not clear, where the head is slowed by a share."""

    def judged(window: Sequence[Values]) -> tuple[int, Counter[str]]:
        screen = compare_sides(*_alike(window, slowed_by), asked)
        rows = len(screen.comparisons)
        contaminated = rows if screen.is_contaminated else 0
        return rows, Counter({TRIPPED: len(screen.tripped()), Verdict.CONTAMINATED: contaminated})

    return _count(f"screen of {asked.pairs} pairs", pool, 2 * asked.pairs, judged)


def count_runs(pool: Sequence[Values], asked: Request, slowed_by: float = 0.0) -> VerdictCounts:
    """Count the verdicts of whole runs: a screen, and a confirmation on the processes that follow it."""
    cut = 2 * asked.pairs

    def judged(window: Sequence[Values]) -> tuple[int, Counter[str]]:
        def taken(stage: str) -> Sides:
            return _alike(window[:cut] if stage == SCREEN else window[cut:], slowed_by)

        verdicts = judge(**screen_and_confirm(asked, taken))
        return len(verdicts), Counter(str(verdict.verdict) for verdict in verdicts)

    rule = f"screen of {asked.pairs} pairs, then {asked.confirm} fresh ones for what tripped"
    return _count(rule, pool, cut + 2 * asked.confirm, judged)


def _count(
    rule: str,
    pool: Sequence[Values],
    length: int,
    judged: Callable[[Sequence[Values]], tuple[int, Counter[str]]],
) -> VerdictCounts:
    """Judge every window of a pool; of as many as a window has processes, one shares none with the others."""
    windows = [pool[start : start + length] for start in range(len(pool) - length + 1)]
    found: Counter[str] = Counter()
    rows = 0
    for window in windows:
        compared, verdicts = judged(window)
        rows += compared
        found += verdicts
    apart = round(rows / len(windows) * -(-len(windows) // length)) if windows else 0
    return VerdictCounts(rule, len(windows), rows, apart, found)


def _alike(window: Sequence[Values], slowed_by: float) -> Sides:
    """Deal processes that are all alike to two sides; the head is slowed, but for its plain tensors."""
    base, head = dealt(window)
    return base, [
        {row: ns if state_of(row) == State.LOCAL else ns * (1 + slowed_by) for row, ns in process.items()}
        for process in head
    ]


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
    arm = replace(place.arms[BASE], folder=Path(tempfile.mkdtemp(dir=place.folder)))
    answer = run_process(replace(place, arms={BASE: arm}, arguments=EXTRA_MISS, passes=1), BASE)
    spoiled, clean = (
        [misses > 0 for name, misses in answer.misses_per_step.items() if name.endswith(f"::{steps}")]
        for steps in (SPOILED, CLEAN)
    )
    if not spoiled or not clean:
        raise ProcessError("selftest: the steps with an extra miss counted nothing")
    return spoiled, clean


def _ratios(before: Values, after: Values) -> dict[str, float]:
    by_state: dict[str, list[float]] = {}
    for row in before.keys() & after.keys():
        by_state.setdefault(state_of(row), []).append(after[row] / before[row] - 1)
    return {str(state): statistics.median(by_state[state]) for state in State if state in by_state}
