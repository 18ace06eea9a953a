"""Every private name of pytest in use works in the installed version."""

from __future__ import annotations

import io

import pytest

from pytest_dtdispatch.plugin.pytest_internals import (
    plugins_text,
    root_and_ini,
    terminal_file,
    terminal_width,
    unknown_ini_names,
)

# pytest collects garbage at the end of each configuration, over everything that other tests imported.
pytestmark = pytest.mark.usefixtures("no_other_plugin", "young_heap")


def reporter_of(config: pytest.Config) -> pytest.TerminalReporter:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    return reporter


def test_root_and_ini_match_pytest(pytester: pytest.Pytester) -> None:
    ini = pytester.makeini("[pytest]")
    (pytester.path / "tests").mkdir()
    config = pytester.parseconfig("tests")
    assert root_and_ini(config) == (config.rootpath, config.inipath) == (pytester.path, ini)


def test_undeclared_ini_values_are_listed(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_round = 5\nother = 1\ntestpaths = .\n")
    assert unknown_ini_names(pytester.parseconfig("-pdtdispatch")) == ["dtdispatch_round", "other"]


def test_plugins_are_listed_with_versions(pytester: pytest.Pytester) -> None:
    assert "dtdispatch 0" in plugins_text(pytester.parseconfig("-pdtdispatch")).replace("pytest-", "")


def test_terminal_has_a_width_and_a_file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    reporter = reporter_of(pytester.parseconfigure())
    assert terminal_width(reporter) == reporter._screen_width == 77
    file, room = terminal_file(reporter)
    assert isinstance(file, io.TextIOBase) or hasattr(file, "write")
    before = room()
    reporter.write("four")
    assert room() == before - 4
