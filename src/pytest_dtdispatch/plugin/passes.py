"""What a process of an A/B run is loaded with: ``pytest -p pytest_dtdispatch.plugin.passes``.

All tests run several times over, so that a slow second of the machine hits one pass of a row and not all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.files import write_whole
from pytest_dtdispatch.core.pass_rows import OUTPUT, PASSES, PassRows
from pytest_dtdispatch.measuring.sampler import SAMPLERS
from pytest_dtdispatch.plugin.options import run_settings

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.session import Session


class Passes:
    """The plugin object that runs all tests several times."""

    def __init__(self, count: int, output: Path) -> None:
        self._count = count
        self._output = output

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run every test, and then every test again; stop after a pass in which one failed."""
        measuring: Session | None = session.config.pluginmanager.get_plugin("dtdispatch-session")
        if session.testsfailed or session.config.option.collectonly or measuring is None:
            return None
        own_loop: Any = session.config.pluginmanager.get_plugin("main")  # of pytest
        rows = PassRows()
        for _ in range(self._count):
            own_loop.pytest_runtestloop(session)
            rows.add(measuring.results.values())
            if session.testsfailed:
                break
        write_whole(self._output, rows.as_json())
        return True


def pytest_configure(config: pytest.Config) -> None:
    """Take part only in a process that was told where to write, and refuse samples that are no times."""
    if output := os.environ.get(OUTPUT):
        metric = run_settings(config).metric
        if metric in SAMPLERS and not (unit := SAMPLERS[metric].unit).is_time:
            raise pytest.UsageError(f"--dtdispatch-metric {metric}: A/B runs compare times, not {unit.name}")
        count = int(os.environ[PASSES])
        config.pluginmanager.register(Passes(count, Path(output)), "dtdispatch-passes")
