"""What a gate says of one row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class RowVerdict:
    """What a gate says of one row, and from what.

    Args:
        row: its name.
        verdict: of the row.
        figures: what it was judged by: each a name that ends in its unit, and a number.
        remedy: what to do about it; empty where nothing is to be done.
        criterion: what it was held against, as it was typed; empty where there is one for all rows.

    Example:
        >>> judged = RowVerdict("t.py::test_add::hit", Verdict.REGRESSED, (("ratio", 1.5),), "look for it")
        >>> f"{judged.row}: {judged.verdict}, {judged.remedy}"
        't.py::test_add::hit: regressed, look for it'
    """

    row: str
    verdict: Verdict
    figures: tuple[tuple[str, float], ...] = ()
    remedy: str = ""
    criterion: str = ""
