"""The rule of an A/B run, by metric: comparison of two sides, and verdicts.

Times are compared after each pair of processes, until every row is decided; all pairs count. Counts and
instructions hardly vary between processes: if a row differs, a fixed number of further pairs is measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtdispatch.ab.values import CALLS_PER_STEP, CONTROL, Metric
from pytest_dtdispatch.core.measurement import INSTRUCTIONS_SHIFT, State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.core.verdicts import RowVerdict, SideShift, Verdict
from pytest_dtdispatch.stats.rank_sums import (
    detectable_shift,
    hodges_lehmann,
    mann_whitney,
    pooled_deviation,
    shift_interval,
)

LEVEL = 0.005  # largest p of a time that changed: five pairs are needed to reach it
# A row whose processes scatter by more than this part of its floor needs a smaller p. With a scatter of 0.7,
# it prevents half of the false alarms (8 instead of 15 % of the runs of 27 rows).
WIDE, WIDE_LEVEL = 0.5, 0.002

# Remedies by metric. Counts have no control.
CONTAMINATED = {
    Metric.TIME: "run again, or --control off where the builds differ",
    Metric.INSTRUCTIONS: "another build, Python or meter on one side; --control off judges anyway",
}
FIND_IT = {
    Metric.TIME: "find what slowed it: compare --base-rev and --head-rev commit by commit",
    Metric.COUNTS: "find what made it grow; --dtdispatch-metric counts lists what each count consists of, "
    "and where",
    Metric.INSTRUCTIONS: "find what grew: --dtdispatch-metric instructions -o dtdispatch_profile=true "
    "on both sides",
}

Values = Mapping[RowId, float]  # of one process


@dataclass(frozen=True)
class Rule:
    """Metric, number of processes, and the smallest relevant differences, as fractions.

    Args:
        metric: times, counts or instructions.
        pairs: smallest number of pairs of processes.
        confirm: largest number of pairs for times; for others, number of further pairs if a row differs.
        floor_hit: smallest shift of a hit, or of a call that never propagates, that is a change.
        floor_miss: smallest shift of a miss, or of a cold call, that is a change.
        control: largest shift of plain tensors with which rows are judged; 0 judges always.
        threshold: smallest shift of a count of instructions that is a change.
    """

    metric: Metric = Metric.TIME
    pairs: int = 3
    confirm: int = 8
    floor_hit: float = 0.075
    floor_miss: float = 0.10
    control: float = 0.03
    threshold: float = INSTRUCTIONS_SHIFT

    @property
    def max_pairs(self) -> int:
        """Largest number of pairs."""
        return self.confirm if self.metric == Metric.TIME else self.pairs + self.confirm

    def __post_init__(self) -> None:
        least = enough = 1
        if self.metric == Metric.TIME:
            least, enough = Rule.pairs, max(5, self.pairs)
        if self.pairs < least or self.confirm < enough:
            numbers = f"--pairs {self.pairs}, --confirm {self.confirm}"
            raise ValueError(f"{numbers}: --metric {self.metric} needs at least {least} and {enough}")


# An exact count needs one pair, and an instruction count takes minutes under callgrind.
DEFAULT_RULES = {
    Metric.TIME: Rule(),
    Metric.COUNTS: Rule(Metric.COUNTS, pairs=1, confirm=1),
    Metric.INSTRUCTIONS: Rule(Metric.INSTRUCTIONS, pairs=1, confirm=2),
}


@dataclass(frozen=True)
class Difference:
    """Difference of a row between two sides.

    Args:
        change: figures of the difference; None if some processes did not measure the row.
        verdict: verdict of the row, unless plain tensors shifted.
        is_undecided: whether further processes must measure the row.
        note: reason why it was not compared, or needs a smaller p; empty if there is none.
    """

    change: SideShift | None
    verdict: Verdict
    is_undecided: bool = False
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Comparison of two sides.

    Args:
        rows: differences of all rows; a decided row is that of the deciding pair.
        control: shift of plain tensors, as a logarithm; None if none were measured.
        is_contaminated: whether that shift exceeds its limit.
        pairs: number of compared pairs of processes.
        is_in_turn: whether the processes of both sides ran alternately on one machine.
    """

    rows: Mapping[RowId, Difference]
    control: float | None = None
    is_contaminated: bool = False
    pairs: int = 0
    is_in_turn: bool = True


