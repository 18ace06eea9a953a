"""Report of an A/B run: the sides, a table of rows, and the verdict."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pytest_dtdispatch.ab.rule import CONTAMINATED, percent
from pytest_dtdispatch.ab.run import CHANGED, Judged
from pytest_dtdispatch.ab.values import Metric, Sample
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.text import MICROSECONDS, first_of, grouped, plural, shorten_path
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, SideShift, Verdict
from pytest_dtdispatch.report.document import (
    CellContent,
    Column,
    Document,
    Group,
    Line,
    Paragraph,
    Span,
    Table,
    Tone,
    one_line,
    paragraph,
    plain,
)
from pytest_dtdispatch.report.judgements import TONES, badness, number_text, verdict_counts
from pytest_dtdispatch.report.markdown import document_text, folded
from pytest_dtdispatch.steps.events import StepEvent, by_cause
from pytest_dtdispatch.steps.model import COUNTS, Steps, new_events

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
OF_REDISTRIBUTIONS = tuple(kind.per_step for kind in COUNTS if kind.follows_moves)


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


def run_document(judged: Judged) -> Document:
    """Return the document of a run."""
    metric = judged.rule.metric
    # Counts that passed are not listed.
    listed = [one for one in judged.verdicts if metric != Metric.COUNTS or one.verdict is not Verdict.PASSED]
    table = (_table(judged, listed), paragraph(LEGENDS[metric], indent=1)) if listed else ()
    return Document((*_side_lines(judged), *table, *_lines_below(judged)))


def pasted_text(judged: Judged) -> str:
    """Return Markdown for a pull request: the verdict, rows that changed, then rows that passed, folded."""
    rows = sorted(judged.verdicts, key=badness)
    changed = [one for one in rows if one.verdict is not Verdict.PASSED]
    passed = [one for one in rows if one.verdict is Verdict.PASSED]
    metric, counts = judged.rule.metric, plain(verdict_counts(rows))
    outcome = {0: "passed", 1: "failed", 3: "inconclusive", 4: "contaminated"}[exit_status(judged)]
    parts = [f"### {metric}: {outcome}: {counts or 'nothing was compared'}\n"]
    if changed:
        more = [paragraph(f"and {len(changed) - 100:,} rows more")] if len(changed) > 100 else []
        parts.append(document_text(Document((_table(judged, changed[:100]), *more))))
    if passed and metric != Metric.COUNTS:
        text = document_text(Document((_table(judged, passed),), LEGENDS[metric]))
        parts.append(folded(f"{plural(len(passed), 'row')} passed", text))
    below = Document((*_side_lines(judged), *_lines_below(judged)))
    parts.append(folded("How it was compared", document_text(below)))
    return "\n".join(parts)


def _table(judged: Judged, rows: Sequence[RowVerdict]) -> Table:
    lines = grouped((one.row.test, _line(judged, one)) for one in rows)
    groups = [Group(test, of_test) for test, of_test in lines.items()]
    is_time = judged.rule.metric == Metric.TIME
    optional = ("base", "head", "p", "interval") if is_time else ("interval",)
    return Table(groups, "row", "verdict", optional)


def _lines_below(judged: Judged) -> Iterator[Paragraph]:
    """Describe the processes of both sides, the shift of plain tensors, and the numbers of verdicts."""
    rule, found = judged.rule, judged.comparison
    is_time = rule.metric == Metric.TIME
    samples = [sample for side in judged.sides.values() for sample in side if not sample.is_profile]
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
            text += f", past {100 * rule.control:g} %: contaminated; {CONTAMINATED[rule.metric]}"
    yield one_line(text)
    if is_time and not found.is_in_turn:
        reason = "the runs of base and head did not alternate on one machine: times are inconclusive"
        yield one_line(Span(reason, Tone.NOTICE))
    noun = "number" if rule.metric == Metric.COUNTS else "row"
    if judged.verdicts:
        yield one_line(f"{plural(len(judged.verdicts), noun)}: ", *verdict_counts(judged.verdicts))
    else:
        yield one_line(Span(f"no {noun}s: nothing was compared", Tone.NOTICE))


def _side_lines(judged: Judged) -> Iterator[Paragraph]:
    """Describe the commit, the interpreter, the versions and the imports of each side."""
    for side, samples in judged.sides.items():
        run = samples[0].runs[0]
        python, torch = (run.environment.get(each, "unknown") for each in ("Python", "torch version"))
        imports = f"; imports from {', '.join(first_of(run.imports, 3))}" if run.imports else ""
        yield one_line(f"{side}: {_source(samples)}: {python}, torch {torch}{imports}")


def _source(samples: Sequence[Sample]) -> str:
    """Return the commit and the interpreter of a side, or its first file."""
    run = samples[0].runs[0]
    return run.turn.side if run.turn else shorten_path(run.where)


def _line(judged: Judged, one: RowVerdict) -> Line:
    """Return the line of a row."""
    metric = judged.rule.metric
    base, head = _side_figures(judged, one)
    unit = MICROSECONDS.name if metric == Metric.TIME else ""
    cells: dict[Column, CellContent] = {
        Column("count" if metric == Metric.COUNTS else "state"): str(one.row.state).replace("_", " "),
        Column("base", unit): base,
        Column("head", unit): head,
    }
    change = one.change if isinstance(one.change, SideShift) else SideShift(math.nan, math.nan)
    if metric == Metric.COUNTS:
        cells[Column("change")] = number_text(change.head - change.base, "+") if one.change else "-"
    else:
        decimals = 1 if metric == Metric.TIME else 2
        percents = (change.shift_percent, change.low_percent, change.high_percent, change.plain_percent)
        shift, low, high, plain_shift = (_percent_text(each, f"+.{decimals}f") for each in percents)
        cells[Column("change", "%")] = shift
        cells[Column("interval", "%")] = "-" if low == high == "-" else f"{low} to {high}"
        cells[Column("plain", "%")] = plain_shift
    if metric == Metric.TIME:
        cells[Column("p")] = "-" if change.p is None else f"{change.p:.4f}"
        cells[Column("sees", "%")] = _percent_text(change.smallest_percent, ".1f")
    tone = TONES.get(one.verdict, Tone.BAD)
    return Line(one.row.label, cells, str(one.verdict), _notes(judged, one), tone)


def _side_figures(judged: Judged, one: RowVerdict) -> list[str]:
    """Format the figures of base and head; a row that was not compared may have the figure of one side."""
    if isinstance(one.change, SideShift):
        ends = [(one.change.base, one.change.base_most), (one.change.head, one.change.head_most)]
        return [_figure_text(judged, least, most) for least, most in ends]
    texts = []
    for samples in judged.sides.values():
        sides = [sample.numbers for sample in samples if not sample.is_profile]
        numbers = [each[one.row] for each in sides if one.row in each]
        figure = statistics.median if judged.rule.metric == Metric.TIME else min
        texts.append(_figure_text(judged, figure(numbers), max(numbers)) if numbers else "-")
    return texts


def _figure_text(judged: Judged, figure: float, most: float | None) -> str:
    if judged.rule.metric == Metric.TIME:
        return MICROSECONDS.text(figure)
    text, is_range = number_text(figure), judged.rule.metric == Metric.COUNTS and most not in (None, figure)
    return f"{text} to {number_text(most or 0.0)}" if is_range else text


def _percent_text(percent: float | None, form: str) -> str:
    return "-" if percent is None or not math.isfinite(percent) else format(percent, form)


def _distinct(judged: Judged, row: RowId, member: str) -> list[dict[str, None]]:
    """Return the distinct details or source lines of a row in the samples of base and head."""
    distinct = []
    for samples in judged.sides.values():
        values = [sample.values[row] for sample in samples if row in sample.values]
        distinct.append(dict.fromkeys(item for value in values for item in getattr(value, member)))
    return distinct


def _source_lines(judged: Judged, one: RowVerdict) -> Sequence[str]:
    """Return the source lines of a changed count that only the head has, else all of the head."""
    base, head = _distinct(judged, one.row, "lines")
    moved = {event.place.line_text: None for event in chain(*_new_events(judged, one.row)) if event.place}
    return [*moved] or [line for line in head if line not in base] or [*head]


def judgement_of(judged: Judged) -> Judgement:
    """Return the judgement: all verdicts with their source lines, and failed rows once for each cause."""
    verdicts = tuple(replace(one, lines=tuple(_source_lines(judged, one))) for one in judged.verdicts)
    failing = (Verdict.REGRESSED, Verdict.MISSING)
    failed = tuple(one for one in verdicts if one.verdict in failing and not _same_cause(judged, one))
    has_compared = any(one.change for one in verdicts)
    return Judgement(verdicts, _source(judged.sides["base"]), failed, has_compared)


def _same_cause(judged: Judged, one: RowVerdict) -> str:
    """Return the first count of the same step with the same cause; empty if it is this one."""
    lines = _source_lines(judged, one)
    for other in judged.verdicts if one.row.state in OF_REDISTRIBUTIONS and lines else ():
        if other.row == one.row:
            break
        has_regressed = other.verdict is Verdict.REGRESSED and other.row.state in OF_REDISTRIBUTIONS
        is_same_step = other.row[:2] == one.row[:2]
        if has_regressed and is_same_step and {*_source_lines(judged, other)}.issuperset(lines):
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
            return first_of([line[:500] for line in differing], 5)
    for side, samples in judged.sides.items() if one.change is None else ():
        for sample in samples:
            for row, reason in sample.absent.items() if one.row not in sample.values else ():
                if row.contains(one.row):
                    return (f"in {side}: {row}: {reason}",)
    return (one.remedy,) if one.remedy else ()


def _differing(judged: Judged, one: RowVerdict) -> list[str]:
    """Return the functions that differ most, or the events of a count that only the head has."""
    base, head = _distinct(judged, one.row, "details")
    if judged.rule.metric == Metric.INSTRUCTIONS:
        return _functions(base, head)
    new = _new_events(judged, one.row) if one.verdict is Verdict.REGRESSED else []
    if any(new):
        return by_cause(new)
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


def _new_events(judged: Judged, row: RowId) -> list[list[StepEvent]]:
    """Return the events of a count that the base does not have, for each step of the head."""
    kind = next((kind for kind in COUNTS if kind.per_step and kind.per_step == row.state), None)
    base, head = (_steps_of(samples, row) for samples in judged.sides.values())
    if kind is None or not base or not head:
        return []
    most = max(chain.from_iterable(steps.steps for steps in base), key=kind.number)
    return [new_events(kind.events(step), kind.events(most)) for step in head[0].steps]


def _steps_of(samples: Iterable[Sample], row: RowId) -> list[Steps]:
    """Return the counted steps of a row in all runs of a side."""
    runs = chain.from_iterable(sample.runs for sample in samples)
    found = (run.results_by_row(Steps.kind).get(row._replace(state=None)) for run in runs)
    return [steps for steps in found if steps and steps.steps]
