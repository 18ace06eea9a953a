"""Series of saved runs: their numbers side by side, and the run and commit in which a row changed."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.measurement import Samples, State
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.report.document import Line, Table
from pytest_dtdispatch.report.exports import FORMATS
from pytest_dtdispatch.report.history import changes_document, runs_document, series_of
from pytest_dtdispatch.report.page import html_page
from pytest_dtdispatch.report.run import KEY, ReportedRun, encode_run, read_run
from tests.rendered import lines_of
from tests.reported_runs import ADD, HITS, hostile_run, row, run_of
from tests.row_ids import number

ID = "0123456789abcdef0123456789abcdef01234567"


def hit_of(day: int, *ns: int, **more: object) -> ReportedRun:
    named = {"started": f"2026-11-{day:02}T12:00:00+00:00", "where": f"runs/{day:04}.json", **more}
    return run_of(row(ADD, Samples(State.HIT, ns)), **named)  # type: ignore[arg-type]


def series(count: int, planted: int, **more: object) -> list[ReportedRun]:
    """Return runs of a row with noise, which takes 30 % longer from a day on."""
    factors = [1.3 if day >= planted else 1.0 for day in range(1, count + 1)]
    return [
        hit_of(day, *[round(7000 * factor * (1 + 0.02 * (day % 3)))] * 8, commit=f"{day:010x}", **more)
        for day, factor in enumerate(factors, start=1)
    ]


def cells_of(lines: list[str], metric: str) -> list[str]:
    [line] = [line for line in lines if f" {metric} " in line]
    return line.split(f" {metric} ")[1].split()


def table_lines(document: Any) -> list[tuple[str, Line]]:
    """Return the lines of all tables with the titles of their groups."""
    groups = [group for block in document.blocks if isinstance(block, Table) for group in block.groups]
    return [(group.title, line) for group in groups for line in group.lines]


def test_columns_are_runs_from_oldest_plus_change() -> None:
    steps = (number("t.py::test_a::train", "misses_per_step", 2),)
    runs = [hit_of(3, *[9_000] * 6), hit_of(1, *[6_000] * 6), hit_of(2, *[7_000] * 6, numbers=steps)]
    lines = lines_of(runs_document(runs), 140)
    assert [line.split() for line in lines[2:5]] == [
        [f"{n}:", f"{n:04}.json", f"2026-11-{n:02}T12:00", "-"] for n in (1, 2, 3)
    ]
    assert cells_of(lines, "dispatch_hit_ns") == ["6,000", "7,000", "9,000", "+50.0%"]
    assert cells_of(lines, "misses_per_step") == ["-", "2", "-", "-"]


def test_seventh_of_ten_runs_is_named_with_its_commit() -> None:
    document = changes_document(series(10, 7))
    [(test, line)] = table_lines(document)
    assert (test, line.label, line.status, line.marked) == ("t.py::test_a", ADD, "regressed", 6)
    assert [*line.cells.values()] == ["hit", "7.00 -> 9.10 us (+30.0 %)"]
    assert lines_of(document)[1] == "run 7, 0000000007, 2026-11-07T12:00"
    assert not table_lines(changes_document(series(10, 11)))


def test_other_machines_and_metrics_have_their_own_series() -> None:
    here, there = {"CPU": "this", "metric": "time"}, {"CPU": "other", "metric": "time"}
    runs = [*series(6, 4, environment=here), *series(3, 1, environment=there)]
    first, second = series_of(runs)
    assert [len(each.runs) for each in (first, second)] == [6, 3]
    assert [each.title for each in (first, second)] == ["time", "time; CPU: other then, this now"]
    assert [[change.run for change in each.changes()] for each in (first, second)] == [[3], []]
    counted = [replace(run, environment={**here, "metric": "counts"}) for run in runs[:2]]
    assert len([*series_of([*runs, *counted])]) == 3


def test_other_software_is_noted_at_its_first_run() -> None:
    versions = ["2.3", "2.3", "2.4", "2.4"]
    runs = [hit_of(day, *HITS, environment={"numpy": each}) for day, each in enumerate(versions, start=1)]
    notes = [line.notes for _, line in table_lines(runs_document(runs))]
    assert notes[:4] == [[], [], ["another environment: numpy: 2.3 then, 2.4 now"], []]


def test_run_that_stopped_early_has_a_note() -> None:
    runs = [hit_of(1, *HITS), hit_of(2, *HITS, stopped="the run stopped after 3 of 7 tests")]
    notes = [line.notes for _, line in table_lines(runs_document(runs))]
    assert notes[:2] == [[], ["the run stopped after 3 of 7 tests"]]


def test_hostile_names_are_escaped_and_end_columns_fit() -> None:
    for render in (runs_document, changes_document):
        assert all(line.isprintable() for line in lines_of(render([hostile_run()] * 2), 80))
    many = [hit_of(day, *[1_000_000 * day] * 6) for day in range(1, 10)]
    [title] = [line for line in lines_of(runs_document(many), 80) if line.startswith("  row ")]
    assert title.split()[-3:] == ["1", "9", "change"]


def test_run_without_rows_has_no_table_of_rows() -> None:
    [table] = [block for block in runs_document([ReportedRun()]).blocks if isinstance(block, Table)]
    assert table.label_title == "run"


@pytest.mark.parametrize("render", [runs_document, changes_document])
def test_forty_runs_fit_into_80_columns(render: Callable[[Sequence[ReportedRun]], Any]) -> None:
    steps = {day: (number("t.py::test_a::train", "misses_per_step", day // 12),) for day in range(1, 41)}
    runs = [replace(run, numbers=steps[day]) for day, run in enumerate(series(40, 27), start=1)]
    assert max(map(len, lines_of(render(runs), 80))) <= 80


@pytest.mark.parametrize(
    ("info", "commit"),
    [
        ({"id": ID, "dirty": False}, "0123456789"),
        ({"id": ID, "dirty": True}, "0123456789+"),
        ({"id": "unversioned"}, ""),
        ({"id": [ID]}, ""),
        ([ID], ""),
        (None, ""),
    ],
)
def test_commit_is_read_from_a_saved_run(info: object, commit: str, tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    path.write_text(json.dumps({"benchmarks": [], "commit_info": info, KEY: encode_run(run_of())}))
    assert read_run(path).commit == commit


def newest_of(runs: Sequence[ReportedRun]) -> ReportedRun:
    return replace(runs[-1], history=tuple(runs))


def test_page_has_a_line_per_row_and_marks_the_changed_run() -> None:
    page = html_page(newest_of(series(10, 7)))
    assert re.findall(r"<h2>(.*?)</h2>", page)[:2] == ["Changes", "Saved runs"]
    lines = re.findall(r'(<rect class="miss" x="(.*?)".*?)?<polyline .*? points="(.*?)"', page)
    assert [(mark, len(points.split())) for _, mark, points in lines] == [("66.42", 10), ("", 10)]
    assert "run 7, 0000000007, 2026-11-07T12:00" in page
    assert "<polyline" not in html_page(series(1, 2)[0])


def test_history_is_not_saved() -> None:
    assert encode_run(newest_of(series(3, 2)))["run"].keys() == encode_run(series(3, 2)[-1])["run"].keys()


def test_csv_has_every_run() -> None:
    runs = series(3, 2)
    text, message = FORMATS["csv"].render(newest_of(runs), "out")
    read = [*csv.reader(io.StringIO(text))]
    assert [line[1:] for line in read] == [
        ["dispatch_hit_ns", str(round(figure)), run.started, run.commit, run.where]
        for figure, run in zip((7140, 9464, 9100), runs, strict=True)
    ]
    assert message == "3 results written to out"
    assert re.match(FORMATS["csv"].begins, text)


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    """Return the files of four saved runs, the newest first."""
    (tmp_path / "runs").mkdir()
    for run in series(4, 3):
        (tmp_path / run.where).write_text(json.dumps({"benchmarks": [], KEY: encode_run(run)}))
    return [str(path) for path in sorted(tmp_path.glob("runs/*.json"), reverse=True)]


def test_report_exports_the_newest_run_with_its_history(saved: list[str], tmp_path: Path) -> None:
    names = ("json", "csv", "html", "markdown")
    assert main(["report", *saved, *(f"--export={name}:{tmp_path / name}" for name in names)]) == 0
    data = json.loads((tmp_path / "json").read_text())
    [change] = data["history"]
    assert (change["run"], change["where"], change["verdict"]) == (3, saved[1], Verdict.REGRESSED)
    assert data["started"] == "2026-11-04T12:00:00+00:00"
    assert all("0003.json" in (tmp_path / name).read_text() for name in names)


def test_report_prints_changes_last(saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *saved]) == 0
    titles = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("4 runs", "1 change"))
    ]
    assert titles == ["4 runs (unknown metric)", "1 change in 4 runs (unknown metric)"]
    assert main(["report", saved[0]]) == 0
    assert "change in" not in capsys.readouterr().out


def test_copy_of_a_run_is_counted_once(
    saved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = str(tmp_path / "copy.json")
    shutil.copy(saved[0], copy)  # the only changed run
    assert main(["report", *saved[:1], *saved[2:], copy, "--export", "json:-"]) == 0
    printed = capsys.readouterr()
    [change] = json.loads(printed.out)["history"]
    assert (change["is_confirmed"], len(change["figures"])) == (False, 3)
    assert printed.err.splitlines()[0] == f"the same run, counted once: {copy}, {saved[0]}"


@pytest.mark.parametrize("name", ["bencher", "github-action-benchmark", "trace"])
def test_format_of_one_run_refuses_several(
    name: str, saved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *saved, "--export", f"{name}:out"]) == 2
    assert capsys.readouterr().err == f"dtdispatch: --export {name} writes one run: name one SAVED.json\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot be read: No such file"), ('{"benchmarks": []}', "is not a saved run: nothing in it")],
)
def test_unreadable_run_among_others_is_a_one_line_error(
    text: str | None, message: str, saved: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    assert main(["report", *saved, str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"dtdispatch: {path} {message}")
