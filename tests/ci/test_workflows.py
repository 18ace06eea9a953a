"""The YAML of the workflows is valid, pins its actions, and requests minimal permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci.pull_requests import JOB, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
FOLDER = ROOT / ".github" / "ISSUE_TEMPLATE"
ISSUE_FORMS = sorted(path for path in FOLDER.glob("*.yml") if path.name != "config.yml")
PINNED = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
RELEASED = re.compile(r"[\w-]+/[\w./-]+@v\d+\.\d+\.\d+")  # on pages, for users to paste
READ_ONLY = {"contents": "read"}
MORE = {("release.yml", "publish"): {"id-token": "write"}}  # additional permissions of jobs


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def steps(path: Path) -> Iterator[dict[str, Any]]:
    content = read(path)
    jobs = [content["runs"]] if path == ACTION else content["jobs"].values()
    for job in jobs:
        yield from job["steps"]


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=lambda path: path.name)
def test_steps_pin_actions_and_expand_no_expressions(path: Path) -> None:
    assert list(steps(path))
    for used in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8")):
        assert PINNED.fullmatch(used), used
    for step in steps(path):
        if "uses" not in step:
            assert "${{" not in step["run"], step["run"]
            scripts = re.findall(r"(?:\$GITHUB_ACTION_PATH/)?(\.?ci/[a-z_.]+)", step["run"])
            assert all((ROOT / script).exists() for script in scripts), scripts


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_request_minimal_permissions(path: Path) -> None:
    content = read(path)
    assert content["permissions"] in ({}, READ_ONLY)
    for name, job in content["jobs"].items():
        allowed = MORE.get((path.name, name), READ_ONLY)
        assert job.get("permissions", content["permissions"]) == allowed, name
        assert "timeout-minutes" in job, name


@pytest.mark.parametrize("path", ISSUE_FORMS, ids=lambda path: path.name)
def test_issue_forms_have_what_github_requires(path: Path) -> None:
    content = read(path)
    assert {"name", "description", "labels", "body"} <= content.keys()
    fields = [field["id"] for field in content["body"]]
    assert len(fields) == len({*fields})
    for field in content["body"]:
        assert field["attributes"]["label"]
        assert ("options" in field["attributes"]) == (field["type"] == "dropdown")


def test_action_inputs_reach_the_script() -> None:
    content = read(ACTION)
    used = set(re.findall(r"inputs\.([\w-]+)", ACTION.read_text()))
    assert used == set(content["inputs"])
    variables = {name for step in steps(ACTION) for name in step.get("env", {})}
    accepted = set(re.findall(r"PYTHON|DTDISPATCH_[A-Z_]+", JOB.read_text()))
    assert accepted - variables == {"DTDISPATCH_AB_"}  # the prefix of a name that ends with the metric


@pytest.mark.parametrize("page", ["README.md", "docs/ci.md"])
def test_documented_lines_are_a_read_only_workflow_of_released_actions(page: str) -> None:
    content = pasted(page)
    assert content["permissions"] == READ_ONLY
    [job] = content["jobs"].values()
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert all(map(RELEASED.fullmatch, used))
    assert any(use.startswith("actions/setup-python@") for use in used)  # pip refuses the system Python


def test_recipe_passes_only_valid_action_inputs() -> None:
    [job] = pasted("docs/ci.md")["jobs"].values()
    action = job["steps"][-1]
    assert action["uses"].startswith("OWNER/pytest-dtdispatch@")
    assert set(action["with"]) <= set(read(ACTION)["inputs"])


def pasted(page: str) -> dict[str, Any]:
    [block] = re.findall(r"```yaml\n(# .github.*?)```", (ROOT / page).read_text(), re.DOTALL)
    content: dict[str, Any] = yaml.safe_load(block)
    return content
