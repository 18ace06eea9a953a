"""Every sample of a run as tidy CSV."""

from __future__ import annotations

import csv
import io

from pytest_dtdispatch.core.forms import SAMPLES, form_of
from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.report.reported_run import ReportedRun
from pytest_dtdispatch.report.samples_csv import COLUMNS, sample_count, samples_csv
from tests.reported_runs import ADD, HITS, MISSES, hostile_run, row, run_of


def lines_of(run: ReportedRun) -> list[dict[str, str]]:
    text = samples_csv(run)
    assert form_of(text) == SAMPLES
    reader = csv.DictReader(io.StringIO(text), strict=True)
    lines = list(reader)
    assert tuple(reader.fieldnames or ()) == COLUMNS
    assert len(lines) == sample_count(run)
    return lines


def test_each_sample_is_a_line_in_the_order_taken() -> None:
    lines = lines_of(run_of())
    assert [int(line["value"]) for line in lines] == [*MISSES, *HITS]
    assert [int(line["index"]) for line in lines] == [*range(len(MISSES)), *range(len(HITS))]
    assert lines[-1] == {
        "test": "t.py::test_a",
        "signature": ADD,
        "op": "add.Tensor",
        "mesh": "4",
        "state": "hit",
        "unit": "ns",
        "rank": "0",
        "index": "5",
        "value": "9000",
    }


def test_ranks_have_their_own_samples() -> None:
    ranks = Samples(State.HIT, (8, 9), by_rank=((0, (7, 8)), (1, (9, 10))))
    lines = lines_of(run_of(row(ADD, ranks)))
    assert [(line["rank"], line["index"], line["value"]) for line in lines] == [
        ("0", "0", "7"),
        ("0", "1", "8"),
        ("1", "0", "9"),
        ("1", "1", "10"),
    ]


def test_no_cell_is_a_formula_or_more_than_one_line() -> None:
    text = samples_csv(hostile_run())
    assert "\x1b" not in text
    assert "\u202e" not in text
    for cells in csv.reader(io.StringIO(text)):
        assert len(cells) == len(COLUMNS)
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert all(cell.isprintable() for cell in cells)
