"""Parts of row names that contain ``::`` survive every output; outputs take linear time."""

from __future__ import annotations

import cProfile
import csv
import html
import io
import re
from collections.abc import Callable

import pytest

from pytest_dtdispatch.ab.report import run_document
from pytest_dtdispatch.ab.rule import Rule
from pytest_dtdispatch.ab.run import judge_runs
from pytest_dtdispatch.comparing.model import COUNTS
from pytest_dtdispatch.core.measurement import Contains, Samples, State
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.gates.expected import parse_row, results_text
from pytest_dtdispatch.plugin.finish import properties
from pytest_dtdispatch.report.document import Document, Table
from pytest_dtdispatch.report.history import runs_document
from pytest_dtdispatch.report.page import html_page
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.summary import summary
from pytest_dtdispatch.steps.table import KIND as STEPS
from tests.reported_runs import HITS, measured

TESTS = ("t.py::test_a", "t.py::test_a[x::y]", "t.py::TestA::test_b[::]")
LABELS = ("add", "block::add", "a::b::hit", "drift +-5% of mul")


def run_of(test: str, label: str) -> ReportedRun:
    row = measured(label, Samples(State.HIT, HITS), contains=Contains.END_TO_END)
    return ReportedRun(measured={test: (row,)})


def lines_of(document: Document) -> list[RowId]:
    tables = [block for block in document.blocks if isinstance(block, Table)]
    groups = [group for table in tables for group in table.groups]
    return [
        RowId(group.title, line.label, str(next(iter(line.cells.values()))))
        for group in groups
        for line in group.lines
    ]


def of_csv(test: str, label: str) -> RowId:
    [[name, *_]] = csv.reader(io.StringIO(results_text(run_of(test, label).metrics())))
    return parse_row(name, TESTS)


def of_junit(test: str, label: str) -> RowId:
    [name] = [name for name, _ in properties(run_of(test, label)) if name.startswith("dtdispatch.dispatch_")]
    return parse_row(name.removeprefix("dtdispatch.dispatch_hit_ns."), TESTS)


def of_markdown(test: str, label: str) -> RowId:
    text = summary(run_of(test, label))
    [title] = re.findall(r"^\*\*(.*) \(end to end from Python, autograd included\)\*\*$", text, re.MULTILINE)
    [name] = re.findall(r"^\| `([^`]*)` \|", text, re.MULTILINE)
    return RowId(re.sub(r"\\(.)", r"\1", title), name)


def of_html(test: str, label: str) -> RowId:
    _, table = html_page(run_of(test, label)).split("<table", 1)
    title, name, *_ = (html.unescape(text) for text in re.findall("<bdi>(.*?)</bdi>", table))
    return RowId(title.removesuffix(f" ({Contains.END_TO_END})"), name)


def of_report(test: str, label: str) -> RowId:
    _, row = lines_of(runs_document([run_of(test, label)]))  # below the table of runs
    return row._replace(state=None)


@pytest.mark.parametrize("read", [of_csv, of_junit, of_markdown, of_html, of_report])
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("test", TESTS)
def test_parts_of_names_round_trip(test: str, label: str, read: Callable[[str, str], RowId]) -> None:
    assert read(test, label) == RowId(test, label)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("test", TESTS)
def test_parts_of_names_round_trip_through_ab(test: str, label: str) -> None:
    runs = [run_of(test, label)] * 5
    judged = judge_runs(runs, runs, Rule())
    row = RowId(test, label, "hit")
    assert lines_of(run_document(judged)) == [row]
    assert [one.row for one in judged.verdicts] == [row]


def calls_of_exports(tests: int) -> int:
    """Return the number of Python and C calls of four outputs of a run with this many tests."""
    names = [f"t.py::test_step[{n}]" for n in range(tests)]
    numbers = tuple(
        MetricValue(RowId(test, "step"), metric, 3) for test in names for metric in (*STEPS.metrics, *COUNTS)
    )
    row = (measured("a", Samples(State.HIT, HITS)),)
    run = ReportedRun(measured=dict.fromkeys(names, row), numbers=numbers)
    with cProfile.Profile() as profile:
        outputs = results_text(run.metrics()), summary(run), html_page(run), [*properties(run)]
    assert all(outputs)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
def test_exports_are_linear_in_the_number_of_tests() -> None:
    calls_of_exports(10)  # fills caches
    assert calls_of_exports(800) <= 4.5 * calls_of_exports(200)
