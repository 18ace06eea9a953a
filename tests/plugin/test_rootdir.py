"""Names of rows and the ini file do not depend on where files are that flags of ours name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin_runs import IMPORTS, run, text_of

pytestmark = pytest.mark.torch


@pytest.fixture
def elsewhere(pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a project with an ini file, and a folder outside of it that has a file of results."""
    pytester.makeini("[pytest]\ndtdispatch_rounds = 2\ndtdispatch_mesh = 2")
    pytester.makepyfile(
        test_it=IMPORTS
        + """
def test_add(dtdispatch, device_mesh):
    with dtdispatch.capture():
        sharded(device_mesh) + 1
"""
    )
    file = tmp_path_factory.mktemp("elsewhere") / "results.csv"
    file.write_text("left.py::test_it::from another run,dispatch_hit_ns,6940,0.1\n")
    return file


@pytest.mark.parametrize("where", ["given", "in the environment"])
def test_a_value_that_moved_the_rootdir_is_refused(
    pytester: pytest.Pytester, elsewhere: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = ["--dtdispatch-expected", str(elsewhere)]
    if where == "in the environment":
        monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(flag))
        flag = []
    result = run(pytester, "--dtdispatch", *flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    flag_text = f"--dtdispatch-expected {elsewhere}"
    line = f"ERROR: {flag_text} would move pytest's rootdir: write {flag_text.replace(' ', '=')}"
    assert text_of(result).count(line) == 1


def test_a_file_elsewhere_changes_no_name_where_it_is_joined_to_its_flag(
    pytester: pytest.Pytester, elsewhere: Path
) -> None:
    elsewhere.write_text("left.py::test_it::from another run,dispatch_hit_ns,6940\n")
    result = run(pytester, "--dtdispatch", f"--dtdispatch-export=csv:{elsewhere}")
    result.assert_outcomes(passed=1)
    assert f"rootdir: {pytester.path}\n" in text_of(result)
    names = {line.rpartition('",')[0] for line in elsewhere.read_text().splitlines()}
    ops = ("add.Tensor(f32[8,8]S0)@2", "distribute_tensor(f32[8,8] -> S0)@2")
    assert names == {f'"test_it.py::test_add::{op}' for op in ops}


def test_a_file_that_moves_nothing_may_stand_apart_from_its_flag(
    pytester: pytest.Pytester, elsewhere: Path
) -> None:
    (pytester.path / "results.csv").write_text(elsewhere.read_text())
    run(pytester, "--dtdispatch", "--dtdispatch-expected", "results.csv").assert_outcomes(passed=1)
