"""The command line of this process: whether it measures, and how it is run again in another process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_dtdispatch.plugin import options
from pytest_dtdispatch.plugin.rootdir import joined

RUNS_NOTHING = ("help", "version", "collectonly", "markers", "showfixtures", "show_fixtures_per_test")
INTERACTIVE = {"usepdb": "--pdb", "trace": "--trace"}


def runs_nothing(flags: object) -> bool:
    """Tell whether parsed flags ask for something else than to run tests."""
    return any(getattr(flags, dest, False) for dest in RUNS_NOTHING)


def measuring_settings(config: pytest.Config) -> options.Settings | None:
    """Return the settings of a run that measures and has no mistake: that is told when it is configured."""
    if runs_nothing(config.option) or options.why_not_measured(config):
        return None
    settings = options.valid_settings(config)
    return settings if settings and settings.measure else None


def refuse_questions(config: pytest.Config, because: str) -> None:
    """Refuse flags that would ask at the terminal, which other processes do not have."""
    for dest, flag in INTERACTIVE.items():
        if config.getoption(dest, False):
            raise pytest.UsageError(f"{flag}: not with {because}: run without either")


def same_command(config: pytest.Config) -> list[str]:
    """Write the command line of this process anew, or where it is not pytest's own, one like it."""
    started = Path(sys.argv[0])
    if started.name in ("pytest", "py.test") or started.parent.name == "pytest":
        return [sys.executable, *joined(sys.orig_argv[1:])]
    return [sys.executable, "-m", "pytest", *joined(list(map(str, config.invocation_params.args)))]


@contextmanager
def uncaptured(config: pytest.Config) -> Iterator[None]:
    """Give other processes the terminal, or whatever stands in for it."""
    manager = config.pluginmanager.getplugin("capturemanager")
    if manager is None:
        yield
        return
    manager.suspend_global_capture(in_=True)
    try:
        yield
    finally:
        manager.resume_global_capture()
