"""How tests ended: in pytest's last line what failed beside them, was not measured or not decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest
from _pytest import terminal

from pytest_dtdispatch.core.environment import NO_TORCH, has_torch
from pytest_dtdispatch.core.results import TestResults
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line

GATE_FAILED, FILE_LOST, NOT_MEASURED = "gate failed", "file not written", "not measured"
MOST_NAMES = 10
LONGEST_REASON = 300


def reason_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Return in one line why a test, or a file, failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")[:LONGEST_REASON]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines() or [report.outcome]
    # Of a file the last line says it, of an exception the first.
    return lines[0 if crash else -1].removeprefix("E ").strip()[:LONGEST_REASON]


def add_failures(reporter: Any, failures: Iterable[str]) -> None:
    """Add each kind of failure with its number, and turn the line red."""
    for failure, number in Counter(failures).items():
        words = failure if number == 1 else failure.replace(" ", "s ", 1)
        reporter.stats.setdefault("error", [])  # pytest chooses red by what kinds there are
        getattr(terminal, "_color_for_type", {})[words] = "red"
        reporter._add_stats(words, [words] * number)


def why_nothing(reporter: Any, passed: str) -> str:
    """Return why no test was measured; of those that passed, the caller knows why."""
    if reporter.config.option.collectonly:
        return "tests were only listed"
    if not has_torch():
        return NO_TORCH
    return passed if "passed" in reporter.stats else "no test passed"


def unmatched_globs(globs: Mapping[str, Sequence[str]], found: Mapping[str, TestResults]) -> Iterator[str]:
    """Name each glob of a test's ops that matches none, and the ops that ran where it was given."""
    for glob in dict.fromkeys(glob for of_test in globs.values() for glob in of_test):
        tests = [found[test] for test, of_test in globs.items() if glob in of_test and test in found]
        ran = sorted({op for results in tests for op in results.ops()})
        if ran and not any(fnmatchcase(op, glob) for op in ran):
            more = f" and {len(ran) - MOST_NAMES} more" if len(ran) > MOST_NAMES else ""
            names = ", ".join(ran[:MOST_NAMES]) + more
            yield f"no op matches {glob!r} (--dtdispatch-ops, or ops of the marker); these ran: {names}"


def unmeasured_document(tests: Sequence[str]) -> Document:
    """Lay out which tests measured nothing, and why."""
    more = [f"{len(tests) - MOST_NAMES} more tests"] if len(tests) > MOST_NAMES else []
    lines = (*tests[:MOST_NAMES], *more)
    return Document(tuple(one_line(Span(f"not measured: {line}", Tone.NOTICE)) for line in lines))
