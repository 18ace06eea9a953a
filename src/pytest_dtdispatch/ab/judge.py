"""The rule of an A/B run: screen, confirm what tripped on fresh processes, and look at the control."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_dtdispatch.ab.model import CONFIRM, SCREEN, Request, state_of
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.stats.rank_sums import (
    hochberg,
    hodges_lehmann,
    mann_whitney,
    shift_interval,
    smallest_detectable,
)

SCREEN_LEVEL, CONFIRM_LEVEL = 0.05, 0.005
RUN_AGAIN = "run again, or --control off where the builds differ"
FIND_IT = "find what slowed it: compare --base-rev and --head-rev commit by commit"
QUIETER = "too noisy to tell: more --confirm, or a quieter machine"

Values = Mapping[str, float]
Sides = tuple[Sequence[Values], Sequence[Values]]  # the processes of the base, and of the head


@dataclass(frozen=True)
class Comparison:
    """One row on both sides.

    Args:
        base_ns: median of the process values, in nanoseconds.
        head_ns: the same of the head.
        shift: of Hodges and Lehmann, from base to head, in logarithms.
        low: lower end of its 95 % interval.
        high: upper end.
        p: of the rank test, one-sided in the direction in which the head shifted.
        floor: the least shift that counts, in logarithms.
        smallest_percent: the smallest slow-down that this comparison could have seen.
    """

    base_ns: float
    head_ns: float
    shift: float
    low: float
    high: float
    p: float
    floor: float
    smallest_percent: float

    @property
    def is_past_floor(self) -> bool:
        """Whether the shift counts, in either direction."""
        return abs(self.shift) > self.floor

    @property
    def is_undecided(self) -> bool:
        """Whether a slow-down past the floor was found, or fits into an interval wider than the floor.

        Asked only of what could not be called regressed: it must not pass.
        """
        return self.shift > self.floor or (self.high - self.low > self.floor and self.high > self.floor)

    @property
    def figures(self) -> tuple[tuple[str, float], ...]:
        """What a verdict is told with."""
        return (
            ("base_ns", self.base_ns),
            ("head_ns", self.head_ns),
            ("shift_percent", percent(self.shift)),
            ("low_percent", percent(self.low)),
            ("high_percent", percent(self.high)),
            ("p", self.p),
            ("smallest_percent", self.smallest_percent),
        )


@dataclass(frozen=True)
class Stage:
    """Both sides compared on the processes of one stage.

    Args:
        comparisons: of each row that every process measured.
        missing: rows that the base measured, and the head never did.
        new: rows that the head measured, and the base never did.
        partial: rows that some processes did not measure, and how many did.
        control: shift of plain tensors, in logarithms, if any were measured.
        is_contaminated: whether it is past its floor.
        processes: of the side that has fewer.
    """

    comparisons: Mapping[str, Comparison]
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)
    control: float | None = None
    is_contaminated: bool = False
    processes: int = 0

    def tripped(self) -> list[str]:
        """Rows that fresh processes must look at: past the floor in either direction, or undecided.

        No p is asked for here. One disturbed process of five spoils it, and fresh processes either confirm
        the row or clear it: their p keeps false alarms out.
        """
        return [row for row, c in self.comparisons.items() if c.is_past_floor or c.is_undecided]

    @property
    def is_suspect(self) -> bool:
        """Whether fresh processes must look at anything."""
        return bool(self.tripped())


def compare_row(base: Sequence[float], head: Sequence[float], floor: float, level: float) -> Comparison:
    """Compare one row on logarithms: a shift is a ratio.

    Source: the shift of Hodges and Lehmann (1963) for its size, the rank test of Mann and Whitney (1947) for
    chance; both are asked, as a rank test alone calls differences that matter to nobody.
    """
    before, after = [math.log(value) for value in base], [math.log(value) for value in head]
    shift, (low, high) = hodges_lehmann(before, after), shift_interval(before, after)
    return Comparison(
        base_ns=statistics.median(base),
        head_ns=statistics.median(head),
        shift=shift,
        low=low,
        high=high,
        p=mann_whitney(before, after) if shift >= 0 else mann_whitney(after, before),
        floor=math.log1p(floor),
        smallest_percent=smallest_detectable(base, head, floor, level),
    )


def screen_and_confirm(asked: Request, taken: Callable[[str], Sides]) -> dict[str, Stage]:
    """Compare a screen, and fresh processes for what tripped; named as :func:`judge` takes them."""
    stages = {SCREEN: compare_sides(*taken(SCREEN), asked)}
    if stages[SCREEN].is_suspect:
        fresh = taken(CONFIRM)
        stages[CONFIRM] = compare_sides(*fresh, asked, CONFIRM_LEVEL, stages[SCREEN].tripped())
    return stages


def compare_sides(
    base: Sequence[Values],
    head: Sequence[Values],
    asked: Request,
    level: float = SCREEN_LEVEL,
    only: Collection[str] | None = None,
) -> Stage:
    """Compare the processes of one stage."""
    comparisons, partial = {}, {}
    before, after = (Counter(row for process in side for row in process) for side in (base, head))
    rows = [r for r in {**before, **after} if state_of(r) != State.LOCAL and (only is None or r in only)]
    for row in rows:
        if before[row] == len(base) and after[row] == len(head):
            before_ns, after_ns = ([process[row] for process in side] for side in (base, head))
            comparisons[row] = compare_row(before_ns, after_ns, asked.floor_of(row), level)
        elif row in before and row in after:
            partial[row] = f"{before[row]} of {len(base)} and {after[row]} of {len(head)} processes"
    control = control_shift(base, head)
    return Stage(
        comparisons,
        missing=tuple(row for row in rows if row not in after),
        new=tuple(row for row in rows if row not in before),
        partial=partial,
        control=control,
        is_contaminated=0 < math.log1p(asked.control) < abs(control or 0.0),
        processes=min(len(base), len(head)),
    )


def control_shift(base: Sequence[Values], head: Sequence[Values]) -> float | None:
    """Give the shift of plain tensors from base to head, in logarithms, if any were measured.

    A process has one value: the mean of logarithms over the local rows that every process measured.
    """
    first, *others = [*base, *head]
    controls = [row for row in first if state_of(row) == State.LOCAL and all(row in one for one in others)]
    if not controls:
        return None
    means = [statistics.fmean(math.log(one[row]) for row in controls) for one in (*base, *head)]
    return hodges_lehmann(means[: len(base)], means[len(base) :])


def judge(screen: Stage, confirm: Stage | None = None) -> list[RowVerdict]:
    """Judge every row of a run.

    A row that tripped is judged on the fresh processes of the confirmation, with its p values adjusted by
    Hochberg's method over all that tripped; every other row on the screen.
    """
    verdicts = {row: _judged(row, screen, Verdict.PASSED) for row in screen.comparisons}
    for row, measured in screen.partial.items():
        verdicts[row] = RowVerdict(row, Verdict.INCONCLUSIVE, (), f"measured in {measured}: see the log")
    for row in screen.missing:
        verdicts[row] = RowVerdict(row, Verdict.MISSING, (), "the head did not measure it: restore the test")
    for row in screen.new:
        verdicts[row] = RowVerdict(row, Verdict.NEW)
    confirmed = confirm.comparisons if confirm else {}
    tripped = screen.tripped()
    found = [row for row in tripped if row in confirmed]
    if confirm:
        remedy = _told_apart_by(len(found), confirm.processes)
        for row, p in zip(found, hochberg([confirmed[row].p for row in found]), strict=True):
            verdicts[row] = _confirmed(row, p, confirm, remedy)
    for row in set(tripped) - set(found):
        unconfirmed, figures = "it tripped, and was not confirmed", screen.comparisons[row].figures
        verdicts[row] = RowVerdict(row, Verdict.INCONCLUSIVE, figures, unconfirmed)
    return list(verdicts.values())


def _told_apart_by(rows: int, processes: int) -> str:
    """Say what would decide what these processes leave open: more of them, where chance could do as much.

    The least p that a rank test can give is one way of all ways to choose one side of both; Hochberg's method
    multiplies it by at most the number of rows.
    """
    needed = next(n for n in itertools.count(1) if rows / math.comb(2 * n, n) <= CONFIRM_LEVEL)
    if processes >= needed:
        return QUIETER
    return f"so few processes cannot confirm {many(rows, 'row')}: --confirm {needed}"


def _confirmed(row: str, adjusted_p: float, stage: Stage, remedy: str) -> RowVerdict:
    comparison = stage.comparisons[row]
    if comparison.is_past_floor and adjusted_p <= CONFIRM_LEVEL:
        if comparison.shift > 0:
            return _judged(row, stage, Verdict.REGRESSED, FIND_IT)
        return _judged(row, stage, Verdict.IMPROVED)
    if comparison.is_undecided:
        return _judged(row, stage, Verdict.INCONCLUSIVE, remedy)
    return _judged(row, stage, Verdict.PASSED)


def _judged(row: str, stage: Stage, verdict: Verdict, remedy: str = "") -> RowVerdict:
    """Say what a stage found of a row; a contaminated one has found nothing."""
    if stage.is_contaminated and stage.control is not None:
        verdict = Verdict.CONTAMINATED
        remedy = f"plain tensors shifted by {math.expm1(stage.control):+.1%}: {RUN_AGAIN}"
    return RowVerdict(row, verdict, stage.comparisons[row].figures, remedy)


def percent(shift: float) -> float:
    """Turn a shift of logarithms into percent; an infinite one stays infinite."""
    return 100 * math.expm1(shift) if math.isfinite(shift) else shift
