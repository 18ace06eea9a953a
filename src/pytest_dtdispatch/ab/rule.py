"""The rule of an A/B run, by metric: comparison of two sides, rows that trip, and verdicts.

Times are screened, and rows that trip are judged on fresh processes only. Counts and instructions hardly vary
between processes: if a row trips, all processes are judged together.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pytest_dtdispatch.ab.answer import CALLS_PER_STEP, CONTROL
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import TextEnum, plural
from pytest_dtdispatch.core.verdicts import NumberShift, RowVerdict, SideChange, TimeShift, Verdict
from pytest_dtdispatch.stats.rank_sums import (
    hochberg,
    hodges_lehmann,
    mann_whitney,
    shift_interval,
    smallest_detectable,
)


class Metric(TextEnum):
    """Metric that an A/B run compares."""

    TIME = "time"
    COUNTS = "counts"
    INSTRUCTIONS = "instructions"


SCREEN, CONFIRM, PROFILE = "screen", "confirm", "profile"
SCREEN_LEVEL, CONFIRM_LEVEL = 0.05, 0.005
# Numbers of pairs in the screen, and of fresh pairs. An exact count needs one process. A count of
# instructions hardly scatters, and takes minutes under callgrind.
PAIRS = {Metric.TIME: (5, 10), Metric.COUNTS: (1, 1), Metric.INSTRUCTIONS: (1, 2)}

RUN_AGAIN = "run again, or --control off where the builds differ"
OTHER_BUILD = "another build, Python or meter on one side; --control off judges anyway"
FIND_IT = {
    Metric.TIME: "find what slowed it: compare --base-rev and --head-rev commit by commit",
    Metric.COUNTS: "find what made it grow; --dtdispatch-metric counts lists what each count consists of, "
    "and where",
    Metric.INSTRUCTIONS: "find what grew: --dtdispatch-metric instructions -o dtdispatch_profile=true "
    "on both sides",
}

Values = Mapping[RowId, float]  # of one process
Sides = tuple[Sequence[Values], Sequence[Values]]  # the processes of the base, and of the head


@dataclass(frozen=True)
class Rule:
    """Metric, number of processes, and the smallest relevant differences, as fractions.

    Args:
        metric: times, counts or instructions.
        pairs: number of pairs of processes in the screen.
        confirm: number of fresh pairs, if a row trips.
        floor_hit: smallest shift of a hit, or of a call that never propagates, that is a change.
        floor_miss: smallest shift of a miss, or of a cold call, that is a change.
        control: largest shift of plain tensors with which rows are judged; 0 judges always.
        threshold: smallest shift of a count of instructions that is a change.
    """

    metric: Metric = Metric.TIME
    pairs: int = 5
    confirm: int = 10
    floor_hit: float = 0.075
    floor_miss: float = 0.10
    control: float = 0.03
    threshold: float = 0.02


@dataclass(frozen=True)
class Difference:
    """Difference of a row between two sides.

    Args:
        change: figures of the difference.
        verdict: regressed or improved if the difference is large enough, else passed.
        p: p-value of the rank test, one-sided in the direction of the shift; 0 for numbers without noise.
        is_undecided: whether the row is inconclusive unless it is regressed or improved.
    """

    change: SideChange
    verdict: Verdict
    p: float = 0.0
    is_undecided: bool = False

    @property
    def is_tripped(self) -> bool:
        """Whether fresh processes must measure the row.

        The p-value is ignored, as a single disturbed process of five invalidates it. The p-value of the fresh
        processes prevents false alarms.
        """
        return self.verdict is not Verdict.PASSED or self.is_undecided

    def judged(self, adjusted_p: float) -> Verdict:
        """Return the verdict of the row for a p-value that is adjusted for all judged rows."""
        if self.verdict is not Verdict.PASSED and adjusted_p <= CONFIRM_LEVEL:
            return self.verdict
        return Verdict.INCONCLUSIVE if self.is_undecided else Verdict.PASSED


@dataclass(frozen=True)
class Stage:
    """Comparison of both sides on the processes of one stage, or of both stages.

    Args:
        rows: differences of rows that all processes measured.
        absent: verdicts of rows that some processes, or all processes of a side, did not measure.
        control: shift of plain tensors, as a logarithm; None if none were measured.
        is_contaminated: whether that shift exceeds its limit.
        processes: number of processes of the side with fewer.
        has_control: whether the shift is that of control rows; if not, of local rows, as in older files.
    """

    rows: Mapping[RowId, Difference]
    absent: tuple[RowVerdict, ...] = ()
    control: float | None = None
    is_contaminated: bool = False
    processes: int = 0
    has_control: bool = False

    def tripped(self) -> list[RowId]:
        """Return the rows that fresh processes must measure."""
        return [row for row, difference in self.rows.items() if difference.is_tripped]


def compare_times(base: Sequence[float], head: Sequence[float], floor: float, level: float) -> Difference:
    """Compare the logarithms of a row's times, so that a shift is a ratio.

    A slowdown above the floor is undecided, and so is any change if the interval is wider than the floor and
    extends above it.

    Source: the shift of Hodges and Lehmann (1963) for size, the rank test of Mann and Whitney (1947) for
    chance. A rank test alone would report negligible differences.
    """
    before, after = [math.log(value) for value in base], [math.log(value) for value in head]
    shift, (low, high) = hodges_lehmann(before, after), shift_interval(before, after)
    p = mann_whitney(before, after) if shift >= 0 else mann_whitney(after, before)
    least = math.log1p(floor)
    smallest = smallest_detectable(base, head, floor, level)
    medians = statistics.median(base), statistics.median(head)
    change = TimeShift(*medians, percent(shift), percent(low), percent(high), p, smallest)
    is_undecided = shift > least or (high - low > least and high > least)
    return Difference(change, _direction(shift, least), p, is_undecided)


def compare_numbers(base: Sequence[float], head: Sequence[float], threshold: float | None) -> Difference:
    """Compare numbers of all processes; less is better.

    Exact numbers have no threshold, and are undecided if they differ but overlap. Instructions are compared
    by the minimum of each side, as disturbances only increase them.
    """
    change = NumberShift(min(base), max(base), min(head), max(head))
    if threshold is not None:
        ratios = min(head) / min(base), min(head) / max(base), max(head) / min(base)
        shift, low, high = (percent(math.log(ratio)) for ratio in ratios)
        change = replace(change, shift_percent=shift, low_percent=low, high_percent=high)
        return Difference(change, _direction(ratios[0] - 1, threshold))
    growth = max(min(head) - max(base), 0.0) - max(min(base) - max(head), 0.0)
    is_undecided = not growth and len({*base, *head}) > 1
    return Difference(change, _direction(growth, 0.0), is_undecided=is_undecided)


def _direction(growth: float, floor: float) -> Verdict:
    if abs(growth) <= floor:
        return Verdict.PASSED
    return Verdict.REGRESSED if growth > 0 else Verdict.IMPROVED


def compare_sides(
    base: Sequence[Values],
    head: Sequence[Values],
    rule: Rule,
    level: float = SCREEN_LEVEL,
    only: Collection[RowId] | None = None,
) -> Stage:
    """Compare the processes of one stage."""
    rows: dict[RowId, Difference] = {}
    absent = []
    before, after = (Counter(row for process in side for row in process) for side in (base, head))
    has_control = any(row.state == CONTROL for row in before)
    of_control = CONTROL if has_control else State.LOCAL
    for row in {**before, **after}:
        if row.state in (CONTROL, of_control) or (only is not None and row not in only):
            continue
        if before[row] == len(base) and after[row] == len(head):
            rows[row] = _compare_row(base, head, row, rule, level)
        elif row not in after:
            remedy = "the head did not measure it: restore the test"
            absent.append(RowVerdict(row, Verdict.MISSING, None, remedy))
        elif row not in before:
            absent.append(RowVerdict(row, Verdict.NEW))
        else:
            measured = f"{before[row]} of {len(base)} and {after[row]} of {len(head)} processes"
            absent.append(RowVerdict(row, Verdict.INCONCLUSIVE, None, f"measured in {measured}: see the log"))
    absent.sort(key=lambda one: one.verdict is not Verdict.INCONCLUSIVE)
    control = None if rule.metric == Metric.COUNTS else control_shift(base, head, rule.metric, of_control)
    is_contaminated = 0 < math.log1p(rule.control) < abs(control or 0.0)
    return Stage(rows, tuple(absent), control, is_contaminated, min(len(base), len(head)), has_control)


def _compare_row(
    base: Sequence[Values], head: Sequence[Values], row: RowId, rule: Rule, level: float
) -> Difference:
    before, after = ([one[row] for one in side] for side in (base, head))
    if rule.metric == Metric.COUNTS:
        return compare_numbers(before, after, None)
    if rule.metric == Metric.INSTRUCTIONS:
        found = compare_numbers(before, after, rule.threshold)
    else:
        found = compare_times(before, after, floor_of(rule, row), level)
    plain = local_shift(base, head, rule.metric, [row._replace(state=State.LOCAL)])
    if plain is None or row.state == State.LOCAL:
        return found
    return replace(found, change=replace(found.change, plain_percent=percent(plain)))


def control_shift(base: Sequence[Values], head: Sequence[Values], metric: Metric, state: str) -> float | None:
    """Return the shift of the rows of a state from base to head, as a logarithm, if any were measured.

    For control rows it is the median, which is not affected by a commit that changes one of these ops.
    """
    rows = [row for row in {**base[0], **head[0]} if row.state == state]
    if state != CONTROL:
        return local_shift(base, head, metric, rows)
    shifts = [local_shift(base, head, metric, [row]) for row in rows]
    return statistics.median([shift for shift in shifts if shift is not None] or [0.0])


def floor_of(rule: Rule, row: RowId) -> float:
    """Return the smallest shift of a row that is a change, as a fraction."""
    if rule.metric == Metric.INSTRUCTIONS:
        return rule.threshold
    return rule.floor_miss if row.state in (State.MISS, State.COLD) else rule.floor_hit


def local_shift(
    base: Sequence[Values], head: Sequence[Values], metric: Metric, rows: Sequence[RowId]
) -> float | None:
    """Return the shift from base to head of rows that all processes measured, as a logarithm.

    Times are averaged in each process, as logarithms. Instructions are the minimum of each side, by row.
    """
    controls = [row for row in rows if all(row in one for one in (*base, *head))]
    if not controls:
        return None
    if metric != Metric.TIME:
        logs = [math.log(min(p[row] for p in head) / min(p[row] for p in base)) for row in controls]
        return statistics.fmean(logs)
    means = [statistics.fmean(math.log(one[row]) for row in controls) for one in (*base, *head)]
    return hodges_lehmann(means[: len(base)], means[len(base) :])


def is_suspect(screen: Stage, rule: Rule) -> bool:
    """Return whether any row must be measured by fresh processes."""
    if screen.tripped() or rule.metric == Metric.TIME:
        return bool(screen.tripped())
    is_partial = any(one.verdict is Verdict.INCONCLUSIVE for one in screen.absent)
    return is_partial or bool(screen.is_contaminated and screen.rows)


def compare_stages(rule: Rule, processes: Callable[..., Sides]) -> dict[str, Stage]:
    """Compare the processes of the screen, and fresh processes if any row trips.

    Args:
        rule: the rule.
        processes: function that returns the processes of both sides in these stages.

    Returns:
        Comparisons by stage; for counts and instructions the screen includes the fresh processes.
    """
    screen = compare_sides(*processes(SCREEN), rule)
    if not is_suspect(screen, rule):
        return {SCREEN: screen}
    if rule.metric != Metric.TIME:
        return {SCREEN: compare_sides(*processes(SCREEN, CONFIRM), rule)}
    fresh = processes(CONFIRM)
    if not all(fresh):  # in a file that is judged by another rule, no fresh process ran
        return {SCREEN: screen}
    return {SCREEN: screen, CONFIRM: compare_sides(*fresh, rule, CONFIRM_LEVEL, screen.tripped())}


def judge(rule: Rule, stages: Mapping[str, Stage]) -> list[RowVerdict]:
    """Judge all rows of a run.

    Times that tripped are judged on the fresh processes of the confirmation, with p values adjusted by
    Hochberg's method over all rows that tripped. All other rows are judged on the screen.
    """
    screen = stages[SCREEN]
    last = stages.get(CONFIRM) if rule.metric == Metric.TIME else screen
    found = [row for row in screen.tripped() if last and row in last.rows]
    adjusted = dict(zip(found, hochberg([last.rows[row].p for row in found] if last else []), strict=True))
    verdicts = []
    for row, difference in screen.rows.items():
        if row.state == CALLS_PER_STEP and difference.is_tripped:
            verdicts.append(RowVerdict(row, Verdict.CHANGED, difference.change))
        elif last and row in adjusted:
            verdict = last.rows[row].judged(adjusted[row])
            verdicts.append(_row_verdict(rule, row, last, verdict, len(found)))
        elif difference.is_tripped:
            remedy = "it tripped, and was not confirmed"
            verdicts.append(RowVerdict(row, Verdict.INCONCLUSIVE, difference.change, remedy))
        else:
            verdicts.append(_row_verdict(rule, row, screen, Verdict.PASSED))
    return [*map(partial(_explained, rule, {one.row: one for one in verdicts}), verdicts), *screen.absent]


def _ends(one: RowVerdict) -> tuple[float, float]:
    """Return the judged figures of base and head."""
    match one.change:
        case TimeShift(base, head):
            return base, head
        case NumberShift(base_least=base, head_least=head):
            return base, head
    raise ValueError(f"{one.row} was not compared")


def _explained(rule: Rule, verdicts: Mapping[RowId, RowVerdict], one: RowVerdict) -> RowVerdict:
    """Return passed for a row whose local op regressed, if its overhead grew by at most its floor.

    The floor of times is at least the smallest slowdown of the row that the processes could detect: a noisy
    hit follows its local op only to within its noise. The remedies of both rows name the op as the cause.
    """
    local = verdicts.get(one.row._replace(state=State.LOCAL))
    if not local or not local.verdict is one.verdict is Verdict.REGRESSED:
        return one
    remedy = "the op itself, not its dispatch"
    if one is local:
        return replace(one, remedy=remedy)
    before, after = zip(_ends(one), _ends(local), strict=True)
    overhead = (after[0] - after[1]) - (before[0] - before[1])
    detectable = one.change.smallest_percent / 100 if isinstance(one.change, TimeShift) else 0.0
    if overhead > max(floor_of(rule, one.row), detectable) * before[0]:
        return one
    return replace(one, verdict=Verdict.PASSED, remedy=remedy)


def _row_verdict(rule: Rule, row: RowId, stage: Stage, verdict: Verdict, tripped: int = 0) -> RowVerdict:
    """Return the verdict of a row in a stage, with a remedy; a contaminated stage makes it contaminated."""
    remedy = ""
    if stage.is_contaminated and stage.control is not None:
        verdict = Verdict.CONTAMINATED
        because = RUN_AGAIN if rule.metric == Metric.TIME else OTHER_BUILD
        remedy = f"plain tensors shifted by {percent(stage.control):+.1f} %: {because}"
    elif verdict is Verdict.REGRESSED:
        remedy = FIND_IT[rule.metric]
    elif verdict is Verdict.INCONCLUSIVE:
        remedy = "it varies from process to process: fix what is random, or --confirm more"
        if rule.metric == Metric.TIME:
            remedy = _remedy_for_noise(tripped, stage.processes)
    return RowVerdict(row, verdict, stage.rows[row].change, remedy)


def _remedy_for_noise(rows: int, processes: int) -> str:
    """Return the remedy for inconclusive rows: more processes, if so few could never confirm a row.

    The smallest p-value of a rank test is 1 / C(2n, n) for n processes per side; Hochberg's method multiplies
    it by at most the number of rows.
    """
    needed = next(n for n in itertools.count(1) if rows / math.comb(2 * n, n) <= CONFIRM_LEVEL)
    if processes >= needed:
        return "too noisy to tell: more --confirm, or a quieter machine"
    return f"so few processes cannot confirm {plural(rows, 'row')}: --confirm {needed}"


def percent(shift: float) -> float:
    """Convert a shift of logarithms to percent; an infinite shift stays infinite."""
    return 100 * math.expm1(shift) if math.isfinite(shift) else shift
