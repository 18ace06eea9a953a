"""A run as input of all reports, and its encoding in the file that pytest-benchmark saves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from types import GenericAlias
from typing import Any

from pytest_dtdispatch.core.files import read_json
from pytest_dtdispatch.core.measurement import TIME, Measurement, Unit
from pytest_dtdispatch.core.parsing import read_argument, read_thresholds
from pytest_dtdispatch.core.plain_data import Natural, Size, decode, encode
from pytest_dtdispatch.core.results import CALLS, MetricValue, row_metrics
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import ask, brief, shorten_path, shown
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Threshold, over_limits
from pytest_dtdispatch.gates.saved_run import environment_differences
from pytest_dtdispatch.report.document import KINDS, Document, View, notice

KEY = "dtdispatch"  # of the run in pytest-benchmark's file
VERSION = 11
NOTHING = "nothing in it was measured with --dtdispatch"


class NotComparableError(ValueError):
    """The file is valid, but has no run of this plugin."""


class OtherFormatError(ValueError):
    """The run was saved in the format of another version."""


@dataclass(frozen=True)
class FailedTest:
    """A failure of a test, or of collecting a file.

    Args:
        test: node id.
        phase: ``setup``, ``call``, ``teardown`` or ``collect``.
        reason: first line of the error.
    """

    test: str
    phase: str
    reason: str


@dataclass(frozen=True)
class Turn:
    """Turn of a run in an A/B run, whose processes run alternately on one machine.

    Args:
        ab_run: identifier of the A/B run.
        number: number of the turn, from 1.
        side: commit and interpreter of the process.
        seconds: duration of the process, including its start.
        is_profile: whether it profiled rows, and is not judged.
    """

    ab_run: str
    number: Natural
    side: str
    seconds: Size = 0.0
    is_profile: bool = False


Results = Mapping[str, Mapping[str, tuple[Any, ...]]]  # by kind and test


@dataclass(frozen=True)
class ReportedRun:
    """All data of a run that reports have.

    Args:
        where: file that it was read from; empty for a run that has just ended.
        started: date and time of its start in ISO 8601.
        environment: properties of its environment by name, as text.
        measured: rows of signatures and named calls, by test; every test with a result has an item.
        results: all other results.
        earlier: results of the saved run that this run was compared with, if their kind renders them.
        about_earlier: file and time of that saved run.
        unknown: results of kinds that are not registered here, as plain data.
        thresholds: thresholds of markers, by test.
        numbers: numbers of results merged over the ranks; empty for one process.
        gates: judgements of the gates.
        compared: verdicts on rows that the saved run has too, with thresholds and without; not saved.
        uncompared: why the run was not compared with the requested saved run; empty if it was; not saved.
        notices: notices on the run, such as uncaptured work and differences between ranks.
        stopped: why it ended before its last test; empty for a complete run.
        failed_tests: failures of its tests, whatever their cause.
        traces: JSON traces of torch's profiler; empty for a saved run.
        turn: turn of a run in an A/B run; it is None for other runs, and the following are empty.
        control: least readings of aten ops on plain tensors, by op.
        absent: reasons why skipped tests and files have no rows.
        imports: folders of the checkout of its commit from which modules were imported.
        refusal: error if a module of the repository was imported from elsewhere; then nothing was measured.
        commit: start of the id of its commit, with ``+`` for uncommitted changes; empty if unknown. Saved by
            pytest-benchmark.
        history: all runs of a report on several, the oldest first; this run is the newest. Not saved.
    """

    where: str = ""
    started: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    results: Results = field(default_factory=dict)
    earlier: Results = field(default_factory=dict)
    about_earlier: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, tuple[Threshold, ...]] = field(default_factory=dict)
    numbers: tuple[MetricValue, ...] = ()
    gates: tuple[Judgement, ...] = ()
    compared: tuple[RowVerdict, ...] = ()
    uncompared: str = ""
    notices: Document = field(default_factory=Document)
    stopped: str = ""
    failed_tests: tuple[FailedTest, ...] = ()
    traces: tuple[str, ...] = ()
    turn: Turn | None = None
    control: Mapping[str, Natural] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    refusal: str = ""
    commit: str = ""
    history: tuple[ReportedRun, ...] = ()

    def __bool__(self) -> bool:
        return bool(any(self.measured.values()) or self.results or self.unknown or self.numbers)

    @property
    def has_failed(self) -> bool:
        """Whether a gate failed."""
        return any(gate.has_failed for gate in self.gates)

    @property
    def unit(self) -> Unit:
        """Unit of its samples."""
        every = (samples.unit for row in self.rows() for samples in row.figures.samples)
        return next(every, TIME)

    @property
    def view(self) -> View:
        """Default view of its documents, which is verbose."""
        is_many = any(samples.by_rank for row in self.rows() for samples in row.figures.samples)
        return View(True, "" if self.unit.is_time else self.unit.name, is_many)

    @property
    def calls(self) -> dict[str, tuple[Measurement, ...]]:
        """Rows of the table of calls by test: signatures, named calls, and kinds without their own table."""
        return {test: tuple(rows) for test, rows in self.rows_by_test(of_calls=True).items() if rows}

    def rows_by_test(self, of_calls: bool = False) -> dict[str, list[Measurement]]:
        """Return all rows by test, or only those of the table of calls."""
        rows = {test: [*of_test] for test, of_test in self.measured.items()}
        for kind, test, result in self.each_result():
            if not (of_calls and KINDS[kind].has_own_table):
                rows.setdefault(test, []).extend(result.rows())
        return rows

    def each_row(self) -> Iterator[tuple[str, Measurement]]:
        """Yield every row with its test."""
        return ((test, row) for test, rows in self.rows_by_test().items() for row in rows)

    def rows(self) -> Iterator[Measurement]:
        """Yield every row."""
        return (row for _, row in self.each_row())

    def each_result(self) -> Iterator[tuple[str, str, Any]]:
        """Yield every result with its kind and test."""
        for kind, of_kind in self.results.items():
            for test, of_test in of_kind.items():
                yield from ((kind, test, result) for result in of_test)

    def results_by_row(self, kind: str) -> dict[RowId, Any]:
        """Return the results of a kind by row."""
        of_kind = self.results.get(kind, {})
        return {RowId(test, one.name): one for test, of_test in of_kind.items() for one in of_test}

    def as_earlier(self, later: Mapping[str, str]) -> str:
        """Return the caption of its results next to those of a later run with this environment."""
        caption = f"before: {shorten_path(self.where)}, taken {self.started or 'at an unknown time'}"
        return "; ".join((caption, *environment_differences(self.environment, later)))

    def order(self) -> tuple[str, str]:
        """Return the sort key of runs: their time, then their file."""
        return self.started, self.where

    def result_numbers(self) -> Iterator[MetricValue]:
        """Yield the numbers of results that are not part of rows."""
        if self.numbers:
            yield from self.numbers
            return
        for _, test, result in self.each_result():
            row = RowId(test, result.name)
            yield from (MetricValue(row, *metric) for metric in result.metrics())

    def metrics(self) -> tuple[MetricValue, ...]:
        """Return all numbers by test: those of rows, then those of other results."""
        found = {test: [*row_metrics(test, rows)] for test, rows in self.rows_by_test().items()}
        for number in self.result_numbers():
            found.setdefault(number.row.test, []).append(number)
        return tuple(chain.from_iterable(found.values()))

    def documents(self, view: View | None = None) -> dict[str, Document]:
        """Render the results of each kind, by its name; a notice replaces the document if that raises."""
        view = replace(view or self.view, over=over_limits(self.gates), about_before=self.about_earlier)
        documents, earlier = {}, replace(self, results=self.earlier)
        for kind in KINDS.values():
            results = self.calls if kind.name == CALLS else self.results.get(kind.name)
            if not results:
                continue
            before = earlier.results_by_row(kind.name)
            try:
                documents[kind.name] = kind.document(results, replace(view, before=before))
            except (Exception, SystemExit) as error:  # raised by an extension: still write everything else
                documents[kind.name] = notice(f"the table of {kind.name} raised {shown(error)}")
        for name in self.unknown:
            documents[name] = notice(f"results of the kind {shown(name)} are kept: it is not registered here")
        return documents


@dataclass(frozen=True)
class Baseline:
    """Saved run that a run is compared with.

    Args:
        run: the saved run; None if there is none.
        why_none: why there is none; empty if there is one.
        passed_over: messages about skipped newer saved runs.
    """

    run: ReportedRun | None
    why_none: str = ""
    passed_over: tuple[str, ...] = ()


def encode_run(run: ReportedRun) -> dict[str, Any]:
    """Convert a run to plain data."""
    results = {
        kind: {
            test: tuple(
                # Results that are no dataclasses are never decoded.
                one if is_dataclass(one) else {"name": one.name, "metrics": dict(one.metrics())}
                for one in of_test
            )
            for test, of_test in of_kind.items()
        }
        for kind, of_kind in run.results.items()
    }
    # A trace is a file of its own, and a comparison is made again with another saved run.
    run = replace(run, results=results, traces=(), compared=(), uncompared="", history=())
    plain = encode(replace(run, unknown={}))
    if run.unknown:
        plain["results"] = {**plain.get("results", {}), **run.unknown}
    return {"version": VERSION, "run": plain}


def saved_text(run: ReportedRun) -> str:
    """Return a run as text of a file that :func:`read_run` reads, without pytest-benchmark's part."""
    return json.dumps({"benchmarks": [], KEY: encode_run(run)})


