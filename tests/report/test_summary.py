"""The summary of a CI job, as GitHub splits its Markdown."""

from __future__ import annotations

import re
from itertools import groupby

import pytest

from pytest_dtdispatch.core.files import SUMMARY, form_of
from pytest_dtdispatch.core.measurement import INSTRUCTIONS, Samples, State
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import Document, one_line
from pytest_dtdispatch.report.run import ReportedGate, ReportedRun
from pytest_dtdispatch.report.summary import MOST_BYTES, MOST_ROWS, stopped_summary, summary
from tests.reported_runs import ADD, hostile_run, row, run_of

# A pipe ends a cell unless a backslash stands before it that is not itself escaped: GitHub's cmark-gfm.
CELL_END = re.compile(r"(?:\\.|[^\\|])*\|")
PASSED = RowVerdict("t.py::ok", Verdict.PASSED, (("expected", 4), ("found", 4)))
SLOWER = RowVerdict(
    "t.py::slow",
    Verdict.REGRESSED,
    (("base_ns", 7000.0), ("head_ns", 8400.0), ("ratio", 1.2)),
    "find what slowed it",
    "median:10%",
)
GONE = RowVerdict("t.py::gone", Verdict.MISSING, (), "restore the test", "misses 4 +-0 %")


def gate(*verdicts: RowVerdict, where: str = "expected.csv") -> ReportedGate:
    failed = tuple(row for row in verdicts if row.verdict is not Verdict.PASSED)
    return ReportedGate(where, verdicts, bool(failed), Document((one_line("all that it said"),)), failed)


def tables_of(text: str) -> list[list[str]]:
    grouped = groupby(text.splitlines(), key=lambda line: line.startswith("|"))
    return [list(lines) for is_table, lines in grouped if is_table]


def folded_titles(text: str) -> list[str]:
    return re.findall("<summary>(.*)</summary>", text)


def test_the_verdict_comes_first_and_what_changed_second() -> None:
    text = summary(run_of(gates=(gate(PASSED, GONE, SLOWER),), environment={"torch": "2.13"}))
    assert form_of(text) == SUMMARY
    lines = text.splitlines()
    assert lines[0] == "## dtdispatch: failed, 1 passed, 1 regressed, 1 missing"
    assert lines[2:6] == [
        "| row | verdict | change | held against | of |",
        "| --- | --- | --- | --- | --- |",
        r"| `t.py::slow` | regressed | 7.00 -\> 8.40 us (+20.0 %) | median:10% | expected.csv |",
        "| `t.py::gone` | missing | - | misses 4 +-0 % | expected.csv |",
    ]
    assert lines[7:9] == ["* regressed: find what slowed it", "* missing: restore the test"]
    titles = ["Signatures and calls", "Environment", "All that the gate said: expected.csv"]
    assert folded_titles(text) == titles


def test_a_run_that_passed_lists_no_row() -> None:
    text = summary(run_of(gates=(gate(PASSED),)))
    assert text.startswith("## dtdispatch: passed, 1 passed\n\n<details>")
    drifted = RowVerdict("t.py::up", Verdict.PASSED, (("change_percent", 6.5),), "", "hits 100 +-10 %")
    lines = summary(run_of(gates=(gate(drifted),))).splitlines()
    assert lines[2] == "drift of 1 passed row: median +6.5 %"
    assert summary(run_of()).startswith("## dtdispatch: measured, 2 results, held against nothing\n")


def test_the_budget_comes_before_the_table_and_counts_after_it() -> None:
    kinds = ("steps", "budget", "own")
    text = summary(run_of(documents={kind: Document((one_line(kind),)) for kind in kinds}))
    titles = ["Budget of each step", "Signatures and calls", "Counts of each step", "Own"]
    assert folded_titles(text) == titles


def test_counts_of_instructions_are_in_the_table_of_rows() -> None:
    text = summary(run_of(row(ADD, Samples(State.HIT, (66_000,), unit=INSTRUCTIONS))))
    assert f"| `{ADD}` | - | - | 66,000 |" in text


def test_no_name_breaks_a_table_or_is_markup() -> None:
    text = summary(hostile_run())
    assert len(tables_of(text)) > 10
    for lines in tables_of(text):
        assert len({len(CELL_END.findall(line)) for line in lines}) == 1, lines
    outside = re.sub(r"`[^`\n]*`|\\.", "", text)
    assert set(re.findall("<[^>]*>", outside)) == {"<details>", "</details>", "<summary>", "</summary>"}
    assert outside.count("<details>") == outside.count("</details>") == len(folded_titles(text))
    assert not re.search("^ *</?(script|img|details>.)", text, re.MULTILINE)
    assert all(line.isprintable() for line in text.splitlines())


@pytest.mark.parametrize("room", [MOST_BYTES, 300_000, 60_000])
def test_sections_that_do_not_fit_are_left_out_whole_and_named(room: int) -> None:
    rows = [row(f"op{n}.default({'f32[8]R, ' * 10}f32[8]S0)@4") for n in range(6_000)]
    number = (MetricValue("t.py::test_a::train", "misses_per_step", 3),)
    run = run_of(*rows, numbers=number, environment={"torch": "2.13"}, gates=(gate(GONE),))
    text = summary(run, room)
    assert len(text.encode()) <= room
    assert text.startswith("## dtdispatch: failed, 1 missing")
    assert text.count("<details>") == text.count("</details>")
    assert "Environment" in folded_titles(text)
    assert "Signatures and calls" not in folded_titles(text)
    left_out = f"Left out, as a summary has room for {room / 1024:,.0f} KiB: Signatures and calls."
    assert text.splitlines()[-1] == left_out


def test_what_changed_is_listed_as_far_as_it_is_read() -> None:
    many = [RowVerdict(f"t.py::{n}", Verdict.MISSING) for n in range(MOST_ROWS + 5)]
    text = summary(ReportedRun(gates=(gate(*many),), numbers=(MetricValue("t", "misses_per_step", 1),)))
    assert len(tables_of(text)[0]) == MOST_ROWS + 2
    assert "and 5 rows more" in text


def test_a_run_that_stopped_has_a_summary_too() -> None:
    text = stopped_summary("the run stopped after 1 of 3 tests")
    assert form_of(text) == SUMMARY
    assert text == "## dtdispatch: no results\n\nthe run stopped after 1 of 3 tests\n"
