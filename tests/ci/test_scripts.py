"""The script of the CI recipe with a stub of Python: saved files, output and status."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ci.pull_requests import SCRIPTS, commit, git, run_job

HOSTILE = "t.py::test_<script>alert(1)</script>|`[\x1b[31m]\r\n</details>\n```\n@everyone\n"
# Prints its arguments, and exits with the status set for each metric or for pytest.
STAND_IN = """#!/usr/bin/env bash
echo "$COLUMNS ${NO_COLOR:-} ${FORCE_COLOR:-}"
echo "called: $*"
[[ -z ${SAYS:-} ]] || cat "$SAYS"
case "$*" in
*"-m pytest "*) exit "${MEASURED:-0}" ;;
*--metric*) words="$*"; words=${words#*--metric }; metric=${words%% *}; exit "${!metric:-0}" ;;
*"-c import"* | *pip*) exit "${INSTALL:-0}" ;;
esac
"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with two commits."""
    origin = tmp_path_factory.mktemp("origin")
    git(origin, "init", "--quiet", "--initial-branch", "main")
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")  # like GitHub
    for name in ("base", "head"):
        (origin / name).touch()
        commit(origin, name)
    return origin


@pytest.fixture
def shallow(origin: Path, tmp_path: Path) -> Path:
    """Return a shallow checkout of one commit of that repository, as in a job."""
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{origin}", str(clone))
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    return clone