def read_run(path: Path, allows_empty: bool = False) -> ReportedRun:
    """Read a saved run.

    Args:
        path: file of ``--benchmark-json``, ``--benchmark-save`` or ``--benchmark-autosave``.
        allows_empty: whether a run that measured nothing is valid, as one of an A/B run is.

    Raises:
        ValueError: the file is not a saved run; one line with the name of the file.
    """
    members = read_json(path)
    try:
        run = decode_run(members, allows_empty)
        info = members.get("commit_info")  # of pytest-benchmark, and untrusted
        found = re.fullmatch("[0-9a-f]{7,64}", str(ask(itemgetter("id"), info, "")))
        commit = f"{found[0][:10]}{'+' if info.get('dirty') else ''}" if found else ""
        return replace(run, where=str(path), commit=commit)
    except OtherFormatError as error:
        raise OtherFormatError(f"{path}: {error}") from None
    except ValueError as error:
        raise type(error)(f"{path} is not a saved run: {brief(error)}") from None


def files_by_run(runs: Iterable[ReportedRun]) -> list[list[ReportedRun]]:
    """Group runs that were read from several files, as a copy would confirm the changes of its run."""
    files: list[list[ReportedRun]] = []
    for run in runs:
        same = (each for each in files if each[0].started == run.started)
        copies = next((each for each in same if replace(each[0], where=run.where) == run), None)
        if copies is None:
            files.append([run])
        else:
            copies.append(run)
    return files


