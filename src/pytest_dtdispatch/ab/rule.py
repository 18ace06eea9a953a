"""The rule of an A/B run, by metric: what is compared on two sides, what trips, and the verdict of each row.

Times are screened, and what trips is judged on fresh processes alone. Counts and instructions hardly differ
from process to process: where one trips, all processes are judged together.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.stats.rank_sums import (
    hochberg,
    hodges_lehmann,
    mann_whitney,
    shift_interval,
    smallest_detectable,
)

TIME, COUNTS, INSTRUCTIONS = "time", "counts", "instructions"
METRICS = (TIME, COUNTS, INSTRUCTIONS)
SCREEN, CONFIRM = "screen", "confirm"
SCREEN_LEVEL, CONFIRM_LEVEL = 0.05, 0.005
MISSES = {str(State.MISS), str(State.COLD)}
# Pairs of the screen, and fresh ones. A number that is the same in every process needs no second one; a count
# of instructions hardly scatters, and takes minutes under callgrind.
PAIRS = {TIME: (5, 10), COUNTS: (1, 1), INSTRUCTIONS: (1, 2)}

RUN_AGAIN = "run again, or --control off where the builds differ"
OTHER_BUILD = "another build, Python or meter on one side; --control off judges anyway"
QUIETER = "too noisy to tell: more --confirm, or a quieter machine"
VARIES = "it varies from process to process: fix what is random, or --confirm more"
GONE = "the head did not measure it: restore the test"
UNCONFIRMED = "it tripped, and was not confirmed"
FIND_IT = {
    TIME: "find what slowed it: compare --base-rev and --head-rev commit by commit",
    COUNTS: "find what made it grow; --dtdispatch-metric counts lists what each count consists of, and where",
    INSTRUCTIONS: "find what grew: --dtdispatch-metric instructions -o dtdispatch_profile=true on both sides",
}

Values = Mapping[str, float]  # of one process
Sides = tuple[Sequence[Values], Sequence[Values]]  # the processes of the base, and of the head


@dataclass(frozen=True)
class Rule:
    """What is compared, and from when on a difference counts.

    Args:
        metric: times, counts or instructions.
        pairs: of processes in the screen.
        confirm: fresh pairs, where something tripped.
        floor_hit: the least shift that counts of a hit, and of a call that never propagates, as a fraction.
        floor_miss: of a miss, and of a cold call.
        control: shift of plain tensors past which nothing is judged, as a fraction; 0 to judge anyway.
        threshold: the least shift of a count of instructions that counts, as a fraction.
    """

    metric: str = TIME
    pairs: int = 5
    confirm: int = 10
    floor_hit: float = 0.075
    floor_miss: float = 0.10
    control: float = 0.03
    threshold: float = 0.02

    def floor_of(self, row: str) -> float:
        """Return the least shift of a row that counts."""
        return self.floor_miss if state_of(row) in MISSES else self.floor_hit


@dataclass(frozen=True)
class Times:
    """Times of one row on both sides.

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
    def is_tripped(self) -> bool:
        """Whether fresh processes must look at it: past the floor in either direction, or undecided.

        No p is asked for here. One disturbed process of five spoils it, and fresh processes either confirm
        the row or clear it: their p keeps false alarms out.
        """
        return self.is_past_floor or self.is_undecided

    @property
    def figures(self) -> tuple[tuple[str, float], ...]:
        """What a verdict is shown with."""
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
class Numbers:
    """One count, or count of instructions, in every process of both sides.

    Args:
        base: the numbers of the base.
        head: those of the head.
        threshold: the least shift that counts, as a fraction; None where any difference does.
    """

    base: tuple[float, ...]
    head: tuple[float, ...]
    threshold: float | None = None

    @property
    def shift(self) -> float:
        """From the least of the base to the least of the head, in logarithms; both are above 0."""
        return math.log(min(self.head) / min(self.base))

    @property
    def verdict(self) -> Verdict:
        """Less is better. Exact numbers that differ and overlap cannot be told apart.

        Instructions are judged by the least of each side: accidents only ever add.
        """
        if self.threshold is not None:
            ratio = min(self.head) / min(self.base) - 1
            if abs(ratio) <= self.threshold:
                return Verdict.PASSED
            return Verdict.REGRESSED if ratio > 0 else Verdict.IMPROVED
        if len({*self.base, *self.head}) == 1:
            return Verdict.PASSED
        if min(self.head) > max(self.base):
            return Verdict.REGRESSED
        return Verdict.IMPROVED if max(self.head) < min(self.base) else Verdict.INCONCLUSIVE

    @property
    def is_tripped(self) -> bool:
        """Whether fresh processes must look at it."""
        return self.verdict is not Verdict.PASSED

    @property
    def figures(self) -> tuple[tuple[str, float], ...]:
        """What a verdict is shown with: the least and the most of each side."""
        ends = (
            ("base_least", min(self.base)),
            ("base_most", max(self.base)),
            ("head_least", min(self.head)),
            ("head_most", max(self.head)),
        )
        return ends if self.threshold is None else (*ends, ("shift_percent", percent(self.shift)))


