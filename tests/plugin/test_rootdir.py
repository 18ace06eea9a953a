"""Names of rows and the ini file do not depend on where files are that flags of ours name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.plugin.rootdir import joined
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
    file.write_text("left.py::test_it::from another run,dispatch_hit_ns,6940\n")
    return file


@pytest.mark.parametrize("spelling", ["apart", "joined", "in the environment"])
def test_a_file_elsewhere_changes_no_name(
    pytester: pytest.Pytester, elsewhere: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = ["--dtdispatch-csv", str(elsewhere)]
    if spelling == "in the environment":
        monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(flag))
        flag = []
    elif spelling == "joined":
        flag = ["=".join(flag)]
    result = run(pytester, "--dtdispatch", *flag)
    result.assert_outcomes(passed=1)
    assert f"rootdir: {pytester.path}\n" in text_of(result)
    assert text_of(result).count("test session starts") == 1
    names = {line.rpartition('",')[0] for line in elsewhere.read_text().splitlines()}
    ops = ("add.Tensor(f32[8,8]S0)@2", "distribute_tensor(f32[8,8] -> S0)@2")
    assert names == {f'"test_it.py::test_add::{op}' for op in ops}


def test_a_mistake_is_told_once(pytester: pytest.Pytester, elsewhere: Path) -> None:
    result = run(pytester, "--dtdispatch", "--dtdispatch-csv", str(elsewhere), "--dtdispatch-rounds=0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text_of(result).count("ERROR") == 1


def test_only_values_of_our_flags_are_joined() -> None:
    args = ["--dtdispatch", "tests", "-k", "add", "--dtdispatch-mesh", "2x2", "--dtdispatch-csv=a", "b"]
    assert joined(args) == [*args[:4], "--dtdispatch-mesh=2x2", *args[6:]]
