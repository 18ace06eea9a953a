"""Two commits of the project in the current folder, each checked out beside it for the time of a run."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pytest_dtdispatch.ab.process import held_back
from pytest_dtdispatch.errors import DtDispatchError

GIT_SECONDS = 600


@contextmanager
def worktrees(revisions: Mapping[str, str], project: Path, workspace: Path) -> Iterator[dict[str, Path]]:
    """Check commits out, and take the checkouts away again."""
    top = Path(_git("--base-rev", project, "rev-parse", "--show-toplevel"))
    inside = project.resolve().relative_to(top.resolve())
    commits = {
        side: _git(f"--{side}-rev {revision}", project, "rev-parse", "--verify", "--end-of-options", name)
        for side, revision in revisions.items()
        for name in [f"{revision}^{{commit}}"]
    }
    made: list[Path] = []
    try:
        for side, commit in commits.items():
            folder = workspace / side
            made.append(folder)
            _git(f"--{side}-rev", project, "worktree", "add", "--quiet", "--detach", str(folder), commit)
        for side in commits:
            if not (workspace / side / inside).is_dir():
                raise DtDispatchError(f"--{side}-rev {revisions[side]}: it has no folder {inside}")
        yield {side: workspace / side / inside for side in commits}
    finally:
        with held_back():
            for folder in made:
                _run(project, "worktree", "remove", "--force", str(folder))
            _run(project, "worktree", "prune")


def import_path(folder: Path) -> tuple[Path, ...]:
    """Give what a checkout is imported from: its ``src`` folder where it has one, else itself."""
    return (folder / "src" if (folder / "src").is_dir() else folder,)


def _git(what: str, project: Path, *words: str) -> str:
    done = _run(project, *words)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["git failed"]
        raise DtDispatchError(f"{what}: {lines[-1].removeprefix('fatal: ')} (git in {project})")
    return done.stdout.strip()


def _run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(project), *words],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C is for us: git must finish what it began
        )
    except OSError as error:
        raise DtDispatchError(f"git cannot be run: {error.strerror}") from None
