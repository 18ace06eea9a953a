"""The process that starts ranks by torch's launcher: it waits for them, and says what ended them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.plugin.rank_process import AT, FOLDER, STATUS, tail_of
from pytest_dtdispatch.plugin.rerun import same_command, uncaptured

if TYPE_CHECKING:
    from pytest_dtdispatch.ranks.launch import Ended


def launch_ranks(config: pytest.Config, ranks: int) -> int:
    """Run the command line again in ranks, and wait for them."""
    from pytest_dtdispatch.ranks.launch import StoppedError, launch

    with tempfile.TemporaryDirectory(prefix="dtdispatch-ranks-") as folder, uncaptured(config):
        try:
            ended = launch(ranks, same_command(config), {FOLDER: folder}, folder)
        except StoppedError as stopped:
            _complain(f"{stopped.name}: the {ranks} ranks were stopped")
            return int(pytest.ExitCode.TESTS_FAILED)
        status = _status_of_run(Path(folder))
        if status is not None:
            return status
        _complain(*_lines(ended, Path(folder)))
    return int(pytest.ExitCode.TESTS_FAILED)


def _complain(*lines: str) -> None:
    """Say what ended the ranks, on lines of their own: the first rank was in the middle of one."""
    print(file=sys.stderr)
    for line in lines:
        print(f"ERROR: {line}", file=sys.stderr)


def _status_of_run(folder: Path) -> int | None:
    """Read the exit status that the first rank left, if it came to its end."""
    file = folder / STATUS
    return int(file.read_text()) if file.exists() else None


def _lines(ended: list[Ended], folder: Path) -> list[str]:
    lines = []
    for one in ended[:1]:  # the launcher ended the others, because of this one
        at = folder / f"{AT}-{one.rank}"
        test = f" in {at.read_text(encoding='utf-8')}" if at.exists() else ""
        lines.append(f"rank {one.rank} {one.how}{test}")
        for log in folder.glob(f"dtdispatch-rank-{one.rank}-*.log"):
            if said := tail_of(str(log)):
                lines.append(f"the end of its output:\n{said}")
    return lines or ["the ranks ended without a result"]
