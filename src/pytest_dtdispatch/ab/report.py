"""Report of an A/B run: the sides, a table of rows, and the verdict."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_dtdispatch.ab.rule import OTHER_BUILD, RUN_AGAIN, percent
from pytest_dtdispatch.ab.run import CHANGED, Judged
from pytest_dtdispatch.ab.values import Metric, Value
from pytest_dtdispatch.core.plain_data import encode, select
from pytest_dtdispatch.core.results import row_key
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import MICROSECONDS, first_of, grouped, plural, shorten_path
from pytest_dtdispatch.core.verdicts import Judgement, NumberShift, RowVerdict, TimeShift, Verdict
from pytest_dtdispatch.report.document import (
    Block,
    CellContent,
    Column,
    Document,
    Group,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    View,
    one_line,
    paragraph,
    plain,
)
from pytest_dtdispatch.report.judgements import MAX_NAME, gravity, verdict_counts
from pytest_dtdispatch.report.markdown import document_text, folded
from pytest_dtdispatch.report.summary import error_commands

LEGENDS = {
    Metric.TIME: "base, head: median of the processes until the row was decided; each counts by its least "
    "sample. change: the Hodges-Lehmann shift, with its 99 % interval, from five pairs on. p: of the "
    "one-sided rank test. sees: the smallest change that --confirm pairs find in 9 of 10 runs. "
    "plain: the change of the same op on plain tensors.",
    Metric.COUNTS: "base, head: the number per step, minimum to maximum over processes.",
    Metric.INSTRUCTIONS: "base, head: instructions, the minimum over processes. change: from base to head. "
    "interval: the changes between any two processes of base and head. "
    "plain: the change of the same op on plain tensors.",
}

# Counts that grow together if a line has one more redistribution.
OF_REDISTRIBUTIONS = ("redistributes_per_step", "implicit_per_step", "collectives_per_step")


def exit_status(judged: Judged) -> int:
    """Return the exit status of the worst verdict; an empty comparison is inconclusive."""
    verdicts = {one.verdict for one in judged.verdicts}
    if verdicts & {Verdict.REGRESSED, Verdict.MISSING}:
        return 1
    if not any(one.change for one in judged.verdicts):
        return 3
    if Verdict.CONTAMINATED in verdicts:
        return 4
    return 3 if Verdict.INCONCLUSIVE in verdicts else 0


def run_document(judged: Judged, labels: Mapping[str, str]) -> Document:
    """Return the document of a run; labels name sides."""
    metric = judged.rule.metric
    blocks: list[Block] = [*_side_lines(judged, labels)]
    first = "count" if metric == Metric.COUNTS else "state"
    optional = ("base", "head", "p", "interval") if metric == Metric.TIME else ("interval",)
    # Counts that passed are not listed.
    listed = [one for one in judged.verdicts if metric != Metric.COUNTS or one.verdict is not Verdict.PASSED]
    lines = grouped((one.row.test, _line(judged, one, first, labels)) for one in listed)
    if lines:
        groups = [Group(test, of_test) for test, of_test in lines.items()]
        blocks += [Table(groups, "row", "verdict", optional), paragraph(LEGENDS[metric], indent=1)]
    return Document((*blocks, *_lines_below(judged)))


def _lines_below(judged: Judged) -> Iterator[Paragraph]:
    """Describe the processes of both sides, the shift of plain tensors, and the numbers of verdicts."""
    rule, found = judged.rule, judged.comparison
    is_time = rule.metric == Metric.TIME
    samples = [sample for side in judged.sides.values() for sample in side[: found.pairs]]
    turns = [run.turn for sample in samples for run in sample.runs if run.turn]
    text = f"{len(samples)} {'processes' if is_time else 'samples'}"
    if turns:
        text += f" in {sum(turn.seconds for turn in turns):.0f} s"
    if rule.metric == Metric.COUNTS:
        text += "; exact: any difference is one"
    if rule.metric == Metric.INSTRUCTIONS:
        text += f"; threshold {100 * rule.threshold:g} %"
    if found.control is not None and rule.metric != Metric.COUNTS:
        text += f"; plain tensors shifted by {percent(found.control):+.{1 if is_time else 2}f} %"
        if found.is_contaminated:
            reason = RUN_AGAIN if is_time else OTHER_BUILD
            text += f", past {100 * rule.control:g} %: contaminated; {reason}"
    yield one_line(text)
    if is_time and not found.is_in_turn:
        reason = "the runs of base and head did not alternate on one machine: times are inconclusive"
        yield one_line(Span(reason, Tone.NOTICE))
    noun = "number" if rule.metric == Metric.COUNTS else "row"
    if judged.verdicts:
        yield one_line(f"{plural(len(judged.verdicts), noun)}: ", *verdict_counts(judged.verdicts))
    else:
        yield one_line(Span(f"no {noun}s: nothing was compared", Tone.NOTICE))


def _side_lines(judged: Judged, labels: Mapping[str, str]) -> Iterator[Paragraph]:
    """Describe the commit, the interpreter, the versions and the imports of each side."""
    for name, samples in judged.sides.items():
        run = samples[0].runs[0]
        source = run.turn.side if run.turn else shorten_path(run.where)
        python, torch = (run.environment.get(each, "unknown") for each in ("Python", "torch version"))
        label = f" {labels[name]}" if name in labels else ""
        imports = f"; imports from {', '.join(first_of(run.imports, 3))}" if run.imports else ""
        yield one_line(f"{name}{label}: {source}: {python}, torch {torch}{imports}")


def verdicts_text(judged: Judged, form: str) -> str:
    """Return the verdicts as JSON, with null for infinite numbers, which JSON does not have."""
    verdicts = []
    for one in judged.verdicts:
        figures = {
            name: value if math.isfinite(value) else None
            for name, value in (vars(one.change) if one.change else {}).items()
            if value is not None
        }
        row = {"row": row_key(str(one.row)), **select(one.row, "test", "label", "state")}
        verdicts.append({**row, "verdict": str(one.verdict), "figures": figures, "remedy": one.remedy})
    content = {"format": form, "version": 1, "rule": encode(judged.rule), "verdicts": verdicts}
    return json.dumps(content, indent=1) + "\n"


def _line(judged: Judged, one: RowVerdict, first: str, labels: Mapping[str, str]) -> Line:
    """Return the line of a row; ``first`` is the title of the column of states."""
    metric = judged.rule.metric
    unit = MICROSECONDS.name if metric == Metric.TIME else ""
    change = one.change if isinstance(one.change, (TimeShift, NumberShift)) else None
    base, head = _side_figures(judged, one)
    cells: dict[Column, CellContent] = {
        Column(first): str(one.row.state),
        Column(labels.get("base", "base"), unit, of="base"): base,
        Column(labels.get("head", "head"), unit, of="head"): head,
    }
    if metric == Metric.COUNTS:
        cells[Column(first)] = str(one.row.state).replace("_", " ")
        by = change.head_least - change.base_least if isinstance(change, NumberShift) else None
        cells[Column("change")] = "-" if by is None else f"{by:+,g}"
    else:
        percents: list[float | None] = [None] * 4
        if change is not None:
            percents = [change.shift_percent, change.low_percent, change.high_percent, change.plain_percent]
        decimals = 1 if metric == Metric.TIME else 2
        shift, low, high, plain = (_percent_text(percent, f"+.{decimals}f") for percent in percents)
        cells[Column("change", "%")] = shift
        cells[Column("interval", "%")] = "-" if low == high == "-" else f"{low} to {high}"
        cells[Column("plain", "%")] = plain
    if metric == Metric.TIME:
        times = change if isinstance(change, TimeShift) else None
        cells[Column("p")] = f"{times.p:.4f}" if times else "-"
        cells[Column("sees", "%")] = _percent_text(times.smallest_percent if times else None, ".1f")
    good = (Verdict.PASSED, Verdict.IMPROVED, Verdict.CHANGED, Verdict.NEW)
    tone = Tone.GOOD if one.verdict in good else Tone.BAD
    return Line(one.row.label, cells, str(one.verdict), _notes(judged, one), tone)


def _side_figures(judged: Judged, one: RowVerdict) -> tuple[str, str]:
    """Format the figures of base and head; a row that was not compared may have the figure of one side."""
    metric = judged.rule.metric
    match one.change:
        case TimeShift(base_ns, head_ns):
            return MICROSECONDS.text(base_ns), MICROSECONDS.text(head_ns)
        case NumberShift(base, base_most, head, head_most) if metric == Metric.COUNTS:
            return _numbers(base, base_most), _numbers(head, head_most)
        case NumberShift(base_least=base, head_least=head):
            return f"{base:,.0f}", f"{head:,.0f}"
    texts = []
    for side in judged.sides.values():
        numbers = [sample.numbers for sample in side if not sample.is_profile]
        values = [each[one.row] for each in numbers if one.row in each]
        if not values or one.verdict is Verdict.MISSING:
            texts.append("-")
        elif metric == Metric.TIME:
            texts.append(MICROSECONDS.text(statistics.median(values)))
        else:
            texts.append(_numbers(min(values), max(values)))
    base_text, head_text = texts
    return base_text, head_text


def _numbers(least: float, most: float) -> str:
    return f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"


def _percent_text(percent: float | None, form: str) -> str:
    return "-" if percent is None or not math.isfinite(percent) else format(percent, form)


def pasted_text(judged: Judged, labels: Mapping[str, str]) -> str:
    """Return Markdown for a pull request: the verdict, rows that changed, then rows that passed, folded."""
    rows = sorted(judged.verdicts, key=gravity)
    changed = [one for one in rows if one.verdict is not Verdict.PASSED]
    passed = [one for one in rows if one.verdict is Verdict.PASSED]
    metric, counts = judged.rule.metric, plain(verdict_counts(rows))
    outcome = {0: "passed", 1: "failed", 3: "inconclusive", 4: "contaminated"}[exit_status(judged)]
    parts = [f"### {metric}: {outcome}: {counts or 'nothing was compared'}\n"]
    if changed:
        parts.append(document_text(Document((_pasted_table(judged, changed, labels),))))
    if passed and metric != Metric.COUNTS:
        text = document_text(Document((_pasted_table(judged, passed, labels),), LEGENDS[metric]))
        parts.append(folded(f"{plural(len(passed), 'row')} passed", text))
    below = Document((*_side_lines(judged, labels), *_lines_below(judged)))
    parts.append(folded("How it was compared", document_text(below)))
    return "\n".join(parts)


def _pasted_table(judged: Judged, rows: Sequence[RowVerdict], labels: Mapping[str, str]) -> Table:
    """Return a table of up to 100 rows, whose columns have the verdicts, source lines and tests."""
    lines = []
    for one in rows[:100]:
        line = _line(judged, one, "path", labels)
        op, test = (cut_name(name, MAX_NAME) for name in (line.label, one.row.test))
        cells = {
            **line.cells,
            Column("verdict"): ": ".join(filter(None, (line.status, "; ".join(line.notes)))),
            Column("line"): ", ".join(first_of(_source_lines(judged, one), 3)) or "-",
            Column("test"): (Span(test, Tone.CODE),),
        }
        lines.append(Line(op, cells))
    more = f"and {len(rows) - 100:,} rows more" if len(rows) > 100 else ""
    return Table((Group("", lines, more),), label_title="op")


def _by_side(judged: Judged, row: RowId) -> tuple[list[Value], list[Value]]:
    """Return the values of a row in the samples of base and head."""
    base, head = (
        [sample.values[row] for sample in samples if row in sample.values]
        for samples in judged.sides.values()
    )
    return base, head


def _source_lines(judged: Judged, one: RowVerdict) -> Sequence[str]:
    """Return the source lines of a changed count that only the head has, else all of the head."""
    base, head = (
        dict.fromkeys(line for value in values for line in value.lines)
        for values in _by_side(judged, one.row)
    )
    return [line for line in head if line not in base] or [*head]


def error_commands_of(judged: Judged) -> list[str]:
    """Return workflow commands of GitHub Actions that annotate rows that regressed, once for each cause."""
    failed = tuple(
        replace(one, lines=tuple(_source_lines(judged, one)))
        for one in judged.verdicts
        if one.verdict is Verdict.REGRESSED and not _same_cause(judged, one)
    )
    return error_commands([Judgement(failed, failed=failed)], {})


def _same_cause(judged: Judged, one: RowVerdict) -> str:
    """Return the first count of the same step with the same cause; empty if it is this one."""
    lines = _source_lines(judged, one)
    for other in judged.verdicts if one.row.state in OF_REDISTRIBUTIONS and lines else ():
        if other is one:
            break
        has_regressed = other.verdict is Verdict.REGRESSED and other.row.state in OF_REDISTRIBUTIONS
        if has_regressed and other.row[:2] == one.row[:2] and _source_lines(judged, other) == lines:
            return str(other.row.state).replace("_", " ")
    return ""


def _notes(judged: Judged, one: RowVerdict) -> Sequence[str]:
    """Return items that only the head has, the reason why a row is absent, or the remedy."""
    if one.verdict is Verdict.CONTAMINATED:  # explained once, below the table
        return ()
    cause = _same_cause(judged, one) if one.verdict is Verdict.REGRESSED else ""
    if cause:
        return (f"the same cause as {cause}",)
    if one.verdict in CHANGED:
        differing = _differing(judged, one)
        if differing:
            return View().listed([line[:500] for line in differing])
    absent_from = {Verdict.MISSING: "head", Verdict.NEW: "base"}.get(one.verdict)
    for sample in judged.sides[absent_from] if absent_from else ():
        for row, reason in sample.absent.items():
            if row.contains(one.row):
                return (f"in {absent_from}: {row}: {reason}",)
    return (one.remedy,) if one.remedy else ()


def _differing(judged: Judged, one: RowVerdict) -> list[str]:
    """Return the functions that differ most, or the events of a count that only the head has."""
    base, head = (
        dict.fromkeys(line for value in values for line in value.details)
        for values in _by_side(judged, one.row)
    )
    if judged.rule.metric == Metric.INSTRUCTIONS:
        return _functions(base, head)
    if one.verdict is Verdict.CHANGED:  # equal calls on other source lines are not new
        calls = {line.partition(", at ")[0] for line in base}
        return [line for line in head if line.partition(", at ")[0] not in calls]
    return [line for line in head if line not in base] if one.verdict is Verdict.REGRESSED else []


def _functions(base: Iterable[str], head: Iterable[str]) -> list[str]:
    """List the functions that differ most; a function absent from a profile has fewer than those in it."""
    # A line of a profile. Folder and line number are ignored: they differ between commits.
    function = re.compile(r"(\d+) (\S+ \()(?:.*/)?([^/:]+)(?::\d+)?\)")
    before, after = Counter[str](), Counter[str]()
    for counts, lines in ((before, base), (after, head)):
        for found in filter(None, map(function.fullmatch, lines)):
            counts[f"{found[2]}{found[3]})"] += int(found[1])  # lambdas of a file share a name
    floor = max(min(counts.values(), default=math.inf) for counts in (before, after))
    grown = {name: max(after[name], floor) - max(before[name], floor) for name in {**before, **after}}
    most = sorted(grown, key=lambda name: abs(grown[name]), reverse=True)[:3]
    noise = 0.05 * max(map(abs, grown.values()), default=0)
    return [f"{name}: {grown[name]:+,.0f} instructions" for name in most if abs(grown[name]) > noise]
