"""Judge numbers against limits, which hold for each result as soon as it is there: exactly, without noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_dtdispatch.core.results import listed
from pytest_dtdispatch.core.text import escape_controls
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict

FAILING = (Verdict.REGRESSED, Verdict.MISSING, Verdict.DISABLED)


def over(verdicts: Iterable[RowVerdict]) -> list[RowVerdict]:
    """Choose what a test fails by."""
    return [row for row in verdicts if row.verdict in FAILING]


def judge_count(
    row: str, limit: str, most: int, found: int, what: str, consists_of: Sequence[object] = ()
) -> RowVerdict:
    """Hold a number against the most that it may be.

    Args:
        row: name of the result.
        limit: name of the limit.
        most: that is allowed.
        found: in the result.
        what: says what was found, in a few words.
        consists_of: what is counted.

    Example:
        >>> judge_count("model", "blocks", 11, 12, "there are 12").details
        ('blocks=11, and there are 12',)
    """
    criterion = f"{limit}={most}"
    figures = (("expected", most), ("found", found))
    if found <= most:
        return RowVerdict(row, Verdict.PASSED, figures, "", criterion)
    details = (f"{criterion}, and {what}", *listed(consists_of))
    return RowVerdict(row, Verdict.REGRESSED, figures, "", criterion, details)


def unjudged(row: str, criterion: str, why: str, verdict: Verdict = Verdict.DISABLED) -> RowVerdict:
    """Say why a limit judged nothing, which never passes."""
    return RowVerdict(row, verdict, (), "", criterion, (f"{criterion} judged nothing: {why}",))


def complaint(verdicts: Iterable[RowVerdict]) -> str:
    """Say what a test fails by, result by result; empty where it passes."""
    by_row: dict[str, list[str]] = {}
    for verdict in over(verdicts):
        title = "over its limits" if verdict.verdict is Verdict.REGRESSED else "not judged"
        by_row.setdefault(f"{escape_controls(verdict.row)}: {title}", []).extend(
            filter(None, (*verdict.details, verdict.remedy))
        )
    return "\n".join("\n".join((title, *details)) for title, details in by_row.items())
