"""The unmodified CI recipe on pull requests of one commit: findings and decisions of each stage."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.ci.pull_requests import ROOT, SCRIPTS, git, make_project, run_in, run_job

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.long]
# Fewer processes than in a real job: the injected changes exceed the floor many times.
TIMES = "--floor hit=50%,miss=30% --control off"
STRICT = {"DTDISPATCH_BASE": "main", "DTDISPATCH_STRICT": "true"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("recipe") / "project")


def verdicts(folder: Path, stage: str) -> dict[str, str]:
    """Return the rows that did not pass a stage."""
    [gate] = json.loads((folder / f"{stage}.json").read_text())["gates"]
    return {one["row"]: one["verdict"] for one in gate["verdicts"] if one["verdict"] != "passed"}


def test_clean_pull_request_passes_the_documented_script(project: Path, tmp_path: Path) -> None:
    [block] = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
    git(project, "switch", "--quiet", "refactor")
    page = tmp_path / "page.md"
    variables = {"CI": str(SCRIPTS), "DTDISPATCH_FOLDER": str(tmp_path), "GITHUB_STEP_SUMMARY": str(page)}
    done = run_in(project, "bash", "-euo", "pipefail", "-c", block, **variables)
    assert done.returncode == 0, done.stdout
    assert "every stage passed" in done.stdout
    assert not verdicts(tmp_path, "counts")
    assert "counts: passed" in page.read_text()
    assert "layers.gate.default" in (tmp_path / "report.html").read_text()


def test_pull_request_with_more_redistributions_fails(project: Path, tmp_path: Path) -> None:
    done = run_job(project, "redistribution", DTDISPATCH_FOLDER=str(tmp_path), **STRICT)
    assert done.returncode == 1
    assert "not passed: counts" in done.stdout
    step = "test_layers.py::test_step::step"
    assert verdicts(tmp_path, "counts") == {
        f"{step}::redistributes_per_step": "regressed",
        f"{step}::collectives_per_step": "regressed",
    }


@pytest.mark.sweep  # takes minutes: callgrind, and many processes
@pytest.mark.parametrize(("stage", "branch"), [("instructions", "slow-rule"), ("time", "very-slow-rule")])
def test_slow_sharding_rule_fails_by_its_miss(project: Path, tmp_path: Path, stage: str, branch: str) -> None:
    flags = {"DTDISPATCH_AB_INSTRUCTIONS": "--confirm 1", "DTDISPATCH_AB_TIME": TIMES}
    variables = {"DTDISPATCH_FOLDER": str(tmp_path), "DTDISPATCH_STAGES": stage, **flags, **STRICT}
    done = run_job(project, branch, **variables)
    assert done.returncode == 1
    # On a busy machine a hit may be inconclusive, but never regressed.
    [row] = [row for row, verdict in verdicts(tmp_path, stage).items() if verdict == "regressed"]
    assert row.startswith("test_layers.py::test_gate::layers.gate.default(")
    assert row.endswith("::miss")
