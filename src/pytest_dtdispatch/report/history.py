"""Saved runs in series of one environment each: their numbers, and the runs in which rows changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.text import grouped, plural, shown
from pytest_dtdispatch.core.verdicts import Verdict
from pytest_dtdispatch.gates.history import RowChange, RunFigures, series_changes
from pytest_dtdispatch.gates.saved_run import COMPARABLE, environment_differences, possible_causes
from pytest_dtdispatch.gates.times import timed_rows
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Line,
    Table,
    Tone,
    paragraph,
)
from pytest_dtdispatch.report.judgements import TONES, change_text
from pytest_dtdispatch.report.run import ReportedRun

MINUTE = len("2026-11-30T12:00")  # of a date


@dataclass(frozen=True)
class Series:
    """Runs of one environment and metric.

    Args:
        runs: its runs by number, the oldest first. All runs of a report are numbered by time, from 1.
        title: metric, and differences from the environment of the newest run.
    """

    runs: Mapping[int, ReportedRun]
    title: str

    def changes(self) -> list[RowChange]:
        """Find the changes of its rows."""
        runs = [*self.runs.values()]
        return series_changes([*map(_figures, runs)], runs[-1].thresholds)


def series_of(runs: Iterable[ReportedRun]) -> Iterator[Series]:
    """Group runs by environment, that of the newest run first."""
    ordered = dict(enumerate(sorted(runs, key=ReportedRun.order), start=1))
    newest = ordered[len(ordered)].environment
    names = (*COMPARABLE, "metric")
    groups = grouped((tuple(run.environment.get(name) for name in names), n) for n, run in ordered.items())
    for numbers in sorted(groups.values(), key=max, reverse=True):
        last = ordered[numbers[-1]]
        differences = environment_differences(last.environment, newest)
        title = "; ".join((last.environment.get("metric", "unknown metric"), *differences))
        yield Series({n: ordered[n] for n in numbers}, title)


def _figures(run: ReportedRun) -> RunFigures:
    times = {timed.row: timed for timed in timed_rows(run.each_row())}
    numbers = run.result_numbers() if run.unit.is_time else run.metrics()
    return RunFigures(times, {each.row._replace(state=each.metric): each for each in numbers}, run.unit)


def changes_document(runs: Iterable[ReportedRun]) -> Document:
    """Render the changes of rows by run, the oldest first."""
    blocks: list[Block] = []
    for series in series_of(runs):
        numbered, found = [*series.runs.items()], series.changes()
        text = f"{plural(len(found), 'change')} in {plural(len(numbered), 'run')} ({series.title})"
        blocks.append(paragraph(text, Tone.STRONG))
        for position, changes in grouped((each.run, each) for each in found).items():
            n, run = numbered[position]
            details = ", ".join(filter(None, (f"run {n}", run.commit, run.started[:MINUTE])))
            lines = grouped((each.verdict.row.test, _change_line(each)) for each in changes)
            groups = [Group(test, of_test) for test, of_test in lines.items()]
            blocks += paragraph(details, Tone.STRONG), Table(groups, "row", "verdict", min_label=12)
    legend = "Figures: least samples. ?: not yet confirmed, with only one run before or after it."
    return Document((*blocks, paragraph(legend, indent=1)))


def history_sections(runs: Sequence[ReportedRun]) -> dict[str, Document]:
    """Return the documents on several runs by title; none without runs."""
    return {"Changes": changes_document(runs), "Saved runs": runs_document(runs)} if runs else {}


def _change_line(change: RowChange) -> Line:
    verdict = change.verdict
    cells = {Column("figure"): verdict.row.state or "-", Column("change"): change_text(verdict) or "-"}
    label, status = verdict.row.label or "all rows", f"{verdict.verdict}{'' if change.is_confirmed else '?'}"
    notes = [verdict.remedy] if verdict.verdict in (Verdict.CONTAMINATED, Verdict.MISMATCHED) else []
    tone = TONES.get(verdict.verdict, Tone.BAD)
    return Line(label, cells, status, notes, tone, chart=change.figures, marked=change.run)


def runs_document(runs: Iterable[ReportedRun]) -> Document:
    """Render the runs of each series, and each number with a column for each run."""
    blocks, has_numbers = list[Block](), False
    for series in series_of(runs):
        names = [run.where for run in series.runs.values()]
        folder = os.path.commonprefix(names).rpartition("/")[0]  # noqa: RUF071 (cut to whole folders)
        earlier, lines = next(iter(series.runs.values())), []
        for n, run in series.runs.items():
            notes = [run.stopped] if run.stopped else []  # so that rows may be missing
            notes += possible_causes(earlier.environment, run.environment, any_machine=False)
            kinds = ", ".join(map(shown, run.unknown))
            notes += [f"kinds of results that are not registered here: {kinds}"] if kinds else []
            cells = {Column("taken"): run.started[:MINUTE] or "-", Column("commit"): run.commit or "-"}
            lines.append(Line(f"{n}: {run.where.removeprefix(f'{folder}/')}", cells, notes=notes))
            earlier = run
        blocks.append(paragraph(f"{plural(len(lines), 'run')} ({series.title})", Tone.STRONG))
        blocks.append(Table([Group("", lines)], "run", label_tone=Tone.PLAIN))
        numbers = _numbers_table(series.runs)
        blocks += [numbers] if numbers.groups else []
        has_numbers = has_numbers or bool(numbers.groups)
    if has_numbers:
        legend = "Times are in nanoseconds; -: not in this run. change: from the first figure to the last."
        legend += " Runs in between have a column if it fits."
        blocks.append(paragraph(legend, indent=1))
    return Document(tuple(blocks))


def _numbers_table(runs: Mapping[int, ReportedRun]) -> Table:
    every = ((n, number) for n, run in runs.items() for number in run.metrics())
    numbers = grouped(((number.row, number.metric), (n, number.value)) for n, number in every)
    lines: list[tuple[str, Line]] = []
    for (row, metric), pairs in numbers.items():
        values, first, last = dict(pairs), pairs[0][1], pairs[-1][1]
        cells = {Column("metric"): metric}
        cells |= {Column(str(n)): f"{values[n]:,}" if n in values else "-" for n in runs}
        cells[Column("change")] = f"{last / first - 1:+.1%}" if len(pairs) > 1 and first else "-"
        lines.append((row.test, Line(row.label, cells, chart=tuple(map(values.get, runs)))))
    groups = [Group(test, of_test) for test, of_test in grouped(lines).items()]
    return Table(groups, "row", optional=tuple(map(str, [*runs][1:-1])))
