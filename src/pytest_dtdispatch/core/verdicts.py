"""How much slower a row may become, and what a gate says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

THRESHOLD_STATES = ("miss", "hit", "cold", "call", "compile-cold", "compile-warm", "eager")
STRICT = ",strict"  # behind a percentage
THRESHOLD_FIELDS = ("min", "q1", "median", "q3", "mean")


class Verdict(str, Enum):
    """What a comparison found."""

    PASSED = "passed"
    REGRESSED = "regressed"
    IMPROVED = "improved"
    NEW = "new"
    MISSING = "missing"
    INCONCLUSIVE = "inconclusive"
    CONTAMINATED = "contaminated"
    MISMATCHED = "mismatched"
    DISABLED = "disabled"

    __str__ = str.__str__


@dataclass(frozen=True)
class RowVerdict:
    """What a gate says of one row, and from what.

    Args:
        row: its name.
        verdict: of the row.
        figures: what it was judged by: each a name that ends in its unit, and a number. Where the baseline is
            a file, ``change_percent`` is how far the row has moved since that was set.
        remedy: what to do about it; empty where nothing is to be done.
        criterion: what it was held against, as it was typed, and what statistic of the row; empty where
            there is one for all rows.
        details: lines that say what was found, and what it consists of.
        is_strict: whether the run fails where the row is inconclusive.
    """

    row: str
    verdict: Verdict
    figures: tuple[tuple[str, float], ...] = ()
    remedy: str = ""
    criterion: str = ""
    details: tuple[str, ...] = ()
    is_strict: bool = False


@dataclass(frozen=True)
class Judgement:
    """What a gate says of a whole run.

    Args:
        verdicts: of each row.
        failed: rows that the run must fail by.
        has_compared: whether any row was held against what it should be; the run fails where none was.
        remarks: what is said below the rows.
        warnings: what must be known, although nothing fails by it.
        to_paste: rows of a file as they must be for what was found to pass.
        command: that writes these rows.
        since: when the baseline was set, as ``2026-07-31``; empty where that is not known.
    """

    verdicts: tuple[RowVerdict, ...]
    failed: tuple[RowVerdict, ...] = ()
    has_compared: bool = True
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    to_paste: tuple[str, ...] = ()
    command: str = ""
    since: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the run must fail, because of rows or because nothing was compared."""
        return bool(self.failed) or not self.has_compared


def not_judged(verdict: Verdict, why: str, remedy: str = "") -> Judgement:
    """Say of every row at once why it could not be judged."""
    row = RowVerdict(why, verdict, (), remedy)
    return Judgement((row,), (row,), has_compared=False)


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
        return f"{self.figure}:{self.fraction * 100:g}%{STRICT * self.is_strict}"

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
