"""The release script: errors, written files, and restored files after a failed build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.missing_names import missing
from tests.ci.pull_requests import SCRIPTS, commit, git
from tests.hidden_names import private_names

PROJECT = '[project]\nname = "it"\nversion = "0.1.0"\n\n[tool.it]\nversion = "9"\n'
STAND_IN = '#!/bin/sh\nmkdir -p "$1" && touch "$1/it.whl" && exit ${BUILD:-0}\n'
SOMEBODY = {
    f"GIT_{role}_{field}": f"somebody{at}"
    for role in ("AUTHOR", "COMMITTER")
    for field, at in (("NAME", ""), ("EMAIL", "@example.org"))
}
CHANGELOG = "# Changelog\n\n## Unreleased\n\n* More.\n\n## 0.2.0 (2026-01-02)\n\n* First.\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository whose packages are empty files."""
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    (tmp_path / "ci").mkdir()
    shutil.copy(SCRIPTS / "release.py", tmp_path / "ci")
    (tmp_path / "ci" / "release.sh").write_text(STAND_IN)
    (tmp_path / "ci" / "release.sh").chmod(0o755)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / ".gitignore").write_text("dist/\n")
    commit(tmp_path, "All")
    return tmp_path


def release(checkout: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "ci" / "release.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**SOMEBODY, **variables})


@pytest.mark.parametrize(
    ("version", "changelog", "extra", "message"),
    [
        ("0.2.0", CHANGELOG, "", "0.2.0 is not higher than 0.2.0, which is released"),
        ("0.1.9", CHANGELOG, "", "0.1.9 is not higher than 0.2.0"),
        ("1.0", CHANGELOG, "", "1.0 is not a version such as 1.2.3"),
        ("0.3.0", CHANGELOG.replace("* More.\n", ""), "", "CHANGELOG.md has no entries under Unreleased"),
        ("0.3.0", CHANGELOG, "left over", "the checkout has changes"),
    ],
)
def test_refused_release_changes_no_file(
    checkout: Path, version: str, changelog: str, extra: str, message: str
) -> None:
    if changelog != CHANGELOG:
        (checkout / "CHANGELOG.md").write_text(changelog)
        commit(checkout, "Other")
    if extra:
        (checkout / extra).touch()
    refused = release(checkout, version)
    assert refused.returncode == 1
    assert f"release: {message}" in refused.stderr
    assert (checkout / "pyproject.toml").read_text() == PROJECT
    assert not (checkout / "dist").exists()


def test_release_sets_version_and_date_and_may_tag(checkout: Path) -> None:
    completed = release(checkout, "0.10.0")
    assert completed.returncode == 0, completed.stderr
    assert (checkout / "pyproject.toml").read_text() == PROJECT.replace("0.1.0", "0.10.0")
    changelog = (checkout / "CHANGELOG.md").read_text()
    assert re.search(r"\n## 0\.10\.0 \(\d{4}-\d\d-\d\d\)\n\n\* More", changelog)
    assert 'git commit --all --message "Release 0.10.0" && git tag v0.10.0' in completed.stdout
    git(checkout, "checkout", "--quiet", ".")
    tagged = release(checkout, "0.10.0", "--tag")
    assert "git commit" not in tagged.stdout
    assert git(checkout, "tag", "--list") == "v0.10.0\n"
    assert not git(checkout, "status", "--porcelain")
    assert "0.10.0 is not higher than 0.10.0" in release(checkout, "0.10.0").stderr


def test_failed_build_restores_both_files(checkout: Path) -> None:
    failed = release(checkout, "0.3.0", BUILD="1")
    assert failed.returncode == 1
    assert failed.stderr == "release: stopped: see above\n"
    assert not git(checkout, "status", "--porcelain")


def test_removed_private_name_of_torch_is_listed(tmp_path: Path) -> None:
    gone, *there = private_names()
    (tmp_path / "one.py").write_text(" ".join(there))
    found = missing(tmp_path)
    assert [*found] == [gone]
    assert found[gone]
