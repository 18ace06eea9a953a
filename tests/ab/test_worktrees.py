"""Import paths of the sides of two commits, errors, and leftovers of a killed run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pytest_dtdispatch.ab import worktrees as ab_worktrees
from pytest_dtdispatch.ab.checkout import Checkout
from pytest_dtdispatch.ab.process import Arm, probe
from pytest_dtdispatch.ab.worktrees import import_from_checkout, workspace, worktrees
from pytest_dtdispatch.cli import main
from pytest_dtdispatch.errors import DtDispatchError, ProcessError
from pytest_dtdispatch.report.run import ReportedRun, saved_text
from tests.ab.fakes import calls, fake_python, wait_for, wait_for_end, waiting_python
from tests.ci.pull_requests import commit, git


@pytest.fixture
def arm(tmp_path: Path) -> Arm:
    """Return a side whose worktree has the folders python and libs/one/src, beside the user's checkout."""
    for folder in ("worktree/python", "worktree/libs/one/src", "repository/.venv/site", "repository/python"):
        (tmp_path / folder).mkdir(parents=True)
    top = tmp_path / "worktree"
    checkout = Checkout(str(top), (str(tmp_path / "repository"), str(tmp_path / "repository/wt/other")))
    return Arm("base", sys.executable, top, tmp_path, checkout=checkout)


@pytest.mark.parametrize(
    ("path", "mapped"),
    [
        ([], []),
        (["repository/python"], ["python"]),
        (["repository/.venv/site", "site", "repository-2/python"], []),
        (["repository/libs/one/src", "repository/wt/other/python"], ["libs/one/src", "python"]),
        (["repository"], []),  # always present
    ],
)
def test_import_path_is_mapped_to_the_worktree(
    arm: Arm, tmp_path: Path, path: list[str], mapped: list[str]
) -> None:
    top = tmp_path / "worktree"
    assert arm.checkout
    probed = replace(arm, path=tuple(str(tmp_path / each) for each in path))
    found = import_from_checkout(probed, replace(arm.checkout, project=str(top)), installs=False)
    assert found.checkout
    assert found.checkout.import_path == (*(str(top / each) for each in mapped), str(top))


def test_path_of_an_interpreter_has_editable_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Editable installs include those that setuptools implements with a finder."""
    (tmp_path / "__editable___one_finder.py").write_text(
        f"MAPPING = {{'one': '{tmp_path}/libs/one', 'a.two': '{tmp_path}/src/a/two', 'odd': '/x/other'}}"
    )
    (tmp_path / "torch.py").write_text("__version__, version = '2.13.0', None")
    (tmp_path / "sitecustomize.py").write_text("import __editable___one_finder")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = probe(Arm("base", sys.executable, tmp_path, tmp_path)).path
    assert found[0] == str(tmp_path)
    assert found[-2:] == (f"{tmp_path}/libs", f"{tmp_path}/src")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository with one commit, which ignores compiled files."""
    folder = tmp_path / "repository"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "__init__.py").touch()
    (folder / ".gitignore").write_text("*.so\n.venv\n")
    git(folder, "init", "--quiet")
    commit(folder, "one")
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize(("name", "installs"), [("lib/_C.so", True), (".venv/lib/x.so", False)])
def test_built_or_installed_commit_gets_a_worktree(
    repository: Path, tmp_path: Path, name: str, installs: bool
) -> None:
    """A commit that is installed, or has a compiled file in another folder, gets a worktree."""
    (repository / name).parent.mkdir(parents=True, exist_ok=True)
    (repository / name).touch()
    with worktrees({"base": "HEAD"}, repository, tmp_path, installs) as found:
        assert found["base"].others == (str(repository),)
    assert git(repository, "worktree", "list").count("\n") == 1


def test_build_that_git_ignores_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / "lib/_C.so").touch()
    context = worktrees({"base": "HEAD"}, repository, tmp_path, installs=False)
    with pytest.raises(DtDispatchError, match=r"lib/_C.so, .*--base PYTHON --head PYTHON"), context:
        pass
    assert git(repository, "worktree", "list").count("\n") == 1


