"""Rows of tests that flags and plugins leave out are not selected; rows of deleted tests are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.core.verdicts import Judgement
from pytest_dtdispatch.report.run import read_run
from tests.heap import young_heap
from tests.plugin_runs import IMPORTS, OTHER_PLUGINS, TORCH_WARNS, one_thread

pytestmark = pytest.mark.torch

PLUGINS = [f"-pno:{plugin}" for plugin in OTHER_PLUGINS if plugin != "cacheprovider"]
COUNTS = (*PLUGINS, TORCH_WARNS, "--dtdispatch", "--dtdispatch-metric=counts", "--benchmark-json=run.json")
SUITE = f"""{IMPORTS}
import os

class TestGroup:
    @pytest.mark.parametrize("size", [8, 16])
    def test_group(self, dtdispatch, device_mesh, size):
        x = sharded(device_mesh, size, 8)
        dtdispatch.steps(lambda: x + x, name="s")

def test_flaky(dtdispatch, a):
    dtdispatch.steps(lambda: a + a, name="s")
    assert not os.environ.get("FAIL")
"""
OTHER = f"""{IMPORTS}
def test_other(dtdispatch, a):
    dtdispatch.steps(lambda: a + a, name="s")
"""
ROWS = ("TestGroup::test_group[8]", "TestGroup::test_group[16]", "test_flaky", "test_other")
LONG = pytest.mark.long
RENAMED = "the same signature under another id"
SHARD = "def pytest_collection_modifyitems(items): items[:] = items[:{}]"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Write two files of tests and what is expected of them; test_flaky fails last."""
    pytester.makepyfile(test_suite=SUITE)
    pytester.mkpydir("sub").joinpath("test_other.py").write_text(OTHER)
    names = [f"test_suite.py::{name}" for name in ROWS[:3]] + ["sub/test_other.py::test_other"]
    Path("expected.csv").write_text("".join(f"{name}::s,calls,1,0\n" for name in names))
    return pytester


def judged(suite: pytest.Pytester, *flags: str) -> tuple[pytest.RunResult, Judgement]:
    with one_thread(), young_heap():
        result = suite.runpytest_inprocess(*COUNTS, "--dtdispatch-expected=expected.csv", *flags)
    return result, read_run(Path("run.json")).gates[-1]


def missing(gate: Judgement) -> list[str]:
    return [row.row.test.rpartition("::")[2] for row in gate.verdicts if row.verdict == "missing"]


@pytest.mark.parametrize(
    "flag", ["--lf", *(pytest.param(flag, marks=LONG) for flag in ("--ff", "--nf", "--sw"))]
)
def test_rows_of_tests_that_the_cache_leaves_out_are_not_missing(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    with monkeypatch.context() as failing:
        failing.setenv("FAIL", "1")
        judged(suite, "--sw")
    result, gate = judged(suite, flag)
    left_out = {"--lf": 3, "--sw": 3}.get(flag, 0)
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    assert (missing(gate), gate.excluded, gate.has_failed) == ([], left_out, False)


@pytest.mark.parametrize(
    ("flags", "conftest", "left_out"),
    [
        (["--ignore=sub"], "", 1),
        pytest.param(["--ignore-glob=*/test_o*.py"], "", 1, marks=LONG),
        pytest.param(["-onorecursedirs=sub"], "", 1, marks=LONG),
        pytest.param([], "collect_ignore = ['test_suite.py']", 3, marks=LONG),
        pytest.param([], "collect_ignore_glob = ['su*']", 1, marks=LONG),
        ([], SHARD.format(1), 3),
        pytest.param(["--import-mode=importlib"], SHARD.format(2), 2, marks=LONG),
    ],
)
def test_rows_that_no_deselection_reports_are_not_missing(
    suite: pytest.Pytester, flags: list[str], conftest: str, left_out: int
) -> None:
    suite.makeconftest(conftest)
    result, gate = judged(suite, *flags)
    assert result.ret == pytest.ExitCode.OK, result.stdout.str()
    assert (missing(gate), gate.excluded, gate.has_failed) == ([], left_out, False)


@pytest.mark.parametrize(
    ("flags", "edit", "found"),
    [
        (["--ignore=sub"], ("[8, 16]", "[8]"), ["test_group[16]"]),
        pytest.param(
            *(["--ignore=sub"], ("TestGroup", "TestRenamed"), ["test_group[8]", "test_group[16]"]), marks=LONG
        ),
        (["--ignore=test_suite.py"], ("", ""), ["test_other"]),
        (["--lf"], ("test_flaky", "test_new"), ["test_flaky"]),
        pytest.param(["-opython_files=test_s*.py"], ("", ""), ["test_other"], marks=LONG),
    ],
)
def test_rows_of_deleted_tests_stay_missing(
    suite: pytest.Pytester, flags: list[str], edit: tuple[str, str], found: list[str]
) -> None:
    Path("test_suite.py").write_text(SUITE.replace(*edit) if edit[0] else SUITE)
    if found == ["test_other"] and "-o" not in flags[0]:
        Path("sub/test_other.py").unlink()
        Path("test_more.py").write_text(OTHER)
    result, gate = judged(suite, *flags)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert missing(gate) == found


@pytest.mark.parametrize(
    "flags", [("--lf", "--lfnf=none"), ("--ignore=sub", "--ignore=test_suite.py"), ("-knothing",)]
)
def test_run_without_selected_tests_is_no_success(suite: pytest.Pytester, flags: tuple[str, ...]) -> None:
    with one_thread():
        result = suite.runpytest_inprocess(*COUNTS[:-1], "--dtdispatch-expected=expected.csv", *flags)
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "gate: passed" not in result.stdout.str()


def test_renamed_row_of_each_expected_file_is_named(suite: pytest.Pytester) -> None:
    Path("other.csv").write_text(Path("expected.csv").read_text().splitlines()[3])
    Path("test_suite.py").write_text(SUITE.replace("test_flaky", "test_new"))
    Path("sub/test_other.py").rename("sub/test_moved.py")
    judged(suite, "--dtdispatch-expected=other.csv")
    flaky, other = read_run(Path("run.json")).gates
    assert [row.details[1:] for row in flaky.verdicts if row.verdict == "missing"] == [
        (f"{RENAMED}: test_suite.py::test_new, sub/test_moved.py::test_other",),
        (f"{RENAMED}: sub/test_moved.py::test_other, test_suite.py::test_new",),
    ]
    [row] = other.verdicts
    assert row.details[1:] == (f"{RENAMED}: sub/test_moved.py::test_other, test_suite.py::test_new",)
