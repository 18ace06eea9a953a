"""The command that puts what a run found into a file of expected results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.core.metrics import MetricNames, MetricValue
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected import corrections, shortened
from pytest_dtdispatch.gates.expected_file import (
    ExpectedFile,
    ExpectedRow,
    checked_reason,
    read_expected,
    read_margin,
    read_results,
)


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


def update_expected(
    path: Path, results_path: Path, reason: str, new_margin: str | None, metrics: MetricNames
) -> Update:
    """Write values that are off by more than a third of their margin anew, each with the reason.

    Order, comments, blank lines and every other row stay as they are.
    """
    checked_target(path)
    try:
        reason = checked_reason(reason)
        margin = None if new_margin is None else _margin(new_margin)
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
    added = [
        replace(_new_row(result, 0.0 if result.metric in metrics.exact else margin), reason=reason)
        for result in unknown
        if margin is not None
    ]
    if changed or added:
        write_whole(path, file.with_rows([*changed, *added]))
    return Update(
        rows=len(file.rows) + len(added),
        changed=len(changed),
        added=len(added),
        unmeasured=len(known - found),
        unknown=len(unknown) - len(added),
    )


def _new_row(result: MetricValue, margin: float) -> ExpectedRow:
    return ExpectedRow(result.name, result.metric, shortened(result.value, margin), margin)


def _margin(text: str) -> float:
    try:
        return read_margin(text)
    except ValueError as error:
        raise ValueError(f"--new-margin {error}") from None