@dataclass(frozen=True)
class Stage:
    """Both sides compared on the processes of one stage, or of both.

    Args:
        rows: comparisons of each row that every process measured.
        missing: rows that the base measured, and the head never did.
        new: rows that the head measured, and the base never did.
        partial: rows that some processes did not measure, and how many did.
        control: shift of plain tensors, in logarithms, if any were measured.
        is_contaminated: whether it is past its floor.
        processes: of the side that has fewer.
    """

    rows: Mapping[str, Any]  # Times or Numbers
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)
    control: float | None = None
    is_contaminated: bool = False
    processes: int = 0

    def tripped(self) -> list[str]:
        """Rows that fresh processes must look at."""
        return [row for row, compared in self.rows.items() if compared.is_tripped]


def compare_times(base: Sequence[float], head: Sequence[float], floor: float, level: float) -> Times:
    """Compare one row on logarithms: a shift is a ratio.

    Source: the shift of Hodges and Lehmann (1963) for its size, the rank test of Mann and Whitney (1947) for
    chance; both are asked, as a rank test alone calls differences that matter to nobody.
    """
    before, after = [math.log(value) for value in base], [math.log(value) for value in head]
    shift, (low, high) = hodges_lehmann(before, after), shift_interval(before, after)
    return Times(
        base_ns=statistics.median(base),
        head_ns=statistics.median(head),
        shift=shift,
        low=low,
        high=high,
        p=mann_whitney(before, after) if shift >= 0 else mann_whitney(after, before),
        floor=math.log1p(floor),
        smallest_percent=smallest_detectable(base, head, floor, level),
    )


def compare_sides(
    base: Sequence[Values],
    head: Sequence[Values],
    rule: Rule,
    level: float = SCREEN_LEVEL,
    only: Collection[str] | None = None,
) -> Stage:
    """Compare the processes of one stage."""
    compared: dict[str, Times | Numbers] = {}
    partial = {}
    before, after = (Counter(row for process in side for row in process) for side in (base, head))
    rows = [r for r in {**before, **after} if state_of(r) != State.LOCAL and (only is None or r in only)]
    for row in rows:
        if before[row] == len(base) and after[row] == len(head):
            compared[row] = _compare_row(row, base, head, rule, level)
        elif row in before and row in after:
            partial[row] = f"{before[row]} of {len(base)} and {after[row]} of {len(head)} processes"
    control = None if rule.metric == COUNTS else control_shift(base, head, rule.metric)
    return Stage(
        compared,
        missing=tuple(row for row in rows if row not in after),
        new=tuple(row for row in rows if row not in before),
        partial=partial,
        control=control,
        is_contaminated=0 < math.log1p(rule.control) < abs(control or 0.0),
        processes=min(len(base), len(head)),
    )


def _compare_row(
    row: str, base: Sequence[Values], head: Sequence[Values], rule: Rule, level: float
) -> Times | Numbers:
    before, after = tuple(one[row] for one in base), tuple(one[row] for one in head)
    if rule.metric == TIME:
        return compare_times(before, after, rule.floor_of(row), level)
    return Numbers(before, after, None if rule.metric == COUNTS else rule.threshold)


def control_shift(base: Sequence[Values], head: Sequence[Values], metric: str) -> float | None:
    """Return the shift of plain tensors from base to head, in logarithms, if any were measured.

    It is taken over the local rows that every process measured. Of times a process has one value, the mean of
    its logarithms; of instructions a row has one, the least of each side.
    """
    first, *others = [*base, *head]
    controls = [row for row in first if state_of(row) == State.LOCAL and all(row in one for one in others)]
    if not controls:
        return None
    if metric != TIME:
        logs = [math.log(min(p[row] for p in head) / min(p[row] for p in base)) for row in controls]
        return statistics.fmean(logs)
    means = [statistics.fmean(math.log(one[row]) for row in controls) for one in (*base, *head)]
    return hodges_lehmann(means[: len(base)], means[len(base) :])


def is_suspect(screen: Stage, rule: Rule) -> bool:
    """Tell whether fresh processes must look at anything."""
    if rule.metric == TIME:
        return bool(screen.tripped())
    return bool(screen.tripped() or screen.partial or (screen.is_contaminated and screen.rows))


