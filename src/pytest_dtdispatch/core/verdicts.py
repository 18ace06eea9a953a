"""Thresholds, and verdicts of gates: on a row, on a number with a limit, and on a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.plain_data import Natural
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import TextEnum, escape_controls, joined_lines, listed

THRESHOLD_STATES = ("miss", "hit", "cold", "call", "compile-cold", "compile-warm", "eager")
THRESHOLD_FIELDS = ("min", "median")


class Verdict(TextEnum):
    """Result of a comparison; after ``PASSED``, the most severe first."""

    PASSED = "passed"
    REGRESSED = "regressed"
    MISSING = "missing"
    MISMATCHED = "mismatched"
    DISABLED = "disabled"
    CONTAMINATED = "contaminated"
    INCONCLUSIVE = "inconclusive"
    QUARANTINED = "quarantined"
    IMPROVED = "improved"
    CHANGED = "changed"  # a different number of calls: reported, but does not fail
    NEW = "new"


@dataclass(frozen=True)
class TimeChange:
    """Change of a time since a saved run.

    Args:
        base_ns: least sample of the saved run.
        head_ns: least sample of this run.
        change_percent: change from base to head.
        median_percent: change of the median.
        samples: number of compared samples of each run.
        clock: clock of these figures: ``cpu`` if both runs have the thread's CPU time, else ``wall``.
        wall_percent: change of the least wall time; None if it is ``change_percent``.
    """

    base_ns: float
    head_ns: float
    change_percent: float
    median_percent: float
    samples: Natural
    clock: str = "wall"
    wall_percent: float | None = None


@dataclass(frozen=True)
class CountChange:
    """A number with its limit or expected value.

    Args:
        expected: limit or expected value.
        found: the number.
        change_percent: change from the expected value; None for a limit, and if 0 was expected.
        margin_percent: allowed change; None for a limit.
    """

    expected: float
    found: float
    change_percent: float | None = None
    margin_percent: float | None = None


@dataclass(frozen=True)
class SideShift:
    """Shift of a figure from base to head of an A/B run.

    Args:
        base: median of times over the processes of the base, or their minimum of other numbers.
        head: the same of the head.
        shift_percent: shift from base to head; None for exact numbers.
        low_percent: lower end of the interval of times, or the smallest shift between two processes.
        high_percent: upper end of the interval, or the largest shift.
        plain_percent: shift of the op on plain tensors; None if it was not measured.
        base_most: maximum over the processes of the base; None for times.
        head_most: the same of the head.
        p: p-value of the rank test of times; None for other numbers.
        smallest_percent: smallest slowdown that the comparison of times can detect.
    """

    base: float
    head: float
    shift_percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    plain_percent: float | None = None
    base_most: float | None = None
    head_most: float | None = None
    p: float | None = None
    smallest_percent: float | None = None


@dataclass(frozen=True)
class RowVerdict:
    """Verdict of a gate on one row, with its figures.

    Args:
        row: judged row; with a state if a gate compared its samples.
        verdict: verdict on the row.
        change: compared figures; None if nothing was compared.
        remedy: suggested action; empty if none is needed.
        criterion: threshold or limit as the user wrote it, and the statistic; empty if all rows have the
            same.
        details: lines that explain the verdict.
        is_strict: whether an inconclusive row fails the run.
        lines: source lines that caused it, such as ``train.py:41``.
    """

    row: RowId
    verdict: Verdict
    change: TimeChange | CountChange | SideShift | None = None
    remedy: str = ""
    criterion: str = ""
    details: tuple[str, ...] = ()
    is_strict: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Threshold:
    """Maximum relative growth of one statistic of a row.

    Args:
        state: state of the rows that it applies to; empty for all states.
        field: statistic: ``min``, the least sample, or ``median``, which needs both.
        fraction: maximum growth: 0.1 is 10 %.
        is_strict: whether an inconclusive row fails the run.
    """

    state: str
    field: str
    fraction: float
    is_strict: bool = False

    def __str__(self) -> str:
        state, field = self.state and f"{self.state}=", "" if self.field == "min" else f"{self.field}:"
        return f"{state}{field}{self.fraction * 100:g}%{',strict' if self.is_strict else ''}"

    @property
    def figure(self) -> str:
        """The limited statistic: ``median``, or ``hit=median`` for one state."""
        return f"{self.state}={self.field}" if self.state else self.field


def thresholds_of(state: str | None, thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """Return the thresholds of a state: for each field, that of the state, or else that of all states."""
    of_all = {threshold.field: threshold for threshold in thresholds if not threshold.state}
    own = {threshold.field: threshold for threshold in thresholds if threshold.state == state}
    return tuple({**of_all, **own}.values())


LIMITS = "limits"  # baseline of the gate of limits
FAILING = {Verdict.REGRESSED, Verdict.MISSING, Verdict.DISABLED, Verdict.MISMATCHED, Verdict.CONTAMINATED}
# Verdicts that mean the row was compared with its limit.
COMPARED = {Verdict.PASSED, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.CONTAMINATED}


def over(verdicts: Iterable[RowVerdict], improved_fails: bool = False) -> list[RowVerdict]:
    """Return the rows that fail a test or a run; an inconclusive row fails if its threshold is strict."""
    failing = {*FAILING, Verdict.IMPROVED} if improved_fails else FAILING
    return [
        row
        for row in verdicts
        if row.verdict in failing or (row.is_strict and row.verdict is Verdict.INCONCLUSIVE)
    ]


@dataclass(frozen=True)
class Judgement:
    """Judgement of a gate on a run.

    Args:
        verdicts: verdicts on the rows.
        where: file of the baseline.
        failed: rows that fail the run.
        has_compared: whether any row was compared; otherwise the run fails.
        remarks: lines below the rows.
        to_paste: rows of the expected file with which the measured values pass.
        command: shell command that writes these rows.
        since: date of the baseline, as ``2026-07-31``; empty if unknown.
        excluded: number of rows of the baseline whose tests the run does not select.
    """

    verdicts: tuple[RowVerdict, ...]
    where: str = ""
    failed: tuple[RowVerdict, ...] = ()
    has_compared: bool = True
    remarks: tuple[str, ...] = ()
    to_paste: tuple[str, ...] = ()
    command: str = ""
    since: str = ""
    excluded: Natural = 0

    @property
    def has_failed(self) -> bool:
        """Whether the run must fail, because of rows or because nothing was compared."""
        return bool(self.failed) or not self.has_compared


def over_limits(gates: Iterable[Judgement]) -> frozenset[RowId]:
    """Return the rows that exceed limits of their tests, also if a marker permits it."""
    of_limits = [row for gate in gates if gate.where == LIMITS for row in gate.verdicts]
    return frozenset(row.row for row in of_limits if row.verdict is Verdict.QUARANTINED or over([row]))


def judged(
    verdicts: Sequence[RowVerdict], improved_fails: bool = False, remarks: tuple[str, ...] = ()
) -> Judgement:
    """Return the judgement on a run with these verdicts; it fails if no row was compared."""
    has_compared = any(row.verdict in COMPARED for row in verdicts)
    failed = tuple(over(verdicts, improved_fails))
    return Judgement(tuple(verdicts), "", failed, has_compared, remarks)


def not_judged(verdict: Verdict, why: str, remedy: str = "") -> Judgement:
    """Return a judgement with one verdict on the whole run, with the reason why no row was judged."""
    return judged([RowVerdict(RowId("", why), verdict, None, remedy)])


def judge_count(
    name: str,
    limit: str,
    most: int,
    found: int,
    what: str,
    consists_of: Sequence[object] = (),
    lines: Sequence[str] = (),
) -> RowVerdict:
    """Compare a number with the maximum that a limit allows.

    Args:
        name: name of the result; its test is added when the verdict is recorded.
        limit: name of the limit.
        most: maximum.
        found: number in the result.
        what: short description of the number.
        consists_of: counted events.
        lines: source lines that caused it, such as ``train.py:41``.

    Example:
        >>> judge_count("model", "blocks", 11, 12, "there are 12", lines=["train.py:41"]).details
        ('blocks=11, and there are 12, at train.py:41: 1 more',)
    """
    row, criterion = RowId("", name), f"{limit}={most}"
    change = CountChange(most, found)
    if found <= most:
        return RowVerdict(row, Verdict.PASSED, change, "", criterion)
    more, at = f": {found - most:,} more" if most else "", f", at {joined_lines(lines)}" if lines else ""
    details = (f"{criterion}, and {what}{at}{more}", *listed(consists_of))
    return RowVerdict(row, Verdict.REGRESSED, change, "", criterion, details, lines=tuple(lines))


def unjudged(row: RowId, criterion: str, why: str, verdict: Verdict = Verdict.DISABLED) -> RowVerdict:
    """Return the verdict on a row that a limit could not judge; by default it fails."""
    return RowVerdict(row, verdict, None, "", criterion, (f"{criterion} judged nothing: {why}",))


def complaint(verdicts: Iterable[RowVerdict]) -> str:
    """Format the verdicts that fail a test, grouped by result; empty if it passes."""
    by_row: dict[str, list[str]] = {}
    for verdict in over(verdicts):
        title = "over its limits" if verdict.verdict is Verdict.REGRESSED else "not judged"
        details = by_row.setdefault(f"{escape_controls(str(verdict.row))}: {title}", [])
        details += filter(None, (*verdict.details, verdict.remedy))
    return "\n".join("\n".join((title, *details)) for title, details in by_row.items())
