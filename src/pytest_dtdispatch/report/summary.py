"""Reports of whole runs: job summary, annotations of failed rows, history of several runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_dtdispatch.core.results import MetricValue, row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import escape_controls, first_of, grouped, plural, shown
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.report.document import (
    KINDS,
    Block,
    Column,
    Document,
    Group,
    Line,
    Table,
    Tone,
    View,
    one_line,
    paragraph,
    plain,
)
from pytest_dtdispatch.report.judgements import (
    change_text,
    drift_lines,
    gravity,
    judgement_document,
    row_text,
    verdict_counts,
)
from pytest_dtdispatch.report.markdown import document_text, escaped, folded
from pytest_dtdispatch.report.run import ReportedRun

# Of the summary of one step: "Job summaries are isolated between steps and each step is restricted to a
# maximum size of 1MiB", in GitHub's reference of workflow commands.
MOST_BYTES = 2**20
MOST_ROWS = 100  # in the table of changes
# Maximum of errors per step, from GitHub's "Workflow commands for GitHub Actions".
MOST_SHOWN = 10
TITLE = "dtdispatch"


def summary(run: ReportedRun, room: int = MOST_BYTES) -> str:
    """Render a summary of limited size; sections that do not fit are omitted.

    Args:
        run: run to summarize.
        room: maximum size in bytes; verdict and changes are never omitted.
    """
    text = _head(run)
    left_out: list[str] = []
    room_for_sections = room - 4096  # reserve space for the line on omitted sections
    of_gates = (
        (f"Full output of the gate: {cut_name(gate.where)}", judgement_document(gate)) for gate in run.gates
    )
    for title, document in (*run_sections(run), *of_gates):
        written = folded(title, document_text(document))
        if len(f"{text}\n{written}".encode("utf-8", "backslashreplace")) > room_for_sections:
            left_out.append(title)
        else:
            text = f"{text}\n{written}"
    if left_out:
        why = f"Left out, as a summary has room for {room / 1024:,.0f} KiB: {', '.join(left_out)}."
        text = f"{text}\n{document_text(Document((paragraph(why),)))}"
    return text


def stopped_summary(why: str) -> str:
    """Format the summary of an incomplete run."""
    return f"## {TITLE}: no results\n\n{document_text(Document((paragraph(why),)))}"


def verdict_text(run: ReportedRun) -> str:
    """Return the outcome of a run in a few words, with the number of rows of each verdict.

    Example:
        >>> verdict_text(ReportedRun())
        'nothing was measured'
    """
    counts = plain(verdict_counts([row for gate in run.gates for row in gate.verdicts]))
    if run.gates:
        outcome = ", ".join(filter(None, ("failed" if run.has_failed else "passed", counts)))
    elif run:
        outcome = f"measured, {len(run.metrics()):,} results, compared with nothing"
    else:
        outcome = "nothing was measured"
    failed = len({failure.test for failure in run.failed_tests})
    return f"{outcome}; {plural(failed, 'test')} failed" if failed else outcome


def _head(run: ReportedRun) -> str:
    parts = [f"## {TITLE}: {verdict_text(run)}\n"]
    judged = ((gate, row) for gate in run.gates for row in gate.verdicts)
    changed = [(gate, row) for gate, row in judged if row.verdict is not Verdict.PASSED]
    if changed:
        changed.sort(key=lambda each: gravity(each[1]))
        remedies = dict.fromkeys(f"{row.verdict}: {row.remedy}" for _, row in changed if row.remedy)
        bullets = "".join(f"* {escaped(remedy)}\n" for remedy in remedies)
        parts += filter(None, (document_text(Document((_changes(changed),))), bullets))
    drifts = [line for gate in run.gates for line in drift_lines(gate.verdicts)]
    if below := (*drifts, *run.notices.blocks):
        parts.append(document_text(Document(below)))
    return "\n".join(parts)


def _changes(changed: Sequence[tuple[Judgement, RowVerdict]]) -> Table:
    """Render the changed rows, which are sorted by severity."""
    lines = []
    for gate, row in changed[:MOST_ROWS]:
        at, change = ", ".join(first_of(row.lines, 3)), change_text(row)
        cells = (str(row.verdict), at or "-", change or "-", row.criterion or "-", cut_name(gate.where))
        lines.append(Line(row_text(row), cells))
    more = f"and {len(changed) - MOST_ROWS:,} more rows" if len(changed) > MOST_ROWS else ""
    columns = tuple(map(Column, ("verdict", "line", "change", "compared with", "of")))
    return Table(columns, (Group("", tuple(lines), more),), label_title="row", proof_title="")


def run_sections(run: ReportedRun, view: View | None = None) -> Iterator[tuple[str, Document]]:
    """Yield a title and a document for each kind of result, and for the environment."""
    for name, document in run.documents(view).items():
        title = KINDS[name].title if name in KINDS else ""
        yield title or name.capitalize(), document
    if run.environment:
        lines = tuple(Line(name, (value,)) for name, value in run.environment.items())
        about = Table((Column("value"),), (Group("", lines),), "", "", label_tone=Tone.PLAIN)
        time = (paragraph(f"Taken {run.taken}."),) if run.taken else ()
        yield "Environment", Document((about, *time))


def error_commands(gates: Sequence[Judgement], locations: Mapping[str, tuple[str, int]]) -> list[str]:
    """Return a GitHub error command for each failed row, the worst first, and one for the number of others.

    Each is at the source line that caused it, or else at its test.

    Args:
        gates: judgements of a run.
        locations: file in the repository and line, from 1, of each test, by its name in rows.
    """
    failed = [row for gate in gates for row in gate.failed]
    failed.sort(key=gravity)
    idle = (gate.where for gate in gates if gate.has_failed and not gate.failed)
    locations = {row_key(test): location for test, location in locations.items()}  # rows of files have keys
    lines = [_error({"title": TITLE}, f"no row could be judged against {where}") for where in idle]
    room = MOST_SHOWN - len(lines)
    if len(failed) <= room:
        return [*lines, *(_of_row(row, locations) for row in failed)]
    rest = f"and {len(failed) - (room - 1):,} more rows failed: the output of the run lists all"
    shown = [_of_row(row, locations) for row in failed[: room - 1]]
    return [*lines, *shown, _error({"title": TITLE}, rest)]


def _error(properties: Mapping[str, str], message: str) -> str:
    """Format an error command of GitHub; characters that would end a property or the message are escaped."""
    escaped = {key: _data(value).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    return f"::error {','.join(map('='.join, escaped.items()))}::{_data(message)}"


def _of_row(row: RowVerdict, locations: Mapping[str, tuple[str, int]]) -> str:
    causes = (found for line in row.lines if (found := _location(line)))
    location = next(causes, locations.get(row_key(row.row.test)))
    at = {"file": location[0], "line": str(location[1])} if location else {}
    details = "; ".join(filter(None, (row.criterion, change_text(row), row.remedy)))
    message = ": ".join(filter(None, (row_text(row), details)))
    return _error({**at, "title": f"{TITLE}: {row.verdict}"}, message)


def _location(line: str) -> tuple[str, int] | None:
    """Return the file in the repository and the number of a source line; None if it is elsewhere."""
    file, _, number = line.rpartition(":")
    path, root = Path.cwd() / file, Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    is_inside = path.is_relative_to(root) and path.is_file() and number.isdigit()
    return (path.relative_to(root).as_posix(), int(number)) if is_inside else None


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def history_document(runs: Sequence[ReportedRun]) -> Document:
    """Render each number of several runs, the oldest first, and list runs of a different environment."""
    ordered = sorted(runs, key=ReportedRun.order)
    numbers: dict[tuple[RowId, str], list[MetricValue | None]] = {}
    for n, run in enumerate(ordered):
        for number in run.metrics():
            numbers.setdefault((number.row, number.metric), [None] * len(ordered))[n] = number
    groups = grouped((row.test, _line(row.label, metric, of)) for (row, metric), of in numbers.items())
    columns = [Column("metric"), *(Column(str(n)) for n in range(1, len(ordered) + 1)), Column("change")]
    table = Table(
        tuple(columns),
        tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
        label_title="row",
        proof_title="",
        expendable=tuple(str(n) for n in range(2, len(ordered))),
    )
    blocks: list[Block] = [one_line(text) for text in _run_texts(ordered)]
    legend = "Times are in nanoseconds; -: not in this run. change: from the first figure to the last."
    return Document((*blocks, table, paragraph(legend, indent=1)))


def _line(label: str, metric: str, values: Sequence[MetricValue | None]) -> Line:
    present = [one for one in values if one is not None]
    first, last = present[0], present[-1]
    has_change = len(present) > 1 and first.value
    change = f"{last.value / first.value - 1:+.1%}" if has_change else "-"
    figures = ("-" if one is None else f"{one.value:,}" for one in values)
    return Line(label, (metric, *figures, change), "", (), Tone.PLAIN)


def _run_texts(runs: Sequence[ReportedRun]) -> Iterator[str]:
    newest = _comparable(runs[-1])
    for n, run in enumerate(runs, start=1):
        differing = [name for name, value in _comparable(run).items() if newest.get(name) != value]
        text = f"{n}: {run.where}, taken {run.taken or 'at an unknown time'}"
        if differing:
            text += f"; may not be comparable with the newest: another {', '.join(differing)}"
        if run.unknown:
            text += f"; kinds of results that are not registered here: {', '.join(map(shown, run.unknown))}"
        yield text


def _comparable(run: ReportedRun) -> dict[str, str]:
    may_differ = {"pytest-dtdispatch", "commit"}
    return {name: value for name, value in run.environment.items() if name not in may_differ}
