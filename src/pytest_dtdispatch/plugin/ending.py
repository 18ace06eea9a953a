"""Registration of the plugins of a run, and the end of a run after other plugins."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_dtdispatch.core.environment import cpu_model, read_world
from pytest_dtdispatch.core.text import shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected import read_expected
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.finish import Target, WriteLog, file_targets
from pytest_dtdispatch.plugin.gates import Baseline, Gates
from pytest_dtdispatch.plugin.kinds import metric_names
from pytest_dtdispatch.plugin.limits import Limits
from pytest_dtdispatch.plugin.section import Section, print_lines
from pytest_dtdispatch.plugin.session import Session
from pytest_dtdispatch.plugin.settings import SETTINGS, UNMEASURED, Settings
from pytest_dtdispatch.plugin.workers import Workers
from pytest_dtdispatch.report.document import View
from pytest_dtdispatch.report.run import NotComparableError, read_run
from pytest_dtdispatch.report.terminal import NO_EDGE, document_lines

NO_RUN = "--benchmark-compare finds no saved run"


class Ending:
    """Plugin object that ends a run after other plugins: its exit status and its section.

    Args:
        config: pytest's configuration.
        session: session of the run.
    """

    def __init__(self, config: pytest.Config, session: Session) -> None:
        self._config = config
        self._session = session
        self._unfinished: pytest.Session | None = None
        self._awaits_summary = False  # whether tests are over, but the section is not printed yet

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Record that the session must be finished."""
        self._unfinished = session

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run with failed gates or unwritten files."""
        self._unfinished = None
        if self._session.failures() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._awaits_summary = True

    @pytest.hookimpl(wrapper=True, trylast=True)  # below the tables of others, above pytest's own summary
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, object, object]:
        """Print the section, even if the summary of another plugin raises."""
        try:
            return (yield)
        finally:
            self._summarize(terminalreporter)

    @pytest.hookimpl(trylast=True)  # below the lines of others
    def pytest_unconfigure(self) -> None:
        """Print results as data, the last lines of the run.

        If another plugin raised before, as pytest-benchmark may, write files and print the section first.
        """
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if sys.exc_info()[1] is not None:
            if self._unfinished is not None:
                self._session.finish()
                self.pytest_sessionfinish(self._unfinished)
            if self._awaits_summary and reporter:
                self._summarize(reporter)
        if reporter:
            reporter.ensure_newline()
        sys.stdout.writelines(self._session.log.printed)

    def _summarize(self, reporter: Any) -> None:
        """Print the section."""
        self._awaits_summary = False
        reporter.ensure_newline()
        reporter.section("dtdispatch")
        try:
            self._section().print_to(reporter)
        except Exception as error:  # pytest's own summary follows
            reporter.write_line(f"this section was not printed: {shown(error)}", red=True)
            print_lines(reporter, document_lines(self._session.log.document(), NO_EDGE, View()))

    def _section(self) -> Section:
        """Return the section of the run."""
        session = self._session
        return Section(
            session.run,
            session.results.records,
            session.gates,
            session.selection,
            session.about(),
            session.log.document(),
            session.failures(),
            self._config.get_verbosity(),
        )


def load(config: pytest.Config, selects_benchmarks: bool) -> None:
    """Register the plugins that measure, judge and write, as requested."""
    settings, manager = resolve.run_settings(config), config.pluginmanager
    idle = resolve.requested_flags(config, SETTINGS.keys() - {*UNMEASURED})
    if idle and not settings.measure:
        raise pytest.UsageError(f"{idle[0]}: nothing is measured without --dtdispatch or --dtdispatch-all")
    if manager.hasplugin("benchmark") and (settings.measure or selects_benchmarks):
        from pytest_dtdispatch.plugin.pytest_benchmark import Bridge

        manager.register(Bridge(config, settings), "dtdispatch-bridge")
    if not settings.measure:
        return
    # Workers of pytest-xdist are judged and written by the process that started them, ranks by the first
    # rank.
    reports = not hasattr(config, "workerinput") and read_world(os.environ).is_first
    gates, targets, log = Gates(settings, resolve.reason_not_measured(config)), list[Target](), WriteLog()
    if reports:
        try:  # report unreadable and unwritable files before anything is measured
            gates.baseline = read_baseline(config, settings)
            gates.expected = [read_expected(path, metric_names()) for path in settings.expected]
            targets = file_targets(settings, log)
        except (ValueError, DtDispatchError) as error:
            raise pytest.UsageError(str(error)) from None
    session = Session(config, gates, targets, log)
    manager.register(session, "dtdispatch-session")
    manager.register(Limits(gates, session.results), "dtdispatch-limits")
    if reports:
        manager.register(Ending(config, session), "dtdispatch-ending")
        if resolve.is_distributed(config):
            manager.register(Workers(session.results, settings.rank_stat), "dtdispatch-workers")


def read_baseline(config: pytest.Config, settings: Settings) -> Baseline | None:
    """Read the saved run that ``--benchmark-compare`` names; None without that flag.

    Raises:
        ValueError: a file cannot be read.
        DtDispatchError: likewise.
    """
    named = config.getoption("benchmark_compare", None)
    flags = resolve.requested_flags(config, ("threshold", "any_machine"))
    if flags and not named:
        raise pytest.UsageError(
            f"{flags[0]}: --benchmark-compare of pytest-benchmark must name the saved run to compare with"
        )
    if not named:
        return None
    from pytest_dtdispatch.plugin.pytest_benchmark import saved_runs

    try:
        paths = saved_runs(config)
        if named is True:
            return _newest(paths, settings.any_machine)
        return Baseline(read_run(paths[0])) if paths else Baseline(None, NO_RUN)
    except NotComparableError as error:
        if settings.threshold:
            raise
        return Baseline(None, str(error))


def _newest(paths: Sequence[Path], any_machine: bool) -> Baseline:
    """Return the newest saved run of this machine, with messages about skipped newer ones."""
    passed_over: list[str] = []
    for path in paths:
        cpu, why = cpu_model(), "it is empty"
        if path.stat().st_size:
            try:
                run = read_run(path)
            except NotComparableError as error:
                why = str(error)
            else:
                if any_machine or run.environment.get("CPU", cpu) == cpu:
                    return Baseline(run, "", tuple(passed_over))
                why = f"its CPU is {shown(run.environment['CPU'])}, not {cpu}"
        passed_over.append(f"--benchmark-compare passed over {path}: {why}")
    return Baseline(None, NO_RUN, tuple(passed_over))
