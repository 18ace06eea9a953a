"""Worktrees of the commits of an A/B run, their import paths, and cleanup after killed runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from pytest_dtdispatch.ab.checkout import PROJECTS, Checkout
from pytest_dtdispatch.ab.process import Arm, last_lines, run_to_end, signals_deferred
from pytest_dtdispatch.errors import DtDispatchError, ProcessError


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Create a folder for a run, and remove folders of killed runs, whose lock is free.

    After a ProcessError, the folder is not removed, because the message has the path of a log in it.
    """
    for lock in Path(tempfile.gettempdir()).glob("dtdispatch-ab-*/lock"):
        with contextlib.suppress(OSError), lock.open("rb") as file:  # another user's, or in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
    folder, stays = Path(tempfile.mkdtemp(prefix="dtdispatch-ab-")), False
    with (folder / "new").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lock = (folder / "new").rename(folder / "lock")  # other runs never see it unlocked
        try:
            yield folder
        except ProcessError:
            stays = True
            raise
        finally:
            lock.unlink(missing_ok=True)
            if not stays:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def worktrees(
    revisions: Mapping[str, str], project: Path, folder: Path, installs: bool
) -> Iterator[dict[str, Checkout]]:
    """Check out commits temporarily.

    Args:
        revisions: commits by side; may be empty.
        project: folder of the repository in which the run was started.
        folder: folder for the worktrees.
        installs: whether the commits are installed, so that their compiled files need not exist.

    Yields:
        The worktrees by side.
    """
    if not revisions:
        yield {}
        return
    top = Path(_git(project, "rev-parse", "--show-toplevel", option="--base-rev"))
    inside = project.resolve().relative_to(top.resolve())
    found: dict[str, Checkout] = {}
    try:
        _git(project, "worktree", "prune")  # after a run that was killed
        for side, revision in revisions.items():
            verified = ("--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
            commit = _git(project, "rev-parse", *verified)
            if not commit:
                raise DtDispatchError(f"--{side}-rev {revision}: no such commit in {top}")
            path = Path(os.path.realpath(folder), side)
            found[side] = Checkout(str(path), commit=commit, project=str(path / inside))
            _git(project, "worktree", "add", "--quiet", "--detach", str(path), commit, option=f"--{side}-rev")
            if not (path / inside).is_dir():
                raise DtDispatchError(f"--{side}-rev {revision}: it has no folder {inside}")
            if not installs:
                _refuse_ignored_builds(top, side, path)
        listed = _git(project, "worktree", "list", "--porcelain").splitlines()
        tops = [os.path.realpath(line[9:]) for line in listed if line.startswith("worktree ")]
        for side, checkout in found.items():
            others = tuple(each for each in tops if each != checkout.top)
            found[side] = replace(checkout, others=others)
        yield found
    finally:
        with signals_deferred():
            for checkout in found.values():
                _git(project, "worktree", "remove", "--force", checkout.top)
            _git(project, "worktree", "prune")


def _refuse_ignored_builds(top: Path, side: str, worktree: Path) -> None:
    """Raise an error if git ignores compiled files of a commit's packages, which a worktree lacks."""
    globs = ("*.so", "*.pyd", "*.dylib")
    listed = _git(top, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", *globs)
    for name in filter(None, listed.split("\0")):
        if (worktree / name).parent.is_dir():
            remedy = "build each commit and compare --base PYTHON --head PYTHON, or add --install"
            raise DtDispatchError(f"--{side}-rev: git ignores {top / name}, which a worktree lacks: {remedy}")


def _git(project: Path, *words: str, option: str = "") -> str:
    """Run git and return its output; report a failure as an error of ``option``, or ignore it without one."""
    command = ["git", "-C", str(project), *words]
    try:  # without Ctrl-C, which git must not receive
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=600, check=False, start_new_session=True
        )
    except OSError as error:
        raise DtDispatchError(f"git cannot be started: {error.strerror}") from None
    if done.returncode and option:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["git failed"]
        raise DtDispatchError(f"{option}: {lines[-1].removeprefix('fatal: ')} (git in {project})")
    return done.stdout.strip()


def import_from_checkout(arm: Arm, checkout: Checkout, installs: bool) -> Arm:
    """Return an arm that imports its commit, installed or by an import path mapped to the worktree.

    Args:
        arm: the side, with the paths of its interpreter.
        checkout: its worktree.
        installs: whether its commit is installed.
    """
    top, project = Path(checkout.top), Path(checkout.project)
    roots = (root for each in (project, top) for root in (each / "src", each) if root.is_dir())
    import_path = dict.fromkeys(map(str, (*_mapped(arm.path, checkout), *roots)))
    installed = _install(arm, checkout) if installs else ""
    return replace(arm, checkout=replace(checkout, import_path=tuple(import_path), installed=installed))


def _mapped(paths: Iterable[str], checkout: Checkout) -> Iterator[Path]:
    """Yield the counterparts in the worktree of paths in other worktrees."""
    for real in map(os.path.realpath, paths):
        for other in checkout.others:
            folder = Path(checkout.top, os.path.relpath(real, other))
            if f"{real}/".startswith(f"{other}/") and folder.is_dir():
                yield folder


def _install(arm: Arm, checkout: Checkout) -> str:
    """Install the projects of a commit, with the build tools of the interpreter, or else in isolation.

    Returns:
        The folder into which they were installed.
    """
    project = Path(checkout.project)
    around = (each for each in (project, *project.parents) if each.is_relative_to(checkout.top))
    own = (each for each in around if any((each / name).is_file() for name in PROJECTS))
    projects = dict.fromkeys((*_mapped(arm.sources, checkout), *islice(own, 1)))
    if not projects:
        raise DtDispatchError(f"{arm}: --install: there is no {' or '.join(PROJECTS)} in {project}")
    target = str(Path(os.path.realpath(arm.workspace), f"{arm.name}-installed"))
    log = arm.workspace / f"{arm.name}-install.log"
    words = ["-m", "pip", "install", "--no-deps", "--target", target, *map(str, projects)]
    for isolation in (["--no-build-isolation"], []):
        if run_to_end(arm, [*words, *isolation], {}, log, 3600.0) == 0:
            return target
        shutil.rmtree(target, ignore_errors=True)
    lines = last_lines(log) or ["pip failed"]
    cause = next((line for line in lines if line.lower().startswith("error")), lines[-1])
    raise DtDispatchError(f"{arm}: --install: {cause}: {' '.join(words)}")
