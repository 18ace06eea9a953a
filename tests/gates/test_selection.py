"""Rows of expected files, parsed with the names of collected tests and selected by arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.core.results import name_in_files
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.gates.expected import parse_row
from pytest_dtdispatch.gates.saved_run import name_renamed
from pytest_dtdispatch.gates.selection import Selection

TESTS = {"t.py::test_a", "t.py::test_a[x::y]", "t.py::TestA::test_b"}


@pytest.mark.parametrize(
    "row",
    [
        RowId("t.py::test_a", "block::add"),
        RowId("t.py::test_a", "a::b::hit"),
        RowId("t.py::test_a[x::y]", "add"),
        RowId("t.py::test_a[x::y]", "block::add"),
        RowId("t.py::TestA::test_b", "::add::"),
        RowId("", "no test"),
        RowId("u.py::test_of_another_file", "add"),
    ],
)
def test_names_of_collected_tests_are_parsed_back(row: RowId) -> None:
    assert parse_row(name_in_files(row), TESTS) == row


@pytest.mark.parametrize("name", ["::", "a::", "::a", "a", "t.py::test_gone[x::y]::block::add"])
def test_arbitrary_names_are_unchanged(name: str) -> None:
    assert name_in_files(parse_row(name, TESTS)) == name


@pytest.mark.parametrize(
    ("beginnings", "selected"),
    [
        (("",), {"t.py::test_a", "t.py::TestA::test_b"}),
        (("t.py/", "t.py::", "t.py["), {"t.py::test_a", "t.py::TestA::test_b"}),
        (("t.py::TestA/", "t.py::TestA::", "t.py::TestA["), {"t.py::TestA::test_b"}),
        (("t.py::test_a/", "t.py::test_a::", "t.py::test_a["), {"t.py::test_a"}),
        (("other/", "other::", "other["), set()),
    ],
)
def test_deselected_and_unnamed_tests_are_not_selected(
    beginnings: tuple[str, ...], selected: set[str]
) -> None:
    selection = Selection(beginnings, {"t.py::test_a[x::y]"})
    assert {test for test in TESTS if selection.has(test)} == selected


def test_only_existing_skipped_files_are_not_selected(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("t.py", "sub/u.py", "v.py")]
    files[1].parent.mkdir()
    for file in files:
        file.touch()
    skipped = {tmp_path / "t.py", tmp_path / "sub", tmp_path / "gone.py"}
    selection = Selection(tests={"t.py::test_run"}, skipped=skipped, roots=(tmp_path,))
    selected = {
        "t.py::test_run": True,
        "t.py::test_x": False,
        "sub/u.py::test_x": False,
        "sub/gone.py::test_x": True,
        "gone.py::test_x": True,
        "v.py::test_x": True,
    }
    assert {name: selection.has(name) for name in selected} == selected


def test_renamed_rows_are_named_closest_first() -> None:
    missing = RowVerdict(RowId("t.py::test_a[old]", "add", "hit"), Verdict.MISSING, criterion="20%")
    passed = RowVerdict(RowId("t.py::test_b", "add", "hit"), Verdict.PASSED)
    tests = ("u.py::test_c", "t.py::test_a[new]", "u.py::test_d")
    new = [RowId(test, "add", "hit") for test in tests]
    others = [RowId("t.py::test_a[new]", "mul", "hit"), RowId("t.py::test_e", "add", "miss")]
    named, unchanged = name_renamed([missing, passed], [*new, *others])
    closest = "t.py::test_a[new], u.py::test_c, and 1 more"
    assert named.details == ("20%", f"the same signature under another id: {closest}")
    assert unchanged == passed
    assert name_renamed([missing], others) == [missing]


def test_label_of_unknown_test_is_matched_at_its_end() -> None:
    missing = RowVerdict(parse_row("t.py::test_a[x::y]::block::add"), Verdict.MISSING)
    [named] = name_renamed([missing], [RowId("t.py::test_a[z]", "block::add")])
    assert named.details[-1].endswith(": t.py::test_a[z]")
    assert name_renamed([missing], [RowId("t.py::test_a[z]", "head::add")]) == [missing]
