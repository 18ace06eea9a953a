"""A torch that lacks what this plugin needs of it: said in one line, in place of frames of ours."""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest


class UnsupportedTorch:
    """Says so in the report of each phase of a test that it ends."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace a traceback that ends where a name of torch was asked for in vain."""
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, Exception) and "torch" in sys.modules and (line := _lacking(error)):
            report.longrepr = line
        return report


def _lacking(error: Exception) -> str:
    from pytest_dtdispatch.torchapi.missing_api import what_torch_lacks

    return what_torch_lacks(error)
