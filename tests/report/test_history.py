"""Numbers of saved runs, side by side."""

from __future__ import annotations

from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.report.run import ReportedRun
from pytest_dtdispatch.report.summary import history_document
from tests.rendered import lines_of
from tests.reported_runs import ADD, HITS, hostile_run, row, run_of
from tests.row_ids import number


def hit_of(day: int, *ns: int, **more: object) -> ReportedRun:
    named = {"started": f"2026-11-0{day}", "where": f"run{day}.json", **more}
    return run_of(row(ADD, Samples(State.HIT, ns)), **named)  # type: ignore[arg-type]


def cells_of(lines: list[str], metric: str) -> list[str]:
    [line] = [line for line in lines if f" {metric} " in line]
    return line.split(f" {metric} ")[1].split()


def test_columns_are_runs_from_oldest_plus_change() -> None:
    steps = (number("t.py::test_a::train", "misses_per_step", 2),)
    runs = [hit_of(3, *[9_000] * 6), hit_of(1, *[6_000] * 6), hit_of(2, *[7_000] * 6, numbers=steps)]
    lines = lines_of(history_document(runs), 140)
    assert lines[:3] == [f"{n}: run{n}.json, taken 2026-11-0{n}" for n in (1, 2, 3)]
    assert cells_of(lines, "dispatch_hit_ns") == ["6,000", "7,000", "9,000", "+50.0%"]
    assert cells_of(lines, "misses_per_step") == ["-", "2", "-", "-"]


def test_other_machines_are_named() -> None:
    elsewhere = hit_of(1, *HITS, environment={"CPU": "other", "commit": "a"})
    newest = hit_of(2, *HITS, environment={"CPU": "this", "commit": "b"})
    lines = lines_of(history_document([elsewhere, newest]), 140)
    assert lines[0].endswith("may not be comparable with the newest: another CPU")


def test_hostile_names_are_escaped_and_end_columns_fit() -> None:
    lines = lines_of(history_document([hostile_run()] * 2), 80)
    assert all(line.isprintable() for line in lines)
    many = [hit_of(day, *[1_000_000 * day] * 6) for day in range(1, 10)]
    [title] = [line for line in lines_of(history_document(many), 80) if line.startswith("  row ")]
    assert title.split()[-3:] == ["1", "9", "change"]
