"""Verdicts on results compared with expected ones, and corrected rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.measurement import traced_text
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.gates.expected import ExpectedRow, corrections, judge_results, read_expected, shortened
from pytest_dtdispatch.plugin.kinds import metric_names
from tests import pytorch_reader
from tests.row_ids import number

HIT = "dispatch_hit_ns"
VALUES = some.integers(0, 10**15)
MARGINS = some.floats(0, 1)


def row(name: str = "t", expected: int = 5, margin: float = 0.1, metric: str = HIT) -> ExpectedRow:
    return ExpectedRow(name, metric, expected, margin)


def found(value: int = 5, metric: str = HIT) -> MetricValue:
    return number("t", metric, value)


@pytest.mark.parametrize(
    ("rows", "results", "verdicts", "has_failed"),
    [
        ([row("gone"), row()], [found()], ["missing", "passed"], True),
        ([row()], [found(), found(900, "dispatch_miss_ns")], ["passed", "new"], False),
        ([], [], [], True),  # no row was compared
        ([], [found()], ["new"], True),
        ([row(), row("u", 1)], [found(2)], ["improved", "missing"], True),
        ([row(expected=100)], [found(50)], ["improved"], False),
    ],
)
def test_unmatched_and_improved_rows_have_verdicts(
    rows: list[ExpectedRow], results: list[MetricValue], verdicts: list[str], has_failed: bool
) -> None:
    judgement = judge_results(rows, results, improved_fails=False)
    assert [str(each.verdict) for each in judgement.verdicts] == verdicts
    assert judgement.has_failed == has_failed
    assert judgement.to_paste == tuple(
        f"t,{HIT},{one.value},0.1" for one in results if "improved" in verdicts
    )


@pytest.mark.parametrize(
    ("metric", "result", "remedy"),
    [
        (HIT, None, "restore the test"),
        ("instruction_count_miss", None, "--dtdispatch-metric instructions"),
        ("compile_time_instruction_count", None, "--dtdispatch-metric instructions"),
        (HIT, replace(found(1000), tracers=("coverage",)), traced_text(["coverage"])),
    ],
)
def test_missing_and_inconclusive_have_remedies(metric: str, result: MetricValue | None, remedy: str) -> None:
    [judged] = judge_results([row(metric=metric)], [result] if result else []).verdicts
    assert judged.verdict is (Verdict.INCONCLUSIVE if result else Verdict.MISSING)
    assert remedy in judged.remedy


# Corrections


ROUNDED = [(1034, None), (1035, 1035), (966, None), (965, 965), (123456, 123400)]


@pytest.mark.parametrize(("value", "written"), ROUNDED)
def test_only_deviations_above_third_of_margin_are_corrected(value: int, written: int | None) -> None:
    before = ExpectedRow("t", HIT, 1000, 0.103, "earlier", 7)
    after = corrections([before], [found(value), number("new", HIT, 3)])
    assert [(each.name, each.expected, each.noise_margin, each.line) for each in after] == (
        [] if written is None else [("t", written, 0.103, 7)]
    )


@given(VALUES, MARGINS, VALUES)
def test_corrected_rows_make_results_pass(expected: int, margin: float, value: int) -> None:
    for corrected in corrections([row("t", expected, margin)], [found(value)]):
        assert not judge_results([corrected], [found(value)]).has_failed


@given(VALUES, MARGINS)
def test_value_is_shortened_to_four_digits_or_unchanged(value: int, margin: float) -> None:
    cut = shortened(value, margin)
    assert cut == value or (str(cut)[:4] == str(value)[:4] and not int(str(cut)[4:]))
    if margin >= 0.01:
        assert len(str(cut).rstrip("0")) <= 4


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


def test_update_rewrites_only_changed_rows(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Changed rows are rewritten in place, with the reason."""
    assert update(*files) == 0
    before, after = FILE.splitlines(), files[0].read_text().splitlines()
    assert after[2] == '"t.py::test_add::add(S0, S0)",dispatch_hit_ns,98760,0.25,"another key, hence a miss"'
    assert after[6] == 't.py::test_step::train,collectives,5,0.0,"another key, hence a miss"'
    assert [line for n, line in enumerate(after) if n not in (2, 6)] == [
        line for n, line in enumerate(before) if n not in (2, 6)
    ]
    assert capsys.readouterr().out == (
        f"{files[0]}: 2 of 4 rows changed, 1 unchanged, because the results do not have them, "
        "1 without a row: --new-margin adds them\n"
    )
    assert update(*files, reason="again") == 0
    assert files[0].read_text().splitlines() == after
    assert "0 of 4 rows changed" in capsys.readouterr().out


def test_new_margin_adds_results_in_four_digits(files: tuple[Path, Path]) -> None:
    """New results are added if a margin is passed: times have the margin and four digits."""
    files[1].write_text(f"{RESULTS}{NEW}\n")
    assert update(*files, "--new-margin", "0.1", reason="why") == 0
    assert files[0].read_text().splitlines()[-3:] == [
        "t.py::test_gone::train,collectives,4,0",
        "t.py::test_new::train,collectives,12345,0.0,why",
        "t.py::test_new::train,dispatch_hit_ns,12340,0.1,why",
    ]


