"""Hooks of pytest and fixtures, a few lines each.

This module does not import torch. A run that does not measure imports only it and the table of settings.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.plugin import settings
from pytest_dtdispatch.plugin.guard import guarded, register

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_dtdispatch.api import DtDispatch
    from pytest_dtdispatch.plugin.fixtures import MeshFactory


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the flags."""
    settings.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before anything is printed, and before output is captured
@guarded
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None]:
    """Join a run of many ranks if a launcher started this process, and reject unknown flags."""
    if "RANK" in os.environ:
        from pytest_dtdispatch.plugin.ranks import join_run

        join_run(early_config)
    result = yield
    # Flags of conftest files are registered only now.
    unknown = parser.parse_known_and_unknown_args(args)[1] if settings.strange_flag(args) else []
    strange = settings.strange_flag(unknown)
    if strange:
        raise pytest.UsageError(strange)
    return result


@pytest.hookimpl(tryfirst=True)
@guarded
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the tests in other processes if instructions are counted or ranks are started.

    Returns:
        The exit status of these processes; None to run the tests in this process.
    """
    if config.getoption("help") or config.getoption("version") or not settings.has_settings(config):
        return None
    from pytest_dtdispatch.plugin import relaunch

    return relaunch.run_elsewhere(config)


@guarded
def pytest_configure(config: pytest.Config) -> None:
    """Check the flags, and load the measuring plugins if requested."""
    config.addinivalue_line("markers", settings.marker_line())
    selects = config.getoption("benchmark_only", False) or config.getoption("benchmark_skip", False)
    if not (selects or settings.has_settings(config)):
        return
    from pytest_dtdispatch.errors import DtDispatchError
    from pytest_dtdispatch.plugin import ending, pytest_benchmark, resolve, run, session

    values = resolve.run_settings(config)
    # These settings also apply without measuring: whether to measure, and the mesh.
    unmeasured = {"measure", "measure_all", "mesh", "backend", "device", "timeout"}
    idle = resolve.requested_flags(config, settings.SETTINGS.keys() - unmeasured)
    if idle and not values.measure:
        raise pytest.UsageError(f"{idle[0]}: nothing is measured without --dtdispatch or --dtdispatch-all")
    measuring = run.Run(config, values) if values.measure else None
    if pytest_benchmark.is_loaded(config) and (measuring or selects):
        writing = measuring.log.writing if measuring else None
        bridge = pytest_benchmark.Bridge(config, values, writing)
        register(config, bridge, "dtdispatch-bridge")
        if measuring:
            measuring.bridge = bridge
    if measuring is None:
        return
    config.stash[resolve.RUN] = measuring
    if measuring.reports:
        try:  # report unreadable and unwritable files before anything is measured
            measuring.check_files(pytest_benchmark.read_baseline(config, values))
        except (ValueError, DtDispatchError) as error:
            raise pytest.UsageError(str(error)) from None
    register(config, session.Session(config, measuring), "dtdispatch-session")
    if measuring.reports:
        register(config, ending.Ending(config, measuring), "dtdispatch-ending")
        if resolve.is_distributed(config):
            register(config, session.Workers(measuring), "dtdispatch-workers")


@guarded
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check all markers before any test runs."""
    if not hasattr(config, "workerinput"):
        for item in items:
            _check_markers(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Count tests; in a worker of pytest-xdist also check markers, whose errors would be lost earlier."""
    if "RANK" in os.environ:
        from pytest_dtdispatch.plugin.ranks import count_test

        count_test(item.config)
    if hasattr(item.config, "workerinput"):
        try:
            _check_markers(item)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None


def _check_markers(item: pytest.Item) -> None:
    if item.get_closest_marker(settings.MARKER):
        from pytest_dtdispatch.plugin.resolve import context_of

        context_of(item)


@pytest.fixture
def dtdispatch(request: pytest.FixtureRequest) -> Iterator[DtDispatch]:
    """Measure DTensor dispatch; without --dtdispatch each method runs its callable once.
    capture(): every op on DTensors of a with block
    call(fn, *args): a callable, end to end, on a miss and on a hit
    steps(step): misses, redistributions and collectives of each step
    verify(step): ops that differ from the same op on full tensors
    budget(step): where the wall time of a step goes
    compare({name: fn, ...}): variants side by side, whose results must be equal
    scaling(make, sizes): how the cost of make(size) grows
    compile(fn, *args): what compiling costs, and a call of the compiled function
    record(result): a result of your own
    enabled: whether anything is measured
    """  # noqa: D205, D415 (pytest --fixtures prints the first paragraph)
    from pytest_dtdispatch.plugin.fixtures import measuring

    yield from measuring(request)


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> ProcessGroup:
    """A process group with a rank for each coordinate of the mesh, or the one that is already open."""
    from pytest_dtdispatch.plugin.fixtures import open_group

    return open_group(request)


@pytest.fixture
def device_mesh(mesh_factory: MeshFactory) -> DeviceMesh:
    """A mesh: shape, names, backend and device from the marker, else the flags, else the ini file."""
    return mesh_factory()


@pytest.fixture
def mesh_factory(request: pytest.FixtureRequest) -> MeshFactory:
    """Create meshes: ``mesh_factory((2, 4), dim_names=("dp", "tp"), backend=..., device=...)``."""
    from pytest_dtdispatch.plugin.fixtures import factory

    return factory(request)
