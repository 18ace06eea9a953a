"""The sessions of ``noxfile.py``."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest
import yaml

from tests.ci.pull_requests import ROOT


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    pytest.importorskip("nox", reason="nox is not installed: pip install .[test]")
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["noxfile"] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_weekly_workflow_runs_every_session(noxfile: ModuleType) -> None:
    content = yaml.safe_load((ROOT / ".github" / "workflows" / "versions.yml").read_text())
    job = content["jobs"]["sessions"]
    assert job["strategy"]["matrix"]["session"] == list(noxfile.SESSIONS)
    [pythons] = [step["with"]["python-version"] for step in job["steps"] if "python" in step.get("uses", "")]
    assert {*pythons.split()} == {*noxfile.PYTHONS.values()}
    assert pythons.split()[-1] == noxfile.PYTHONS[noxfile.TORCH]  # the last one becomes `python`


def test_every_declared_python_has_a_session(noxfile: ModuleType) -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert sorted(named) == sorted({*noxfile.PYTHONS.values()})


def test_tools_include_no_pytest_plugins(noxfile: ModuleType) -> None:
    assert "expecttest" in noxfile.TOOLS
    assert not {tool for tool in noxfile.TOOLS if tool.startswith("pytest")}
    assert [run for run in noxfile.SESSIONS["without-plugins"].requirements if "pytest" in run] == []


def test_sessions_of_torch_run_long_tests_of_ranks(noxfile: ModuleType) -> None:
    sessions = [tests for name, tests in noxfile.SESSIONS.items() if name.startswith("torch-")]
    assert len(sessions) == len(noxfile.PYTHONS)
    assert all(noxfile.RANKS in tests.runs for tests in sessions)
