"""The command that rewrites a file of expected results."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.gates.expected_file import read_expected
from pytest_dtdispatch.plugin.kinds import metric_names
from tests import pytorch_reader

FILE = """# hits are noisy

"t.py::test_add::add(S0, S0)",dispatch_hit_ns,6940,0.25
t.py::test_step::train,misses_per_step,0,0


t.py::test_step::train,collectives,4,0,since the beginning
t.py::test_gone::train,collectives,4,0
"""
NEW = "t.py::test_new::train,dispatch_hit_ns,12345"
RESULTS = """"t.py::test_add::add(S0, S0)",dispatch_hit_ns,98765
t.py::test_step::train,misses_per_step,0
t.py::test_step::train,collectives,5
t.py::test_new::train,collectives,12345
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    expected, results = tmp_path / "expected.csv", tmp_path / "results.csv"
    expected.write_text(FILE)
    results.write_text(RESULTS)
    return expected, results


def update(expected: Path, results: Path, *more: str, reason: str = "another key, hence a miss") -> int:
    return main(["expected", "update", str(expected), "--results", str(results), "--reason", reason, *more])


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dtdispatch: ")
    assert err.count("\n") == 1
    return err


def test_rows_that_changed_are_rewritten_in_place_with_the_reason(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert update(*files) == 0
    before, after = FILE.splitlines(), files[0].read_text().splitlines()
    assert after[2] == '"t.py::test_add::add(S0, S0)",dispatch_hit_ns,98760,0.25,"another key, hence a miss"'
    assert after[6] == 't.py::test_step::train,collectives,5,0.0,"another key, hence a miss"'
    assert [line for n, line in enumerate(after) if n not in (2, 6)] == [
        line for n, line in enumerate(before) if n not in (2, 6)
    ]
    assert capsys.readouterr().out == (
        f"{files[0]}: 2 of 4 rows changed, 1 left alone, as the results do not have them, "
        "1 results have no row: --new-margin adds them\n"
    )


def test_a_second_update_changes_nothing(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert update(*files) == 0
    text = files[0].read_text()
    assert update(*files, reason="again") == 0
    assert files[0].read_text() == text
    assert "0 of 4 rows changed" in capsys.readouterr().out


def test_new_results_are_added_where_a_margin_is_given(files: tuple[Path, Path]) -> None:
    assert update(*files, "--new-margin", "0.1") == 0
    assert (
        files[0]
        .read_text()
        .endswith(
            "t.py::test_gone::train,collectives,4,0\n"
            't.py::test_new::train,collectives,12345,0.0,"another key, hence a miss"\n'
        )
    )


def test_a_new_time_has_the_margin_and_four_digits(files: tuple[Path, Path]) -> None:
    files[1].write_text(f"{RESULTS}{NEW}\n")
    assert update(*files, "--new-margin", "0.1", reason="why") == 0
    assert files[0].read_text().splitlines()[-1] == "t.py::test_new::train,dispatch_hit_ns,12340,0.1,why"


def test_a_first_file_is_made_from_results_and_pytorch_reads_it(files: tuple[Path, Path]) -> None:
    files[0].unlink()
    assert update(*files, "--new-margin", "0", reason="first") == 0
    assert [(row.expected, row.reason) for row in read_expected(files[0], metric_names()).rows] == [
        (98765, "first"),
        (0, "first"),
        (5, "first"),
        (12345, "first"),
    ]
    assert len(pytorch_reader.read_expected(files[0])) == 4


def test_a_read_only_file_is_refused_and_stays(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].chmod(0o444)
    assert update(*files) == 2
    assert refusal(capsys) == f"dtdispatch: {files[0]} is read-only\n"
    assert files[0].read_text() == FILE


@pytest.mark.parametrize(
    ("spoil", "arguments", "says"),
    [
        ("expected.csv", (), "expected.csv:1: 1 field"),
        ("results.csv", (), "results.csv:1: 1 field"),
        ("", ("--new-margin", "15"), "--new-margin '15' is not a fraction from 0 to 1; 15 % is 0.15"),
        ("", ("--reason", " \n"), "a reason has 1 to 500 characters, not 0"),
        ("", ("--results", "nowhere.csv"), "nowhere.csv cannot be read: No such file"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_the_file_stays(
    files: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    spoil: str,
    arguments: tuple[str, ...],
    says: str,
) -> None:
    if spoil:
        (files[0].parent / spoil).write_text("nonsense\n")
    before = files[0].read_text()
    assert update(*files, *arguments) == 2
    assert says in refusal(capsys)
    assert files[0].read_text() == before


def test_a_file_that_is_not_there_is_not_made_without_a_margin(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].unlink()
    assert update(*files) == 2
    assert "expected.csv cannot be read: No such file" in refusal(capsys)
    assert not files[0].exists()


def test_results_of_something_else_are_refused(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[1].write_text("other,collectives,1\n")
    assert update(*files) == 2
    assert "results.csv has no result for any row of" in refusal(capsys)


@pytest.mark.parametrize("words", [[], ["update"], ["update", "f.csv"], ["rebase", "f.csv"]])
def test_a_command_line_that_cannot_be_obeyed_is_told_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["expected", *words]) == 2
    refusal(capsys)
