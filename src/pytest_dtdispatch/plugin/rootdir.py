"""Keep values of our flags from changing the rootdir, and with it the ini file and the names of rows.

Pytest looks for both before it knows our flags: it takes FILE of ``--dtdispatch-csv FILE`` for a path of
tests, if it exists. FILE of ``--dtdispatch-csv=FILE`` it does not see.
"""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from _pytest.config.findpaths import determine_setup

from pytest_dtdispatch.plugin.flags import WITH_FLAG

TAKE_VALUES = {option.flag for option in WITH_FLAG if option.metavar}
ADDED = "PYTEST_ADDOPTS"


def joined(args: Sequence[str]) -> list[str]:
    """Write each flag of ours in one argument with its value.

    Example:
        >>> joined(["--dtdispatch-csv", "out.csv", "tests"])
        ['--dtdispatch-csv=out.csv', 'tests']
    """
    written: list[str] = []
    for arg in args:
        if written and written[-1] in TAKE_VALUES:
            written[-1] += f"={arg}"
        else:
            written.append(arg)
    return written


def is_moved(config: pytest.Config) -> bool:
    """Tell whether a value of a flag of ours made the rootdir or the ini file another one."""
    args, added = _args(config)
    is_apart = (joined(args), joined(added)) != (args, added)
    return is_apart and (config.rootpath, config.inipath) != _setup(config)


def run_joined(config: pytest.Config) -> int:
    """Run with joined flags; return the exit status."""
    args, added = _args(config)
    with patch.dict(os.environ, {ADDED: shlex.join(joined(added))}):
        return int(pytest.main(joined(args), config.invocation_params.plugins))


def _args(config: pytest.Config) -> tuple[list[str], list[str]]:
    """Split what pytest was called with into the command line, and what the environment adds."""
    return list(map(str, config.invocation_params.args)), shlex.split(os.environ.get(ADDED, ""))


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
    taken = inspect.signature(determine_setup).parameters  # not the same in every version
    rootdir, inifile, *_ = determine_setup(**{name: known[name] for name in taken if name in known})
    return rootdir, inifile
