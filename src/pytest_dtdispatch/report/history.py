"""How every number of saved runs went: a table with a column for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Line,
    Table,
    Tone,
    one_line,
    paragraph,
)
from pytest_dtdispatch.report.run import ReportedRun

# What may differ between runs that compare.
HARMLESS = {"pytest-dtdispatch", "commit"}
LEGEND = "Times are in nanoseconds; -: the run does not have it. change: from the first figure to the last."


def history_document(runs: Sequence[ReportedRun]) -> Document:
    """Lay out how each number of some runs went, the oldest first; those that may not compare are named."""
    ordered = sorted(runs, key=lambda run: (run.taken, run.where))
    numbers: dict[tuple[str, str], list[MetricValue | None]] = {}
    for n, run in enumerate(ordered):
        for number in run.metrics():
            numbers.setdefault((number.name, number.metric), [None] * len(ordered))[n] = number
    groups: dict[str, list[Line]] = {}
    for (name, metric), values in numbers.items():
        test, _, label = name.rpartition("::")
        groups.setdefault(test, []).append(_line(label, metric, values))
    columns = [Column("metric"), *(Column(str(n)) for n in range(1, len(ordered) + 1)), Column("change")]
    table = Table(
        tuple(columns),
        tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
        label_title="row",
        proof_title="",
        expendable=tuple(str(n) for n in range(2, len(ordered))),
    )
    blocks: list[Block] = [one_line(text) for text in _run_texts(ordered)]
    return Document((*blocks, table, paragraph(LEGEND, indent=1)))


def _line(label: str, metric: str, values: Sequence[MetricValue | None]) -> Line:
    known = [one for one in values if one is not None]
    first, last = known[0], known[-1]
    has_change = len(known) > 1 and first.value
    change = f"{last.value / first.value - 1:+.1%}" if has_change else "-"
    figures = ("-" if one is None else f"{one.value:,}" for one in values)
    is_noisy = bool(first.scatter or last.scatter)
    return Line(
        label, (metric, *figures, change), "noisy" * is_noisy, (), Tone.NOTICE if is_noisy else Tone.PLAIN
    )


def _run_texts(runs: Sequence[ReportedRun]) -> Iterator[str]:
    newest = _comparable(runs[-1])
    for n, run in enumerate(runs, start=1):
        differing = [name for name, value in _comparable(run).items() if newest.get(name) != value]
        text = f"{n}: {run.where}, taken {run.taken or 'at an unknown time'}"
        if differing:
            text += f"; may not compare with the newest: another {', '.join(differing)}"
        yield text


def _comparable(run: ReportedRun) -> dict[str, str]:
    return {name: value for name, value in run.environment.items() if name not in HARMLESS}
