"""The command line of this process: whether it measures, and how it is run again in another process."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from _pytest.config.findpaths import determine_setup

from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.settings import WITH_FLAG, Settings

RUNS_NOTHING = ("help", "version", "collectonly", "markers", "showfixtures", "show_fixtures_per_test")
INTERACTIVE = {"usepdb": "--pdb", "trace": "--trace"}


def runs_nothing(flags: object) -> bool:
    """Tell whether parsed flags ask for something else than to run tests."""
    return any(getattr(flags, dest, False) for dest in RUNS_NOTHING)


def measuring_settings(config: pytest.Config) -> Settings | None:
    """Return the settings of a run that measures and has no mistake: that is told when it is configured."""
    if runs_nothing(config.option) or resolve.why_not_measured(config):
        return None
    settings = resolve.valid_settings(config)
    return settings if settings and settings.measure else None


def refuse_questions(config: pytest.Config, because: str) -> None:
    """Refuse flags that would ask at the terminal, which other processes do not have."""
    for dest, flag in INTERACTIVE.items():
        if config.getoption(dest, False):
            raise pytest.UsageError(f"{flag}: not with {because}: run without either")


def refuse_moved_rootdir(config: pytest.Config) -> None:
    """Refuse a value of a flag of ours that changed the rootdir, and with it the ini file and names of rows.

    Pytest looks for both before it knows our flags, and takes FILE of ``--flag FILE`` for a path of tests.
    """
    args = [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]
    flags = {setting.flag for setting in WITH_FLAG if setting.metavar}
    apart = [(flag, value) for flag, value in pairwise(args) if flag in flags and Path(value).exists()]
    if apart and (config.rootpath, config.inipath) != _setup(config):
        flag, value = apart[0]
        raise pytest.UsageError(f"{flag} {value} would move pytest's rootdir: write {flag}={value}")


def _setup(config: pytest.Config) -> tuple[object, object]:
    """Find the rootdir and the ini file by paths of tests alone."""
    given = config.known_args_namespace
    known = {
        "inifile": given.inifilename,
        "override_ini": given.override_ini,
        "args": given.file_or_dir,
        "rootdir_cmd_arg": given.rootdir or None,
        "invocation_dir": config.invocation_params.dir,
    }
    accepted = inspect.signature(determine_setup).parameters  # not the same in every version
    rootdir, inifile, *_ = determine_setup(**{name: known[name] for name in accepted if name in known})
    return rootdir, inifile


def same_command(config: pytest.Config) -> list[str]:
    """Write the command line of this process anew, or where it is not pytest's own, one like it."""
    started = Path(sys.argv[0])
    if started.name in ("pytest", "py.test") or started.parent.name == "pytest":
        return [sys.executable, *sys.orig_argv[1:]]
    return [sys.executable, "-m", "pytest", *map(str, config.invocation_params.args)]


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
