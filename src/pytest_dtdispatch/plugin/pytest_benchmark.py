"""Integration with pytest-benchmark: its session gets our rows, and its flags apply to our tests."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dtdispatch.core.environment import cpu_model, read_world
from pytest_dtdispatch.core.files import locked, write_atomic
from pytest_dtdispatch.core.measurement import Contains, Measurement, Samples, State
from pytest_dtdispatch.core.plain_data import select
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import escape_controls, shown
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.plugin import resolve
from pytest_dtdispatch.plugin.settings import METRICS
from pytest_dtdispatch.report.run import KEY, Baseline, NotComparableError, ReportedRun, encode_run, read_run

if TYPE_CHECKING:
    from pytest_dtdispatch.core.store import TestRecord
    from pytest_dtdispatch.plugin.settings import Settings

Writing = Callable[[str], AbstractContextManager[None]]
NO_RUN = "--benchmark-compare finds no saved run"
CONTAINS = {
    State.LOCAL: "the op on local shards",
    State.COMPILE_COLD: "torch.compile and the first call: tracing, compiling, one run",
    State.COMPILE_WARM: "torch.compile and the first call: tracing, look-ups in filled caches, one run",
    State.EAGER: "the same call uncompiled, end to end from Python",
}


def is_loaded(config: pytest.Config) -> bool:
    """Return whether pytest-benchmark is loaded, under whatever name: ``-p`` accepts that of its module."""
    return hasattr(config.option, "benchmark_save")


def is_saved(config: pytest.Config) -> bool:
    """Return whether the run is saved for later comparisons."""
    return any(config.getoption(name, None) for name in ("benchmark_save", "benchmark_autosave"))


# Changes to pytest-benchmark, which has no hooks for them


def write_atomically(session: Any, writing: Writing) -> None:
    """Have it write files atomically, under a lock, and with one line for an error.

    It overwrites a file in place, so that an interrupted run leaves half of it. Two sessions that save at
    once choose the same number.
    """
    from pytest_benchmark.storage.file import FileStorage
    from pytest_benchmark.utils import safe_dumps

    def write(path: Path, content: object) -> None:
        with writing(str(path)):
            write_atomic(path, safe_dumps(content, ensure_ascii=True, indent=4))
            session.logger.info(f"Wrote benchmark data in: {path}", purple=True)

    def save(content: object, name: str) -> None:
        storage = session.storage
        with locked(storage.get("")):
            write(storage.get(f"{storage._next_num}_{name}.json"), content)

    def save_json(content: object) -> None:
        write(session.json, content)

    if isinstance(session.json, Path):  # before 5.2, it is an open and already truncated file
        vars(session)["save_json"] = save_json
    if isinstance(session.storage, FileStorage):
        vars(session.storage)["save"] = save


class Benchmarks(list[Any]):
    """Benchmarks of a run with only budgets and counts; true, as pytest-benchmark saves no false list."""

    def __bool__(self) -> bool:
        return True


def write_nothing(session: Any) -> None:
    """Prevent it from writing files, so that files of earlier runs are unchanged."""
    session.json = session.save = session.autosave = None


class Bridge:
    """Plugin object that integrates a run with pytest-benchmark.

    Args:
        config: pytest's configuration.
        settings: settings of the run.
        writing: context manager that logs an exception of a writer; None if nothing is measured.

    Attributes:
        reported: data of all reports; empty until the end of the tests.
    """

    def __init__(self, config: pytest.Config, settings: Settings, writing: Writing | None) -> None:
        self.reported = ReportedRun()
        self._config = config
        self._settings = settings
        self._writing = writing
        self._entries: dict[str, list[Any]] = {}

    @property
    def _session(self) -> Any:
        """Session of pytest-benchmark; None if it is not registered under its own name."""
        return self._config.pluginmanager.get_plugin("pytest-benchmark")

    def enter(self, item: pytest.Item, record: TestRecord) -> None:
        """Add the rows of a test to pytest-benchmark's session."""
        session = self._session
        if session is None or not read_world(os.environ).is_first:
            return
        from pytest_benchmark.stats import Metadata

        for earlier in self._entries.get(record.test, ()):  # entries of an earlier attempt
            session.benchmarks.remove(earlier)
        entries = self._entries[record.test] = []
        settings = self._settings
        timer = "perf_counter_ns" if settings.metric in METRICS else settings.metric
        options = {"disable_gc": True, "timer": timer, **select(settings, "repeat", "max_time")}
        for measurement in record.rows():
            options["rounds"] = measurement.figures.rounds
            for samples in measurement.times():
                name = str(RowId(record.test, measurement.label, samples.state))
                row = _row(item, name, measurement, samples)
                entry = Metadata(row, iterations=1, options=dict(options))
                for ns in samples.ns:
                    entry.update(ns / 1e9)
                entries.append(entry)
        session.benchmarks += entries

    def pytest_sessionstart(self) -> None:
        """Change how pytest-benchmark writes files."""
        if self._session is None or self._writing is None:
            return
        if hasattr(self._config, "workerinput"):  # the process that started the worker writes
            write_nothing(self._session)
        write_atomically(self._session, self._writing)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after our session, which is registered later
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Have pytest-benchmark save a run that has only budgets and counts."""
        if self._session is not None and self.reported and not self._session.benchmarks:
            self._session.benchmarks = Benchmarks()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the hook of pytest-benchmark
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, object, object]:
        """Have --benchmark-only and --benchmark-skip treat our tests as benchmarks.

        They select by its fixture. Our tests cannot request it: it warns if unused.
        """
        ours: list[Any] = []
        for item in items:
            names = getattr(item, "fixturenames", ["benchmark"])
            if "benchmark" not in names and (self._settings.measure_all or "dtdispatch" in names):
                ours.append(item)
        before = [item.fixturenames for item in ours]
        for item in ours:
            item.fixturenames = [*item.fixturenames, "benchmark"]
        try:
            return (yield)
        finally:
            for item, names in zip(ours, before, strict=True):
                item.fixturenames = names

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Add the environment; runs of different environments are not comparable."""
        if not self._settings.measure:
            return
        try:
            environment = self._settings.environment()
        except DtDispatchError as error:
            raise pytest.UsageError(str(error)) from None
        metric = self._settings.metric  # rows of different custom metrics are not comparable
        machine_info["dtdispatch"] = {**environment, **({} if metric in METRICS else {"metric": metric})}

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        """Add the whole run: rows with all samples, counts, budgets, verdicts and environment."""
        if self.reported and self._writing is not None:
            with self._writing("the run in pytest-benchmark's file"):
                output_json[KEY] = encode_run(self.reported)

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self) -> None:
        """Remove rows of our own table from pytest-benchmark's tables, unless a flag of these was passed."""
        session = self._session
        of_tables = (
            *("--benchmark-columns", "--benchmark-sort", "--benchmark-group-by", "--benchmark-name"),
            *("--benchmark-time-unit", "--benchmark-verbose"),
            *("--benchmark-histogram", "--benchmark-compare-fail"),  # these draw and judge the rows of tables
        )
        in_environment = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        words = (*self._config.invocation_params.args, *self._config.getini("addopts"), *in_environment)
        flags = {str(word).partition("=")[0] for word in words}  # also with its default value
        if session is not None and session.groups and flags.isdisjoint(of_tables):
            ours = {entry.fullname for entries in self._entries.values() for entry in entries}
            session.groups = [
                (group, rows)
                for group, rows in session.groups
                if any(row["fullname"] not in ours for row in rows)
            ]

    def keep_files(self) -> None:
        """Keep the files of earlier runs unchanged, as this run stopped."""
        if self._session is not None:
            write_nothing(self._session)