def test_limits_are_counts_of_each_test(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    expected, results = files
    expected.unlink()
    assert main(["expected", "update", str(expected), "--results", str(results), "--limits"]) == 0
    assert expected.read_text().splitlines() == [
        "t.py::test_step::train,misses_per_step,0,max,limit",
        "t.py::test_step::train,collectives,5,max,limit",
        "t.py::test_new::train,collectives,12345,max,limit",
    ]
    assert f"; pytest --dtdispatch --dtdispatch-expected {expected} judges" in capsys.readouterr().out


def test_existing_counts_become_limits(files: tuple[Path, Path]) -> None:
    assert update(*files, "--limits", reason="why") == 0
    rows = {(row.name[6:], row.metric): row for row in read_expected(files[0], metric_names()).rows}
    is_limit = {key: row.is_limit for key, row in rows.items()}
    assert is_limit == {
        ("test_add::add(S0, S0)", HIT): False,  # a time
        ("test_step::train", "misses_per_step"): True,
        ("test_step::train", "collectives"): True,
        ("test_gone::train", "collectives"): False,  # the results do not have it
        ("test_new::train", "collectives"): True,
    }


def test_row_with_margin_becomes_limit_of_todays_count(files: tuple[Path, Path]) -> None:
    files[0].write_text("t.py::test_step::train,collectives,100,0.1,mine\n")
    files[1].write_text("t.py::test_step::train,collectives,102\n")
    for _ in range(2):  # the second update changes nothing
        assert main(["expected", "update", str(files[0]), "--results", str(files[1]), "--limits"]) == 0
        assert files[0].read_text() == "t.py::test_step::train,collectives,102,max,limit\n"


def test_count_over_a_mesh_dimension_becomes_limit(files: tuple[Path, Path]) -> None:
    files[0].write_text("t.py::test_step::train,collectives[tp],4,0,mine\n")
    files[1].write_text("t.py::test_step::train,collectives[tp],4\n")
    assert update(*files, "--limits") == 0
    assert files[0].read_text() == "t.py::test_step::train,collectives[tp],4,max,mine\n"


def test_limits_without_counts_are_refused(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].unlink()
    files[1].write_text(f"{NEW}\n")
    assert update(*files, "--limits") == 2
    assert "results.csv has no counts to limit" in refusal(capsys)
    assert not files[0].exists()


def test_times_are_not_new_beside_limits() -> None:
    limit = ExpectedRow("t", "collectives", 5, 0.0, is_limit=True)
    results = [found(5, "collectives"), found(900, HIT), found(1, "implicit")]
    verdicts = judge_results([limit], results).verdicts
    assert [(str(row.verdict), row.criterion) for row in verdicts] == [
        ("passed", "collectives at most 5"),
        ("new", "implicit 1"),
    ]


@pytest.mark.parametrize(("value", "verdict"), [(4, "passed"), (5, "passed"), (6, "regressed")])
def test_only_a_larger_count_exceeds_a_limit(value: int, verdict: str) -> None:
    limit = ExpectedRow("t", "collectives", 5, 0.0, is_limit=True)
    [judged] = judge_results([limit], [found(value, "collectives")]).verdicts
    assert (str(judged.verdict), judged.criterion) == (verdict, "collectives at most 5")


def test_first_file_is_readable_by_pytorch(files: tuple[Path, Path]) -> None:
    files[0].unlink()
    assert update(*files, "--new-margin", "0", reason="first") == 0
    rows = read_expected(files[0], metric_names()).rows
    assert [row.expected for row in rows] == [98765, 0, 5, 12345]
    assert {row.reason for row in rows} == {"first"}
    assert len(pytorch_reader.read_expected(files[0])) == 4


@pytest.mark.parametrize(
    ("spoiled", "arguments", "message"),
    [
        ({"expected.csv": "nonsense\n"}, (), "expected.csv:1: 1 field"),
        ({"results.csv": "nonsense\n"}, (), "results.csv:1: 1 field"),
        ({"results.csv": "other,collectives,1\n"}, (), "results.csv has no result for any row of"),
        ({}, ("--new-margin", "15"), "--new-margin '15' is not a fraction from 0 to 1; 15 % is 0.15"),
        ({}, ("--reason", " \n"), "a reason has 1 to 500 characters, not 0"),
        ({}, ("--results", "nowhere.csv"), "nowhere.csv cannot be read: No such file"),
    ],
)
def test_invalid_update_is_reported_and_file_is_unchanged(
    files: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    spoiled: dict[str, str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    for name, text in spoiled.items():
        (files[0].parent / name).write_text(text)
    before = files[0].read_text()
    assert update(*files, *arguments) == 2
    assert message in refusal(capsys)
    assert files[0].read_text() == before


def test_missing_or_read_only_file_is_refused(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """An update refuses a read-only or missing file."""
    files[0].chmod(0o444)
    assert update(*files) == 2
    assert refusal(capsys) == f"dtdispatch: {files[0]} is read-only\n"
    files[0].unlink()
    assert update(*files) == 2  # without a margin, no file is created
    assert "expected.csv cannot be read: No such file" in refusal(capsys)
    assert not files[0].exists()
