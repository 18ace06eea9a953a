"""Expected files in a run of pytest, from flags to files and exit status, with a scripted clock."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import name_of_any_dim
from pytest_dtdispatch.core.verdicts import CountChange
from pytest_dtdispatch.gates.expected import REPORTED
from tests import pytorch_reader
from tests.plugin_runs import (
    SCRIPTED,
    Judged,
    assert_refused,
    failed,
    judged,
    measure_source,
    passed,
    run,
    text_of,
)

pytestmark = pytest.mark.torch

TESTS = (
    SCRIPTED.replace("{marker}", "")
    + """
def test_step(dtdispatch, a):
    def step():
        return a.full_tensor() if scripted.extra_ns else a + a

    dtdispatch.steps(step, name="train")
"""
)
ADD = RowId("test_results.py::test_add", "add.Tensor(f32[8,8]S0, f32[8,8]S0)@4")
MUL = RowId("test_results.py::test_mul", "mul")
STEP = RowId("test_results.py::test_step", "train")
TIMES = ("dispatch_hit_ns", "dispatch_miss_ns")
COUNTS = (
    *("misses_per_step", "redistributes", "implicit", "collectives", "collective_bytes", "reads"),
    *("partial_reads", "dtensor_growth", "calls", "collectives[0]", "collective_bytes[0]"),
)
KEYS = [
    (str(row), metric) for row, metrics in ((ADD, TIMES), (MUL, TIMES), (STEP, COUNTS)) for metric in metrics
]
LISTED = [key for key in KEYS if name_of_any_dim(key[1]) not in REPORTED]
MEASURED = ("--dtdispatch", "--dtdispatch-rounds=5", "--dtdispatch-repeat=2")
CSV = (*MEASURED, "--dtdispatch-export=csv:results.csv")
EARLIER = {
    "csv": f"{MUL},dispatch_hit_ns,1\n",
    "json": '{"format":"pytest-dtdispatch results","version":1}',
    "markdown": "## dtdispatch: passed\n",
}
GATE = (*CSV, "--dtdispatch-expected=expected.csv")
RESULTS: list[str] = []  # of one run: with a scripted clock they are the same in every test


@pytest.fixture(autouse=True)
def _written(scripted: types.SimpleNamespace, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_results=TESTS)


@pytest.fixture
def expected(pytester: pytest.Pytester) -> Path:
    """Write an expected file with the results of a run."""
    results = pytester.path / "results.csv"
    if not RESULTS:
        assert run(pytester, *CSV).ret == pytest.ExitCode.OK
        RESULTS.append(results.read_text())
    results.write_text(RESULTS[0])
    rows = [row for row in RESULTS[0].splitlines() if name_of_any_dim(row.split(",")[-2]) not in REPORTED]
    lines = [f"{row},{0 if '_ns,' not in row else 0.1}" for row in rows]
    path = pytester.path / "expected.csv"
    path.write_text("\n\n".join(["", *lines, ""]))
    return path


# Files


def test_results_have_the_format_of_pytorch(pytester: pytest.Pytester) -> None:
    assert run(pytester, *CSV).ret == pytest.ExitCode.OK
    found = pytorch_reader.read_results(pytester.path / "results.csv")
    assert list(found) == KEYS
    assert all(10_000 <= found[key] < 20_000 for key in KEYS if key[1] in TIMES)
    assert {metric: found[str(STEP), metric] for metric in COUNTS} == dict.fromkeys(COUNTS, 0) | {"calls": 1}


# Raises outside of a test after a test has set `is_over`.
USAGE_ERROR = """
import pytest, sys

is_over = False
sys.modules["conftest"] = sys.modules[__name__]

def pytest_runtest_protocol(item):
    if is_over:
        raise pytest.UsageError("not like this")
