"""The scripts of the CI recipe, each as it is: what they keep, say and decide; without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ci.pull_requests import SCRIPTS, commit, git, run_script

HOSTILE = "t.py::test_<script>alert(1)</script>|`[\x1b[31m]\r\n</details>\n```\n@everyone\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the stages of a job leave what they found."""
    (tmp_path / "found").mkdir()
    return tmp_path / "found"


def stages(folder: Path, **statuses: int) -> None:
    for stage, status in statuses.items():
        (folder / f"{stage}.status").write_text(f"{status}\n")
        (folder / f"{stage}.log").write_text(f"what {stage} said\n")


def run(folder: Path, script: str, *words: str, **told: str) -> subprocess.CompletedProcess[str]:
    return run_script(folder.parent, script, *words, DTDISPATCH_FOLDER=str(folder), **told)


@pytest.mark.parametrize("status", [0, 3])
def test_a_stage_keeps_what_a_command_says_and_its_status_and_goes_on(folder: Path, status: int) -> None:
    done = run(folder, "stage.sh", "counts", "bash", "-c", f"echo found; echo said >&2; exit {status}")
    assert done.returncode == 0
    assert (folder / "counts.status").read_text() == f"{status}\n"
    assert sorted((folder / "counts.log").read_text().split()) == ["found", "said"]
    assert f"counts ended with status {status}" in done.stdout


def test_what_a_stage_says_is_wide_and_has_no_colours(folder: Path) -> None:
    words = ("stage.sh", "counts", "bash", "-c", "echo $COLUMNS ${NO_COLOR:-} ${FORCE_COLOR:-}")
    run(folder, *words, FORCE_COLOR="1", COLUMNS="")
    assert (folder / "counts.log").read_text() == "120 1\n"


def test_a_command_that_is_not_there_is_no_success(folder: Path) -> None:
    assert run(folder, "stage.sh", "counts", "no-such-command").returncode == 0
    assert (folder / "counts.status").read_text() == "127\n"


@pytest.mark.parametrize(
    ("statuses", "strict", "returncode", "said"),
    [
        ({"counts": 0, "time": 0}, "true", 0, "every stage passed"),
        ({"counts": 1, "time": 0}, "true", 1, "not passed: counts"),
        ({"counts": 0, "time": 3}, "1", 1, "not passed: time"),
        ({"counts": 1, "time": 4}, "", 0, "not passed: counts time; informational"),
        ({"counts": 1}, "false", 0, "informational"),
        ({}, "true", 1, "no stage ran"),
        ({}, "", 0, "no stage ran"),
    ],
)
def test_the_verdict_fails_a_job_that_is_strict_and_tells_it_otherwise(
    folder: Path, statuses: dict[str, int], strict: str, returncode: int, said: str
) -> None:
    stages(folder, **statuses)
    done = run(folder, "verdict.sh", DTDISPATCH_STRICT=strict)
    assert done.returncode == returncode
    assert said in done.stdout