def read_baseline(config: pytest.Config, settings: Settings) -> Baseline | None:
    """Read the saved run that ``--benchmark-compare`` names; None without that flag.

    Raises:
        ValueError: a file cannot be read.
        DtDispatchError: likewise.
    """
    named = config.getoption("benchmark_compare", None)
    flags = resolve.requested_flags(config, ("threshold", "any_machine"))
    if flags and not named:
        remedy = "--benchmark-compare of pytest-benchmark must name the saved run to compare with"
        raise pytest.UsageError(f"{flags[0]}: {remedy}")
    if not named:
        return None
    try:
        paths = saved_runs(config)
        if named is not True:
            return Baseline(read_run(paths[0])) if paths else Baseline(None, NO_RUN)
    except NotComparableError as error:
        if settings.threshold:
            raise
        return Baseline(None, str(error))
    # The newest saved run of this machine, with messages about skipped newer ones.
    passed_over: list[str] = []
    for path in paths:
        cpu, why = cpu_model(), "it is empty"
        if path.stat().st_size:
            try:
                run = read_run(path)
            except NotComparableError as error:
                why = str(error)
            else:
                if settings.any_machine or run.environment.get("CPU", cpu) == cpu:
                    return Baseline(run, "", tuple(passed_over))
                why = f"its CPU is {shown(run.environment['CPU'])}, not {cpu}"
        passed_over.append(f"--benchmark-compare passed over {path}: {why}")
    return Baseline(None, NO_RUN, tuple(passed_over))


