"""The two sides of a run: an interpreter each, or a commit; and what it says of itself before measuring."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pytest_dtdispatch.ab.model import Side, flag_of
from pytest_dtdispatch.ab.process import held_back, run_to_end
from pytest_dtdispatch.core.environment import cpu_model
from pytest_dtdispatch.errors import DtDispatchError

PROBE_SECONDS, GIT_SECONDS = 120.0, 600
PROBE = """
import importlib.metadata, importlib.util, json, platform
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
found = {"plugin": version("pytest-dtdispatch") if importlib.util.find_spec("pytest_dtdispatch") else ""}
found["python"], found["torch"], found["build"] = platform.python_version(), "", ""
if importlib.util.find_spec("torch"):
    import torch
    found["torch"] = torch.__version__
    found["build"] = getattr(torch.version, "git_version", None) or ""
print("dtdispatch-probe", json.dumps(found))
"""
PROBED = "dtdispatch-probe "
MOST_READ, MOST_SHOWN = 64 * 1024, 200


@dataclass(frozen=True)
class Arm:
    """One side, as ``base`` or ``python-2``: which interpreter runs its processes, and in which folder."""

    name: str
    python: str
    folder: Path
    import_path: tuple[Path, ...] = ()  # folders that it imports from first

    def environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Give the environment of its processes: ours, with a hash seed of its own and one thread.

        A fixed seed would hide what the seed does, and not take it away. What is measured is dispatch: a
        local op must not wait for a second thread.
        """
        made = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        made.setdefault("OMP_NUM_THREADS", "1")
        if self.import_path:
            after = [made["PYTHONPATH"]] if made.get("PYTHONPATH") else []
            made["PYTHONPATH"] = os.pathsep.join([*map(str, self.import_path), *after])
        return {**made, **extra}

    def __str__(self) -> str:
        return f"{flag_of(self.name)} {self.python}"


def interpreter(side: str, given: str) -> str:
    """Find the interpreter of a side: a path, or a command on the search path.

    The path is made absolute and no link is followed: a virtual environment is known by its link.
    """
    found, what = shutil.which(given), "does not exist"
    if found is None:
        with contextlib.suppress(OSError, ValueError):  # it is too long for a path, or has a zero byte
            what = "is no program" if Path(given).exists() else what
        remedy = "give the python of an environment"
        raise DtDispatchError(f"{flag_of(side)} {given}: this interpreter {what}; {remedy}")
    return str(Path(found).absolute())


def probe(arm: Arm, workspace: Path) -> Side:
    """Ask an interpreter which versions it has."""
    log = workspace / f"{arm.name}-probe.log"
    try:
        status = run_to_end([arm.python, "-c", PROBE], arm.folder, arm.environment({}), log, PROBE_SECONDS)
    except OSError as error:
        raise DtDispatchError(f"{arm}: cannot be run: {error.strerror or error}") from None
    if status is None:
        raise DtDispatchError(f"{arm}: gave no answer in {PROBE_SECONDS:g} s")
    said = last_lines(log)
    try:
        answer = "" if status else next(line for line in reversed(said) if line.startswith(PROBED))
        found = json.loads(answer.removeprefix(PROBED))
        told = {name: str(found[name]) for name in ("python", "plugin", "torch", "build")}
    except (StopIteration, ValueError, TypeError, KeyError):
        how = said[-1][:MOST_SHOWN] if said else f"exit status {status}, and not a word"
        raise DtDispatchError(f"{arm}: is no python that runs: {how}") from None
    side = Side(cpu=cpu_model(), **told)
    _check(arm, side)
    return side


def _check(arm: Arm, side: Side) -> None:
    ours = version("pytest-dtdispatch")
    remedy = f"pip install pytest-dtdispatch=={ours}"
    if not side.plugin:
        raise DtDispatchError(f"{arm}: has no pytest-dtdispatch; install it there: {remedy}")
    if side.plugin != ours:
        differ = f"has pytest-dtdispatch {side.plugin}, and this is {ours}: two versions measure differently"
        raise DtDispatchError(f"{arm}: {differ}; {remedy}")
    if not side.torch:
        raise DtDispatchError(f"{arm}: has no torch")


def last_lines(log: Path) -> list[str]:
    """Read the last lines of a log that say something."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MOST_READ))
        text = file.read().decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


@contextlib.contextmanager
def worktrees(revisions: Mapping[str, str], project: Path, workspace: Path) -> Iterator[dict[str, Path]]:
    """Check commits out, and take the checkouts away again."""
    top = Path(_git("--base-rev", project, "rev-parse", "--show-toplevel"))
    inside = project.resolve().relative_to(top.resolve())
    commits = {}
    for side, revision in revisions.items():
        verified = ("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        commits[side] = _git(f"--{side}-rev {revision}", project, *verified)
    made: list[Path] = []
    try:
        for side, commit in commits.items():
            made.append(workspace / side)
            _git(f"--{side}-rev", project, "worktree", "add", "--quiet", "--detach", str(made[-1]), commit)
            if not (made[-1] / inside).is_dir():
                raise DtDispatchError(f"--{side}-rev {revisions[side]}: it has no folder {inside}")
        yield {side: workspace / side / inside for side in commits}
    finally:
        with held_back():
            for folder in made:
                _run(project, "worktree", "remove", "--force", str(folder))
            _run(project, "worktree", "prune")


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
