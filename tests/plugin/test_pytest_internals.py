"""Every private name of pytest in use works in the installed version."""

from __future__ import annotations

import io
from collections.abc import Generator

import pytest

from pytest_dtdispatch.plugin.pytest_internals import (
    has_collected,
    ini_value,
    junit_xml,
    plugins_text,
    root_and_ini,
    terminal_file,
    terminal_width,
)

# pytest collects garbage at the end of each configuration, over everything that other tests imported.
pytestmark = pytest.mark.usefixtures("no_other_plugin", "young_heap")

LAST_LINE = """
import pytest
from pytest_dtdispatch.plugin.pytest_internals import add_to_last_line

@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    add_to_last_line(terminalreporter, "odd rows", [1, 2], is_failure={is_failure})
"""


def reporter_of(config: pytest.Config) -> pytest.TerminalReporter:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)
    return reporter


def test_junit_writer_is_found_by_its_flag(pytester: pytest.Pytester) -> None:
    assert junit_xml(pytester.parseconfigure()) is None
    assert hasattr(junit_xml(pytester.parseconfigure("--junit-xml=junit.xml")), "add_global_property")


class Collecting:
    """Record the files that pytest read; skip the others, as --lf does."""

    def __init__(self) -> None:
        self.read: list[str] = []

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        self.read += [collector.name] if has_collected(report) else []
        return report


def test_reports_of_read_files_are_recognized(pytester: pytest.Pytester) -> None:
    class Skipping:
        def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
            is_skipped = collector.name == "test_b.py"
            return pytest.CollectReport("test_b.py", "passed", None, []) if is_skipped else None

    pytester.makepyfile(test_a="", test_b="")
    collecting = Collecting()
    pytester.inline_run(plugins=[collecting, Skipping()])
    assert {name for name in collecting.read if name.endswith(".py")} == {"test_a.py"}


def test_root_and_ini_match_pytest(pytester: pytest.Pytester) -> None:
    ini = pytester.makeini("[pytest]")
    (pytester.path / "tests").mkdir()
    config = pytester.parseconfig("tests")
    assert root_and_ini(config) == (config.rootpath, config.inipath) == (pytester.path, ini)


def test_ini_value_is_text_or_none(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ndtdispatch_rounds = 5\n")
    config = pytester.parseconfig("-pdtdispatch")
    assert (ini_value(config, "dtdispatch_rounds"), ini_value(config, "dtdispatch_ops")) == ("5", None)


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


@pytest.mark.parametrize("is_failure", [False, True])
def test_last_line_has_our_counts(pytester: pytest.Pytester, is_failure: bool) -> None:
    pytester.makepyfile("def test_it(): pass")
    pytester.makeconftest(LAST_LINE.format(is_failure=is_failure))
    last = pytester.runpytest_inprocess("--color=yes").outlines[-1]
    assert "2 odd rows" in last
    assert ("\x1b[31m" in last) is is_failure
