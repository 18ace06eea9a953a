"""What the gate on expected results says, as lines of a terminal, with the rows to put in their place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.gates.expected import ExpectedJudgement
from pytest_dtdispatch.gates.expected_file import ExpectedRow
from pytest_dtdispatch.report.terminal import INDENT, Text
from pytest_dtdispatch.report.verdicts import (
    COLORS,
    NOTHING_JUDGED,
    outcome,
    to_be_told,
    verdict_counts,
    wrapped,
)

MOST_NEW = 10
EMPTY = "neither the file nor the run has a row"


def expected_lines(
    judgement: ExpectedJudgement, where: str, results: str, width: int
) -> Iterator[tuple[Text, ...]]:
    """Say how many rows passed, and of each other one its verdict, its figures and the remedy."""
    counts = verdict_counts(judgement.verdicts) or (Text(EMPTY),)
    yield (*outcome(judgement.has_failed, where), *counts)
    told = to_be_told(judgement.verdicts)
    for row in told:
        if row.verdict is not Verdict.NEW:
            yield from _row_lines(row, width)
    yield from _new_lines([row for row in told if row.verdict is Verdict.NEW], width)
    if not judgement.has_compared:
        yield from wrapped(NOTHING_JUDGED, width, "red")
    if judgement.has_failed and judgement.corrections:
        yield from _correction_lines(judgement.corrections, where, results, width)


def _row_lines(row: RowVerdict, width: int) -> Iterator[tuple[Text, ...]]:
    yield Text(f"{INDENT}{row.verdict}", COLORS.get(row.verdict, "red")), Text(f" {row.row}")
    if row.criterion:
        yield from wrapped(f"{row.criterion}{_found(row)}", width, "", 2)
    if row.remedy:
        yield from wrapped(row.remedy, width, "", 2)


def _found(row: RowVerdict) -> str:
    figures = dict(row.figures)
    if not figures:
        return ""
    change = f", {figures['change_percent']:+.1f} %" if "change_percent" in figures else ""
    return f": found {figures['found']:,}{change}"


def _new_lines(rows: Sequence[RowVerdict], width: int) -> Iterator[tuple[Text, ...]]:
    for row in rows[:MOST_NEW]:
        yield Text(f"{INDENT}{row.verdict}", COLORS[row.verdict]), Text(f" {row.row}: {row.criterion}")
    if len(rows) > MOST_NEW:
        yield (Text(f"{INDENT}and {len(rows) - MOST_NEW:,} more that are new; --dtdispatch-csv writes all"),)
    if rows:
        yield from wrapped(rows[0].remedy, width, "", 2)


def _correction_lines(
    rows: Sequence[ExpectedRow], where: str, results: str, width: int
) -> Iterator[tuple[Text, ...]]:
    command = shlex.join(["dtdispatch", "expected", "update", where, "--results", results, "--reason"])
    yield from wrapped("what changed, by command or as rows to paste:", width, "")
    yield (Text(f'{INDENT * 2}{command} "..."'),)
    for row in rows:
        yield (Text(str(row)),)
