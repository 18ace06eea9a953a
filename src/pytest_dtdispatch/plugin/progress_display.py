"""What a test is at, beside the dots of a terminal, while it is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_dtdispatch.core.progress import told_to
from pytest_dtdispatch.report.progress_line import ProgressLine, is_watched


@contextmanager
def shown_progress(config: pytest.Config) -> Iterator[None]:
    """Show progress while a block runs, where nobody else writes on the terminal at that time."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not is_watched(reporter.isatty) or _others_write(config):
        yield
        return
    writer = reporter._tw
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    uncaptured = capture.global_and_fixture_disabled  # else it would be part of what the test printed
    line = ProgressLine(writer._file, lambda: writer.fullwidth - writer.width_of_current_line, uncaptured)
    try:
        with told_to(line.tell):
            yield
    finally:
        line.clear()


def _others_write(config: pytest.Config) -> bool:
    """Ask whether what a test prints or logs goes to the terminal as it comes."""
    has_live_log = config.getini("log_cli") or config.getoption("log_cli_level", None)
    return config.getoption("capture") != "fd" or bool(has_live_log)