def compare_times(base: Sequence[float], head: Sequence[float], floor: float, max_pairs: int) -> Difference:
    """Compare the logarithms of a row's times, so that a shift is a ratio.

    Source: the shift of Hodges and Lehmann (1963) for size, the rank test of Mann and Whitney (1947) for
    chance. A rank test alone would report negligible differences. The interval inverts the test: it excludes
    0 if p is at most the level, and has no ends if so few processes never reach that. A row has passed if its
    shift and the standard error of a difference of two means are together at most the floor.
    """
    before, after = [math.log(value) for value in base], [math.log(value) for value in head]
    least, shift, spread = math.log1p(floor), hodges_lehmann(before, after), pooled_deviation(before, after)
    p = mann_whitney(before, after) if shift >= 0 else mann_whitney(after, before)
    low, high = shift_interval(before, after, confidence=1 - 2 * LEVEL)
    level, note = LEVEL, ""
    if spread > WIDE * least:
        level = WIDE_LEVEL
        note = f"its processes scatter by {percent(spread):.1f} %, so p must be at most {level}"
    smallest = detectable_shift(spread, max_pairs, least, level)
    change = SideShift(
        statistics.median(base),
        statistics.median(head),
        percent(shift),
        percent(low),
        percent(high),
        p=p,
        smallest_percent=percent(smallest),
    )
    direction = _direction(shift, least)
    if direction is Verdict.PASSED:
        error = spread * math.sqrt(2 / len(base))
        return Difference(change, direction, is_undecided=abs(shift) + error > least)
    is_chance = p > level
    return Difference(change, Verdict.INCONCLUSIVE if is_chance else direction, is_chance, note)


def compare_numbers(base: Sequence[float], head: Sequence[float], threshold: float | None) -> Difference:
    """Compare numbers of all processes; less is better.

    Exact numbers have no threshold, and are inconclusive if they differ but overlap. Instructions are
    compared by the minimum of each side, as disturbances only increase them.
    """
    change = SideShift(min(base), min(head), base_most=max(base), head_most=max(head))
    if threshold is not None:
        ratios = min(head) / min(base), min(head) / max(base), max(head) / min(base)
        shift, low, high = (percent(math.log(ratio)) for ratio in ratios)
        change = replace(change, shift_percent=shift, low_percent=low, high_percent=high)
        verdict = _direction(ratios[0] - 1, threshold)
    else:
        growth = max(min(head) - max(base), 0.0) - max(min(base) - max(head), 0.0)
        is_overlap = not growth and len({*base, *head}) > 1
        verdict = Verdict.INCONCLUSIVE if is_overlap else _direction(growth, 0.0)
    return Difference(change, verdict, is_undecided=verdict is not Verdict.PASSED)


def _direction(growth: float, floor: float) -> Verdict:
    """Return passed for a change of at most the floor, else its direction."""
    if abs(growth) <= floor:
        return Verdict.PASSED
    return Verdict.REGRESSED if growth > 0 else Verdict.IMPROVED


def compare(base: Sequence[Values], head: Sequence[Values], rule: Rule) -> Comparison:
    """Compare the processes of two sides, in the order in which they ran.

    Times are compared after each pair of processes from the smallest number on, and a row that is decided
    stays so. Other numbers are compared once.

    Args:
        base: values of each process of the base; at least one process.
        head: values of each process of the head; for times, as many as of the base.
        rule: the rule.
    """
    pairs = min(len(base), len(head))
    counts: Iterable[int] = [max(len(base), len(head))]
    if rule.metric == Metric.TIME:
        counts = range(min(rule.pairs, pairs), pairs + 1)
    found: dict[RowId, Difference] = {}
    for count in counts:
        before, after = base[:count], head[:count]
        decided = {row: one for row, one in found.items() if one.change and not one.is_undecided}
        rows = dict.fromkeys(row for process in (*before, *after) for row in process if row.state != CONTROL)
        found = {row: decided.get(row) or _compare_row(before, after, row, rule) for row in rows}
    # A commit that changes one of the control ops does not affect their median.
    controls = [row for row in {**base[0], **head[0]} if row.state == CONTROL]
    shifts = [shift_of(base, head, rule.metric, row) for row in controls]
    measured = [shift for shift in shifts if shift is not None]
    control = statistics.median(measured) if measured else None
    is_contaminated = 0 < math.log1p(rule.control) < abs(control or 0.0)
    return Comparison(found, control, is_contaminated, pairs)


def _compare_row(base: Sequence[Values], head: Sequence[Values], row: RowId, rule: Rule) -> Difference:
    before, after = ([one[row] for one in side if row in one] for side in (base, head))
    if not after:
        return Difference(None, Verdict.MISSING, note="the head did not measure it: restore the test")
    if not before:
        return Difference(None, Verdict.NEW)
    if len(before) < len(base) or len(after) < len(head):
        measured = f"{len(before)} of {len(base)} and {len(after)} of {len(head)} processes"
        is_exact = rule.metric != Metric.TIME
        return Difference(None, Verdict.INCONCLUSIVE, is_exact, f"measured in {measured}")
    if rule.metric == Metric.COUNTS:
        return compare_numbers(before, after, None)
    if rule.metric == Metric.INSTRUCTIONS:
        found = compare_numbers(before, after, rule.threshold)
    else:
        found = compare_times(before, after, floor_of(rule, row), rule.max_pairs)
    plain = shift_of(base, head, rule.metric, row._replace(state=State.LOCAL))
    if plain is None or row.state == State.LOCAL or found.change is None:
        return found
    return replace(found, change=replace(found.change, plain_percent=percent(plain)))