def decode_run(members: Any, allows_empty: bool = False) -> ReportedRun:
    """Convert the untrusted content of a saved file to a run.

    Raises:
        ValueError: it is not a saved run.
    """
    plain = members.get(KEY) if isinstance(members, dict) and "benchmarks" in members else None
    if plain is None:
        raise NotComparableError(NOTHING)
    version = plain.get("version") if isinstance(plain, dict) else None
    if type(version) is not int:
        raise ValueError(f"its {KEY} has no version")
    if version != VERSION:
        remedy = "save it again, or compare with the version that wrote it"
        raise OtherFormatError(f"saved in format {version}; this version reads {VERSION}: {remedy}")
    try:
        run = _decode(plain.get("run"))
    except RecursionError:
        raise ValueError(f"its {KEY} is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"its {KEY} has {error}") from None
    for test, thresholds in run.thresholds.items():
        read_argument(f"thresholds of {shown(test)}", [*map(str, thresholds)], read_thresholds, ValueError)
    if not (run or allows_empty):
        raise NotComparableError(NOTHING)
    return run


def _decode(plain: Any) -> ReportedRun:
    """Decode a run, with results by the types of their kinds; those of unregistered kinds stay plain data."""
    if not isinstance(plain, dict):
        raise ValueError(f"no dict: {shown(plain)}")
    members = {name: plain[name] for name in plain.keys() - {"results", "earlier", "history"}}
    run: ReportedRun = decode(ReportedRun, members)
    results, unknown = _decode_results(plain.get("results", {}))
    earlier, _ = _decode_results(plain.get("earlier", {}))
    run = replace(run, results=results, earlier=earlier, unknown=unknown)
    try:
        run.metrics()
    except Exception as error:
        raise ValueError(f"results that no run can have: {shown(error)}") from None
    return run


def _decode_results(plain: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the decoded results of registered kinds, and the plain data of all others."""
    if not isinstance(plain, dict):
        raise ValueError(f"no dict: {shown(plain)}")
    results, unknown = {}, {}
    for name, of_kind in plain.items():
        kind = KINDS.get(name)
        if kind is not None and kind.type is not None:
            by_test = GenericAlias(Mapping, (str, GenericAlias(tuple, (kind.type, ...))))
            results[name] = decode(by_test, of_kind)
        else:
            unknown[name] = of_kind
    return results, unknown