def compare_stages(rule: Rule, processes: Callable[..., Sides]) -> dict[str, Stage]:
    """Compare a screen, and fresh processes where anything tripped.

    Args:
        rule: what is compared.
        processes: returns those of both sides, in the stages that it is called with.

    Returns:
        By stage; of numbers the screen has the fresh processes too.
    """
    screen = compare_sides(*processes(SCREEN), rule)
    if not is_suspect(screen, rule):
        return {SCREEN: screen}
    if rule.metric != TIME:
        return {SCREEN: compare_sides(*processes(SCREEN, CONFIRM), rule)}
    fresh = processes(CONFIRM)
    if not all(fresh):  # a file that is judged by another rule has none of what trips now
        return {SCREEN: screen}
    return {SCREEN: screen, CONFIRM: compare_sides(*fresh, rule, CONFIRM_LEVEL, screen.tripped())}


def judge(rule: Rule, stages: Mapping[str, Stage]) -> list[RowVerdict]:
    """Judge every row of a run."""
    screen = stages[SCREEN]
    if rule.metric == TIME:
        verdicts = _judge_times(screen, stages.get(CONFIRM))
    else:
        verdicts = {row: _judge_numbers(row, screen, rule.metric) for row in screen.rows}
    for row, measured in screen.partial.items():
        verdicts[row] = RowVerdict(row, Verdict.INCONCLUSIVE, (), f"measured in {measured}: see the log")
    for row in screen.missing:
        verdicts[row] = RowVerdict(row, Verdict.MISSING, (), GONE)
    for row in screen.new:
        verdicts[row] = RowVerdict(row, Verdict.NEW)
    return list(verdicts.values())


def _judge_times(screen: Stage, confirm: Stage | None) -> dict[str, RowVerdict]:
    """Judge times.

    A row that tripped is judged on the fresh processes of the confirmation, with its p values adjusted by
    Hochberg's method over all that tripped; every other row on the screen.
    """
    verdicts = {row: _verdict(row, screen, Verdict.PASSED, RUN_AGAIN) for row in screen.rows}
    confirmed = confirm.rows if confirm else {}
    tripped = screen.tripped()
    found = [row for row in tripped if row in confirmed]
    if confirm:
        remedy = _what_would_decide(len(found), confirm.processes)
        for row, p in zip(found, hochberg([confirmed[row].p for row in found]), strict=True):
            verdicts[row] = _confirmed(row, p, confirm, remedy)
    for row in tripped:
        if row not in confirmed:
            verdicts[row] = RowVerdict(row, Verdict.INCONCLUSIVE, screen.rows[row].figures, UNCONFIRMED)
    return verdicts


def _what_would_decide(rows: int, processes: int) -> str:
    """Say what would decide what these processes leave open: more of them, where chance could do as much.

    The least p that a rank test can give is one way of all ways to choose one side of both; Hochberg's method
    multiplies it by at most the number of rows.
    """
    needed = next(n for n in itertools.count(1) if rows / math.comb(2 * n, n) <= CONFIRM_LEVEL)
    if processes >= needed:
        return QUIETER
    return f"so few processes cannot confirm {plural(rows, 'row')}: --confirm {needed}"


def _confirmed(row: str, adjusted_p: float, stage: Stage, remedy: str) -> RowVerdict:
    compared = stage.rows[row]
    if compared.is_past_floor and adjusted_p <= CONFIRM_LEVEL:
        if compared.shift > 0:
            return _verdict(row, stage, Verdict.REGRESSED, RUN_AGAIN, FIND_IT[TIME])
        return _verdict(row, stage, Verdict.IMPROVED, RUN_AGAIN)
    if compared.is_undecided:
        return _verdict(row, stage, Verdict.INCONCLUSIVE, RUN_AGAIN, remedy)
    return _verdict(row, stage, Verdict.PASSED, RUN_AGAIN)


def _judge_numbers(row: str, stage: Stage, metric: str) -> RowVerdict:
    verdict = stage.rows[row].verdict
    remedies = {Verdict.REGRESSED: FIND_IT[metric], Verdict.INCONCLUSIVE: VARIES}
    return _verdict(row, stage, verdict, OTHER_BUILD, remedies.get(verdict, ""))


def _verdict(row: str, stage: Stage, verdict: Verdict, if_contaminated: str, remedy: str = "") -> RowVerdict:
    """Return what a stage found of a row; a contaminated one has found nothing."""
    if stage.is_contaminated and stage.control is not None:
        verdict = Verdict.CONTAMINATED
        remedy = f"plain tensors shifted by {percent(stage.control):+.1f} %: {if_contaminated}"
    return RowVerdict(row, verdict, stage.rows[row].figures, remedy)


def percent(shift: float) -> float:
    """Turn a shift of logarithms into percent; an infinite one stays infinite."""
    return 100 * math.expm1(shift) if math.isfinite(shift) else shift


def state_of(row: str) -> str:
    """Return the state that a row's name ends in."""
    return row.rpartition("::")[2]
