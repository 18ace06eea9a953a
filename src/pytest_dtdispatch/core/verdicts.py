"""How much slower a row may become, and what a gate says of it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Any

THRESHOLD_STATES = ("miss", "hit", "cold", "call", "compile-cold", "compile-warm", "eager")
STRICT = ",strict"  # behind a percentage
THRESHOLD_FIELDS = ("min", "q1", "median", "q3", "mean")
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


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
class Drift:
    """How far a row has moved since its baseline was set.

    Args:
        percent: of the baseline; above 0 where the row has grown.
        interval: that the row was judged by, its lower and its upper end in percent; None where it was held
            against a margin.
    """

    percent: float
    interval: tuple[float, float] | None = None

    @property
    def is_noise(self) -> bool:
        """Whether the interval takes in that nothing has moved."""
        return self.interval is not None and self.interval[0] <= 0 <= self.interval[1]


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

    @property
    def drift(self) -> Drift | None:
        """How far the row has moved since its baseline was set; None where its figures do not say."""
        figures = dict(self.figures)
        if "change_percent" not in figures:
            return None
        low, high = figures.get("change_low_percent"), figures.get("change_high_percent")
        interval = None if low is None or high is None else (low, high)
        return Drift(figures["change_percent"], interval)


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


def read_decimal(text: str) -> float:
    """Read a number as this package writes it, in ASCII digits: Python's own reader takes ``3_0`` for 30.

    Raises:
        ValueError: the text is no such number.

    Example:
        >>> read_decimal("7.5"), read_decimal(" 1e-3 ")
        (7.5, 0.001)
    """
    if not DECIMAL.fullmatch(text.strip()):
        raise ValueError("a number")
    return float(text)


def thresholds_of(state: str, thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """Choose what holds for a row: for each field the threshold of its state, else the one of every state."""
    chosen: dict[str, Threshold] = {}
    for threshold in sorted(thresholds, key=lambda threshold: bool(threshold.state)):
        if threshold.state in ("", state):
            chosen[threshold.field] = threshold
    return tuple(chosen.values())


def read_thresholds(value: Any) -> tuple[Threshold, ...]:
    """Read thresholds: ``median:10%``, ``hit=median:7.5%,strict``, or ``10%`` of the median; one or more."""
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, (tuple, list)) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError('thresholds, such as "10%" or "hit=median:7.5%"')
    thresholds = tuple(map(_read_threshold, texts))
    [(figure, times)] = Counter(threshold.figure for threshold in thresholds).most_common(1)
    if times > 1:
        raise ValueError(f"thresholds that differ in state or field: {figure} is given twice")
    return thresholds


def _read_threshold(text: str) -> Threshold:
    is_strict = text.endswith(STRICT)
    text = text.removesuffix(STRICT)
    head, has_field, percent = text.rpartition(":")
    if not has_field:
        head, _, percent = text.rpartition("=") if "=" in text else ("", "", text)
        head += "=median" if head else "median"
    state, has_state, field = head.rpartition("=")
    example = "[STATE=]FIELD:PERCENT, such as median:10% or hit=median:7.5%"
    if has_state and state not in THRESHOLD_STATES:
        raise ValueError(f"{example}: the state is one of {', '.join(THRESHOLD_STATES)}, not {state!r}")
    if field not in THRESHOLD_FIELDS:
        raise ValueError(f"{example}: the field is one of {', '.join(THRESHOLD_FIELDS)}, not {field!r}")
    try:
        fraction = read_decimal(percent.removesuffix("%")) / 100
    except ValueError:
        fraction = 0.0
    is_number = 0 < fraction <= 100
    if is_number and not percent.endswith("%"):
        raise ValueError(f"{example}: write {percent.strip()}%")
    if not is_number:
        raise ValueError(f"{example}: the percentage is above 0% and at most 10000%, not {percent!r}")
    return Threshold(state, field, fraction, is_strict)
