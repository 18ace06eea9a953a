"""Judge results against expected ones, and take over what a run found.

An improvement counts too, unless it is not to: one that nobody recorded hides the next loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, UNITS, noise_text
from pytest_dtdispatch.core.metrics import FEW_SAMPLES, MetricNames, MetricValue
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.core.world import ranks_text
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected_file import (
    ExpectedFile,
    ExpectedRow,
    checked_reason,
    parse_expected,
    read_expected,
    read_margin,
    read_results,
)

DIGITS = 4
REGRESSED = "find what made it grow, or update the expected file where the cost is wanted"
IMPROVED = "update the expected file, so that the gain cannot be lost unseen"
GONE = "nothing in this run has the name: restore the test, or take the row out of the expected file"
NOT_COUNTED = "count with --dtdispatch-metric instructions, restore the test, or take the row out"
UNEXPECTED = "the expected file has no such row: add one to gate it"


@dataclass(frozen=True)
class Update:
    """What was done to a file of expected results.

    Args:
        rows: rows that the file has now.
        changed: rows that have another value.
        added: rows that it did not have.
        unmeasured: rows that no result was given for; they stay.
        unknown: results that it has no row for.
    """

    rows: int
    changed: int
    added: int
    unmeasured: int
    unknown: int

    def __str__(self) -> str:
        """One line for who typed the command."""
        text = f"{self.changed:,} of {self.rows:,} rows changed"
        others = (
            (self.added, "added"),
            (self.unmeasured, "left alone, as the results do not have them"),
            (self.unknown, "results have no row: --new-margin adds them"),
        )
        return "".join([text, *(f", {count:,} {what}" for count, what in others if count)])


def judge_results(
    expected: Sequence[ExpectedRow], results: Sequence[MetricValue], improved_fails: bool = True
) -> Judgement:
    """Judge results against expected ones.

    Regressed is a result above ``expected * (1 + noise_margin)``, improved one below
    ``expected * (1 - noise_margin)``: the rule of PyTorch's ``check_results.py``. One whose samples scatter
    too far is inconclusive.
    """
    found = {(result.name, result.metric): result for result in results}
    known = {(row.name, row.metric) for row in expected}
    verdicts = [_judge_row(row, found.get((row.name, row.metric))) for row in expected]
    new = [
        RowVerdict(result.name, Verdict.NEW, (), UNEXPECTED, f"{result.metric} {result.value:,}")
        for result in results
        if (result.name, result.metric) not in known
    ]
    # An inconclusive row may lie on either side of its margin.
    harmless = {Verdict.PASSED, Verdict.NEW, Verdict.INCONCLUSIVE}
    if not improved_fails:
        harmless.add(Verdict.IMPROVED)
    failed = tuple(row for row in verdicts if row.verdict not in harmless)
    judgement = Judgement((*verdicts, *new), failed, any(row.figures for row in verdicts))
    if not judgement.has_failed and all(row.verdict is not Verdict.IMPROVED for row in verdicts):
        return judgement
    quiet = [result for result in results if not result.scatter]
    return replace(judgement, to_paste=tuple(map(str, corrections(expected, quiet))))


def corrections(expected: Sequence[ExpectedRow], results: Sequence[MetricValue]) -> Iterator[ExpectedRow]:
    """Give the rows that are off by more than a third of their margin, with the value found and no reason."""
    found = {(result.name, result.metric): result.value for result in results}
    for row in expected:
        value = found.get((row.name, row.metric))
        if value is not None and _is_off(row.expected, value, row.noise_margin):
            yield replace(row, expected=shortened(value, row.noise_margin), reason="")


def shortened(value: int, noise_margin: float) -> int:
    """Cut a value to four digits, unless that alone moves it by more than a third of its margin."""
    unit = 10 ** max(len(str(value)) - DIGITS, 0)
    cut = value // unit * unit
    return value if _is_off(value, cut, noise_margin) else cut


def update_expected(
    path: Path,
    results_path: Path,
    reason: str,
    new_margin: str | None,
    metrics: MetricNames,
) -> Update:
    """Write values that are off by more than a third of their margin anew, each with the reason.

    Order, comments, blank lines and every other row stay as they are.
    """
    checked_target(path)
    try:
        reason = checked_reason(reason)
        margin = None if new_margin is None else read_margin(new_margin, "--new-margin")
        is_new = margin is not None and not path.exists()
        file = ExpectedFile(str(path), "", ()) if is_new else read_expected(path, metrics)
        results = read_results(results_path, metrics)
    except ValueError as error:
        raise DtDispatchError(str(error)) from None
    known = {(row.name, row.metric) for row in file.rows}
    found = {(result.name, result.metric) for result in results}
    unknown = [result for result in results if (result.name, result.metric) not in known]
    if margin is None and not known & found:
        raise DtDispatchError(f"{results_path} has no result for any row of {path}")
    changed = [replace(row, reason=reason) for row in corrections(file.rows, results)]
    added = [] if margin is None else [_new_row(result, margin, reason, metrics) for result in unknown]
    if changed or added:
        text = file.with_rows([*changed, *added])
        try:
            parse_expected(text, str(path), metrics)
        except ValueError as error:
            raise DtDispatchError(str(error)) from None
        write_whole(path, text)
    return Update(
        rows=len(file.rows) + len(added),
        changed=len(changed),
        added=len(added),
        unmeasured=len(known - found),
        unknown=len(unknown) - len(added),
    )


def _new_row(result: MetricValue, margin: float, reason: str, metrics: MetricNames) -> ExpectedRow:
    room = 0.0 if result.metric in metrics.exact else margin
    return ExpectedRow(result.name, result.metric, shortened(result.value, room), room, reason)


def _is_off(expected: int, value: int, noise_margin: float) -> bool:
    return 3 * abs(value - expected) > _room(expected, noise_margin)


def _room(expected: int, noise_margin: float) -> Fraction:
    """How far a result may be from what is expected; exact, as floats round whole numbers above 2**53."""
    return expected * Fraction(repr(noise_margin))


def _judge_row(row: ExpectedRow, result: MetricValue | None) -> RowVerdict:
    figure = next((f", {unit.figure_name}" for unit in UNITS if row.metric in unit.metrics), "")
    criterion = f"{row.metric} {row.expected:,} +-{100 * row.noise_margin:g} %{figure}"
    if result is not None and result.ranks:
        criterion += f" on {ranks_text(result.ranks)}"
    if result is None:
        remedy = NOT_COUNTED if row.metric in INSTRUCTIONS.metrics else GONE
        return RowVerdict(row.name, Verdict.MISSING, (), remedy, criterion)
    value = result.value
    if result.scatter:
        why = f"noisy: {noise_text(result.scatter)}; run again where less else runs"
        if math.isinf(result.scatter):
            why = f"{FEW_SAMPLES}: raise --dtdispatch-max-time"
        return RowVerdict(row.name, Verdict.INCONCLUSIVE, (), why, f"{criterion}: found {value:,}")
    margin = ("margin_percent", 100 * row.noise_margin)
    figures = (("expected", row.expected), ("found", value), *_change(row.expected, value), margin)
    verdict, remedy = _place(row, value)
    return RowVerdict(row.name, verdict, figures, remedy, criterion)


def _change(expected: int, value: int) -> tuple[tuple[str, float], ...]:
    """Say how far a value is from what is expected; of nothing there is no percentage."""
    if expected == value:
        return (("change_percent", 0.0),)
    return (("change_percent", 100 * (value / expected - 1)),) if expected else ()


def _place(row: ExpectedRow, value: int) -> tuple[Verdict, str]:
    room = _room(row.expected, row.noise_margin)
    if value > row.expected + room:
        return Verdict.REGRESSED, REGRESSED
    if value < row.expected - room:
        return Verdict.IMPROVED, IMPROVED
    return Verdict.PASSED, ""
