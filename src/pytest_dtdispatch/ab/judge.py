"""The rule of an A/B run: screen, confirm what tripped on fresh processes, and look at the control."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_dtdispatch.ab.model import Floors, state_of
from pytest_dtdispatch.core.measurement import State
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
QUIETER = "too noisy to tell: more --confirm, or a quieter machine"

Values = Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """One row on both sides.

    Args:
        base_ns: median of the process values, in nanoseconds.
        head_ns: the same of the head.
        shift: of Hodges and Lehmann, from base to head, in logarithms.
        low: lower end of its 95 % interval.
        high: upper end.
        slower_p: one-sided p value of "head is slower".
        faster_p: one-sided p value of "head is faster".
        floor: the least shift that counts, in logarithms.
        smallest_percent: the smallest slow-down that this comparison could have seen.
    """

    base_ns: float
    head_ns: float
    shift: float
    low: float
    high: float
    slower_p: float
    faster_p: float
    floor: float
    smallest_percent: float

    @property
    def p(self) -> float:
        """The p value of the direction in which the head shifted."""
        return self.slower_p if self.shift >= 0 else self.faster_p

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


@dataclass(frozen=True)
class Stage:
    """Both sides compared on the processes of one stage.

    Args:
        comparisons: of each row that every process measured.
        missing: rows that the base measured, and the head never did.
        new: rows that the head measured, and the base never did.
        partial: rows that some processes did not measure, and how many did.
        control: shift of plain tensors, in logarithms; nothing where none were measured.
        is_contaminated: whether it is past its floor.
    """

    comparisons: Mapping[str, Comparison]
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)
    control: float | None = None
    is_contaminated: bool = False

    def tripped(self) -> list[str]:
        """Rows that fresh processes must look at: past the floor in either direction, or undecided.

        No p is asked for here. One disturbed process of five spoils it, and fresh processes either confirm
        the row or clear it: their p keeps false alarms out.
        """
        return [row for row, c in self.comparisons.items() if c.is_past_floor or c.is_undecided]


def compare_row(base: Sequence[float], head: Sequence[float], floor: float, level: float) -> Comparison:
    """Compare one row on logarithms: a shift is a ratio.

    Source: the shift of Hodges and Lehmann (1963) for its size, the rank test of Mann and Whitney (1947) for
    chance; both are asked, as a rank test alone calls differences that matter to nobody.

    Example:
        >>> c = compare_row([100, 101, 102, 103, 104], [120, 121, 122, 123, 124], 0.075, 0.05)
        >>> f"{math.expm1(c.shift):+.1%}", round(c.p, 3), c.is_past_floor
        ('+19.6%', 0.004, True)
    """
    before, after = [math.log(value) for value in base], [math.log(value) for value in head]
    low, high = shift_interval(before, after)
    return Comparison(
        base_ns=statistics.median(base),
        head_ns=statistics.median(head),
        shift=hodges_lehmann(before, after),
        low=low,
        high=high,
        slower_p=mann_whitney(before, after),
        faster_p=mann_whitney(after, before),
        floor=math.log1p(floor),
        smallest_percent=smallest_detectable(base, head, floor, level),
    )


def compare_sides(
    base: Sequence[Values],
    head: Sequence[Values],
    floors: Floors,
    level: float = SCREEN_LEVEL,
    only: Collection[str] | None = None,
) -> Stage:
    """Compare the processes of one stage."""
    comparisons, partial = {}, {}
    before, after = _counted(base), _counted(head)
    rows = [row for row in {**before, **after} if state_of(row) != State.LOCAL]
    if only is not None:
        rows = [row for row in rows if row in only]
    for row in rows:
        if before.get(row) == len(base) and after.get(row) == len(head):
            comparisons[row] = compare_row(
                [p[row] for p in base], [p[row] for p in head], floors.of(row), level
            )
        elif row in before and row in after:
            partial[row] = f"{before[row]} of {len(base)} and {after[row]} of {len(head)} processes"
    control = control_shift(base, head)
    return Stage(
        comparisons,
        missing=tuple(row for row in rows if row not in after),
        new=tuple(row for row in rows if row not in before),
        partial=partial,
        control=control,
        is_contaminated=bool(floors.control and control is not None and past(control, floors.control)),
    )


def control_shift(base: Sequence[Values], head: Sequence[Values]) -> float | None:
    """Give the shift of plain tensors from base to head, in logarithms; nothing where there are none.

    A process has one value: the mean of logarithms over the local rows that every process measured.
    """
    processes = [*base, *head]
    common = [row for row in processes[0] if all(row in process for process in processes)]
    controls = [row for row in common if state_of(row) == State.LOCAL]
    if not controls:
        return None

    def value(process: Values) -> float:
        return math.fsum(math.log(process[row]) for row in controls) / len(controls)

    return hodges_lehmann([value(process) for process in base], [value(process) for process in head])


def past(shift: float, floor: float) -> bool:
    """Say whether a shift of logarithms is past a floor, in either direction."""
    return abs(shift) > math.log1p(floor)


def judge(screen: Stage, confirmation: Stage | None = None) -> list[RowVerdict]:
    """Judge every row of a run.

    A row that tripped is judged on the fresh processes of the confirmation, with its p values adjusted by
    Hochberg's method over all that tripped; every other row on the screen.
    """
    verdicts = {row: _screened(row, c, screen) for row, c in screen.comparisons.items()}
    for row, measured in screen.partial.items():
        verdicts[row] = RowVerdict(row, Verdict.INCONCLUSIVE, (), f"measured in {measured}: see the log")
    for row in screen.missing:
        verdicts[row] = RowVerdict(row, Verdict.MISSING, (), "the head did not measure it: restore the test")
    for row in screen.new:
        verdicts[row] = RowVerdict(row, Verdict.NEW, (), "")
    tripped = screen.tripped()
    found = [row for row in tripped if confirmation and row in confirmation.comparisons]
    if confirmation:
        adjusted = hochberg([confirmation.comparisons[row].p for row in found])
        for row, p in zip(found, adjusted, strict=True):
            verdicts[row] = _confirmed(row, p, confirmation)
    for row in set(tripped) - set(found):
        unconfirmed = "it tripped, and was not confirmed"
        verdicts[row] = _verdict(row, Verdict.INCONCLUSIVE, screen.comparisons[row], unconfirmed)
    return list(verdicts.values())


def _screened(row: str, comparison: Comparison, screen: Stage) -> RowVerdict:
    if screen.is_contaminated:
        return _verdict(row, Verdict.CONTAMINATED, comparison, "", screen)
    return _verdict(row, Verdict.PASSED, comparison, "")


def _confirmed(row: str, adjusted_p: float, stage: Stage) -> RowVerdict:
    comparison = stage.comparisons[row]
    if stage.is_contaminated:
        return _verdict(row, Verdict.CONTAMINATED, comparison, "", stage)
    if comparison.is_past_floor and adjusted_p <= CONFIRM_LEVEL:
        if comparison.shift > 0:
            remedy = "find what slowed it: compare --base-rev and --head-rev commit by commit"
            return _verdict(row, Verdict.REGRESSED, comparison, remedy)
        return _verdict(row, Verdict.IMPROVED, comparison, "")
    if comparison.is_undecided:
        return _verdict(row, Verdict.INCONCLUSIVE, comparison, QUIETER)
    return _verdict(row, Verdict.PASSED, comparison, "")


def _verdict(
    row: str, verdict: Verdict, comparison: Comparison, remedy: str, contaminated: Stage | None = None
) -> RowVerdict:
    if contaminated and contaminated.control is not None:
        shift = math.expm1(contaminated.control)
        remedy = f"plain tensors shifted by {shift:+.1%}: {RUN_AGAIN}"
    figures = (
        ("base_ns", comparison.base_ns),
        ("head_ns", comparison.head_ns),
        ("shift_percent", percent(comparison.shift)),
        ("low_percent", percent(comparison.low)),
        ("high_percent", percent(comparison.high)),
        ("p", comparison.p),
        ("smallest_percent", comparison.smallest_percent),
    )
    return RowVerdict(row, verdict, figures, remedy)


def percent(shift: float) -> float:
    """Turn a shift of logarithms into percent; an end that is nowhere stays there.

    Example:
        >>> round(percent(math.log(1.25)), 6)
        25.0
    """
    return 100 * math.expm1(shift) if math.isfinite(shift) else shift


def _counted(processes: Sequence[Values]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for process in processes:
        for row in process:
            counts[row] = counts.get(row, 0) + 1
    return counts
