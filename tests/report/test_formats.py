"""The table of formats, and a saved run written in several of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.core.forms import form_of
from pytest_dtdispatch.core.parsing import Export
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin.flags import EXPORTS
from pytest_dtdispatch.report.formats import FORMATS, export_saved
from pytest_dtdispatch.report.reported_run import ReportedRun
from tests.reported_runs import hostile_run, profiled_run, run_of

TRACE = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "step 1", "ts": 0, "dur": 1}]}'


def test_the_flag_names_every_format() -> None:
    assert tuple(FORMATS) == EXPORTS


@pytest.mark.parametrize("name", FORMATS)
def test_an_earlier_file_is_known_by_how_it_begins(name: str) -> None:
    made = FORMATS[name]
    run = profiled_run("call", "inner") if name == "stacks" else run_of(traces=(TRACE,))
    text, said = made.render(run, Path("out"))
    assert form_of(text) == made.form
    assert said.endswith("written to out")
    if name not in ("stacks", "trace"):
        assert form_of(made.render(hostile_run(), Path("out"))[0]) == made.form


def test_a_format_that_a_run_has_nothing_for_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    exports = [Export("csv", tmp_path / "a.csv"), Export("stacks", tmp_path / "b")]
    with pytest.raises(DtDispatchError, match="b was not written: nothing was profiled: measure with"):
        export_saved(run_of(), exports)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DtDispatchError, match="no result has a figure"):
        export_saved(ReportedRun(), exports[:1])


def test_a_loop_of_links_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(DtDispatchError, match=r"one cannot be written: Too many levels of symbolic links$"):
        export_saved(run_of(), [Export("csv", tmp_path / "one")])


def test_files_must_differ_and_hold_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    with pytest.raises(DtDispatchError, match="two formats are to be written to one file"):
        export_saved(run_of(), [Export("csv", file), Export("samples", tmp_path / "." / "a.csv")])
    assert export_saved(run_of(), [Export("csv", file)]) == [f"2 results written to {file}"]
    with pytest.raises(DtDispatchError, match="holds results, not samples"):
        export_saved(run_of(), [Export("samples", file)])