def run(shallow: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Return a function that runs the job on that checkout; its files are written to ``found`` beside it."""
    beside = shallow.parent
    ours = {"PYTHON": str(beside / "python"), "DTDISPATCH_FOLDER": str(beside / "found")}
    return run_job(shallow, **{**ours, "DTDISPATCH_BASE": "HEAD", **variables})


@pytest.mark.parametrize(
    ("statuses", "returncode", "verdict"),
    [
        ({"counts": "0"}, 0, "every stage passed"),
        ({"counts": "3", "DTDISPATCH_STRICT": "1"}, 1, "not passed: counts"),
        ({"MEASURED": "1", "counts": "4"}, 0, "not passed: measured counts; informational"),
        ({"counts": "1", "DTDISPATCH_STRICT": "false"}, 0, "informational"),
        ({"INSTALL": "1", "DTDISPATCH_STRICT": "true"}, 1, "not passed: install"),
        ({"PYTHON": "no-such-command"}, 0, "not passed: install"),
        # Does not exist.
        ({"DTDISPATCH_BASE": "0" * 40, "DTDISPATCH_STRICT": "true"}, 1, "not passed: counts"),
        ({"DTDISPATCH_STAGES": "counts speed"}, 2, "'speed' is not one of counts, instructions, time"),
    ],
)
def test_failed_stage_fails_only_strict_jobs(
    shallow: Path, statuses: dict[str, str], returncode: int, verdict: str
) -> None:
    done = run(shallow, **statuses)
    assert done.returncode == returncode
    assert verdict in done.stdout + done.stderr


def test_summary_explains_the_status_of_each_stage(shallow: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("what was there\n")
    stages = {"DTDISPATCH_STAGES": "counts time", "MEASURED": "1", "counts": "5", "time": "4"}
    done = run(shallow, GITHUB_STEP_SUMMARY=str(page), GITHUB_ACTIONS="true", **stages)
    assert done.returncode == 0
    assert (tmp_path / "found" / "summary.txt").read_text().splitlines() == [
        "install: passed",
        "measured: failed",
        "counts: failed: a process did not measure",
        "time: contaminated: plain tensors changed too",
    ]
    text = page.read_text()
    verdicts = (
        "measured: failed; counts: failed: a process did not measure; time: contaminated: plain tensors"
    )
    assert text.startswith(f"what was there\n## dtdispatch: {verdicts} changed too\n")
    assert "<summary>time: contaminated: plain tensors changed too</summary>" in text
    warnings = [line for line in done.stdout.splitlines() if line.startswith("::warning")]
    assert len(warnings) == 3
    assert warnings[0] == "::warning title=dtdispatch measured::failed; the summary of the job has the rows"


@pytest.mark.parametrize(("strict", "level"), [("false", "warning"), ("true", "error")])
def test_rows_are_errors_only_in_strict_jobs(shallow: Path, tmp_path: Path, strict: str, level: str) -> None:
    output = tmp_path / "output"
    output.write_text("::error file=layers.py,line=31::step regressed\n")
    done = run(shallow, SAYS=str(output), DTDISPATCH_STRICT=strict)
    rows = [line for line in done.stdout.splitlines() if "::step regressed" in line]
    assert {*rows} == {f"::{level} file=layers.py,line=31::step regressed"}


def test_log_is_plain_text_in_the_summary(shallow: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.write_text(HOSTILE + "x" * 200_000)
    run(shallow, FORCE_COLOR="1", COLUMNS="", SAYS=str(output))
    found = tmp_path / "found"
    assert (found / "counts.log").read_text().splitlines()[0] == "120 1 "
    assert len((found / "summary.md").read_text()) < 3 * 65_536
    output.write_text(HOSTILE)
    run(shallow, SAYS=str(output))
    text = (found / "summary.md").read_text()
    assert not {"\x1b", "\r"} & {*text}
    inside = text.split("<summary>counts: passed</summary>\n\n")[1].rpartition("\n\n</details>")[0]
    assert all(line.startswith("    ") for line in inside.splitlines())


def test_only_tables_of_ab_runs_become_markup(shallow: Path, tmp_path: Path) -> None:
    verdict = "counts: passed: 1 new"
    table = "| row | state | base |\n| --- | --- | --: |\n| a\\|b | hit | 7 |\n"
    output = tmp_path / "output"
    output.write_text(f"base: one\n\n### {verdict}\n\n{table}")
    run(shallow, SAYS=str(output))
    text = (tmp_path / "found" / "summary.md").read_text()
    assert text.startswith(f"## dtdispatch: {verdict}\n\n{table}"), "one stage has no title of its own"
    assert text.count("\n| row |") == 1
    measured, _, counts = text.split("<summary>measured: passed")[-1].partition("<summary>counts: passed")
    assert counts.endswith("    base: one\n    \n\n</details>\n\n")
    assert "    | row |" in measured


def test_only_the_checkout_is_measured_without_a_base(shallow: Path) -> None:
    done = run(shallow, DTDISPATCH_BASE="", DTDISPATCH_EXPECTED="counts.csv", DTDISPATCH_PYTEST_ARGS="-x")
    assert "-x --dtdispatch-expected counts.csv test_layers.py\n" in done.stdout
    assert "--metric" not in done.stdout


def test_base_missing_from_shallow_checkout_is_fetched(origin: Path, shallow: Path, tmp_path: Path) -> None:
    base = git(origin, "rev-parse", "HEAD~1").strip()
    variables = {"DTDISPATCH_TESTS": "tests -k add", "DTDISPATCH_AB_TIME": "--pairs 4"}
    done = run(shallow, DTDISPATCH_BASE=base, DTDISPATCH_STAGES="time", **variables)
    assert git(shallow, "cat-file", "-t", base) == "commit\n"
    words = f"-m pytest_dtdispatch ab --metric time --base-rev {base} --head-rev HEAD"
    flags = f"--keep {tmp_path / 'found'}/time --json {tmp_path / 'found'}/time.json --markdown --pairs 4"
    assert f"{words} {flags} -- tests -k add\n" in done.stdout
    assert "time: passed" in done.stdout


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_scripts_pass_shellcheck() -> None:
    scripts = [str(script) for script in sorted(SCRIPTS.glob("*.sh"))]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_scripts_are_executable_and_stop_on_errors() -> None:
    for script in SCRIPTS.glob("*.sh"):
        lines = script.read_text().splitlines()
        assert lines[0] == "#!/usr/bin/env bash", script
        assert "set -euo pipefail" in lines, script
        assert lines[1].startswith(f"# {script.name}"), script
        assert os.access(script, os.X_OK), script
