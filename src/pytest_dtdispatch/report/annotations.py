"""Rows that failed as workflow commands of GitHub Actions, which shows them in the files of a pull request.

How they are written, and that 10 errors a step are shown: "Workflow commands for GitHub Actions", and
``packages/core/src/command.ts`` of https://github.com/actions/toolkit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pytest_dtdispatch.core.metrics import row_key
from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.judgements import change_text, growth_percent
from pytest_dtdispatch.report.reported_run import ReportedRun

MOST_SHOWN = 10
LONGEST = 300  # characters of a row's name
TITLE = "dtdispatch"
NOTHING_JUDGED = "no row could be judged"


class CodeLine(NamedTuple):
    """Where a test begins: a file as the repository has it, and a line from 1."""

    file: str
    line: int


def error_commands(run: ReportedRun, places: Mapping[str, CodeLine]) -> list[str]:
    """Write an error for each row that failed, the worst first; of more than are shown say how many.

    Args:
        run: that was judged.
        places: of tests, by the names that they have in rows.
    """
    failed = [row for gate in run.gates for row in gate.failed]
    failed.sort(key=_how_bad, reverse=True)
    idle = [gate.where for gate in run.gates if gate.has_failed and not gate.failed]
    said = [command("error", {"title": TITLE}, f"{NOTHING_JUDGED} against {where}") for where in idle]
    room = MOST_SHOWN - len(said)
    if len(failed) <= room:
        return [*said, *(_of_row(row, places) for row in failed)]
    shown = failed[: room - 1]
    rest = f"and {len(failed) - len(shown):,} rows more failed: the output of the run names all"
    return [*said, *(_of_row(row, places) for row in shown), command("error", {"title": TITLE}, rest)]


def command(name: str, properties: Mapping[str, str], message: str) -> str:
    r"""Write a workflow command, so that neither a property nor the message ends it.

    Example:
        >>> command("error", {"title": "a: b, c"}, "100 %\nworse")
        '::error title=a%3A b%2C c::100 %25\\nworse'
    """
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {given}::{_data(message)}"


def _of_row(row: RowVerdict, places: Mapping[str, CodeLine]) -> str:
    place = next((place for test, place in places.items() if row.row.startswith(f"{row_key(test)}::")), None)
    at = {"file": place.file, "line": str(place.line)} if place else {}
    details = "; ".join(filter(None, (row.criterion, change_text(row), row.remedy)))
    message = ": ".join(filter(None, (cut_name(row.row, LONGEST), details)))
    return command("error", {**at, "title": f"{TITLE}: {row.verdict}"}, message)


def _how_bad(row: RowVerdict) -> tuple[int, float]:
    """Put what regressed before what is missing, by how much it did; all else comes after."""
    order = (Verdict.MISSING, Verdict.REGRESSED)
    return (order.index(row.verdict) + 1 if row.verdict in order else 0), growth_percent(row)


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
