"""How tests ended: in pytest's last line what failed beside them, was not measured or not decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import terminal

from pytest_dtdispatch.core.environment import NO_TORCH, has_torch
from pytest_dtdispatch.core.shown import many
from pytest_dtdispatch.core.verdicts import Verdict

if TYPE_CHECKING:
    from pytest_dtdispatch.report.reported_run import ReportedGate

GATE_FAILED, FILE_LOST, NOT_MEASURED = "gate failed", "file not written", "not measured"
# How files and tests end that measure nothing, by the names of pytest's terminal.
ENDS = (
    ("error", True, "file", "not collected"),
    ("error", False, "test", "failed in a fixture"),
    ("failed", False, "test", "failed before measuring"),
    ("skipped", True, "file", "skipped"),
    ("skipped", False, "test", "skipped"),
    ("xfailed", False, "test", "failed as expected"),
    ("deselected", False, "test", "deselected"),
)


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


def add_not_measured(reporter: Any, tests: Sequence[object]) -> None:
    """Add how many tests were not measured."""
    if tests:
        reporter._add_stats(NOT_MEASURED, tests)


def why_nothing(reporter: Any, passed: str) -> str:
    """Say how tests ended where none was measured; of those that passed, what the caller knows of them."""
    if reporter.config.option.collectonly:
        return "tests were only listed"
    if not has_torch():
        return NO_TORCH
    stats, said = reporter.stats, []
    for outcome, is_file, noun, words in ENDS:
        if ended := [
            one for one in stats.get(outcome, ()) if isinstance(one, pytest.CollectReport) == is_file
        ]:
            reasons = {one.longrepr[2].removeprefix("Skipped: ") for one in ended if outcome == "skipped"}
            reason = f" ({reasons.pop()})" if len(reasons) == 1 else ""
            said.append(f"{many(len(ended), noun)} {words}{reason}")
    phases = (one for outcome, ended in stats.items() if outcome for one in ended)  # "" is of setups
    ran = {phase.nodeid for phase in phases if isinstance(phase, pytest.TestReport)}
    if left := sum(item.nodeid not in ran for item in getattr(reporter._session, "items", ())):
        said.append(f"{many(left, 'test')} not run")
    if "passed" in stats:
        said.append(passed)
    return "; ".join(said) or "no test was collected"
