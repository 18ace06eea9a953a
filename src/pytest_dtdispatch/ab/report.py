"""Report of an A/B run: a table for each pair of sides, and the side that regressed first."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pytest_dtdispatch.ab.rule import OTHER_BUILD, RUN_AGAIN, Metric, percent
from pytest_dtdispatch.ab.run import CHANGED, Pair, PairResult, Results, Run, each_verdict
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import MICROSECONDS, first_of, grouped, plural
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


def exit_status(found: Results) -> int:
    """Return the exit status of the worst verdict; an empty comparison is inconclusive.

    With several interpreters, missing rows are listed but do not fail.
    """
    verdicts = {one.verdict for _, one in each_verdict(found)}
    has_compared = any(one.change for _, one in each_verdict(found))
    if len(found) > 1:
        verdicts.discard(Verdict.MISSING)
    if not has_compared and Verdict.MISSING not in verdicts:
        return 3
    if verdicts & {Verdict.REGRESSED, Verdict.MISSING}:
        return 1
    if Verdict.CONTAMINATED in verdicts:
        return 4
    return 3 if Verdict.INCONCLUSIVE in verdicts else 0


def run_document(run: Run, found: Results) -> Document:
    """Return the document of a run."""
    metric = run.request.rule.metric
    blocks: list[Block] = [*_side_lines(run)]
    legend = [paragraph(LEGENDS[metric], indent=1)]
    # Rows that passed are not listed for counts, or for several interpreters.
    lists_all = metric != Metric.COUNTS and len(run.sides) == 2
    first = "count" if metric == Metric.COUNTS else "state"
    optional = ("base", "head", "p", "interval") if metric == Metric.TIME else ("interval",)
    for pair, compared in found.items():
        if len(found) > 1:
            blocks.append(one_line(Span(f"{pair[1]} against {pair[0]}:", Tone.STRONG)))
        listed = (one for one in compared.verdicts if lists_all or one.verdict is not Verdict.PASSED)
        lines = grouped((one.row.test, _line(run, pair, one, first)) for one in listed)
        if lines:
            groups = [Group(test, of_test) for test, of_test in lines.items()]
            blocks += [Table(groups, "row", "verdict", optional), *legend]
            legend = []  # printed once
        blocks += _lines_below(run, pair, compared)
    if len(found) > 1:
        blocks.append(_first_regressed(run, found))
    return Document(tuple(blocks))


def _lines_below(run: Run, pair: Pair, compared: PairResult) -> Iterator[Paragraph]:
    """Describe the processes of two sides, the shift of plain tensors, and the numbers of verdicts."""
    rule = run.request.rule
    if compared.comparison:
        control, is_time = compared.comparison.control, rule.metric == Metric.TIME
        samples = [one for side in pair for one in run.samples(side)[: compared.comparison.pairs]]
        noun = "processes" if is_time else "samples"
        text = f"{len(samples)} {noun} in {sum(one.seconds for one in samples):.0f} s"
        if rule.metric == Metric.COUNTS:
            text += "; exact: any difference is one"
        if rule.metric == Metric.INSTRUCTIONS:
            text += f"; threshold {100 * rule.threshold:g} %"
        if control is not None and rule.metric != Metric.COUNTS:
            text += f"; plain tensors shifted by {percent(control):+.{1 if is_time else 2}f} %"
            if compared.comparison.is_contaminated:
                reason = RUN_AGAIN if is_time else OTHER_BUILD
                text += f", past {100 * rule.control:g} %: contaminated; {reason}"
        yield one_line(text)
    noun = "number" if rule.metric == Metric.COUNTS else "row"
    if compared.verdicts:
        yield one_line(f"{plural(len(compared.verdicts), noun)}: ", *verdict_counts(compared.verdicts))
    else:
        yield one_line(Span(f"no {noun}s: nothing was compared", Tone.NOTICE))


def _side_lines(run: Run) -> Iterator[Paragraph]:
    """Describe the interpreter, the versions and the imports of each side."""
    revisions = dict(zip(run.request.sides, run.request.revisions, strict=False))
    for name, python in zip(run.request.sides, run.request.pythons, strict=True):
        label = f" {run.request.labels[name]}" if name in run.request.labels else ""
        source = f"{revisions[name]} ({python})" if name in revisions else python
        versions = run.sides[name]
        folders = next((each.folders for each in run.processes if each.side == name), ())
        imports = f"; imports from {', '.join(first_of(folders, 3))}" if folders else ""
        yield one_line(f"{name}{label}: {source}: Python {versions.python}, torch {versions.torch}{imports}")


def _first_regressed(run: Run, found: Results) -> Paragraph:
    for (_, head), compared in found.items():
        regressed = sum(one.verdict is Verdict.REGRESSED for one in compared.verdicts)
        if regressed:
            python = run.request.pythons[run.request.sides.index(head)]
            side = f"{head}: {python}, torch {run.sides[head].torch}"
            return one_line(Span(f"first regressed: {side}: {plural(regressed, 'row')}", Tone.BAD))
    return one_line("first regressed: none")


def _line(run: Run, pair: Pair, one: RowVerdict, first: str) -> Line:
    """Return the line of a row; ``first`` is the title of the column of states."""
    metric, labels = run.request.rule.metric, run.request.labels
    unit = MICROSECONDS.name if metric == Metric.TIME else ""
    change = one.change if isinstance(one.change, (TimeShift, NumberShift)) else None
    base, head = _side_figures(run, pair, one)
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
    return Line(one.row.label, cells, str(one.verdict), _notes(run, pair, one), tone)


def _side_figures(run: Run, pair: Pair, one: RowVerdict) -> tuple[str, str]:
    """Format the figures of base and head; a row that was not compared may have the figure of one side."""
    metric = run.request.rule.metric
    match one.change:
        case TimeShift(base_ns, head_ns):
            return MICROSECONDS.text(base_ns), MICROSECONDS.text(head_ns)
        case NumberShift(base, base_most, head, head_most) if metric == Metric.COUNTS:
            return _numbers(base, base_most), _numbers(head, head_most)
        case NumberShift(base_least=base, head_least=head):
            return f"{base:,.0f}", f"{head:,.0f}"
    texts = []
    for side in pair:
        values = [
            each.values[one.row] for each in run.processes if each.side == side and one.row in each.values
        ]
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


def pasted_text(run: Run, found: Results) -> str:
    """Return Markdown for a pull request: the verdict, rows that changed, then rows that passed, folded."""
    rows = sorted(each_verdict(found), key=lambda each: gravity(each[1]))
    changed = [each for each in rows if each[1].verdict is not Verdict.PASSED]
    passed = [each for each in rows if each[1].verdict is Verdict.PASSED]
    metric, counts = run.request.rule.metric, plain(verdict_counts([one for _, one in rows]))
    outcome = {0: "passed", 1: "failed", 3: "inconclusive", 4: "contaminated"}[exit_status(found)]
    parts = [f"### {metric}: {outcome}: {counts or 'nothing was compared'}\n"]
    if changed:
        parts.append(document_text(Document((_pasted_table(run, changed),))))
    if passed and metric != Metric.COUNTS:
        text = document_text(Document((_pasted_table(run, passed),), LEGENDS[metric]))
        parts.append(folded(f"{plural(len(passed), 'row')} passed", text))
    below = [line for pair, compared in found.items() for line in _lines_below(run, pair, compared)]
    parts.append(folded("How it was compared", document_text(Document((*_side_lines(run), *below)))))
    return "\n".join(parts)


def _pasted_table(run: Run, rows: Sequence[tuple[Pair, RowVerdict]]) -> Table:
    """Return a table of up to 100 rows, whose columns have the verdicts, source lines, tests and sides."""
    lines = []
    for pair, one in rows[:100]:
        line = _line(run, pair, one, "path")
        op, test = (cut_name(name, MAX_NAME) for name in (line.label, one.row.test))
        cells = {
            **line.cells,
            Column("verdict"): ": ".join(filter(None, (line.status, "; ".join(line.notes)))),
            Column("line"): ", ".join(first_of(_source_lines(run, pair, one), 3)) or "-",
            Column("test"): (Span(test, Tone.CODE),),
        }
        if len(run.sides) > 2:
            cells[Column("side")] = pair[1]
        lines.append(Line(op, cells))
    more = f"and {len(rows) - 100:,} rows more" if len(rows) > 100 else ""
    return Table((Group("", lines, more),), label_title="op")


def _source_lines(run: Run, pair: Pair, one: RowVerdict) -> Sequence[str]:
    """Return the source lines of a changed count that only the head has, else all of the head."""
    base, head = _by_side(run, pair, "lines", one.row)
    return [line for line in head if line not in base] or [*head]


def _by_side(run: Run, pair: Pair, name: str, row: RowId) -> list[dict[str, None]]:
    """Return the distinct details, or source lines, of a row in the processes of each side."""
    found = [(process.side, getattr(process, name).get(row, ())) for process in run.processes]
    return [dict.fromkeys(text for of, texts in found if of == side for text in texts) for side in pair]


def error_commands_of(run: Run, found: Results) -> list[str]:
    """Return workflow commands of GitHub Actions that annotate rows that regressed."""
    failed = tuple(
        replace(one, lines=tuple(_source_lines(run, pair, one)))
        for pair, one in each_verdict(found)
        if one.verdict is Verdict.REGRESSED
    )
    return error_commands([Judgement(failed, failed=failed)], {})


def _notes(run: Run, pair: Pair, one: RowVerdict) -> Sequence[str]:
    """Return items that only the head has, the reason why a row is absent, or the remedy."""
    base, head = pair
    if one.verdict is Verdict.CONTAMINATED:  # explained once, below the table
        return ()
    if one.verdict in CHANGED:
        differing = _differing(run, pair, one)
        if differing:
            return View().listed(differing)
    absent_from = {Verdict.MISSING: head, Verdict.NEW: base}.get(one.verdict)
    for process in run.processes:
        for row, reason in process.absent.items():
            if process.side == absent_from and row.contains(one.row):
                return (f"in {absent_from}: {row}: {reason}",)
    return (one.remedy,) if one.remedy else ()


def _differing(run: Run, pair: Pair, one: RowVerdict) -> list[str]:
    """Return the functions that differ most, or the events of a count that only the head has."""
    base, head = _by_side(run, pair, "details", one.row)
    if run.request.rule.metric == Metric.INSTRUCTIONS:
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
