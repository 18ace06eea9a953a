"""Reports of whole runs: job summary, annotations of failed rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from pytest_dtdispatch.core.results import Advice, row_key
from pytest_dtdispatch.core.signatures import cut_name, cut_words
from pytest_dtdispatch.core.text import escape_controls, first_of, plural
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.report.document import (
    KINDS,
    Block,
    Column,
    Document,
    Group,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    paragraph,
    plain,
)
from pytest_dtdispatch.report.judgements import (
    badness,
    change_text,
    drift_lines,
    judgement_document,
    row_text,
    verdict_counts,
    worst_row,
)
from pytest_dtdispatch.report.markdown import document_text, escaped, folded
from pytest_dtdispatch.report.run import ReportedRun

# Of the summary of one step: "Job summaries are isolated between steps and each step is restricted to a
# maximum size of 1MiB", in GitHub's reference of workflow commands.
MAX_BYTES = 2**20


def summary(run: ReportedRun, room: int = MAX_BYTES, more: Iterable[tuple[str, Document]] = ()) -> str:
    """Render a summary of limited size; sections that do not fit are omitted.

    Args:
        run: run to summarize.
        room: maximum size in bytes; verdict and changes are never omitted.
        more: titles and documents of further sections, which come first.
    """
    sections = [*more, *run_sections(run)]
    text = _head(run, worst_of(run, [document for _, document in sections]))
    omitted: list[str] = []
    room_for_sections = room - 4096  # reserve space for the line on omitted sections
    for gate in run.gates:
        sections.append((f"Full output of the gate: {cut_name(gate.where)}", judgement_document(gate)))
    for title, document in sections:
        written = folded(title, document_text(document))
        if len(f"{text}\n{written}".encode("utf-8", "backslashreplace")) > room_for_sections:
            omitted.append(title)
        else:
            text = f"{text}\n{written}"
    if omitted:
        why = f"Left out, as a summary has room for {room / 1024:,.0f} KiB: {', '.join(omitted)}."
        text = f"{text}\n{document_text(Document((paragraph(why),)))}"
    return text


def stopped_summary(reason: str) -> str:
    """Format the summary of an incomplete run."""
    return f"## dtdispatch: no results\n\n{document_text(Document((paragraph(reason),)))}"


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
        outcome = "measured, compared with nothing"
    else:
        outcome = "nothing was measured"
    failed = len({failure.test for failure in run.failed_tests})
    return f"{outcome}; {plural(failed, 'test')} failed" if failed else outcome


def about_run(run: ReportedRun) -> list[str]:
    """Describe what was measured, when and where, in two lines."""
    rows, results = sum(map(len, run.measured.values())), [test for _, test, _ in run.each_result()]
    tests = {*results, *(test for test, of_test in run.measured.items() if of_test)}
    numbers = [plural(count, noun) for count, noun in ((rows, "row"), (len(results), "result")) if count]
    measured = f"{' and '.join(numbers)} in {plural(len(tests), 'test')}, " if numbers else ""
    where = f" from {run.where}" if run.where else ""
    cpu, torch, device, python = map(run.environment.get, ("CPU", "torch version", "device", "Python"))
    machine = filter(None, (cpu, torch and f"torch {torch}", device, python))
    return [f"{measured}taken {run.started or 'at an unknown time'}{where}", ", ".join(machine)]


def worst_of(run: ReportedRun, documents: Iterable[Document]) -> str:
    """Return the text on the worst row of a run, by its gates if there are any; empty without one."""
    if run.compared or run.gates:
        return worst_row(run.gates, run.compared)
    return cut_words(next((document.worst for document in documents if document.worst), ""))


def advice_blocks(run: ReportedRun) -> Iterator[Block]:
    """Yield each suggested change once, with its class and its findings by test, in the order of advice."""
    best: dict[tuple[str, str, str], Advice] = {}  # a budget repeats the advice on counts, with its time
    for kind, test, result in run.each_result():
        for advice in KINDS[kind].advice(result):
            key = advice.change, advice.seen, test
            best[key] = max(best.get(key, advice), advice, key=attrgetter("ns"))
    findings: dict[str, list[Block]] = {}
    for (change, seen, test), advice in sorted(best.items(), key=lambda item: item[1].order):
        title = f"{advice.kind}: {change}" if change else "No change of these is proved"
        saving = f"{seen}: {advice.saving}" if change else seen
        findings.setdefault(title, []).append(Paragraph((Span(saving), Span(f" ({test})", Tone.SOFT)), 1))
    for title, blocks in findings.items():
        yield paragraph(title, Tone.STRONG)
        yield from blocks


def _head(run: ReportedRun, worst: str) -> str:
    """Render the outcome, up to 100 rows that did not pass, what was measured, and 20 lines of advice."""
    parts = [f"## dtdispatch: {verdict_text(run)}\n"]
    judged = [(gate, row) for gate in run.gates for row in gate.verdicts if row.verdict is not Verdict.PASSED]
    if judged:
        judged.sort(key=lambda each: badness(each[1]))
        lines = []
        for gate, row in judged[:100]:
            cells = {
                Column("verdict"): str(row.verdict),
                Column("line"): ", ".join(first_of(row.lines, 3)) or "-",
                Column("change"): change_text(row) or "-",
                Column("compared with"): row.criterion or "-",
                Column("of"): cut_name(gate.where),
            }
            lines.append(Line(row_text(row), cells))
        more = f"and {len(judged) - 100:,} more rows" if len(judged) > 100 else ""
        table = Table((Group("", lines, more),), label_title="row")
        parts.append(document_text(Document((table,))))
        remedies = (f"{row.verdict}: {row.remedy}" for _, row in judged if row.remedy)
        remarks = (remark for gate in run.gates if gate.has_failed for remark in gate.remarks)
        below = dict.fromkeys((*remedies, *remarks))
        if below:
            parts.append("".join(f"* {escaped(text)}\n" for text in below))
    drifts = [line for gate in run.gates for line in drift_lines(gate.verdicts)]
    about = [paragraph(text) for text in (*about_run(run), "" if run.gates else worst) if text]
    advice = [*advice_blocks(run)]
    if len(advice) > 20:
        advice[20:] = [paragraph(f"and {len(advice) - 20:,} more lines of advice, which other formats have")]
    parts.append(document_text(Document((*drifts, *run.notices.blocks, *about, *advice))))
    return "\n".join(parts)


def run_sections(run: ReportedRun) -> Iterator[tuple[str, Document]]:
    """Yield a title and a document, without advice, for each kind of result, and for the environment."""
    for name, document in run.documents(replace(run.view, for_page=True)).items():
        title = KINDS[name].title if name in KINDS else ""
        yield title or name.capitalize(), document
    if run.environment:
        lines = [Line(name, {Column("value"): value}) for name, value in run.environment.items()]
        blocks: list[Block] = [Table((Group("", lines),), label_title="", label_tone=Tone.PLAIN)]
        if run.started:
            blocks.append(paragraph(f"Taken {run.started}."))
        yield "Environment", Document(tuple(blocks))


def error_commands(gates: Sequence[Judgement], locations: Mapping[str, tuple[str, int]]) -> list[str]:
    """Return a GitHub error command for each failed row, the worst first, and one for the number of others.

    Each is at the source line that caused it, or else at its test.

    Args:
        gates: judgements of a run.
        locations: file in the repository and line, from 1, of each test, by its name in rows.
    """
    max_errors = 10  # of a step, from GitHub's "Workflow commands for GitHub Actions"
    locations = {row_key(test): location for test, location in locations.items()}  # rows of files have keys
    empty = [gate.where for gate in gates if gate.has_failed and not gate.failed]
    lines = [_error({"title": "dtdispatch"}, f"no row could be judged against {where}") for where in empty]
    failed = sorted((row for gate in gates for row in gate.failed), key=badness)
    room = max_errors - len(lines)
    shown = failed if len(failed) <= room else failed[: max(room - 1, 0)]
    lines += [_row_error(row, locations) for row in shown]
    if len(shown) < len(failed):
        rest = f"and {len(failed) - len(shown):,} more rows failed: the output of the run lists all"
        lines.append(_error({"title": "dtdispatch"}, rest))
    return lines


def _error(properties: Mapping[str, str], message: str) -> str:
    """Format an error command of GitHub; characters that would end a property or the message are escaped."""
    escaped = {key: _data(value).replace(":", "%3A").replace(",", "%2C") for key, value in properties.items()}
    return f"::error {','.join(map('='.join, escaped.items()))}::{_data(message)}"


def _row_error(row: RowVerdict, locations: Mapping[str, tuple[str, int]]) -> str:
    """Format the error command of a row, at the first of its lines that is in the repository."""
    location = locations.get(row_key(row.row.test))
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    for line in row.lines:
        file, _, number = line.rpartition(":")
        path = Path.cwd() / file
        if path.is_relative_to(root) and path.is_file() and number.isdigit():
            location = path.relative_to(root).as_posix(), int(number)
            break
    at = {"file": location[0], "line": str(location[1])} if location else {}
    details = "; ".join(filter(None, (row.criterion, change_text(row), row.remedy)))
    message = ": ".join(filter(None, (row_text(row), details)))
    return _error({**at, "title": f"dtdispatch: {row.verdict}"}, message)


def _data(text: str) -> str:
    return escape_controls(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
