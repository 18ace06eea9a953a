"""Where a run works: its two sides, and a temporary folder that stays only where something failed in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_dtdispatch.ab.model import BASE, HEAD, Asked
from pytest_dtdispatch.ab.sides import Arm, interpreter
from pytest_dtdispatch.ab.worker import DEFAULT_TESTS, Job
from pytest_dtdispatch.ab.worktrees import import_path, worktrees
from pytest_dtdispatch.errors import ProcessError


@dataclass(frozen=True)
class Workplace:
    """Both sides of a run, and what their processes do.

    Args:
        arms: by ``base`` and ``head``.
        job: of each process.
    """

    arms: dict[str, Arm]
    job: Job


@contextmanager
def workplace(asked: Asked, time_limit_s: float) -> Iterator[Workplace]:
    """Prepare both sides of a run.

    Tests of the user's run in the current folder, or in a checkout of it; the built-in suite runs in an empty
    folder, where no ini file and no module of anybody's gets in its way.
    """
    pythons = {BASE: interpreter(BASE, asked.base), HEAD: interpreter(HEAD, asked.head)}
    workspace = Path(tempfile.mkdtemp(prefix="dtdispatch-ab-"))
    job = Job(asked.arguments or DEFAULT_TESTS, asked.passes, time_limit_s, workspace, {})
    try:
        empty = workspace / "empty"
        empty.mkdir()
        if asked.base_rev:
            revisions = {BASE: asked.base_rev, HEAD: asked.head_rev}
            with worktrees(revisions, Path.cwd(), workspace) as folders:
                arms = {
                    side: Arm(side, pythons[side], path if asked.arguments else empty, import_path(path))
                    for side, path in folders.items()
                }
                yield Workplace(arms, job)
        else:
            folder = Path.cwd() if asked.arguments else empty
            yield Workplace({side: Arm(side, python, folder) for side, python in pythons.items()}, job)
    except ProcessError:  # its message names a log in there
        raise
    except BaseException:
        shutil.rmtree(workspace, ignore_errors=True)
        raise
    shutil.rmtree(workspace, ignore_errors=True)
