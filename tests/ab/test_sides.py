"""Two commits of a project, each in a temporary worktree."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_dtdispatch.cli import main
from tests.ab.fakes import calls, fake_python
from tests.ci.pull_requests import commit, git


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create commits ``old`` and ``new`` of a project in a folder of its repository."""
    repository = tmp_path / "repository"
    folder = repository / "python"
    folder.mkdir(parents=True)
    git(repository, "init", "--quiet")
    for tag in ("old", "new"):
        (folder / "which.txt").write_text(tag)
        commit(repository, tag)
        git(repository, "tag", tag)
    monkeypatch.chdir(folder)
    return folder


def run(tmp_path: Path, *more: str, does: str = "") -> int:
    python = fake_python(tmp_path, "python", does=does)
    return main(["ab", "--base", str(python), "--base-rev", "old", "--head-rev", "new", *more])


RECORD_COMMIT = (
    "which = open(os.path.join(os.environ['PYTHONPATH'].split(os.pathsep)[0], 'which.txt')).read()\n"
    "open(spec['calls'], 'a').write(which + chr(10))\n"
)


def test_each_side_imports_its_commit(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each side imports its own commit, and worktrees are removed."""
    assert run(tmp_path, does=RECORD_COMMIT) == 0
    assert calls(tmp_path)[1::2] == ["old", "new", "new", "old", "old", "new"]
    assert f"new {git(project, 'rev-parse', 'new')[:10]} (" in capsys.readouterr().out
    assert run(tmp_path, does="sys.exit(3)") == 5
    assert run(tmp_path, "--head-rev", "never") == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("dtdispatch: --head-rev never: ")
    assert len(git(project, "worktree", "list").splitlines()) == 1


def test_tests_run_in_their_folder_of_the_checkout(project: Path, tmp_path: Path) -> None:
    does = RECORD_COMMIT + "assert open('which.txt').read() == which; assert sys.argv[-1] == 'test_it.py'\n"
    assert run(tmp_path, "--", "test_it.py", does=does) == 0


def test_folder_without_a_repository_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "not a git repository" in err
