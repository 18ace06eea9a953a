"""Results of a run: numbers held against a file of expected ones, numbers and spans written to files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_dtdispatch.core.files import checked_target, write_whole
from pytest_dtdispatch.core.forms import RECORDS, RESULTS, TRACE
from pytest_dtdispatch.core.metrics import MetricValue, row_key
from pytest_dtdispatch.errors import DtDispatchError
from pytest_dtdispatch.gates.expected_file import ExpectedFile, read_expected, results_text
from pytest_dtdispatch.plugin.flags import FILE
from pytest_dtdispatch.plugin.kinds import KINDS, metric_names
from pytest_dtdispatch.plugin.last_line import FILE_LOST, GATE_FAILED
from pytest_dtdispatch.plugin.options import row_nodeid, why_not_measured, with_role
from pytest_dtdispatch.report.document import Document, Span, Tone, one_line
from pytest_dtdispatch.steps.model import Steps

if TYPE_CHECKING:
    from pytest_dtdispatch.core.results import TestResults
    from pytest_dtdispatch.core.spans import TraceSpan
    from pytest_dtdispatch.gates.expected import ExpectedJudgement
    from pytest_dtdispatch.plugin.options import Settings

PLUGIN = "dtdispatch-results"


def register(config: pytest.Config, settings: Settings) -> None:
    """Read the expected results, and check that results can be written, before anything is measured."""
    if hasattr(config, "workerinput"):  # the process that started the workers judges and writes
        return
    try:
        config.pluginmanager.register(NamedResults(config, settings), PLUGIN)
    except (ValueError, DtDispatchError) as error:
        raise pytest.UsageError(str(error)) from None


class NamedResults:
    """The plugin object that judges and writes results."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._by_test: dict[str, tuple[MetricValue, ...]] = {}
        self._spans: dict[str, tuple[TraceSpan, ...]] = {}
        self._left_out: set[str] = set()
        self._ended: set[str] = set()
        self._notes: list[Span] = []
        self._lost: list[str] = []
        _check_that_files_differ(settings)
        self._expected: ExpectedFile | None = (
            read_expected(settings.expected, metric_names()) if settings.expected else None
        )
        # A test may change the working directory.
        self._csv = _checked_target(settings.csv, RESULTS)
        self._oss_json = _checked_target(settings.oss_json, RECORDS)
        self._trace = _checked_target(settings.trace, TRACE)

    def enter(self, item: pytest.Item, results: TestResults) -> None:
        """Enter every number that was found in a test, and every span of its steps."""
        self._by_test[results.test] = tuple(results.metrics(KINDS))
        spans = [span for steps in results.of(Steps.kind) for span in steps.spans]
        if spans:
            self._spans[results.test] = tuple(spans)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Remember what the user left out: its rows are not missing."""
        self._left_out.update(f"{row_key(row_nodeid(item))}::" for item in items)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Remember which tests came to their end, however that was."""
        self._ended.add(nodeid)

    def write(self, items: Sequence[pytest.Item], why_not: str = "") -> None:
        """Write the files that were asked for, when all of a run is measured: a part replaces no whole."""
        if self._config.getoption("collectonly"):
            return
        ended = sum(item.nodeid in self._ended for item in items)
        if ended < len(items):
            why_not = why_not or f"the run stopped after {ended:,} of {len(items):,} tests"
        nothing = why_not or ("" if self._results else "nothing was measured")
        written = f"{len(self._results):,} results"
        self._write(self._csv, written, lambda: results_text(self._results), nothing)
        self._write(self._oss_json, written, self._json_text, nothing)
        spans = sum(map(len, self._spans.values()))
        no_steps = nothing or ("" if spans else "no steps were counted")
        self._write(self._trace, f"{spans:,} spans", self._trace_text, no_steps)

    @property
    def failures(self) -> list[str]:
        """Why the run must fail, as pytest's last line says it."""
        has_failed = self._judgement is not None and self._judgement.has_failed
        return [*([GATE_FAILED] if has_failed else []), *self._lost]

    def document(self) -> Document:
        """Say what was judged and written."""
        from pytest_dtdispatch.report.judgements import expected_document

        judged = Document()
        if self._judgement is not None and self._expected is not None:
            results = str(self._settings.csv or "RESULTS.csv")
            judged = expected_document(self._judgement, self._expected.where, results)
        return Document((*judged.blocks, *map(one_line, self._notes)))

    @functools.cached_property
    def _judgement(self) -> ExpectedJudgement | None:
        """Judge when all is measured, where there is a file of expected results."""
        if self._expected is None or self._config.getoption("collectonly"):
            return None
        from pytest_dtdispatch.gates.expected import judge_results, not_judged

        if why_not := why_not_measured(self._config):
            return not_judged(why_not)
        left_out = tuple(self._left_out)
        rows = [row for row in self._expected.rows if not row.name.startswith(left_out)]
        return judge_results(rows, self._results)

    @property
    def _results(self) -> list[MetricValue]:
        return [result for results in self._by_test.values() for result in results]

    def _write(self, path: Path | None, what: str, make: Callable[[], str], why_not: str) -> None:
        if path is None:
            return
        try:
            if why_not:
                raise DtDispatchError(f"{path} was not written: {why_not}")
            write_whole(path, make())
            self._notes.append(Span(f"{what} were written to {path}"))
        except DtDispatchError as error:
            self._lost.append(FILE_LOST)
            self._notes.append(Span(f"failed: {error}", Tone.BAD))

    def _trace_text(self) -> str:
        from pytest_dtdispatch.report.chrome_trace import chrome_trace

        return chrome_trace(self._spans)

    def _json_text(self) -> str:
        from pytest_dtdispatch.report.oss_json import oss_json

        return oss_json(self._results, self._settings.environment().as_dict())


def _check_that_files_differ(settings: Settings) -> None:
    seen: dict[Path, str] = {}
    for option in with_role(FILE):
        path = getattr(settings, option.field)
        if path is not None and (other := seen.setdefault(path.resolve(), option.flag)) != option.flag:
            raise ValueError(f"{option.flag}: {path} is the file of {other} too: name another")


def _checked_target(path: Path | None, form: str) -> Path | None:
    if path is None:
        return None
    checked_target(path, form)
    return path.absolute()
