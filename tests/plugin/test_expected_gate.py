"""Expected files in a run of pytest, from flags to files and exit status, with a scripted clock."""

from __future__ import annotations

import re
import types
from functools import partial
from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from pytest_dtdispatch.core.text import name_of_any_dim, plural
from pytest_dtdispatch.gates.expected import REPORTED
from tests import pytorch_reader
from tests.plugin_runs import (
    SCRIPTED,
    assert_gate_failed,
    assert_passed,
    assert_refused,
    fill_disk,
    measure_source,
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
ADD = "test_results.py::test_add::add.Tensor(f32[8,8]S0, f32[8,8]S0)@4"
MUL = "test_results.py::test_mul::mul"
STEP = "test_results.py::test_step::train"
TIMES = ("dispatch_hit_ns", "dispatch_miss_ns")
COUNTS = (
    *("misses_per_step", "redistributes", "implicit", "collectives", "collective_bytes", "reads"),
    *("partial_reads", "dtensor_growth", "calls", "collectives[0]", "collective_bytes[0]"),
)
KEYS = [(name, metric) for name in (ADD, MUL) for metric in TIMES] + [(STEP, metric) for metric in COUNTS]
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
failed = partial(assert_gate_failed, passed=3)


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
    result = run(pytester, *CSV)
    assert_passed(result, f"15 results written to {pytester.path / 'results.csv'}")
    found = pytorch_reader.read_results(pytester.path / "results.csv")
    assert list(found) == KEYS
    assert all(10_000 <= found[key] < 20_000 for key in KEYS if key[1] in TIMES)
    assert {metric: found[STEP, metric] for metric in COUNTS} == dict.fromkeys(COUNTS, 0) | {"calls": 1}


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


def test_run_with_failed_last_test_is_complete(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_results=f"{TESTS}\n    assert False\n")
    run(pytester, *CSV, "--exitfirst").assert_outcomes(passed=2, failed=1)
    assert list(pytorch_reader.read_results(pytester.path / "results.csv")) == KEYS


def test_full_disk_fails_the_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch)
    failed(run(pytester, *CSV), "results.csv cannot be written: No space left on device")


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


def test_own_results_pass_and_show_drift(
    pytester: pytest.Pytester, expected: Path, scripted: types.SimpleNamespace
) -> None:
    assert list(pytorch_reader.read_expected(expected)) == LISTED
    message = "gate: passed against expected.csv: 11 passed"
    assert_passed(run(pytester, *GATE), message, "drift of 11 passed rows: median +0.0 %")
    assert_passed(run(pytester, *GATE, "-pno:benchmark"), message)
    # Rows of deselected tests are not missing.
    assert_passed(run(pytester, *GATE, "-k", "test_step"), "expected.csv: 7 passed")
    scripted.extra_ns = 500
    assert_passed(run(pytester, *GATE, "-k", "mul"), "drift of 2 passed rows: median +5.0 %")


@pytest.mark.parametrize(
    ("named", "passed"),
    [
        (["test_results.py::test_step"], 7),
        (["test_results.py::test_step", "test_results.py::test_mul"], 9),
        (["test_other.py", "test_results.py::test_step"], 7),
    ],
)
def test_rows_of_unnamed_tests_are_not_missing(
    pytester: pytest.Pytester, expected: Path, named: list[str], passed: int
) -> None:
    pytester.makepyfile(test_other="def test_other(): pass")
    others = plural(11 - passed, "row")
    assert_passed(run(pytester, *GATE, *named), f"expected.csv: {passed} passed, {others} not selected\n")


def test_every_expected_file_is_judged(pytester: pytest.Pytester, expected: Path) -> None:
    one, two = (pytester.path / name for name in ("one.csv", "two.csv"))
    lines = [line for line in expected.read_text().splitlines() if line]
    one.write_text("\n".join(lines[:3]))
    two.write_text("\n".join(lines[2:6]))
    pytester.makeini("[pytest]\ndtdispatch_expected =\n  one.csv\n  two.csv\n")
    assert_passed(run(pytester, *CSV), "one.csv: 3 passed, 5 new", "two.csv: 4 passed")
    assert_passed(run(pytester))  # not judged until something is measured
    both = ("--dtdispatch-expected=one.csv", "--dtdispatch-expected=two.csv")
    for wrong, right in ((one, two), (two, one)):
        original = wrong.read_text()
        wrong.write_text(re.sub(r",\d+,", ",999,", original, count=1))
        failed(run(pytester, *CSV, *both), f"passed against {right.name}", f"failed against {wrong.name}")
        wrong.write_text(original)
    two.write_text("# nothing\n")
    failed(run(pytester, *CSV, *both), "failed against two.csv: no row to judge")
    two.unlink()
    assert_refused(run(pytester, *MEASURED), f"{two} cannot be read: No such file")