"""
STOPPED = "the run stopped after"


@pytest.mark.parametrize(
    ("stop", "flag", "status", "message"),
    [
        ("raise KeyboardInterrupt", "-q", None, ""),
        ("pytest.exit('enough', returncode=0)", "-q", 1, STOPPED),
        ("assert False", "--exitfirst", 1, STOPPED),
        ("conftest.is_over = True", "-q", 4, STOPPED),
        ("pass", "--benchmark-disable", 1, "nothing was measured"),
    ],
)
def test_stopped_or_unmeasured_run_overwrites_no_file(
    pytester: pytest.Pytester, stop: str, flag: str, status: int | None, message: str
) -> None:
    earlier = {pytester.path / f"of-{form}": text for form, text in EARLIER.items()}
    for path, text in earlier.items():
        path.write_text(text)
    exports = (f"--dtdispatch-export={path.name.removeprefix('of-')}:{path}" for path in earlier)
    pytester.makeconftest(USAGE_ERROR)
    stopped = TESTS.replace("    def mul", f"    import conftest\n    {stop}\n\n    def mul")
    pytester.makepyfile(test_results=stopped)
    if status is None:
        with pytest.raises(KeyboardInterrupt):
            run(pytester, *MEASURED, *exports, flag)
    else:
        result = run(pytester, *MEASURED, *exports, flag)
        assert result.ret == status
        for path in earlier:
            assert f"failed: {path} was not written: {message}" in text_of(result)
    assert {path: path.read_text() for path in earlier} == earlier


@pytest.mark.parametrize(
    ("export", "message"),
    [
        ("csv:kept", "kept has another format: name another file, or remove it"),
        ("html:kept", "kept has another format: name another file, or remove it"),
        ("csv:./expected.csv", "csv: expected.csv is the file of --dtdispatch-expected too"),
    ],
)
def test_unwritable_file_is_refused_before_the_run(
    pytester: pytest.Pytester, export: str, message: str
) -> None:
    files = {"kept": "<!DOCTYPE html>\n<title>mine</title>", "expected.csv": ""}
    for name, text in files.items():
        (pytester.path / name).write_text(text)
    expected = "--dtdispatch-expected=expected.csv"
    assert_refused(run(pytester, *MEASURED, expected, f"--dtdispatch-export={export}"), message)
    assert {name: (pytester.path / name).read_text() for name in files} == files


# The gate


def rows_of(ran: Judged, verdict: str) -> set[RowId]:
    """Return the rows with a verdict."""
    return {each.row for each in ran.run.gates[0].verdicts if each.verdict == verdict}


def test_own_results_pass_and_show_drift(
    pytester: pytest.Pytester, expected: Path, scripted: types.SimpleNamespace
) -> None:
    assert list(pytorch_reader.read_expected(expected)) == LISTED
    passed(judged(pytester, *GATE), passed=11)
    passed(judged(pytester, *GATE, "-pno:benchmark"), passed=11)
    passed(judged(pytester, *GATE, "-k", "test_step"), passed=7)  # deselected tests miss no row
    scripted.extra_ns = 500
    ran = passed(judged(pytester, *GATE, "-k", "mul"), passed=2)
    assert "drift of 2 passed rows: median +5.0 %" in text_of(ran.result)


@pytest.mark.parametrize(
    ("named", "count"),
    [
        (["test_results.py::test_step"], 7),
        (["test_results.py::test_step", "test_results.py::test_mul"], 9),
        (["test_other.py", "test_results.py::test_step"], 7),
    ],
)
def test_rows_of_unnamed_tests_are_not_missing(
    pytester: pytest.Pytester, expected: Path, named: list[str], count: int
) -> None:
    pytester.makepyfile(test_other="def test_other(): pass")
    [gate] = passed(judged(pytester, *GATE, *named), passed=count).run.gates
    assert gate.excluded == 11 - count


def test_every_expected_file_is_judged(pytester: pytest.Pytester, expected: Path) -> None:
    one, two = (pytester.path / name for name in ("one.csv", "two.csv"))
    lines = [line for line in expected.read_text().splitlines() if line]
    one.write_text("\n".join(lines[:3]))
    two.write_text("\n".join(lines[2:6]))
    pytester.makeini("[pytest]\ndtdispatch_expected =\n  one.csv\n  two.csv\n")
    ran = judged(pytester, *CSV)
    assert [ran.verdicts(gate) for gate in range(2)] == [{"passed": 3, "new": 5}, {"passed": 4}]
    assert run(pytester).ret == pytest.ExitCode.OK  # not judged until something is measured
    both = ("--dtdispatch-expected=one.csv", "--dtdispatch-expected=two.csv")
    for wrong in (one, two):
        original = wrong.read_text()
        wrong.write_text(re.sub(r",\d+,", ",999,", original, count=1))
        gates = judged(pytester, *CSV, *both).run.gates
        assert [Path(gate.where).name for gate in gates if gate.has_failed] == [wrong.name]
        wrong.write_text(original)
    two.write_text("# nothing\n")
    assert [gate.has_failed for gate in judged(pytester, *CSV, *both).run.gates] == [False, True]
    two.unlink()
    assert_refused(run(pytester, *MEASURED), f"{two} cannot be read: No such file")


def test_regressed_rows_have_corrections_and_an_update_command(
    pytester: pytest.Pytester,
    expected: Path,
    scripted: types.SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripted.extra_ns = 5_000
    ran = failed(judged(pytester, *GATE), 3, passed=7, regressed=4)
    assert rows_of(ran, "regressed") == {MUL, STEP}
    assert "redistributes 0 +-0 %: 0 -> 1, at test_results.py:" in text_of(ran.result)
    [gate] = ran.run.gates
    assert [line.rpartition(",")[0] for line in gate.to_paste] == [
        *(f"{MUL},dispatch_hit_ns,15000", f"{MUL},dispatch_miss_ns,15000"),
        *(f"{STEP},redistributes,1", f"{STEP},collectives,1"),
    ]
    update = ["expected", "update", "expected.csv", "--results", "results.csv"]
    assert " ".join(("dtdispatch", *update)) in gate.command
    capsys.readouterr()
    assert main([*update, "--reason", "slower, and wanted"]) == 0
    assert capsys.readouterr().out == "expected.csv: 4 of 11 rows changed\n"
    passed(judged(pytester, *GATE), passed=11)
    assert list(pytorch_reader.read_expected(expected)) == LISTED


def test_only_growth_above_todays_counts_fails(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.extra_ns = 5_000
    run(pytester, *CSV)
    assert main(["expected", "update", "limits.csv", "--results", "results.csv", "--limits"]) == 0
    pytester.makeini("[pytest]\ndtdispatch_expected = limits.csv")
    scripted.extra_ns = 0
    passed(judged(pytester, *MEASURED), passed=7)
    limits = pytester.path / "limits.csv"
    limits.write_text(limits.read_text().replace("redistributes,1,max", "redistributes,0,max"))
    scripted.extra_ns = 5_000
    text = text_of(failed(judged(pytester, *MEASURED), 3, passed=6, regressed=1).result)
    assert "redistributes at most 0: 0 -> 1, at test_results.py:" in text
    assert "redistribute: f32[8,8] S0 -> R, 256 bytes, at test_results.py:" in text
    assert "--base-rev main --head-rev HEAD -- test_results.py::test_step" in text


def test_calls_fail_only_if_expected(pytester: pytest.Pytester, expected: Path) -> None:
    pytester.makepyfile(test_results=TESTS.replace("else a + a", "else a + a + a"))
    passed(judged(pytester, *GATE), passed=11)
    update = ["expected", "update", str(expected), "--results", str(pytester.path / "results.csv")]
    assert main([*update, "--reason", "more", "--new-margin", "0"]) == 0
    assert ",calls," not in expected.read_text()
    expected.write_text(f"{expected.read_text()}{STEP},calls,1,0.0\n")
    [gate] = failed(judged(pytester, *GATE), 3, passed=11, regressed=1).run.gates
    assert [row.change for row in gate.failed] == [CountChange(1, 2, 100.0, 0.0)]
    assert main([*update, "--reason", "one more op"]) == 0
    assert f"{STEP},calls,2,0.0,one more op" in expected.read_text()


def test_improved_row_fails_or_warns_by_setting(pytester: pytest.Pytester, expected: Path) -> None:
    expected.write_text(expected.read_text().replace(f"{MUL},dispatch_hit_ns,", f"{MUL},dispatch_hit_ns,9"))
    failed(judged(pytester, *GATE), 3, passed=10, improved=1)
    ran = passed(judged(pytester, *GATE, "-odtdispatch_improved=warn"), passed=10, improved=1)
    assert rows_of(ran, "improved") == {MUL}
    assert ran.run.gates[0].to_paste == (f"{MUL},dispatch_hit_ns,10000,0.1",)


@pytest.mark.parametrize("named", [(), ("test_results.py",)])
def test_row_of_a_removed_test_is_missing(
    pytester: pytest.Pytester, expected: Path, named: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_results=TESTS.replace("test_mul", "test_times"))
    ran = failed(judged(pytester, *GATE, *named), 3, passed=9, missing=2, new=2)
    assert rows_of(ran, "missing") == {MUL}
    assert rows_of(ran, "new") == {MUL._replace(test="test_results.py::test_times")}


def test_gate_that_compared_nothing_fails(pytester: pytest.Pytester, expected: Path) -> None:
    gate = (*MEASURED, "--dtdispatch-expected=expected.csv")
    failed(judged(pytester, *gate, "--benchmark-disable"), 3, disabled=1)
    (pytester.path / "results.csv").unlink()
    assert run(pytester, *GATE, "--co").ret == pytest.ExitCode.OK  # neither judges nor writes
    assert not (pytester.path / "results.csv").exists()
    rows = expected.read_text()
    expected.write_text("\n\n# nothing yet\n")
    failed(judged(pytester, *GATE), 3, new=11)
    pytester.makepyfile(test_results="def test_nothing(): pass")
    failed(judged(pytester, *gate), 1)
    expected.write_text(rows)
    failed(judged(pytester, *gate), 1, missing=11)


# Names

CLASHES = (
    '    dtdispatch.call(abs, 1, name="a"); dtdispatch.call(abs, 1, name="a ")',
    r'    dtdispatch.call(abs, 1, name="a\nb"); dtdispatch.call(abs, 1, name="a\\nb")',
    '    dtdispatch.call(abs, 1, name="add.Tensor(f32[8,8]S0, f32[8,8]S0)@4")\n'
    "    with dtdispatch.capture():\n        a + a",
)


def test_duplicate_keys_are_an_error(pytester: pytest.Pytester) -> None:
    tests = (f"def test_{n}(dtdispatch, a):\n{body}\n" for n, body in enumerate(CLASHES))
    result = measure_source(pytester, "\n".join(tests), "test_it.py", failed=2, passed=1, errors=1)
    body, _, _ = text_of(result).partition("short test summary info")
    assert body.count("another name=") == len(CLASHES)