def test_the_summary_says_of_each_stage_what_its_status_means(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("what was there\n")
    stages(folder, counts=0, measured=1, instructions=5, time=4)
    done = run(folder, "summary.sh", GITHUB_STEP_SUMMARY=str(page), GITHUB_ACTIONS="true")
    assert done.returncode == 0
    assert page.read_text().splitlines()[:6] == [
        "what was there",
        "## dtdispatch",
        "* counts: passed",
        "* measured: failed",
        "* instructions: failed: a process did not measure",
        "* time: contaminated: plain tensors changed too",
    ]
    assert [line for line in done.stdout.splitlines() if line.startswith("::warning")] == [
        "::warning title=dtdispatch measured::failed; the summary of the job has the rows",
        "::warning title=dtdispatch instructions::failed: a process did not measure; "
        "the summary of the job has the rows",
        "::warning title=dtdispatch time::contaminated: plain tensors changed too; "
        "the summary of the job has the rows",
    ]


def test_the_summary_of_no_stage_says_so(folder: Path) -> None:
    assert run(folder, "summary.sh").stdout == "no stage ran\n"


def test_what_a_stage_said_stays_text_in_the_summary(folder: Path) -> None:
    stages(folder, counts=1)
    (folder / "counts.log").write_text(HOSTILE + "x" * 200_000)
    run(folder, "summary.sh")
    text = (folder / "summary.md").read_text()
    assert len(text) < 65_536
    (folder / "counts.log").write_text(HOSTILE)
    run(folder, "summary.sh")
    text = (folder / "summary.md").read_text()
    assert not {"\x1b", "\r"} & {*text}
    inside = text.split("<summary>counts</summary>\n\n")[1].rpartition("\n\n</details>")[0]
    assert inside.splitlines()
    assert all(line.startswith("    ") for line in inside.splitlines())


def test_a_stage_that_is_none_is_refused(folder: Path) -> None:
    done = run(folder, "job.sh", DTDISPATCH_STAGES="counts speed")
    assert done.returncode == 2
    assert "'speed' is not one of counts, instructions, time" in done.stderr


def test_a_comparison_with_no_commit_is_refused(folder: Path) -> None:
    done = run(folder, "compare.sh", "counts")
    assert done.returncode != 0
    assert "DTDISPATCH_BASE: the commit to compare with" in done.stderr


@pytest.fixture
def shallow(tmp_path: Path) -> Path:
    """A checkout of one commit, as a job has it, of a repository with two."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init", "--quiet", "--initial-branch", "main")
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")  # as GitHub does
    for name in ("base", "head"):
        (origin / name).touch()
        commit(origin, name)
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{origin}", str(clone))
    return clone


def test_a_base_that_a_shallow_checkout_does_not_have_is_fetched(shallow: Path, folder: Path) -> None:
    base = git(shallow.parent / "origin", "rev-parse", "HEAD~1").strip()
    told = {"DTDISPATCH_FOLDER": str(folder), "DTDISPATCH_BASE": base, "DTDISPATCH_TESTS": "tests -k add"}
    done = run_script(shallow, "compare.sh", "time", PYTHON="echo", DTDISPATCH_AB_TIME="--pairs 4", **told)
    assert done.returncode == 0
    assert git(shallow, "cat-file", "-t", base) == "commit\n"
    words = f"-m pytest_dtdispatch ab --metric time --base-rev {base} --head-rev HEAD"
    assert f"{words} --json {folder}/time.json --pairs 4 -- tests -k add\n" in done.stdout
    assert (folder / "time.status").read_text() == "0\n"


def test_a_base_that_is_nowhere_is_kept_as_a_stage_that_failed(shallow: Path, folder: Path) -> None:
    told = {"DTDISPATCH_FOLDER": str(folder), "DTDISPATCH_BASE": "0" * 40, "PYTHON": "echo"}
    assert run_script(shallow, "compare.sh", "counts", **told).returncode == 0
    assert (folder / "counts.status").read_text() != "0\n"


def test_a_plugin_that_cannot_be_installed_fails_a_strict_job_alone(folder: Path) -> None:
    told = {"PYTHON": "false", "DTDISPATCH_BASE": "main"}
    assert run(folder, "job.sh", **told).returncode == 0
    assert (folder / "summary.txt").read_text() == "install: failed\n"
    assert run(folder, "verdict.sh").returncode == 0
    assert run(folder, "verdict.sh", DTDISPATCH_STRICT="true").returncode == 1


GH = """#!/usr/bin/env bash
echo "$@" >>"$CALLS"
[[ -z ${FORBIDDEN:-} ]] || { echo "gh: Resource not accessible by integration (HTTP 403)" >&2; exit 1; }
case "$*" in
*/pulls*) echo "$NUMBER" ;;
*--paginate*) echo "${EARLIER:-}" ;;
*) cat >>"$CALLS.body" ;;
esac
"""


def comment(folder: Path, **told: str) -> tuple[subprocess.CompletedProcess[str], list[str], str]:
    """Run the comment with a ``gh`` that notes what it is asked; give what it said, calls and body."""
    bin_folder, noted = folder.parent / "bin", folder.parent / "calls"
    bin_folder.mkdir()
    (bin_folder / "gh").write_text(GH)
    (bin_folder / "gh").chmod(0o755)
    of_run = {
        "GITHUB_REPOSITORY": "us/project",
        "RUN_OWNER": "somebody",
        "RUN_BRANCH": "a-branch",
        "RUN_SHA": "0123456789abcdef",
        "RUN_URL": "https://example.org/run/1",
        "NUMBER": "7",
    }
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    done = run(folder, "comment.sh", **{**of_run, "CALLS": str(noted), "PATH": path, **told})
    body = noted.with_name("calls.body")
    return done, noted.read_text().splitlines(), body.read_text() if body.exists() else ""


def test_a_comment_is_written_beside_the_pull_request_of_the_run(folder: Path) -> None:
    stages(folder, counts=1)
    (folder / "counts.log").write_text(HOSTILE)
    run(folder, "summary.sh")
    done, asked, body = comment(folder)
    assert done.returncode == 0
    assert "head=somebody:a-branch" in asked[0]
    assert asked[-1].startswith("api --method POST repos/us/project/issues/7/comments")
    head, *rest = body.splitlines()
    assert head == "<!-- dtdispatch -->"
    assert rest[0] == "**dtdispatch** on 0123456789ab ([run](https://example.org/run/1)):"
    assert all(line.startswith("    ") for line in rest[1:] if line)
    assert "    counts: failed" in rest
    assert "\x1b" not in body


def test_an_earlier_comment_is_written_anew(folder: Path) -> None:
    stages(folder, counts=0)
    _, asked, _ = comment(folder, EARLIER="42")
    assert asked[-1].startswith("api --method PATCH repos/us/project/issues/comments/42")


@pytest.mark.parametrize("told", [{"FORBIDDEN": "yes"}, {"NUMBER": ""}, {"NUMBER": "7; echo"}])
def test_a_comment_never_fails_the_run(folder: Path, told: dict[str, str]) -> None:
    stages(folder, counts=1)
    done, _, body = comment(folder, **told)
    assert done.returncode == 0
    assert not body
    assert "no comment could be written" in done.stdout or "no open pull request" in done.stdout


def test_a_comment_without_any_files_never_fails_the_run(folder: Path) -> None:
    folder.rmdir()
    done, *_ = comment(folder)
    assert done.returncode == 0


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_the_scripts_are_clean() -> None:
    scripts = [str(script) for script in sorted(SCRIPTS.glob("*.sh"))]
    done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_scripts_stop_at_a_mistake_and_can_be_run() -> None:
    for script in SCRIPTS.glob("*.sh"):
        lines = script.read_text().splitlines()
        assert lines[0] == "#!/usr/bin/env bash", script
        assert "set -euo pipefail" in lines, script
        assert lines[1].startswith(f"# {script.name}"), script
        assert os.access(script, os.X_OK), script