def test_failed_install_names_its_cause(arm: Arm, tmp_path: Path) -> None:
    project = tmp_path / "worktree/libs/one"  # the innermost project around the folder of the run
    for folder in (tmp_path / "worktree", project):
        (folder / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named pip; exit 1\n")
    python.chmod(0o755)
    assert arm.checkout
    words = f"-m pip install --no-deps --target {tmp_path.resolve() / 'base-installed'} {project}$"
    with pytest.raises(DtDispatchError, match=f"--install: No module named pip: {words}"):
        import_from_checkout(
            replace(arm, python=str(python)),
            replace(arm.checkout, project=str(project / "src")),
            installs=True,
        )


def test_interpreters_are_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = str(fake_python(tmp_path, "python"))
    assert main(["ab", "--base", python, "--head", python, "--install"]) == 2
    assert "--install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("saved", "error"),
    [
        (ReportedRun(refusal="imports lib from elsewhere"), "imports lib from elsewhere"),
        (ReportedRun(), "the tests import no module of this repository"),
    ],
)
def test_unproven_import_ends_the_run(
    repository: Path,
    tmp_path: Path,
    saved: ReportedRun,
    error: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    writes = f"open(os.environ['DTDISPATCH_AB_OUTPUT'], 'w').write({saved_text(saved)!r})\nsys.exit(0)"
    python = str(fake_python(tmp_path, "python", does=writes))
    assert main(["ab", "--base", python, "--base-rev", "HEAD", "--head-rev", "HEAD"]) == 2
    assert error in capsys.readouterr().err
    assert len(calls(tmp_path)) == 1


def test_report_names_commit_and_folder_of_each_side(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = str(fake_python(tmp_path, "python"))
    words = ["ab", "--base", python, "--base-rev", "HEAD", "--head-rev", "HEAD", "--pairs", "4", "--", "t.py"]
    assert main(words) == 0
    base, head, *_ = capsys.readouterr().out.splitlines()
    head_id = git(repository, "rev-parse", "HEAD")[:10]
    assert base.startswith(f"base: HEAD {head_id} ({python})")
    assert base.endswith("/base")
    assert head.startswith("head: ")
    assert head.endswith("/head")


def test_interrupt_of_the_cleanup_keeps_the_verdicts(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git_of_worktrees = ab_worktrees._git

    def interrupted(project: Path, *words: str, option: str = "") -> str:
        if words[:2] == ("worktree", "remove"):
            signal.raise_signal(signal.SIGINT)
        return git_of_worktrees(project, *words, option=option)

    monkeypatch.setattr(ab_worktrees, "_git", interrupted)
    python = str(fake_python(tmp_path, "python"))
    assert main(["ab", "--base", python, "--base-rev", "HEAD", "--head-rev", "HEAD", "--", "t.py"]) == 130
    assert "2 rows: 2 passed" in capsys.readouterr().out
    assert git(repository, "worktree", "list").count("\n") == 1


def leftovers(folder: Path) -> Iterator[str]:
    return (path.name for path in sorted(folder.iterdir()))


def test_next_run_removes_leftovers_of_killed_runs(temporary_folders: Path) -> None:
    (temporary_folders / "dtdispatch-ab-killed").mkdir()
    (temporary_folders / "dtdispatch-ab-killed" / "lock").touch()
    (temporary_folders / "dtdispatch-ab-log").mkdir()  # left by a failure: the error message names it
    with workspace() as running, workspace() as other:
        assert running.exists()
        assert {*leftovers(temporary_folders)} == {"dtdispatch-ab-log", running.name, other.name}
    with pytest.raises(ProcessError), workspace() as failed:
        raise ProcessError
    with workspace():
        assert failed.exists()
        assert not running.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_killed_run_leaves_no_process_and_no_worktree(
    repository: Path, tmp_path: Path, temporary_folders: Path, number: int
) -> None:
    python, pids = waiting_python(tmp_path, "waits")
    revisions = ["--base-rev", "HEAD", "--head-rev", "HEAD", "--pairs", "4"]
    words = [sys.executable, "-m", "pytest_dtdispatch", "ab", *revisions, "--base"]
    process = subprocess.Popen(
        [*words, python],
        stderr=subprocess.DEVNULL,
        preexec_fn=partial(signal.signal, signal.SIGQUIT, signal.SIG_DFL),  # background jobs ignore it
    )
    wait_for(pids.exists)
    process.send_signal(number)
    process.wait(60)
    wait_for_end(pids)
    assert list(leftovers(temporary_folders))
    assert main(["ab", *revisions, "--base", str(fake_python(tmp_path, "python"))]) == 0
    assert not list(leftovers(temporary_folders))
    assert git(repository, "worktree", "list").count("\n") == 1
