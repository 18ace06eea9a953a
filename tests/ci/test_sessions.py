"""The sessions of ``noxfile.py``: which there are, and what their table says."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.ci.pull_requests import ROOT

REPORT = """<testsuites><testsuite name="pytest">
<testcase name="a"/><testcase name="b"/>
<testcase name="c"><failure message="no"/></testcase>
<testcase name="d"><error message="no"/></testcase>
<testcase name="e"><skipped message="no CUDA device"/></testcase>
<testcase name="f"><skipped message="no CUDA device"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    pytest.importorskip("nox", reason="nox is not installed: pip install .[test]")
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["noxfile"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_weekly_workflow_runs_every_session(noxfile: ModuleType) -> None:
    content = yaml.safe_load((ROOT / ".github" / "workflows" / "versions.yml").read_text())
    job = content["jobs"]["sessions"]
    assert job["strategy"]["matrix"]["session"] == noxfile.SESSIONS
    [pythons] = [step["with"]["python-version"] for step in job["steps"] if "python" in step.get("uses", "")]
    assert {*pythons.split()} == {*noxfile.PYTHONS.values()}
    assert pythons.split()[-1] == noxfile.PYTHONS[noxfile.TORCH]  # the last one is what `python` is


def test_every_python_that_is_named_is_tried(noxfile: ModuleType) -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert sorted(named) == sorted({*noxfile.PYTHONS.values()})


def test_no_plugin_of_pytest_is_among_the_tools(noxfile: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    tools = noxfile.test_tools()
    assert "expecttest" in tools
    assert not {tool for tool in tools if tool.startswith("pytest")}


def test_a_line_counts_what_pytest_reported(noxfile: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    line = noxfile.Line("torch-9.9", "failed", ["3.11.7", "9.9", "9.2.0", "5.3.1"], seconds=61.4)
    line.add(tmp_path / "report.xml")
    assert line.row == "| torch-9.9 | failed | 3.11.7 | 9.9 | 9.2.0 | 5.3.1 | 2 | 2 | 2 | 61 |"


def test_the_table_has_every_session_and_every_reason(
    noxfile: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noxfile, "LINES", tmp_path)
    ran = {
        "session": "one",
        "verdict": "passed",
        "versions": ["a", "b", "c", "d"],
        "passed": 3,
        "seconds": 2.0,
    }
    (tmp_path / "one.json").write_text(json.dumps({**ran, "skipped": {"no CUDA device": 4}}))
    table = noxfile.lay_out(noxfile.read_lines(["one", "two"])).splitlines()
    assert table[2:4] == [
        "| one | passed | a | b | c | d | 3 | 0 | 4 | 2 |",
        "| two | did not run |  |  |  |  | 0 | 0 | 0 | 0 |",
    ]
    assert table[-1] == "* no CUDA device: one (4)"
