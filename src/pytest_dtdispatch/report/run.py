"""A run as every output takes it: encoded whole into the file that pytest-benchmark saves, and read again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pytest_dtdispatch.core.events import StepParts
from pytest_dtdispatch.core.files import read_json
from pytest_dtdispatch.core.measurement import TIME, Measurement, Unit
from pytest_dtdispatch.core.parsing import read_argument, read_thresholds
from pytest_dtdispatch.core.plain_data import decode, encode
from pytest_dtdispatch.core.results import OWN_TABLES, MetricValue, row_metrics
from pytest_dtdispatch.core.text import brief, shorten_path, shown
from pytest_dtdispatch.core.verdicts import Judgement, Threshold
from pytest_dtdispatch.report.document import Document, View

KEY = "dtdispatch"  # of the run in the file
VERSION = 4
NOTHING = "nothing in it was measured with --dtdispatch"
OTHER_FORMAT = (
    "saved in format {}; this version reads {}: save it again, or compare with the version that wrote it"
)


class NotComparableError(ValueError):
    """What is named is valid, and no run of ours to compare with."""


class OtherFormatError(ValueError):
    """Another version saved the run."""


@dataclass(frozen=True)
class ReportedRun:
    """All that is reported of a run.

    Args:
        where: the file it was read from; empty of a run that has just ended.
        taken: when, as ISO 8601 has it.
        environment: where it was taken, by name.
        build: the same, as records of databases have it.
        measured: every row that was measured, those of compiles and comparisons too, by test.
        thresholds: that the markers of tests had, by test.
        documents: what is said of each other kind of result, by its name, in the order they are shown.
        numbers: those that results have beside rows, such as counts of steps.
        budgets: what each says of its step.
        gates: what they said.
        notices: what must be known beside the figures: what was not seen, what ranks said.
        stopped: why it ended before its last test; empty of a whole run.
        traces: of its steps, each as torch's profiler writes it; a saved run has none.
    """

    where: str = ""
    taken: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str | int] = field(default_factory=dict)
    measured: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)
    thresholds: Mapping[str, tuple[Threshold, ...]] = field(default_factory=dict)
    documents: Mapping[str, Document] = field(default_factory=dict)
    numbers: tuple[MetricValue, ...] = ()
    budgets: tuple[StepParts, ...] = ()
    gates: tuple[Judgement, ...] = ()
    notices: Document = field(default_factory=Document)
    stopped: str = ""
    traces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(any(self.measured.values()) or self.documents or self.numbers)

    @property
    def has_failed(self) -> bool:
        """Whether a gate failed."""
        return any(gate.has_failed for gate in self.gates)

    @property
    def unit(self) -> Unit:
        """What samples are in."""
        every = (samples.unit for row in self.rows() for samples in row.figures.samples)
        return next(every, TIME)

    @property
    def view(self) -> View:
        """How documents of its rows are laid out: whole."""
        is_many = any(samples.by_rank for row in self.rows() for samples in row.figures.samples)
        return View(True, "" if self.unit.is_time else self.unit.name, is_many)

    @property
    def calls(self) -> dict[str, tuple[Measurement, ...]]:
        """Rows of signatures and named calls, by test: those without a table of another kind."""
        of_tests = {
            test: tuple(row for row in rows if row.contains not in OWN_TABLES)
            for test, rows in self.measured.items()
        }
        return {test: rows for test, rows in of_tests.items() if rows}

    def order(self) -> tuple[str, str]:
        """Return what runs stand in order by: when they were taken."""
        return self.taken, self.where

    def budgets_before(self, differing: str = "") -> dict[str, StepParts]:
        """Give its budgets by their titles, for those of a later run to be held beside them."""
        about = f"before: {shorten_path(self.where)}, taken {self.taken or 'at an unknown time'}{differing}"
        return {budget.title: replace(budget, about=about) for budget in self.budgets}

    def rows(self) -> Iterator[Measurement]:
        """Every row."""
        return (row for of_test in self.measured.values() for row in of_test)

    def metrics(self) -> tuple[MetricValue, ...]:
        """Return every number, test by test: those of rows, then those of other results."""
        found = {test: [*row_metrics(test, rows)] for test, rows in self.measured.items()}
        for number in self.numbers:
            found.setdefault(number.row.test, []).append(number)
        return tuple(chain.from_iterable(found.values()))


def encode_run(run: ReportedRun) -> dict[str, Any]:
    """Make plain data of all that is reported of a run."""
    return {"version": VERSION, "run": encode(replace(run, traces=()))}  # a trace is a file of its own


def read_run(path: Path) -> ReportedRun:
    """Read a saved run.

    Args:
        path: of what ``--benchmark-json``, ``--benchmark-save`` or ``--benchmark-autosave`` wrote.

    Raises:
        ValueError: in one line, which file it is and what is wrong with it.
    """
    members = read_json(path)
    try:
        return replace(decode_run(members), where=str(path))
    except OtherFormatError as error:
        raise OtherFormatError(f"{path}: {error}") from None
    except ValueError as error:
        raise type(error)(f"{path} is not a saved run: {brief(error)}") from None


def decode_run(members: Any) -> ReportedRun:
    """Read the members of such a file, which may come from anywhere.

    Raises:
        ValueError: in a few words, what is wrong with them.
    """
    plain = members.get(KEY) if isinstance(members, dict) and "benchmarks" in members else None
    if plain is None:
        raise NotComparableError(NOTHING)
    version = plain.get("version") if isinstance(plain, dict) else None
    if type(version) is not int:
        raise ValueError(f"its {KEY} has no version")
    if version != VERSION:
        raise OtherFormatError(OTHER_FORMAT.format(version, VERSION))
    try:
        run: ReportedRun = decode(ReportedRun, plain.get("run"))
    except RecursionError:
        raise ValueError(f"its {KEY} is nested too deeply") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"its {KEY} has {error}") from None
    for test, thresholds in run.thresholds.items():
        read_argument(f"thresholds of {shown(test)}", [*map(str, thresholds)], read_thresholds, ValueError)
    if not run:
        raise NotComparableError(NOTHING)
    return run
