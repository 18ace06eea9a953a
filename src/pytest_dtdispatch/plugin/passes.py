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
from pytest_dtdispatch.core.pass_rows import ASKED, GO_ON, OUTPUT, PASSES, AnswerKind, PassRows, RunNumbers
from pytest_dtdispatch.measuring.sampler import SAMPLERS
from pytest_dtdispatch.plugin.resolve import row_nodeid, run_settings
from pytest_dtdispatch.plugin.run_numbers import recorder_of

if TYPE_CHECKING:
    from pytest_dtdispatch.plugin.session import Session

LONGEST_REASON = 300


class AbsentTests:
    """The plugin object that leaves tests that failed or were skipped out of later passes, and says why."""

    def __init__(self, absent: dict[str, str]) -> None:
        self._absent = absent
        self._why: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a file has no tests; no test of it has a name yet."""
        if report.failed or report.skipped:
            self._absent[report.nodeid] = outcome_text(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep why a test has no result; one that is expected to fail has one."""
        if (report.failed or report.skipped) and not hasattr(report, "wasxfail"):
            self._why[report.nodeid] = outcome_text(report)

    def leave_out(self, session: pytest.Session) -> None:
        """Take from the session what gave no result, and let it go on."""
        absent = [item for item in session.items if item.nodeid in self._why]
        self._absent |= {row_nodeid(item): self._why[item.nodeid] for item in absent}
        session.items[:] = [item for item in session.items if item not in absent]
        session.testsfailed = 0


class Passes:
    """The plugin object that runs all tests several times."""

    def __init__(
        self, count: int, output: Path, answer: PassRows | RunNumbers, absent: AbsentTests | None = None
    ) -> None:
        self._count = count
        self._output = output
        self._answer = answer
        self._absent = absent

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run every test, and then every test again; stop after a pass in which one failed."""
        measuring: Session | None = session.config.pluginmanager.get_plugin("dtdispatch-session")
        if self._absent:
            self._absent.leave_out(session)
        if session.testsfailed or session.config.option.collectonly or measuring is None:
            return None
        own_loop: Any = session.config.pluginmanager.get_plugin("main")  # of pytest
        for _ in range(self._count):
            own_loop.pytest_runtestloop(session)
            if self._absent:
                self._absent.leave_out(session)
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
        answer, absent = recorder_of(asked), None
        if os.environ.get(GO_ON):
            config.option.continue_on_collection_errors = True
            absent = AbsentTests(answer.absent)
            config.pluginmanager.register(absent, "dtdispatch-absent-tests")
        passes = Passes(count, Path(output), answer, absent)
        config.pluginmanager.register(passes, "dtdispatch-passes")


def outcome_text(report: pytest.CollectReport | pytest.TestReport) -> str:
    """Say how a test or a file failed, or why it was skipped, in one line."""
    if isinstance(report.longrepr, tuple):
        return f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"[:LONGEST_REASON]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines()
    # Of a file the last line says it, of an exception the first.
    return f"failed: {(lines or [report.outcome])[0 if crash else -1].removeprefix('E   ')}"[:LONGEST_REASON]


def _check(asked: AnswerKind, metric: str) -> None:
    """Refuse a metric of the tests' own command line, or of their ini file, that gives something else."""
    is_time = metric in SAMPLERS and SAMPLERS[metric].unit.is_time
    wanted = {AnswerKind.TIMES: is_time, AnswerKind.PROOFS: is_time}.get(asked, metric == asked)
    if not wanted:
        raise pytest.UsageError(
            f"--dtdispatch-metric {metric}: this A/B run compares {asked}; say before -- what it compares: "
            "--metric time, counts or instructions"
        )
