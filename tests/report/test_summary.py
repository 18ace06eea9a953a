"""Output for CI: the summary, parsed like GitHub's Markdown, and commands, parsed like its runner."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from pytest_dtdispatch.core.verdicts import CountChange, Judgement, RowVerdict, TimeChange, Verdict
from pytest_dtdispatch.plugin.kinds import KINDS
from pytest_dtdispatch.report.document import Document, one_line
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.summary import (
    MAX_BYTES,
    error_commands,
    stopped_summary,
    summary,
)
from tests.reported_runs import (
    ADVICE,
    BUDGET,
    COUNTED,
    HOSTILE,
    OWN,
    Shown,
    hostile_run,
    results_of,
    row,
    run_of,
)
from tests.row_ids import number, row_id

# In GitHub's cmark-gfm, a pipe ends a cell unless preceded by an unescaped backslash.
CELL_END = re.compile(r"(?:\\.|[^\\|])*\|")
PASSED = RowVerdict(row_id("t.py::ok"), Verdict.PASSED, CountChange(4, 4))
DRIFTED = RowVerdict(row_id("t.py::up"), Verdict.PASSED, CountChange(100, 106, 6.5), "", "hits 100 +-10 %")
SLOW = TimeChange(7000.0, 8400.0, 20.0, 19.0, 20)
SLOWER = RowVerdict(row_id("t.py::slow"), Verdict.REGRESSED, SLOW, "find what slowed it", "median:10%")
GONE = RowVerdict(row_id("t.py::gone"), Verdict.MISSING, None, "restore the test", "misses 4 +-0 %")


def gate(*verdicts: RowVerdict) -> Judgement:
    failed = tuple(row for row in verdicts if row.verdict is not Verdict.PASSED)
    return Judgement(verdicts, "expected.csv", failed, bool(verdicts))


def tables_of(text: str) -> list[list[str]]:
    grouped = groupby(text.splitlines(), key=lambda line: line.startswith("|"))
    return [list(lines) for is_table, lines in grouped if is_table]


def folded_titles(text: str) -> list[str]:
    return re.findall("<summary>(.*)</summary>", text)


def test_verdict_comes_first_and_changed_rows_second(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = gate(PASSED, GONE, SLOWER)
    monkeypatch.setitem(KINDS, "own", OWN)
    results = results_of(COUNTED, BUDGET, Shown("x", Document((one_line("own"),))))
    text = summary(run_of(gates=(judged,), environment={"torch": "2.13"}, results=results))
    lines = text.splitlines()
    assert lines[0] == "## dtdispatch: failed, 1 passed, 1 regressed, 1 missing"
    assert lines[2:6] == [
        "| row | verdict | line | change | compared with | of |",
        "| --- | --- | --- | --- | --- | --- |",
        r"| `t.py::slow` | regressed | - | 7.00 -\> 8.40 us (+20.0 %) | median:10% | expected.csv |",
        "| `t.py::gone` | missing | - | - | misses 4 +-0 % | expected.csv |",
    ]
    assert lines[7:9] == ["* regressed: find what slowed it", "* missing: restore the test"]
    assert folded_titles(text) == [
        *("Budget of each step", "Signatures and calls", "Counts of each step", "Own", "Environment"),
        "Full output of the gate: expected.csv",
    ]


@pytest.mark.parametrize(
    ("gates", "begins"),
    [
        ((gate(PASSED),), "## dtdispatch: passed, 1 passed\n\n1 row in 1 test, taken at an unknown time\n"),
        ((gate(DRIFTED),), "## dtdispatch: passed, 1 passed\n\ndrift of 1 passed row: median +6.5 %\n"),
        ((), "## dtdispatch: measured, compared with nothing\n\n1 row in 1 test, taken"),
    ],
)
def test_passed_run_lists_no_rows(gates: tuple[Judgement, ...], begins: str) -> None:
    assert summary(run_of(gates=gates)).startswith(begins)


def test_changes_worth_making_precede_the_sections() -> None:
    run = run_of(results=results_of(COUNTED, replace(BUDGET, advice=(ADVICE,))), environment={"CPU": "a CPU"})
    head, _, sections = summary(run).partition("<details>")
    assert head.splitlines()[2:10:2] == [
        "1 row and 2 results in 2 tests, taken at an unknown time",
        "a CPU",
        "worst: dispatch, 60% of train",
        "**CPU time: do it once**",
    ]
    assert head.count(ADVICE.seen) == 1
    assert ADVICE.seen not in sections
    many = tuple(replace(ADVICE, seen=f"x{n}") for n in range(30))
    assert "and 11 more lines of advice" in summary(run_of(results=results_of(replace(COUNTED, advice=many))))


def test_remarks_on_a_failed_gate_are_not_folded() -> None:
    failed = replace(gate(regressed("t.py::slow", 20)), remarks=("not in base.json: add at layers.py:6",))
    passed = replace(gate(replace(SLOWER, verdict=Verdict.PASSED)), remarks=("no causes",))
    head, _, _ = summary(ReportedRun(gates=(failed, passed))).partition("<details>")
    assert "* not in base.json: add at layers.py:6" in head.splitlines()
    assert "no causes" not in head


def test_hostile_names_break_no_table() -> None:
    text = summary(hostile_run())
    assert len(tables_of(text)) > 10
    for lines in tables_of(text):
        assert len({len(CELL_END.findall(line)) for line in lines}) == 1, lines
    outside = re.sub(r"`[^`\n]*`|\\.", "", text)
    assert set(re.findall("<[^>]*>", outside)) == {"<details>", "</details>", "<summary>", "</summary>"}
    assert outside.count("<details>") == outside.count("</details>") == len(folded_titles(text))
    assert not re.search("^ *</?(script|img|details>.)", text, re.MULTILINE)
    assert all(line.isprintable() for line in text.splitlines())


def test_sections_without_room_are_omitted_and_named() -> None:
    rows = [row(f"op{n}.default({'f32[8]R, ' * 10}f32[8]S0)@4") for n in range(600)]
    text = summary(run_of(*rows, environment={"torch": "2.13"}, gates=(gate(GONE),)), room=60_000)
    assert len(text.encode()) <= 60_000 < MAX_BYTES == 2**20
    assert text.startswith("## dtdispatch: failed, 1 missing")
    assert folded_titles(text) == ["Environment", "Full output of the gate: expected.csv"]
    assert text.endswith("Left out, as a summary has room for 59 KiB: Signatures and calls.\n")


def test_changed_rows_are_listed_up_to_a_maximum() -> None:
    many = [RowVerdict(row_id(f"t.py::{n}"), Verdict.MISSING) for n in range(105)]
    text = summary(ReportedRun(gates=(gate(*many),), numbers=(number("t", "misses_per_step", 1),)))
    assert len(tables_of(text)[0]) == 102
    assert "and 5 more rows" in text


def test_stopped_run_has_a_summary() -> None:
    text = stopped_summary("the run stopped after 1 of 3 tests")
    assert text == "## dtdispatch: no results\n\nthe run stopped after 1 of 3 tests\n"


# Annotations

COMMAND = re.compile(r"::error ([^:]*)::(.*)")
UNESCAPED = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))


def read(line: str) -> tuple[dict[str, str], str]:
    """Parse a command like ``ActionCommand.TryParseV2`` of actions/runner."""
    found = COMMAND.fullmatch(line)
    assert found, line
    properties = dict(part.split("=", 1) for part in found[1].split(","))
    return {name: unescaped(text) for name, text in properties.items()}, unescaped(found[2])


def unescaped(text: str) -> str:
    for escape, letter in UNESCAPED:
        text = text.replace(escape, letter)
    return text


def regressed(name: str, percent: float) -> RowVerdict:
    change = CountChange(100, 100 + percent, percent)
    return RowVerdict(row_id(name), Verdict.REGRESSED, change, "find why", "misses 100 +-0 %")


def errors(*verdicts: RowVerdict, **tests_at: tuple[str, int]) -> list[tuple[dict[str, str], str]]:
    return [*map(read, error_commands((gate(*verdicts),), tests_at))]


def test_failed_row_is_an_error_at_its_test() -> None:
    tests_at = {"a, b.py::test_a[1:2]": ("dir/a, b.py", 12)}
    gone = RowVerdict(row_id("gone"), Verdict.MISSING)
    one, other = errors(regressed("a, b.py::test_a[1:2]::add", 50), gone, **tests_at)
    at = {"file": "dir/a, b.py", "line": "12", "title": "dtdispatch: regressed"}
    assert one == (at, "a, b.py::test_a[1:2]::add: misses 100 +-0 %; 100 -> 150 (+50.0 %); find why")
    assert other == ({"title": "dtdispatch: missing"}, "gone")
    assert errors()[0][1] == "no row could be judged against expected.csv"
    assert errors(PASSED) == []


def test_failed_row_is_error_at_source_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "layers.py").touch()
    monkeypatch.chdir(tmp_path / "src")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    row = replace(regressed("t.py::test", 50), lines=("/lib/torch/adam.py:7", "gone.py:1", "layers.py:31"))
    [(at, _)] = errors(row, **{"t.py": ("t.py", 2)})
    assert (at["file"], at["line"]) == ("src/layers.py", "31")


def test_worst_errors_come_first_and_remainder_is_counted() -> None:
    lines = errors(
        RowVerdict(row_id("gone"), Verdict.MISSING), *(regressed(f"t::{n}", n) for n in range(1, 20))
    )
    assert len(lines) == 10
    assert [message.partition(":")[0] for _, message in lines[:9]] == ["t"] * 9
    assert lines[0][1].startswith("t::19: ")
    assert lines[-1][1].startswith("and 11 more rows failed")


def test_idle_gates_leave_no_room_for_failed_rows() -> None:
    lines = error_commands((*[gate()] * 10, gate(regressed("t::a", 9), regressed("t::b", 8))), {})
    assert len(lines) == 11
    assert read(lines[-1])[1].startswith("and 2 more rows failed")


def test_hostile_names_start_no_command_or_line() -> None:
    lines = error_commands(hostile_run().gates, {name: (name, 1) for name in HOSTILE})
    assert len(lines) == 10
    for line in lines:
        assert set(read(line)[0]) <= {"file", "line", "title"}
        assert line.isprintable()
        assert len(line) < 25_000