def saved_runs(config: pytest.Config) -> list[Path]:
    """Return the file that --benchmark-compare names, if it exists; without a name, all, newest first."""
    from pytest_benchmark.logger import Logger
    from pytest_benchmark.utils import get_machine_id, load_storage

    named = config.getoption("benchmark_compare")
    where = config.getoption("benchmark_storage")
    if where.startswith("elasticsearch"):
        why = "only a run saved in a file can be compared with"
        raise NotComparableError(f"--benchmark-storage={where}: {why}")
    storage = load_storage(
        where, logger=Logger(Logger.QUIET, config=config), default_machine_id=get_machine_id(), netrc=None
    )
    files = storage.query("[0-9][0-9][0-9][0-9]_" if named is True else named)  # as saved runs are numbered
    if len(files) > 1 and named is not True:
        raise NotComparableError(f"--benchmark-compare={named} names {len(files)} saved runs: name one")
    return [Path(file) for file in reversed(files)]


def _row(item: pytest.Item, name: str, measurement: Measurement, samples: Samples) -> SimpleNamespace:
    """Return a row in one state with the attributes of a benchmark of pytest-benchmark.

    Control characters in names are escaped, because pytest-benchmark prints them in tables.
    """
    own: Mapping[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    ours = {"op": measurement.op, "state": str(samples.state), "mesh": measurement.mesh}
    group = f"dtdispatch {samples.state}"
    if measurement.contains is Contains.COMPARED:  # each comparison has its own group
        group = f"{group} {item.nodeid}::{measurement.op}"
    of_ranks: dict[str, Any] = {}
    if samples.by_rank:
        of_ranks = {
            "rank_medians_ns": {str(rank): median for rank, median in samples.rank_medians.items()},
            "slowest_rank": samples.slowest[0],
            "rank_spread": samples.spread,
        }
    label = cut_name(measurement.label, 60)  # pytest-benchmark never shortens the first column of its tables
    return SimpleNamespace(
        cprofile_stats=None,
        has_error=False,
        name=escape_controls(f"{item.name}::{label}::{samples.state}"),
        fullname=escape_controls(name),
        group=escape_controls(group),
        param=escape_controls(f"{measurement.label}::{samples.state}"),
        params={
            name: value if isinstance(value, (int, float, type(None))) else escape_controls(str(value))
            for name, value in (*own.items(), *ours.items())
        },
        extra_info={
            "signature": measurement.full_label,
            "contains": CONTAINS.get(samples.state) or str(measurement.contains),
            "proof": measurement.proof,
            "backend": measurement.backend,
            "calls": measurement.calls,
            "figure": samples.figure_name,
            "figure_ns": samples.figure,
            "clock": str(samples.clock),
            "scatter": samples.scatter,
            "overhead_ns": measurement.overhead_ns,
            **of_ranks,
        },
    )
