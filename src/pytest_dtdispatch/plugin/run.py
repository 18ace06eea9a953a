"""A run that was asked for: what takes part in it, and the other processes that it needs."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from pytest_dtdispatch.core.environment import read_world
from pytest_dtdispatch.core.parsing import ON
from pytest_dtdispatch.errors import DtDispatchError, RanksError
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.ranks import AT, FOLDER, PLUGIN, STATUS, Rank, rank_of, tail_of
from pytest_dtdispatch.plugin.relaunch import (
    measuring_settings,
    refuse_moved_rootdir,
    refuse_questions,
    runs_nothing,
    same_command,
    uncaptured,
)
from pytest_dtdispatch.plugin.settings import SETTINGS, UNMEASURED


def begin(config: pytest.Config) -> None:
    """Take part in a run of many ranks, if this is one, before anything is printed."""
    world, flags = read_world(os.environ), config.known_args_namespace
    switches = ("dtdispatch", "dtdispatch_all")
    values = [getattr(flags, name, None) or str(config.getini(name) or "").lower() for name in switches]
    measures = any(value is True or value in ON for value in values)
    if world.is_many and measures and not runs_nothing(flags):
        config.pluginmanager.register(Rank(world), PLUGIN)


def main(config: pytest.Config) -> int | None:
    """Meet other ranks, or start them and wait for them."""
    refuse_moved_rootdir(config)
    if (rank := rank_of(config)) is not None:
        return rank.join(config)
    settings = None if read_world(os.environ).is_many else measuring_settings(config)
    return None if settings is None or settings.nproc == 1 else _launch(config, settings.nproc)


def load(config: pytest.Config, selects_benchmarks: bool) -> None:
    """Register what measures, judges and writes, as far as it was asked for."""
    settings, manager = resolve.run_settings(config), config.pluginmanager
    idle = resolve.flags_given(config, SETTINGS.keys() - {*UNMEASURED})
    if idle and not settings.measure:
        raise pytest.UsageError(f"{idle[0]}: nothing is measured without --dtdispatch or --dtdispatch-all")
    if manager.hasplugin("benchmark") and (settings.measure or selects_benchmarks):
        from pytest_dtdispatch.plugin.pytest_benchmark import Bridge

        manager.register(Bridge(config, settings), "dtdispatch-bridge")
    if not settings.measure:
        return
    from pytest_dtdispatch.plugin.outputs import Outputs
    from pytest_dtdispatch.plugin.session import Session

    session = Session(config, settings)
    manager.register(session, "dtdispatch-session")
    manager.register(session.gates, "dtdispatch-gates")
    # Workers of pytest-xdist are judged, and write, in the process that started them; ranks in the first.
    if hasattr(config, "workerinput") or not read_world(os.environ).is_first:
        return
    try:  # what cannot be read or written is named before anything is measured
        session.gates.read()
        session.outputs = Outputs(config, settings, lambda: session.reported)
    except (ValueError, DtDispatchError) as error:
        raise pytest.UsageError(str(error)) from None
    manager.register(session.outputs, "dtdispatch-outputs")


def _launch(config: pytest.Config, ranks: int) -> int:
    """Run the command line again in ranks, and wait for them."""
    refuse_questions(config, "--dtdispatch-nproc")
    from pytest_dtdispatch.ranks.launch import launch

    with tempfile.TemporaryDirectory(prefix="dtdispatch-ranks-") as folder, uncaptured(config):
        try:
            end = launch(ranks, same_command(config), {FOLDER: folder}, folder)
            status = Path(folder, STATUS)
            if status.exists():  # the first rank came to its end
                return int(status.read_text())
            lines = _why_ended(end, Path(folder))
        except RanksError as stopped:
            lines = [str(stopped)]
        # On lines of their own: the first rank was in the middle of one.
        print("", *(f"ERROR: {line}" for line in lines), sep="\n", file=sys.stderr)
    return int(pytest.ExitCode.TESTS_FAILED)


def _why_ended(end: tuple[int, str] | None, folder: Path) -> list[str]:
    if end is None:
        return ["the ranks ended without a result"]
    rank, how = end
    at = folder / f"{AT}-{rank}"
    test = f" in {at.read_text(encoding='utf-8')}" if at.exists() else ""
    tails = map(tail_of, folder.glob(f"dtdispatch-rank-{rank}-*.log"))
    return [f"rank {rank} {how}{test}", *(f"the end of its output:\n{tail}" for tail in tails if tail)]
