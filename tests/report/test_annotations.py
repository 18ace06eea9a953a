"""Workflow commands, as the runner of GitHub Actions reads them."""

from __future__ import annotations

import re

from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import Document
from pytest_dtdispatch.report.run import ReportedGate, ReportedRun
from pytest_dtdispatch.report.summary import MOST_SHOWN, CodeLine, error_commands
from tests.reported_runs import HOSTILE, hostile_run

COMMAND = re.compile(r"::error ([^:]*)::(.*)")
UNESCAPED = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))


def read(line: str) -> tuple[dict[str, str], str]:
    """Read a command as ``ActionCommand.TryParseV2`` of actions/runner does."""
    found = COMMAND.fullmatch(line)
    assert found, line
    properties = dict(part.split("=", 1) for part in found[1].split(","))
    return {name: unescaped(text) for name, text in properties.items()}, unescaped(found[2])


def unescaped(text: str) -> str:
    for escape, letter in UNESCAPED:
        text = text.replace(escape, letter)
    return text


def judged(*failed: RowVerdict, has_failed: bool = True) -> ReportedRun:
    return ReportedRun(gates=(ReportedGate("e.csv", failed, has_failed, Document(), failed),))


def regressed(name: str, percent: float) -> RowVerdict:
    figures = (("expected", 100), ("found", 100 + percent), ("change_percent", percent))
    return RowVerdict(name, Verdict.REGRESSED, figures, "find why", "misses 100 +-0 %")


def test_a_row_that_failed_is_an_error_in_the_file_of_its_test() -> None:
    places = {"a, b.py::test_a[1:2]": CodeLine("dir/a, b.py", 12)}
    [line] = error_commands(judged(regressed("a, b.py::test_a[1:2]::add", 50)), places)
    properties, message = read(line)
    assert properties == {"file": "dir/a, b.py", "line": "12", "title": "dtdispatch: regressed"}
    assert message == "a, b.py::test_a[1:2]::add: misses 100 +-0 %; 100 -> 150 (+50.0 %); find why"


def test_a_row_of_a_test_that_is_not_there_has_no_file() -> None:
    [line] = error_commands(judged(RowVerdict("gone", Verdict.MISSING)), {})
    assert read(line) == ({"title": "dtdispatch: missing"}, "gone")


def test_the_worst_come_first_and_the_last_line_says_how_many_more() -> None:
    rows = [RowVerdict("gone", Verdict.MISSING), *(regressed(f"t::{n}", n) for n in range(1, 20))]
    lines = error_commands(judged(*rows), {})
    assert len(lines) == MOST_SHOWN == 10
    assert [read(line)[1].partition(":")[0] for line in lines[:9]] == ["t"] * 9
    assert "t::19: " in lines[0]
    assert read(lines[-1])[1].startswith("and 11 rows more failed")


def test_a_gate_that_judged_nothing_is_an_error_and_one_that_passed_is_none() -> None:
    assert read(error_commands(judged(), {})[0])[1] == "no row could be judged against e.csv"
    assert error_commands(judged(has_failed=False), {}) == []


def test_no_name_begins_a_command_or_a_line_of_its_own() -> None:
    lines = error_commands(hostile_run(), {name: CodeLine(name, 1) for name in HOSTILE})
    assert len(lines) == MOST_SHOWN
    for line in lines:
        properties, _ = read(line)
        assert set(properties) <= {"file", "line", "title"}
        assert line.isprintable()
        assert len(line) < 25_000
