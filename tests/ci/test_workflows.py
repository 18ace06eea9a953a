"""The YAML of the recipe: it parses, runs scripts alone, pins what it uses, and asks for few permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ci.pull_requests import ROOT, SCRIPTS

EXAMPLES = sorted((ROOT / "docs" / "ci").glob("*.yml"))
WORKFLOWS = [*EXAMPLES, *sorted((ROOT / ".github" / "workflows").glob("*.yml"))]
ACTION = ROOT / "action.yml"
# A script of ours, with plain words; what a project installs is its own line.
SCRIPT = re.compile(r'"?(?:\$GITHUB_ACTION_PATH/|\.dtdispatch/)?\.?ci/([a-z_.]+)"?((?: [a-z]+)*)')
PINNED = re.compile(r"[\w-]+/[\w./-]+@v\d+\.\d+\.\d+")
READ_ONLY = {"contents": "read"}


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def steps(path: Path) -> Iterator[dict[str, Any]]:
    content = read(path)
    jobs = [content["runs"]] if path == ACTION else content["jobs"].values()
    for job in jobs:
        yield from job["steps"]


@pytest.mark.parametrize("path", [ACTION, *WORKFLOWS], ids=lambda path: path.name)
def test_steps_run_scripts_alone_and_pin_what_they_use(path: Path) -> None:
    assert list(steps(path))
    for step in steps(path):
        if uses := step.get("uses"):
            assert PINNED.fullmatch(uses), uses
        elif step["name"] == "Install the project":
            assert step["run"].startswith("python -m pip install ")
        else:
            called = SCRIPT.fullmatch(step["run"])
            assert called, step["run"]
            name = called[1]
            assert (SCRIPTS / name).exists() or (ROOT / ".ci" / name).exists(), name
            assert "${{" not in step["run"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_asks_for_little(path: Path) -> None:
    content = read(path)
    assert content["permissions"] in ({}, READ_ONLY)
    asked = {name: job.get("permissions", content["permissions"]) for name, job in content["jobs"].items()}
    allowed = {
        "dtdispatch.yml": {"dtdispatch": READ_ONLY},
        "dtdispatch-comment.yml": {
            "comment": {"actions": "read", "contents": "read", "pull-requests": "write"}
        },
        "tests.yml": {"tests": READ_ONLY},
        "versions.yml": {"sessions": READ_ONLY},
        "release.yml": {"build": READ_ONLY, "publish": {"id-token": "write"}},
    }
    assert asked == allowed[path.name]
    assert all("timeout-minutes" in job for job in content["jobs"].values())


def test_only_the_workflow_that_runs_no_code_of_a_pull_request_may_write() -> None:
    [comment] = [path for path in EXAMPLES if "comment" in path.name]
    triggers: Any = yaml.load(comment.read_text(), Loader=yaml.BaseLoader)["on"]  # YAML 1.1 reads it as true
    assert list(triggers) == ["workflow_run"]
    checkouts = [step for step in steps(comment) if "checkout" in step.get("uses", "")]
    assert [step["with"]["repository"] for step in checkouts] == ["OWNER/pytest-dtdispatch"]
    assert all(step.get("continue-on-error") or "checkout" in step["uses"] for step in steps(comment))


def test_what_the_action_is_given_reaches_the_scripts() -> None:
    content = read(ACTION)
    used = set(re.findall(r"inputs\.([\w-]+)", ACTION.read_text()))
    assert used == set(content["inputs"])
    told = {name for step in steps(ACTION) for name in step.get("env", {})}
    scripts = "".join(script.read_text() for script in SCRIPTS.glob("*.sh"))
    assert told <= set(re.findall(r"PYTHON|DTDISPATCH_[A-Z_]+", scripts))


def test_the_plain_workflow_and_the_action_do_the_same() -> None:
    [plain] = [path for path in EXAMPLES if "comment" not in path.name]
    called = [step["run"].removeprefix(".dtdispatch/ci/") for step in steps(plain) if "run" in step]
    job = (SCRIPTS / "job.sh").read_text()
    for script in ("install.sh", "measure.sh", "compare.sh", "summary.sh"):
        assert any(run.startswith(script) for run in called), script
        assert f'"$here/{script}"' in job, script
    assert called[-1] == "verdict.sh"
    compared = [run.split()[1] for run in called if run.startswith("compare.sh")]
    assert compared == ["counts", "instructions", "time"]


@pytest.mark.parametrize("page", ["README.md", "docs/ci.md"])
def test_the_lines_to_paste_are_those_of_a_workflow(page: str) -> None:
    [block] = re.findall(r"```yaml\n(# .github.*?)```", (ROOT / page).read_text(), re.DOTALL)
    content = yaml.safe_load(block)
    assert content["permissions"] == READ_ONLY
    [job] = content["jobs"].values()
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert all(map(PINNED.fullmatch, used))
    assert any(use.startswith("actions/setup-python@") for use in used)  # pip refuses the system's Python
    assert used[-1].startswith("OWNER/pytest-dtdispatch@")
    assert set(job["steps"][-1]["with"]) <= set(read(ACTION)["inputs"])


TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_an_issue_template_asks_for_what_is_needed(path: Path) -> None:
    content = read(path)
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= content.keys()
        assert all(part["type"] in ("markdown", "textarea", "input", "dropdown") for part in content["body"])
