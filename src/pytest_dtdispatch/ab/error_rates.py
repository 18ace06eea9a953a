"""What the rule of an A/B run says of processes that are all alike, and of some slowed by a known amount."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.ab.judge import CONFIRM_LEVEL, SCREEN_LEVEL, Values, compare_sides, judge
from pytest_dtdispatch.ab.model import Floors, state_of
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.verdicts import Verdict

Deal = Callable[[Sequence[Values]], tuple[list[Values], list[Values]]]
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


def count_screens(
    pool: Sequence[Values], pairs: int, floors: Floors, deal: Deal, slowed_by: float = 0.0
) -> VerdictCounts:
    """Count the rows that a screen alone does not clear."""
    found: Counter[str] = Counter()
    rows = windows = 0
    for start in range(len(pool) - 2 * pairs + 1):
        base, head = deal(pool[start : start + 2 * pairs])
        screen = compare_sides(base, [slower(process, slowed_by) for process in head], floors, SCREEN_LEVEL)
        windows += 1
        rows += len(screen.comparisons)
        found[TRIPPED] += len(screen.tripped())
        if screen.is_contaminated:
            found[Verdict.CONTAMINATED] += len(screen.comparisons)
    return VerdictCounts(f"screen of {pairs} pairs", windows, rows, _apart(rows, windows, 2 * pairs), found)


def count_runs(
    pool: Sequence[Values], pairs: int, confirm: int, floors: Floors, deal: Deal, slowed_by: float = 0.0
) -> VerdictCounts:
    """Count the verdicts of whole runs: a screen, and a confirmation on the processes that follow it."""
    found: Counter[str] = Counter()
    rows = windows = 0
    length = 2 * (pairs + confirm)
    for start in range(len(pool) - length + 1):
        base, head = deal(pool[start : start + 2 * pairs])
        screen = compare_sides(base, [slower(process, slowed_by) for process in head], floors, SCREEN_LEVEL)
        tripped = screen.tripped()
        confirmation = None
        if tripped:
            base, head = deal(pool[start + 2 * pairs : start + length])
            slow = [slower(process, slowed_by) for process in head]
            confirmation = compare_sides(base, slow, floors, CONFIRM_LEVEL, tripped)
        verdicts = judge(screen, confirmation)
        windows += 1
        rows += len(verdicts)
        found.update(str(verdict.verdict) for verdict in verdicts)
    rule = f"screen of {pairs} pairs, then {confirm} fresh ones for what tripped"
    return VerdictCounts(rule, windows, rows, _apart(rows, windows, length), found)


def slower(process: Values, by: float) -> dict[str, float]:
    """Slow every row of a process but those of plain tensors.

    Example:
        >>> slower({"test_add::hit": 100.0, "test_add::local": 10.0}, 0.5)
        {'test_add::hit': 150.0, 'test_add::local': 10.0}
    """
    return {
        row: value if state_of(row) == State.LOCAL else value * (1 + by) for row, value in process.items()
    }


def _apart(rows: int, windows: int, length: int) -> int:
    """Count rows in windows that share no process: each ``length`` of them has one."""
    return round(rows / windows * -(-windows // length)) if windows else 0