def test_regressed_rows_have_corrections_and_an_update_command(
    pytester: pytest.Pytester,
    expected: Path,
    scripted: types.SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripted.extra_ns = 5_000
    result = run(pytester, *GATE)
    text = failed(
        result,
        "gate: failed against expected.csv: 7 passed, 4 regressed",
        *(f"regressed {MUL}", f"regressed {STEP}", "redistributes 0 +-0 %: 0 -> 1, at test_results.py:"),
        "find what made it grow",
        "dtdispatch expected update expected.csv --results results.csv --reason",
    )
    assert f"regressed {ADD}" not in text
    pasted = [line for line in result.outlines if line.startswith((MUL, STEP))]
    assert [line.rpartition(",")[0] for line in pasted] == [
        *(f"{MUL},dispatch_hit_ns,15000", f"{MUL},dispatch_miss_ns,15000"),
        *(f"{STEP},redistributes,1", f"{STEP},collectives,1"),
    ]
    capsys.readouterr()
    update = ["expected", "update", str(expected), "--results", str(pytester.path / "results.csv")]
    assert main([*update, "--reason", "slower, and wanted"]) == 0
    assert capsys.readouterr().out == f"{expected}: 4 of 11 rows changed\n"
    assert_passed(run(pytester, *GATE), "11 passed")
    assert list(pytorch_reader.read_expected(expected)) == LISTED


def test_only_growth_above_todays_counts_fails(
    pytester: pytest.Pytester, scripted: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.extra_ns = 5_000
    run(pytester, *CSV)
    assert main(["expected", "update", "limits.csv", "--results", "results.csv", "--limits"]) == 0
    pytester.makeini("[pytest]\ndtdispatch_expected = limits.csv")
    scripted.extra_ns = 0
    assert_passed(run(pytester, *MEASURED), "/limits.csv: 7 passed\n")
    limits = pytester.path / "limits.csv"
    limits.write_text(limits.read_text().replace("redistributes,1,max", "redistributes,0,max"))
    scripted.extra_ns = 5_000
    result = run(pytester, *MEASURED)
    text = failed(result, "redistributes at most 0: 0 -> 1, at test_results.py:", "6 passed, 1 regressed")
    assert "redistribute: f32[8,8] S0 -> R, 256 bytes, at test_results.py:" in text
    assert "--base-rev main --head-rev HEAD -- test_results.py::test_step" in text


def test_calls_fail_only_if_expected(pytester: pytest.Pytester, expected: Path) -> None:
    pytester.makepyfile(test_results=TESTS.replace("else a + a", "else a + a + a"))
    assert_passed(run(pytester, *GATE), "gate: passed against expected.csv: 11 passed\n")
    update = ["expected", "update", str(expected), "--results", str(pytester.path / "results.csv")]
    assert main([*update, "--reason", "more", "--new-margin", "0"]) == 0
    assert ",calls," not in expected.read_text()
    expected.write_text(f"{expected.read_text()}{STEP},calls,1,0.0\n")
    failed(run(pytester, *GATE), "11 passed, 1 regressed", "calls 1 +-0 %: 1 -> 2 (+100.0 %)")
    assert main([*update, "--reason", "one more op"]) == 0
    assert f"{STEP},calls,2,0.0,one more op" in expected.read_text()


def test_improved_row_fails_or_warns_by_setting(pytester: pytest.Pytester, expected: Path) -> None:
    expected.write_text(expected.read_text().replace(f"{MUL},dispatch_hit_ns,", f"{MUL},dispatch_hit_ns,9"))
    text = failed(
        run(pytester, *GATE), "10 passed, 1 improved", f"improved {MUL}", "update the expected file"
    )
    assert "regressed" not in text
    result = run(pytester, *GATE, "-odtdispatch_improved=warn")
    assert_passed(result, "gate: passed against expected.csv: 10 passed, 1 improved", f"improved {MUL}")
    [pasted] = [line for line in result.outlines if line.startswith(MUL)]
    assert pasted == f"{MUL},dispatch_hit_ns,10000,0.1"


@pytest.mark.parametrize("named", [(), ("test_results.py",)])
def test_row_of_a_removed_test_is_missing(
    pytester: pytest.Pytester, expected: Path, named: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_results=TESTS.replace("test_mul", "test_times"))
    text = failed(
        run(pytester, *GATE, *named), "9 passed, 2 missing, 2 new", f"missing {MUL}", "restore the test"
    )
    assert f"new {MUL.replace('test_mul', 'test_times')}: dispatch_hit_ns 10,00" in text


def test_gate_that_compared_nothing_fails(pytester: pytest.Pytester, expected: Path) -> None:
    gate = (*MEASURED, "--dtdispatch-expected=expected.csv")
    failed(run(pytester, *gate, "--benchmark-disable"), "1 disabled", "disabled --benchmark-disable is set")
    (pytester.path / "results.csv").unlink()
    assert_passed(run(pytester, *GATE, "--co"))  # neither judges nor writes
    assert not (pytester.path / "results.csv").exists()
    rows = expected.read_text()
    expected.write_text("\n\n# nothing yet\n")
    failed(run(pytester, *GATE), "gate: failed against expected.csv: 11 new", "no row could be judged")
    pytester.makepyfile(test_results="def test_nothing(): pass")
    message = ("gate: failed against expected.csv: ", "no row to judge")
    failed(run(pytester, *gate), *message, passed=1)
    expected.write_text(rows)
    failed(run(pytester, *gate), "expected.csv: 11 missing", "no row could be judged", passed=1)


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
