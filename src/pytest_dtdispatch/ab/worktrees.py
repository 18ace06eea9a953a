"""Worktrees of the commits of an A/B run: their import paths, and what killed runs left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dtdispatch.ab.checkout import PROJECTS, Checkout
from pytest_dtdispatch.ab.process import Arm, Probed, last_lines, run_to_end, signals_deferred
from pytest_dtdispatch.errors import DtDispatchError, ProcessError

GIT_SECONDS, INSTALL_SECONDS = 600, 3600.0
PREFIX, LOCK = "dtdispatch-ab-", "lock"
COMPILED = ("*.so", "*.pyd", "*.dylib")


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """Create a folder for a run, and remove those of runs that were killed: nobody holds their lock.

    After a ProcessError it stays, as the message names a log in there.
    """
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:  # another user's, or in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
    folder, stays = Path(tempfile.mkdtemp(prefix=PREFIX)), False
    with (folder / "new").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lock = (folder / "new").rename(folder / LOCK)  # no other run finds it unlocked
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
) -> Iterator[dict[str, tuple[Path, Checkout]]]:
    """Check commits out, if there are any, and remove the checkouts again.

    Args:
        revisions: by side.
        project: folder of the repository in which the run was started.
        folder: for the checkouts.
        installs: whether they are installed, so that compiled files need not be there.

    Yields:
        By side that folder of the worktree, and the worktree.
    """
    if not revisions:
        yield {}
        return
    top = Path(_git(project, "rev-parse", "--show-toplevel", what="--base-rev"))
    inside = project.resolve().relative_to(top.resolve())
    made: dict[str, Path] = {}
    try:
        _git(project, "worktree", "prune")  # after a run that was killed
        for side, revision in revisions.items():
            verified = ("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
            commit = _git(project, *verified, what=f"--{side}-rev {revision}")
            made[side] = Path(os.path.realpath(folder)) / side
            add = ("worktree", "add", "--quiet", "--detach", str(made[side]), commit)
            _git(project, *add, what=f"--{side}-rev")
            if not (made[side] / inside).is_dir():
                raise DtDispatchError(f"--{side}-rev {revision}: it has no folder {inside}")
            if not installs:
                _refuse_ignored_builds(top, side, made[side])
        listed = _git(project, "worktree", "list", "--porcelain").splitlines()
        tops = [os.path.realpath(line[9:]) for line in listed if line.startswith("worktree ")]
        yield {
            side: (path / inside, Checkout(str(path), tuple(each for each in tops if each != str(path))))
            for side, path in made.items()
        }
    finally:
        with signals_deferred():
            for path in made.values():
                _git(project, "worktree", "remove", "--force", str(path))
            _git(project, "worktree", "prune")


def _refuse_ignored_builds(top: Path, side: str, worktree: Path) -> None:
    """Refuse a commit whose packages have compiled files in the checkout alone: git ignores them."""
    listed = _git(top, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--", *COMPILED)
    for name in filter(None, listed.split("\0")):
        if (worktree / name).parent.is_dir():
            raise DtDispatchError(
                f"--{side}-rev: git ignores {top / name}, which a worktree lacks: "
                "build each commit and compare --base PYTHON --head PYTHON, or add --install"
            )


def _git(project: Path, *words: str, what: str = "") -> str:
    """Run git, and return what it prints; where it fails, that is an error in what is named."""
    command = ["git", "-C", str(project), *words]
    try:  # Ctrl-C is for us: git must finish what it began
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_SECONDS, check=False, start_new_session=True
        )
    except OSError as error:
        raise DtDispatchError(f"git cannot be run: {error.strerror}") from None
    if done.returncode and what:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["git failed"]
        raise DtDispatchError(f"{what}: {lines[-1].removeprefix('fatal: ')} (git in {project})")
    return done.stdout.strip()


def import_from_checkout(arm: Arm, probed: Probed, folder: Path, installs: bool) -> Arm:
    """Let an arm import its commit: install it, or map the import path of its interpreter to the worktree."""
    checkout = arm.checkout
    if checkout is None:
        return arm
    import_path = list(dict.fromkeys((*_mapped(probed.path, checkout), *arm.import_path)))
    checkout = replace(checkout, import_path=tuple(map(str, import_path)))
    if installs:
        target = Path(os.path.realpath(folder), f"{arm.name}-installed")
        _install(arm, [*_mapped(probed.sources, checkout), *_own_project(arm, checkout)], target, folder)
        import_path.insert(0, target)
        checkout = replace(checkout, installed=str(target))
    return replace(arm, import_path=tuple(import_path), checkout=checkout)


def _mapped(paths: Iterable[str], checkout: Checkout) -> Iterator[Path]:
    """Yield the folders of the worktree that have the same place in other worktrees."""
    for real in map(os.path.realpath, paths):
        for other in checkout.others:
            folder = Path(checkout.top, os.path.relpath(real, other))
            if f"{real}/".startswith(f"{other}/") and folder.is_dir():
                yield folder


def _own_project(arm: Arm, checkout: Checkout) -> list[Path]:
    """Return the innermost project around the folder in which the run was started, if there is one."""
    folder = arm.import_path[-1]
    around = [each for each in (folder, *folder.parents) if each.is_relative_to(checkout.top)]
    return [each for each in around if any((each / name).is_file() for name in PROJECTS)][:1]


def _install(arm: Arm, projects: Sequence[Path], target: Path, folder: Path) -> None:
    """Install projects into a folder: with the build tools of the interpreter, else with pip's own."""
    if not projects:
        raise DtDispatchError(
            f"{arm}: --install: there is no {' or '.join(PROJECTS)} in {arm.import_path[-1]}"
        )
    log = folder / f"{arm.name}-install.log"
    words: list[Any] = ["-m", "pip", "install", "--no-deps", "--target", target, *dict.fromkeys(projects)]
    for more in (["--no-build-isolation"], []):
        if run_to_end(arm, [*map(str, words), *more], {}, log, INSTALL_SECONDS) == 0:
            return
        shutil.rmtree(target, ignore_errors=True)
    lines = last_lines(log) or ["pip failed"]
    why = next((line for line in lines if line.lower().startswith("error")), lines[-1])
    raise DtDispatchError(f"{arm}: --install: {why}: {' '.join(map(str, words))}")
