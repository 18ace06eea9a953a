"""What judges and writes when all of a run is measured, each a plugin object of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin.flags import FILE
from pytest_dtdispatch.plugin.given import flag_values
from pytest_dtdispatch.plugin.options import with_role

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.options import Settings
    from pytest_dtdispatch.report.reported_run import ReportedRun

NO_JUNIT_FILE = "--dtdispatch-junit: it adds to the file of --junitxml: name one with --junitxml FILE.xml"


def register(config: pytest.Config, settings: Settings, report: Callable[[], ReportedRun]) -> None:
    """Register what was asked for; what cannot be read or written is told before anything is measured.

    Args:
        config: of pytest.
        settings: of the run.
        report: gives the run, when it is over.
    """
    if hasattr(config, "workerinput"):  # the process that started the workers judges and writes
        return
    if settings.junit and not config.getoption("xmlpath", None) and flag_values(config).get("junit"):
        raise pytest.UsageError(NO_JUNIT_FILE)
    if any(getattr(settings, option.field) for option in with_role(FILE)):
        try:
            _register_files(config, settings, report)
        except (ValueError, DtDispatchError) as error:
            raise pytest.UsageError(str(error)) from None
    if os.environ.get("GITHUB_ACTIONS") == "true":
        from pytest_dtdispatch.plugin.annotated_rows import AnnotatedRows

        config.pluginmanager.register(AnnotatedRows(config.rootpath, report), "dtdispatch-annotations")
    if settings.junit:
        from pytest_dtdispatch.plugin.junit_properties import JunitProperties

        config.pluginmanager.register(JunitProperties(config, report), "dtdispatch-junit")


def _register_files(config: pytest.Config, settings: Settings, report: Callable[[], ReportedRun]) -> None:
    """Check that files can be written, and read the expected results, where there are any."""
    from pytest_dtdispatch.plugin.expected_gate import ExpectedGate
    from pytest_dtdispatch.plugin.written_files import WrittenFiles

    config.pluginmanager.register(WrittenFiles(config, settings, report), "dtdispatch-files")
    if settings.expected:
        config.pluginmanager.register(ExpectedGate(config, settings), "dtdispatch-expected")
