"""pytest's hooks, a few lines each.

Nothing here imports torch. A run that does not measure imports no more of ours than this and its two tables.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.plugin import flags
from pytest_dtdispatch.plugin.fixtures import (
    device_mesh,
    dispatch_groups,
    dtdispatch,
    mesh_factory,
    process_group,
)

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.session import Session

# pytest finds fixtures by looking at what this module holds.
__all__ = ["device_mesh", "dispatch_groups", "dtdispatch", "mesh_factory", "process_group"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the flags."""
    flags.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before anything is printed, and before output is captured
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    """Take part in a run of many ranks, if this process is one."""
    if _may_be_rank():
        from pytest_dtdispatch.plugin.rank_run import begin

        begin(early_config)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Read the saved run to compare with, before pytest-benchmark does, and before anything is measured.

    Where instructions are to be counted, or ranks are to be started, other processes run the tests; then
    return their exit status.
    """
    if config.getoption("help") or config.getoption("version") or not flags.is_asked(config):
        return None
    from pytest_dtdispatch.plugin.rank_run import launch_or_join
    from pytest_dtdispatch.plugin.saved_run_gate import prepare

    prepare(config)
    status = launch_or_join(config)
    if status is not None:
        return status
    if "instructions" not in (config.getoption("dtdispatch_metric"), config.getini("dtdispatch_metric")):
        return None
    from pytest_dtdispatch.plugin.instruction_run import rerun

    return rerun(config)


def pytest_configure(config: pytest.Config) -> None:
    """Check the flags, and load what measures only when it was asked for."""
    config.addinivalue_line("markers", flags.marker_line())
    if flags.is_asked(config) or _selects_benchmarks(config):
        _load(config)


def _load(config: pytest.Config) -> None:
    """Register what measures, judges and writes, as far as it was asked for."""
    from pytest_dtdispatch.plugin.options import run_settings
    from pytest_dtdispatch.plugin.rank_run import rank_of

    settings = run_settings(config)
    if config.pluginmanager.hasplugin("benchmark") and (settings.measure or _selects_benchmarks(config)):
        from pytest_dtdispatch.plugin.bridge import Bridge

        config.pluginmanager.register(Bridge(config, settings), "dtdispatch-bridge")
    if settings.measure:
        from pytest_dtdispatch.plugin.session import Session

        config.pluginmanager.register(Session(config, settings), "dtdispatch-session")
    rank = rank_of(config)
    if rank is not None and rank.exchange is not None:
        from pytest_dtdispatch.plugin.rank_tests import PLUGIN, RankSession

        config.pluginmanager.register(RankSession(config, settings, rank, rank.exchange), PLUGIN)
        if not rank.world.is_first:
            return
    if settings.measure and (settings.expected or settings.csv or settings.oss_json):
        from pytest_dtdispatch.plugin.expected_gate import register

        register(config, settings)


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """Say how measuring is set, with what is known without torch."""
    session: Session | None = config.pluginmanager.get_plugin("dtdispatch-session")
    return session.header() if session else None


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """List what a count consists of, where an assertion on it fails."""
    from pytest_dtdispatch.core.itemized import Count

    if not isinstance(left, Count) or not left.details:
        return None
    return [f"{left!r} {op} {right!r}", *left.details]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every marker before anything runs."""
    if not hasattr(config, "workerinput"):
        for item in items:
            _check_markers(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Count tests, and check markers in a worker of pytest-xdist, whose usage errors are lost before."""
    if _may_be_rank():
        from pytest_dtdispatch.plugin.rank_run import count_test

        count_test(item.config)
    if hasattr(item.config, "workerinput"):
        try:
            _check_markers(item)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None


def _check_markers(item: pytest.Item) -> None:
    if item.get_closest_marker(flags.MARKER):
        from pytest_dtdispatch.plugin.options import test_settings

        test_settings(item)


def _selects_benchmarks(config: pytest.Config) -> bool:
    return bool(config.getoption("benchmark_only", False) or config.getoption("benchmark_skip", False))


def _may_be_rank() -> bool:
    """Whether a launcher may have started this process: what else it wrote is read where that is so."""
    return "RANK" in os.environ
