"""How much more a row may take, and what gates say: of a row, of a number against its limit, and of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pytest_dtdispatch.core.plain_data import Natural
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import TextEnum, escape_controls, listed

THRESHOLD_STATES = ("miss", "hit", "cold", "call", "compile-cold", "compile-warm", "eager")
THRESHOLD_FIELDS = ("min", "q1", "median", "q3", "mean")


class Verdict(TextEnum):
    """What a comparison found: that all is well, else the gravest first."""

    PASSED = "passed"
    REGRESSED = "regressed"
    MISSING = "missing"
    MISMATCHED = "mismatched"
    DISABLED = "disabled"
    CONTAMINATED = "contaminated"
    INCONCLUSIVE = "inconclusive"
    QUARANTINED = "quarantined"
    IMPROVED = "improved"
    CHANGED = "changed"  # more or fewer calls: reported, not a fault
    NEW = "new"


MAX_BLOCKS = 4  # of a row that would fail: it is measured again after a pause, three times


class Outlook(IntEnum):
    """What another measurement can change: nothing, an open verdict, a slow core's figure, a failure."""

    DECIDED, OPEN, SLOW, FAILING = range(4)


@dataclass(frozen=True)
class TimeChange:
    """Change of a time since a saved run.

    Args:
        base_ns: figure of the saved run.
        head_ns: figure of this run.
        change_percent: from the first to the second.
        low_percent: lower end of its 99 % interval.
        high_percent: upper end.
        base_samples: number of samples of the saved run.
        head_samples: number of samples of this run.
    """

    base_ns: float
    head_ns: float
    change_percent: float
    low_percent: float
    high_percent: float
    base_samples: Natural
    head_samples: Natural


@dataclass(frozen=True)
class CountChange:
    """A number beside its limit, or beside its expected value.

    Args:
        expected: the limit, or the expected value.
        found: the number.
        change_percent: from the expected value; None of a limit, and if 0 was expected.
        margin_percent: by which the number may differ; None of a limit.
    """

    expected: float
    found: float
    change_percent: float | None = None
    margin_percent: float | None = None


@dataclass(frozen=True)
class TimeShift:
    """Shift of times from base to head of an A/B run.

    Args:
        base_ns: median of the base's processes.
        head_ns: median of the head's.
        shift_percent: the Hodges-Lehmann shift.
        low_percent: lower end of its 95 % interval.
        high_percent: upper end.
        p: of the rank test.
        smallest_percent: the smallest slow-down that the comparison can detect.
        plain_percent: shift of the op on plain tensors; None if it was not measured.
    """

    base_ns: float
    head_ns: float
    shift_percent: float
    low_percent: float
    high_percent: float
    p: float
    smallest_percent: float
    plain_percent: float | None = None


@dataclass(frozen=True)
class NumberShift:
    """Shift of numbers from base to head of an A/B run: minimum and maximum of the processes of each side.

    Args:
        base_least: minimum of the base.
        base_most: maximum of the base.
        head_least: minimum of the head.
        head_most: maximum of the head.
        shift_percent: from minimum to minimum; None of exact numbers.
        low_percent: smallest shift between any two processes.
        high_percent: largest shift between any two processes.
        plain_percent: shift of the op on plain tensors; None if it was not measured.
    """

    base_least: float
    base_most: float
    head_least: float
    head_most: float
    shift_percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    plain_percent: float | None = None


SideChange = TimeShift | NumberShift


