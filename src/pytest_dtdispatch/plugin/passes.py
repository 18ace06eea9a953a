"""What a process of an A/B run is loaded with: ``pytest -p pytest_dtdispatch.plugin.passes``.

Where times are asked for, all tests run several times over, so that a slow second of the machine hits one
pass of a row and not all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.files import write_whole
from pytest_dtdispatch.core.pass_rows import ASKED, OUTPUT, PASSES, AnswerKind, PassRows, RunNumbers
from pytest_dtdispatch.measuring.sampler import SAMPLERS
from pytest_dtdispatch.plugin.options import run_settings
from pytest_dtdispatch.plugin.run_numbers import recorder_of

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.session import Session


class Passes:
    """The plugin object that runs all tests several times."""

    def __init__(self, count: int, output: Path, answer: PassRows | RunNumbers) -> None:
        self._count = count
        self._output = output
        self._answer = answer

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run every test, and then every test again; stop after a pass in which one failed."""
        measuring: Session | None = session.config.pluginmanager.get_plugin("dtdispatch-session")
        if session.testsfailed or session.config.option.collectonly or measuring is None:
            return None
        own_loop: Any = session.config.pluginmanager.get_plugin("main")  # of pytest
        for _ in range(self._count):
            own_loop.pytest_runtestloop(session)
            self._answer.add(measuring.results.values())
            if session.testsfailed:
                break
        write_whole(self._output, self._answer.as_json())
        return True


def pytest_configure(config: pytest.Config) -> None:
    """Take part only in a process that was told where to write; refuse samples that it was not asked for."""
    if output := os.environ.get(OUTPUT):
        asked = AnswerKind(os.environ.get(ASKED, AnswerKind.TIMES))
        _check(asked, run_settings(config).metric)
        count = int(os.environ[PASSES])
        passes = Passes(count, Path(output), recorder_of(asked))
        config.pluginmanager.register(passes, "dtdispatch-passes")


def _check(asked: AnswerKind, metric: str) -> None:
    """Refuse a metric of the tests' own command line, or of their ini file, that gives something else."""
    is_time = metric in SAMPLERS and SAMPLERS[metric].unit.is_time
    wanted = {AnswerKind.TIMES: is_time, AnswerKind.PROOFS: is_time}.get(asked, metric == asked)
    if not wanted:
        raise pytest.UsageError(
            f"--dtdispatch-metric {metric}: this A/B run compares {asked}; say before -- what it compares: "
            "--metric time, counts or instructions"
        )
