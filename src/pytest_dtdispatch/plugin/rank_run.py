"""A run of many ranks: start them here, or take part as one of those that a launcher started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.core.parsing import ON
from pytest_dtdispatch.core.world import read_world
from pytest_dtdispatch.plugin import options
from pytest_dtdispatch.plugin.rerun import measuring_settings, refuse_questions, runs_nothing

if TYPE_CHECKING:
    from pytest_dtdispatch.meshes.groups import Reach
    from pytest_dtdispatch.plugin.rank_process import Rank
    from pytest_dtdispatch.ranks.exchange import Exchange

PLUGIN = "dtdispatch-rank"
_NUMBER = pytest.StashKey[int]()
_EXCHANGE: pytest.StashKey[Exchange] = pytest.StashKey()


def begin(config: pytest.Config) -> None:
    """Take part in a run of many ranks, if this is one, before anything is printed."""
    world = read_world(os.environ)
    if world.is_many and not runs_nothing(config.known_args_namespace) and _measures(config):
        from pytest_dtdispatch.plugin.rank_process import Log, Rank

        config.pluginmanager.register(Rank(world, None if world.is_first else Log(world.rank)), PLUGIN)


def launch_or_join(config: pytest.Config) -> int | None:
    """Start the ranks that the command line asks for, and wait for them; in a rank, meet the others."""
    rank = rank_of(config)
    if rank is not None:
        return rank.join(config)
    if read_world(os.environ).is_many:
        return None
    settings = measuring_settings(config)
    if settings is None or settings.nproc == 1:
        return None
    refuse_questions(config, "--dtdispatch-nproc")
    from pytest_dtdispatch.plugin.rank_process import launch_ranks

    return launch_ranks(config, settings.nproc)


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
    """Say how the ranks of a real process group of the test at hand find each other."""
    from pytest_dtdispatch.meshes.groups import Reach

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
    switches = ("dtdispatch", "dtdispatch_all")
    given = (getattr(flags, name, None) or str(config.getini(name) or "").lower() for name in switches)
    return any(value is True or value in ON for value in given)