def floor_of(rule: Rule, row: RowId) -> float:
    """Return the smallest shift of a row that is a change, as a fraction."""
    if rule.metric == Metric.INSTRUCTIONS:
        return rule.threshold
    return rule.floor_miss if row.state in (State.MISS, State.COLD) else rule.floor_hit


def shift_of(base: Sequence[Values], head: Sequence[Values], metric: Metric, row: RowId) -> float | None:
    """Return the shift of a row from base to head, as a logarithm; None if a process did not measure it."""
    if not all(row in one for one in (*base, *head)):
        return None
    before, after = ([math.log(one[row]) for one in side] for side in (base, head))
    return hodges_lehmann(before, after) if metric == Metric.TIME else min(after) - min(before)


def is_undecided(found: Comparison) -> bool:
    """Return whether further processes must measure both sides, as long as there are pairs left."""
    rows = found.rows.values()
    return any(one.is_undecided or (found.is_contaminated and one.change is not None) for one in rows)


def judge(rule: Rule, found: Comparison) -> list[RowVerdict]:
    """Judge all rows of a comparison; those that were not compared are last."""
    rows = sorted(found.rows, key=lambda row: found.rows[row].change is None)
    verdicts = {row: _row_verdict(rule, row, found) for row in rows}
    return [_explained(rule, verdicts, found, row) for row in rows]


def _explained(rule: Rule, verdicts: Mapping[RowId, RowVerdict], found: Comparison, row: RowId) -> RowVerdict:
    """Return passed for a row whose local op regressed, if its overhead grew by at most its floor.

    The floor of times is at least the smallest slowdown of the row that the processes could detect: a noisy
    hit follows its local op only to within its noise. The remedies of both rows name the op as the cause.
    """
    one, local = verdicts[row], row._replace(state=State.LOCAL)
    if local not in verdicts or not verdicts[local].verdict is one.verdict is Verdict.REGRESSED:
        return one
    one = replace(one, remedy="the op itself, not its dispatch")
    change, plain = found.rows[row].change, found.rows[local].change
    if row == local or change is None or plain is None:
        return one
    overhead = (change.head - plain.head) - (change.base - plain.base)
    floor = max(floor_of(rule, row), (change.smallest_percent or 0.0) / 100)
    return verdicts[row] if overhead > floor * change.base else replace(one, verdict=Verdict.PASSED)


def _row_verdict(rule: Rule, row: RowId, found: Comparison) -> RowVerdict:
    """Return the verdict of a row, with a remedy; a shift of plain tensors makes it contaminated."""
    difference, remedy = found.rows[row], ""
    verdict, is_time = difference.verdict, rule.metric == Metric.TIME
    least_pairs = rule.max_pairs if difference.is_undecided else rule.pairs
    if difference.change is None:
        return RowVerdict(row, verdict, None, difference.note)
    if row.state == CALLS_PER_STEP and verdict is not Verdict.PASSED:
        verdict = Verdict.CHANGED
    elif is_time and not found.is_in_turn:  # explained once, below the table
        verdict = Verdict.INCONCLUSIVE
    elif found.is_contaminated and found.control is not None:
        verdict = Verdict.CONTAMINATED
        shift = f"plain tensors shifted by {percent(found.control):+.1f} %"
        remedy = f"{shift}: {CONTAMINATED[rule.metric]}"
    elif rule.metric != Metric.COUNTS and found.pairs < least_pairs:
        verdict = Verdict.INCONCLUSIVE
        remedy = f"{plural(found.pairs, 'pair')} cannot decide it: compare again"
    elif verdict is Verdict.REGRESSED:
        remedy = FIND_IT[rule.metric]
    elif verdict is Verdict.INCONCLUSIVE and is_time:
        remedy = "too noisy to tell: more --confirm, or a quieter machine"
    elif verdict is Verdict.INCONCLUSIVE:
        remedy = "it varies from process to process: fix what is random, or --confirm more"
    remedy = "; ".join(filter(None, (difference.note, remedy)))
    return RowVerdict(row, verdict, difference.change, remedy)


def percent(shift: float) -> float:
    """Convert a shift of logarithms to percent; an infinite shift stays infinite."""
    return 100 * math.expm1(shift) if math.isfinite(shift) else shift
