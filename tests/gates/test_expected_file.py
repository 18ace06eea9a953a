"""Expected files and results files: parsing, errors, and unchanged content after updates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pytest_dtdispatch.core.measurement import Figures, Samples, State
from pytest_dtdispatch.core.results import MetricValue, name_in_files, plain_name, row_key, row_metrics
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.store import ResultStore
from pytest_dtdispatch.gates import expected
from pytest_dtdispatch.gates.expected import (
    ExpectedRow,
    by_name,
    checked_reason,
    parse_expected,
    parse_row,
    read_expected,
    read_results,
    results_text,
)
from pytest_dtdispatch.plugin.kinds import metric_names
from tests import pytorch_reader

METRICS = metric_names()
NAME = "t.py::test_add::add.Tensor(f32[8,8]S0, f32[8,8]S0)@4"
ROW = f'"{NAME}",dispatch_hit_ns,6940,0.25'
REASON = "a step is steady since the cache has a key for it"
FILE = f"""
# hits

{ROW}
t.py::test_step::train,misses_per_step,0,0,{REASON}
"""
NAMES = some.text(max_size=80).map(row_key).filter(bool)
METRIC, VALUE = some.sampled_from(list(METRICS)), some.integers(0, 2**63 - 1)
RESULTS = some.lists(
    some.builds(MetricValue, NAMES.map(parse_row), METRIC, VALUE),
    unique_by=lambda result: (name_in_files(result.row), result.metric),
)
ROWS = some.lists(
    some.builds(ExpectedRow, NAMES, METRIC, VALUE, some.floats(0, 1), some.just("") | NAMES.map(plain_name)),
    unique_by=lambda row: (row.name, row.metric),
)


def written(folder: Path, text: str) -> Path:
    path = folder / "expected.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def complaint(path: Path) -> str:
    with pytest.raises(ValueError, match=r"expected\.csv") as raised:
        read_expected(path, METRICS)
    message = str(raised.value)
    assert "\n" not in message
    return message.replace(str(path), "FILE")


# Reading


def test_rows_are_read_with_their_lines() -> None:
    file = parse_expected(FILE, "expected.csv", METRICS)
    assert file.rows == (
        ExpectedRow(NAME, "dispatch_hit_ns", 6940, 0.25, "", 4),
        ExpectedRow("t.py::test_step::train", "misses_per_step", 0, 0.0, REASON, 5),
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t,dispatch_hit_ns,6940", "3 fields, and a row is name,metric,expected,noise_margin"),
        ("t", "1 field, and a row is name,metric,expected,noise_margin"),
        ("t,dispatch_hit_ns,6940,0.1,why,more", "6 fields"),
        ("t,dispatch_hit_ns,-1,0.1", "expected '-1' is not a whole number from 0"),
        ("t,dispatch_hit_ns,,0.1", "expected '' is not a whole number"),
        (f"t,instruction_count,{2**64 - 1},0.1", f"expected '{2**64 - 1}' is not a whole number"),
        (f"t,instruction_count,{'9' * 5000},0.1", "is not a whole number"),
        (
            "t,dispatch_hit_ns,6940,15",
            "noise_margin '15' is not a fraction from 0 to 1, or max; 15 % is",
        ),
        ("t,dispatch_hit_ns,6940,nan", "noise_margin 'nan' is not a fraction"),
        ("t,dispatch_hit_ns,6940,0.\uff13", "noise_margin '0.\uff13' is not a fraction"),
        (",dispatch_hit_ns,6940,0.1", "the name is empty"),
        ("t,instructions,6940,0.1", f"unknown metric 'instructions'; valid: {', '.join(METRICS)}"),
        ('"t,dispatch_hit_ns,6940,0.1', "a row is one line, quoted as CSV"),
        (f"{NAME},dispatch_hit_ns,6940,0.1", "quote a name that has commas"),
        ("t,dispatch_hit_ns,\0,0.1", "this is not text: it has a zero byte"),
        (ROW, "a second row of dispatch_hit_ns of 't.py::test_add::"),
        ("x" * 10_001, "a line of more than 10,000 characters"),
        (f"{'x' * 4001},dispatch_hit_ns,1,0", "a name of more than 4,000 characters"),
    ],
)
def test_invalid_line_is_reported_with_its_number(tmp_path: Path, line: str, expected: str) -> None:
    message = complaint(written(tmp_path, f"{ROW}\n\n{line}\n"))
    assert message.startswith("FILE:3: ")
    assert expected in message
    assert len(message) < 520


@pytest.mark.parametrize("first", [ROW, "# hits", ""])
def test_byte_order_mark_is_ignored(tmp_path: Path, first: str) -> None:
    path = written(tmp_path, f"\ufeff{first}\nt,collectives,1,0\n")
    file = read_expected(path, METRICS)
    assert [row.name for row in file.rows] == [NAME, "t"] * (first == ROW) or ["t"]
    assert not file.with_rows([]).startswith("\ufeff")


def test_rows_with_long_names_are_readable(tmp_path: Path) -> None:
    found = ResultStore(f"t.py::test_add[{'x' * 20_000}]")
    for name in ("one", "two", '"' * 20_000):
        found.enter_call(name, "4", Figures(5, (Samples(State.MISS, (7,)),)))
    values = tuple(row_metrics(found.test, found.measurements()))
    path = tmp_path / "results.csv"
    path.write_text(results_text(values))
    assert by_name(read_results(path, METRICS)).keys() == by_name(values).keys()
    rows = [
        ExpectedRow(name_in_files(one.row), one.metric, 7, 0.1, '"' * expected.LONGEST_REASON)
        for one in values
    ]
    path.write_text(parse_expected("", "f", METRICS).with_rows(rows))
    assert len(read_expected(path, METRICS).rows) == 3


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expected.csv"
    assert complaint(path) == "FILE cannot be read: No such file or directory"
    path.write_bytes(f"{ROW}\n".encode() + bytes(range(256)))
    assert complaint(path) == "FILE:3: this is not UTF-8 text"
    with path.open("wb") as file:
        file.truncate(300 * 2**20)  # refused without reading
    assert complaint(path) == "FILE has more than 256 MiB"


LONG = Signature("cat.default", (tuple(f"f32[{size}]S0" for size in range(40)),), (4,), "cpu")


def test_full_signature_accompanies_its_cut_name(tmp_path: Path) -> None:
    result = MetricValue(RowId("t.py::test", str(LONG)), "dispatch_hit_ns", 6940, signature=LONG.full)
    path = written(tmp_path, results_text([result]))
    assert LONG.full in path.read_text()
    assert read_results(path, METRICS) == (result,)
    assert pytorch_reader.read_results(path) == {(name_in_files(result.row), result.metric): result.value}
    another = written(tmp_path, path.read_text().replace("f32[30]S0", "f32[99]S0"))
    for text in (another.read_text(), ROW):
        with pytest.raises(ValueError, match=r"expected\.csv:1: 4 fields, and a row is name,metric,value"):
            read_results(written(tmp_path, text), METRICS)


def test_no_written_line_exceeds_the_readable_length(tmp_path: Path) -> None:
    long = Signature("cat.default", (tuple(f"f32[{size}]S0" for size in range(4000)),), (4,), "cpu")
    result = MetricValue(RowId("t.py::test", str(long)), "dispatch_hit_ns", 6940, signature=long.full)
    assert read_results(written(tmp_path, results_text([result])), METRICS) == (
        replace(result, signature=""),
    )


# Writing


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_are_preserved(end: str) -> None:
    file = parse_expected(f"{ROW}{end}{end}# end{end}", "expected.csv", METRICS)
    text = file.with_rows([replace(file.rows[0], expected=1)])
    assert text == f'"{NAME}",dispatch_hit_ns,1,0.25{end}{end}# end{end}'


@pytest.mark.parametrize("text", ["", ROW, f"{ROW}\n", "# start\n"])
def test_added_row_has_a_separate_line(text: str) -> None:
    added = ExpectedRow("#t", "collectives", 1, 0.5, "why")
    longer = parse_expected(parse_expected(text, "f", METRICS).with_rows([added]), "f", METRICS)
    assert longer.rows[-1] == replace(added, line=len(text.splitlines()) + 1)


@settings(max_examples=40)
@given(RESULTS, ROWS)
def test_written_rows_are_readable_here_and_by_pytorch(
    tmp_path_factory: pytest.TempPathFactory, results: list[MetricValue], rows: list[ExpectedRow]
) -> None:
    path = written(tmp_path_factory.getbasetemp(), results_text(results))
    assert read_results(path, METRICS) == tuple(results)
    assert pytorch_reader.read_results(path) == {(name_in_files(r.row), r.metric): r.value for r in results}
    text = parse_expected("\n\n", "f", METRICS).with_rows(rows)
    assert parse_expected(text, "f", METRICS).rows == tuple(
        replace(row, line=line) for line, row in enumerate(rows, 3)
    )
    assert pytorch_reader.read_expected(written(path.parent, text)) == {
        (row.name, row.metric): (row.expected, row.noise_margin) for row in rows
    }


def test_reason_is_one_line_of_500_characters() -> None:
    assert checked_reason("two\nlines ") == "two lines"
    with pytest.raises(ValueError, match="a reason has 1 to 500 characters"):
        checked_reason("x" * (expected.LONGEST_REASON + 1))
