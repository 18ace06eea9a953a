"""A run of many ranks: start them here, or take part as one of those that a launcher started."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch import options
from pytest_dtdispatch.again import (
    measuring_settings,
    refuse_questions,
    runs_nothing,
    same_command,
    uncaptured,
)
from pytest_dtdispatch.records.world import read_world

if TYPE_CHECKING:
    from pytest_dtdispatch.meshes.reach import Reach
    from pytest_dtdispatch.rank import Rank
    from pytest_dtdispatch.ranks.exchange import Exchange
    from pytest_dtdispatch.ranks.launch import Ended

PLUGIN = "dtdispatch-rank"
_NUMBER = pytest.StashKey[int]()
_EXCHANGE: pytest.StashKey[Exchange] = pytest.StashKey()


def begin(config: pytest.Config) -> None:
    """Take part in a run of many ranks, if this is one, before anything is printed.

    Args:
        config: of pytest, its flags known and no more.
    """
    world = read_world(os.environ)
    if world.is_many and not runs_nothing(config.known_args_namespace) and _measures(config):
        from pytest_dtdispatch.rank import Log, Rank

        config.pluginmanager.register(Rank(world, None if world.is_first else Log(world.rank)), PLUGIN)


def launch_or_join(config: pytest.Config) -> int | None:
    """Start the ranks that the command line asks for, and wait for them; in a rank, meet the others.

    Args:
        config: of pytest.

    Returns:
        The exit status, where this process runs no tests.

    Raises:
        pytest.UsageError: the run would ask at the terminal.
    """
    rank = rank_of(config)
    if rank is not None:
        return rank.join(config)
    if read_world(os.environ).is_many:
        return None
    settings = measuring_settings(config)
    if settings is None or settings.nproc == 1:
        return None
    refuse_questions(config, "--dtdispatch-nproc")
    return _launch(config, settings.nproc)


def rank_of(config: pytest.Config) -> Rank | None:
    """Return what this process is among many ranks, if it is one of a run that measures."""
    rank: Rank | None = config.pluginmanager.get_plugin(PLUGIN)
    return rank


def count_test(config: pytest.Config) -> None:
    """Count a test that is set up: each run of one has a number, the same on every rank."""
    config.stash[_NUMBER] = test_number(config) + 1


def test_number(config: pytest.Config) -> int:
    """Return the number of the test at hand."""
    return config.stash.get(_NUMBER, 0)


def reach_of(config: pytest.Config) -> Reach:
    """Say how the ranks of a real process group of the test at hand find each other.

    Raises:
        RanksError: they cannot be met.
    """
    from pytest_dtdispatch.meshes.reach import Reach

    world = read_world(os.environ)
    timeout_s = options.run_settings(config).timeout
    if not world.is_many:
        return Reach(world, timeout_s)
    rank = rank_of(config)
    exchange = rank.exchange if rank else config.stash.get(_EXCHANGE, None)
    if exchange is None:
        from pytest_dtdispatch.ranks.exchange import join

        exchange = config.stash[_EXCHANGE] = join(world, timeout_s)
    return Reach(world, timeout_s, exchange, str(test_number(config)))


def _measures(config: pytest.Config) -> bool:
    flags = config.known_args_namespace
    asked = (
        getattr(flags, name, None) or str(config.getini(name) or "").lower() in ("1", "true", "yes", "on")
        for name in ("dtdispatch", "dtdispatch_all")
    )
    return any(asked)


def _launch(config: pytest.Config, ranks: int) -> int:
    from pytest_dtdispatch.rank import FOLDER
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
    from pytest_dtdispatch.rank import STATUS

    file = folder / STATUS
    return int(file.read_text()) if file.exists() else None


def _lines(ended: list[Ended], folder: Path) -> list[str]:
    from pytest_dtdispatch.rank import AT, tail_of

    lines = []
    for one in ended[:1] or []:  # the launcher ended the others, because of this one
        at = folder / f"{AT}-{one.rank}"
        test = f" in {at.read_text(encoding='utf-8')}" if at.exists() else ""
        lines.append(f"rank {one.rank} {one.how}{test}")
        for log in folder.glob(f"dtdispatch-rank-{one.rank}-*.log"):
            if said := tail_of(str(log)):
                lines.append(f"the end of its output:\n{said}")
    return lines or ["the ranks ended without a result"]
