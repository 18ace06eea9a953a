"""Functions that need private names of pytest, each with a test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import pytest
from _pytest import terminal
from _pytest.config.findpaths import determine_setup
from _pytest.junitxml import xml_key
from _pytest.runner import runtestprotocol


def junit_xml(config: pytest.Config) -> Any:
    """Return the writer of the ``--junit-xml`` file; None without that flag."""
    return config.stash.get(xml_key, None)


def ini_value(config: pytest.Config, name: str) -> Any:
    """Return an ini value: text, lines, or any type in pytest's own TOML tables; None if unset or empty."""
    found: Any = getattr(config, "_inicfg", {}).get(name)  # pytest 9: getini rejects numbers and booleans
    if getattr(found, "mode", "") == "toml":
        return found.value
    return config.getini(name) or None


def unknown_ini_names(config: pytest.Config) -> list[str]:
    """Return the names of ini values that no plugin has declared."""
    return sorted(config._get_unknown_ini_keys())


def plugins_text(config: pytest.Config) -> str:
    """Return the distributions of loaded plugins, with their versions."""
    found = {f"{dist.project_name} {dist.version}" for _, dist in config.pluginmanager.list_plugin_distinfo()}
    return ", ".join(sorted(found))


def run_again(item: pytest.Item, next_item: pytest.Item | None) -> bool:
    """Run a test once more, without a report; return whether it passed."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=next_item))


def has_collected(report: pytest.CollectReport) -> bool:
    """Return whether pytest read the file of a report; if not, a plugin such as ``--lf`` replaced it."""
    return hasattr(report, "call")


def root_and_ini(config: pytest.Config) -> tuple[object, object]:
    """Return the rootdir and the ini file that pytest determines from only the paths of tests."""
    flags = config.known_args_namespace
    values = {
        "inifile": flags.inifilename,
        "override_ini": flags.override_ini,
        "args": flags.file_or_dir,
        "rootdir_cmd_arg": flags.rootdir or None,
        "invocation_dir": config.invocation_params.dir,
    }
    accepted = inspect.signature(determine_setup).parameters  # differs between versions of pytest
    rootdir, inifile, *_ = determine_setup(**{name: values[name] for name in accepted if name in values})
    return rootdir, inifile


def terminal_width(reporter: Any) -> int:
    """Return the width of pytest's terminal in columns."""
    return int(reporter._tw.fullwidth)


def terminal_file(reporter: Any) -> tuple[TextIO, Callable[[], int]]:
    """Return the file of pytest's terminal, and a function that returns the remaining columns of its line."""
    writer = reporter._tw
    return writer._file, lambda: writer.fullwidth - writer.width_of_current_line


def add_to_last_line(reporter: Any, words: str, counted: Sequence[object], is_failure: bool = False) -> None:
    """Add a count to pytest's last line; a failure turns the line red."""
    if is_failure:
        reporter.stats.setdefault("error", [])  # pytest chooses the color by the kinds of reports
        getattr(terminal, "_color_for_type", {})[words] = "red"
    reporter._add_stats(words, counted)
