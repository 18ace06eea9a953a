"""Pytest's last line: what failed beside tests in red, and what was not measured or decided in yellow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from _pytest import terminal

from pytest_dtdispatch.core.verdicts import Verdict

if TYPE_CHECKING:
    from pytest_dtdispatch.report.reported_run import ReportedGate

GATE_FAILED, FILE_LOST, NOT_MEASURED = "gate failed", "file not written", "not measured"


def add_failures(reporter: Any, failures: Iterable[str]) -> None:
    """Add each kind of failure with its number, and turn the line red."""
    for failure, number in Counter(failures).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        reporter.stats.setdefault("error", [])  # pytest chooses red by what kinds there are
        getattr(terminal, "_color_for_type", {})[words] = "red"
        reporter._add_stats(words, [words] * number)


def add_undecided(reporter: Any, gates: Iterable[ReportedGate | None]) -> None:
    """Add how many rows gates could not decide: each may lie on either side."""
    verdicts = (row.verdict for gate in gates if gate for row in gate.verdicts)
    if number := sum(verdict is Verdict.INCONCLUSIVE for verdict in verdicts):
        reporter._add_stats(str(Verdict.INCONCLUSIVE), [Verdict.INCONCLUSIVE] * number)


def add_not_measured(reporter: Any) -> None:
    """Add how many of the tests that passed were not measured, where nothing was."""
    if number := len(reporter.stats.get("passed", ())):
        reporter._add_stats(NOT_MEASURED, [NOT_MEASURED] * number)