@dataclass(frozen=True)
class RowVerdict:
    """Verdict of a gate on one row, with its figures.

    Args:
        row: that was judged; it has a state if a gate compared its samples.
        verdict: of the row.
        change: by which it was judged; None if nothing was compared.
        remedy: what to do about it; empty where nothing is to be done.
        criterion: threshold or limit as the user wrote it, and the statistic; empty if all rows have the
            same.
        details: lines on the finding and its parts.
        is_strict: whether the run fails where the row is inconclusive.
        lines: source lines that caused it, such as ``train.py:41``.
    """

    row: RowId
    verdict: Verdict
    change: TimeChange | CountChange | TimeShift | NumberShift | None = None
    remedy: str = ""
    criterion: str = ""
    details: tuple[str, ...] = ()
    is_strict: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Threshold:
    """The most that one figure of a row may grow.

    Args:
        state: of the rows it holds for; of every state where empty.
        field: which figure: ``min``, ``q1``, ``median``, ``q3`` or ``mean``.
        fraction: growth that is still allowed: 0.1 is 10 %.
        is_strict: whether the run fails where the row is inconclusive.
    """

    state: str
    field: str
    fraction: float
    is_strict: bool = False

    def __str__(self) -> str:
        return f"{self.figure}:{self.fraction * 100:g}%{',strict' * self.is_strict}"

    @property
    def figure(self) -> str:
        """What may not grow: ``median``, or of one state ``hit=median``."""
        return f"{self.state}={self.field}" if self.state else self.field


def thresholds_of(state: str, thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """Choose what holds for a row: for each field the threshold of its state, else the one of every state."""
    chosen: dict[str, Threshold] = {}
    for threshold in sorted(thresholds, key=lambda threshold: bool(threshold.state)):
        if threshold.state in ("", state):
            chosen[threshold.field] = threshold
    return tuple(chosen.values())


LIMITS = "limits"  # what the gate of limits compares with
FAILING = {
    Verdict.REGRESSED,
    Verdict.MISSING,
    Verdict.DISABLED,
    Verdict.MISMATCHED,
    Verdict.CONTAMINATED,
}
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
    """What a gate says of a whole run.

    Args:
        verdicts: of each row.
        where: the baseline: a file.
        failed: rows that fail the run.
        has_compared: whether any row was compared; otherwise the run fails.
        remarks: lines below the rows.
        to_paste: rows of the file with which the found values pass.
        command: shell command that writes these rows.
        since: when the baseline was set, as ``2026-07-31``; empty where that is not known.
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


def judged(
    verdicts: Sequence[RowVerdict], improved_fails: bool = False, remarks: tuple[str, ...] = ()
) -> Judgement:
    """Return the judgement of a run by its rows; it fails if none was compared."""
    has_compared = any(row.verdict in COMPARED for row in verdicts)
    failed = tuple(over(verdicts, improved_fails))
    return Judgement(tuple(verdicts), "", failed, has_compared, remarks)


def not_judged(verdict: Verdict, why: str, remedy: str = "") -> Judgement:
    """Return one verdict on the whole run: why nothing could be judged."""
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
        name: of the result; its test is added when the verdict is recorded.
        limit: name of the limit.
        most: that is allowed.
        found: in the result.
        what: says what was found, in a few words.
        consists_of: what is counted.
        lines: source lines of these.

    Example:
        >>> judge_count("model", "blocks", 11, 12, "there are 12").details
        ('blocks=11, and there are 12',)
    """
    row, criterion = RowId("", name), f"{limit}={most}"
    change = CountChange(most, found)
    if found <= most:
        return RowVerdict(row, Verdict.PASSED, change, "", criterion)
    details = (f"{criterion}, and {what}", *listed(consists_of))
    return RowVerdict(row, Verdict.REGRESSED, change, "", criterion, details, lines=tuple(lines))


def unjudged(row: RowId, criterion: str, why: str, verdict: Verdict = Verdict.DISABLED) -> RowVerdict:
    """Return a verdict on a row that a limit could not judge, which never passes."""
    return RowVerdict(row, verdict, None, "", criterion, (f"{criterion} judged nothing: {why}",))


def complaint(verdicts: Iterable[RowVerdict]) -> str:
    """Say what a test fails by, result by result; empty where it passes."""
    by_row: dict[str, list[str]] = {}
    for verdict in over(verdicts):
        title = "over its limits" if verdict.verdict is Verdict.REGRESSED else "not judged"
        by_row.setdefault(f"{escape_controls(str(verdict.row))}: {title}", []).extend(
            filter(None, (*verdict.details, verdict.remedy))
        )
    return "\n".join("\n".join((title, *details)) for title, details in by_row.items())
