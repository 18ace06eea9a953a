"""How tests ended: in pytest's last line what failed beside them, was not measured or not decided."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pytest
from _pytest import terminal

from pytest_dtdispatch.core.environment import NO_TORCH, has_torch
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.core.text import plural
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.plugin.settings import Settings
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line

if TYPE_CHECKING:
    from pytest_dtdispatch.report.run import ReportedGate

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
MOST_NAMES = 10
LONGEST_REASON = 300
NO_OPS = "no op on DTensors ran in the capture"


def add_failures(reporter: Any, failures: Iterable[str]) -> None:
    """Add each kind of failure with its number, and turn the line red."""
    for failure, number in Counter(failures).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        reporter.stats.setdefault("error", [])  # pytest chooses red by what kinds there are
        getattr(terminal, "_color_for_type", {})[words] = "red"
        reporter._add_stats(words, [words] * number)


def add_undecided(reporter: Any, gates: Iterable[ReportedGate]) -> None:
    """Add how many rows gates could not decide: each may lie on either side."""
    verdicts = (row.verdict for gate in gates for row in gate.verdicts)
    if number := sum(verdict is Verdict.INCONCLUSIVE for verdict in verdicts):
        reporter._add_stats(str(Verdict.INCONCLUSIVE), [Verdict.INCONCLUSIVE] * number)


def add_not_measured(reporter: Any, tests: Sequence[object]) -> None:
    """Add how many tests were not measured."""
    if tests:
        reporter._add_stats(NOT_MEASURED, tests)


def reason_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return in one line why a test, or a file, failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")[:LONGEST_REASON]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines() or [report.outcome]
    # Of a file the last line says it, of an exception the first.
    return lines[0 if crash else -1].removeprefix("E ").strip()[:LONGEST_REASON]


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
            said.append(f"{plural(len(ended), noun)} {words}{reason}")
    phases = (one for outcome, ended in stats.items() if outcome for one in ended)  # "" is of setups
    ran = {phase.nodeid for phase in phases if isinstance(phase, pytest.TestReport)}
    if left := sum(item.nodeid not in ran for item in getattr(reporter._session, "items", ())):
        said.append(f"{plural(left, 'test')} not run")
    if "passed" in stats:
        said.append(passed)
    return "; ".join(said) or "no test was collected"


class Unmeasured:
    """The globs of ops that tests were measured with, and the tests in which nothing was found.

    Attributes:
        tests: what is reported of each such test, by its name.
    """

    def __init__(self) -> None:
        self._tests: defaultdict[str, set[str]] = defaultdict(set)
        self.tests: dict[str, str] = {}

    def add(self, test: str, settings: Settings) -> None:
        """Note what is measured in a test, which runs for the first time, or anew."""
        self.tests.pop(test, None)
        for glob in settings.ops:
            self._tests[glob].add(test)

    def note_idle(self, test: str, where: str, settings: Settings, compares: bool) -> str:
        """Note a capture in which nothing ran; return an error where a gate judges what captures find."""
        self.tests[test] = f"{test}: {NO_OPS} at {where}"
        counted = KINDS["steps"].limits if settings.metric == "counts" else ()
        has_gate = settings.expected or (settings.threshold and compares)
        if has_gate or not settings.limits.keys().isdisjoint(counted):
            return f"{where}: {NO_OPS}, so the gate judged nothing"
        return ""

    def unmatched(self, found: Mapping[str, TestResults]) -> Iterator[str]:
        """Name each glob that matches no op, and the ops that ran where it was asked for."""
        for glob, tests in self._tests.items():
            ran = sorted({op for test in tests & found.keys() for op in found[test].ops()})
            if ran and not any(fnmatchcase(op, glob) for op in ran):
                more = f" and {len(ran) - MOST_NAMES} more" if len(ran) > MOST_NAMES else ""
                names = ", ".join(ran[:MOST_NAMES]) + more
                yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"

    def document(self) -> Document:
        """Name the tests in which nothing was found."""
        more = len(self.tests) - MOST_NAMES
        lines = [*self.tests.values()][:MOST_NAMES] + [f"{more} more tests"] * (more > 0)
        return Document(tuple(one_line(Span(f"not measured: {line}", Tone.NOTICE)) for line in lines))
