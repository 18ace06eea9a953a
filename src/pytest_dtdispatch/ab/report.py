"""Report of an A/B run: a table for each pair of sides, and the side that regressed first."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_dtdispatch.ab.rule import OTHER_BUILD, RUN_AGAIN, Comparison, Metric, percent
from pytest_dtdispatch.ab.run import CHANGED, Pair, PairResult, Results, Run, each_verdict
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import cut_name
from pytest_dtdispatch.core.text import MICROSECONDS, first_of, grouped, plural
from pytest_dtdispatch.core.verdicts import Judgement, RowVerdict, Verdict
from pytest_dtdispatch.report.document import (
    Block,
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
from pytest_dtdispatch.report.judgements import LONGEST_ROW, gravity, verdict_counts
from pytest_dtdispatch.report.markdown import document_text, folded
from pytest_dtdispatch.report.summary import error_commands

PLAIN_LEGEND = "plain: the change of the same op on plain tensors."
LEGENDS = {
    Metric.TIME: "base, head: median of the processes until the row was decided; each counts by its least "
    "sample. change: the Hodges-Lehmann shift, with its 99 % interval, from five pairs on. p: of the "
    "one-sided rank test. sees: the smallest change that --confirm pairs find in 9 of 10 runs. "
    f"{PLAIN_LEGEND}",
    Metric.COUNTS: "base, head: the number per step, minimum to maximum over processes.",
    Metric.INSTRUCTIONS: "base, head: instructions, the minimum over processes. change: from base to head. "
    f"interval: the changes between any two processes of base and head. {PLAIN_LEGEND}",
}
MAX_PASTED_ROWS = 100  # rows; regressed ones come first


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
    for pair, compared in found.items():
        if len(found) > 1:
            blocks.append(one_line(Span(f"{pair[1]} against {pair[0]}:", Tone.STRONG)))
        if table := _table(run, pair, compared.verdicts):
            blocks += [table, *legend]
            legend = []  # printed once
        blocks += _lines_below(run, pair, compared)
    if len(found) > 1:
        blocks.append(_first_regressed(run, found))
    return Document(tuple(blocks))


def _lines_below(run: Run, pair: Pair, compared: PairResult) -> Iterator[Paragraph]:
    if compared.comparison:
        yield one_line(_processes_text(run, pair, compared.comparison))
    verdicts, noun = compared.verdicts, "number" if run.request.rule.metric == Metric.COUNTS else "row"
    if verdicts:
        yield one_line(f"{plural(len(verdicts), noun)}: ", *verdict_counts(verdicts))
    else:
        yield one_line(Span(f"no {noun}s: nothing was compared", Tone.NOTICE))


def _side_lines(run: Run) -> Iterator[Paragraph]:
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


def _table(run: Run, pair: Pair, verdicts: Sequence[RowVerdict]) -> Table | None:
    """Return the table of a pair; for counts, or several interpreters, without rows that passed."""
    metric = run.request.rule.metric
    lists_all = metric != Metric.COUNTS and len(run.sides) == 2
    listed = [one for one in verdicts if lists_all or one.verdict is not Verdict.PASSED]
    groups = grouped(_line(run, pair, one) for one in listed)
    if not groups:
        return None
    expendable = {Metric.TIME: ("base", "head", "p", "interval"), Metric.INSTRUCTIONS: ("interval",)}
    return Table(
        _columns(run, "count" if metric == Metric.COUNTS else "state"),
        tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
        label_title="row",
        proof_title="verdict",
        expendable=expendable.get(metric, ()),
    )


def _columns(run: Run, first: str) -> tuple[Column, ...]:
    labels, columns = run.request.labels, COLUMNS[run.request.rule.metric]
    return (Column(first), *(Column(labels.get(title, title), unit) for title, unit, _ in columns))


def _line(run: Run, pair: Pair, one: RowVerdict) -> tuple[str, Line]:
    """Return the test and the table line of a row."""
    metric = run.request.rule.metric
    test, label, state = one.row
    cells = [text(one.change) if one.change else "-" for _, _, text in COLUMNS[metric]]
    if one.change is None and one.verdict is not Verdict.MISSING:
        cells[:2] = [_lone_figure(run, side, one.row) for side in pair]
    state = str(state).replace("_", " ") if metric == Metric.COUNTS else str(state)
    good = (Verdict.PASSED, Verdict.IMPROVED, Verdict.CHANGED, Verdict.NEW)
    tone = Tone.GOOD if one.verdict in good else Tone.BAD
    return test, Line(label, (state, *cells), str(one.verdict), _notes(run, pair, one), tone)


def _lone_figure(run: Run, side: str, row: RowId) -> str:
    """Format the figure of a row that was not compared; a dash if this side has none."""
    values = [each.values[row] for each in run.processes if each.side == side and row in each.values]
    if not values:
        return "-"
    if run.request.rule.metric == Metric.TIME:
        return MICROSECONDS.text(statistics.median(values))
    return _numbers(min(values), max(values))


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
    last, lines = ("verdict", "line", "test", "side")[: 3 + (len(run.sides) > 2)], []
    for pair, one in rows[:MAX_PASTED_ROWS]:
        test, line = _line(run, pair, one)
        verdict = ": ".join(filter(None, (line.proof, "; ".join(line.notes))))
        op, test = (cut_name(name, LONGEST_ROW) for name in (line.label, test))
        at = ", ".join(first_of(_source_lines(run, pair, one), 3)) or "-"
        cells = (verdict, at, (Span(test, Tone.CODE),), pair[1])[: len(last)]
        lines.append(Line(op, (*line.cells, *cells)))
    more = f"and {len(rows) - MAX_PASTED_ROWS:,} rows more" if len(rows) > MAX_PASTED_ROWS else ""
    columns = (*_columns(run, "path"), *map(Column, last))
    return Table(columns, (Group("", tuple(lines), more),), label_title="op", proof_title="")


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


def _notes(run: Run, pair: Pair, one: RowVerdict) -> tuple[str, ...]:
    """Return items that only the head has, the reason why a row is absent, or the remedy."""
    base, head = pair
    if one.verdict is Verdict.CONTAMINATED:  # explained once, below the table
        return ()
    if one.verdict in CHANGED and (differing := _differing(run, pair, one)):
        return tuple(View().listed(differing))
    absent_from = {Verdict.MISSING: head, Verdict.NEW: base}.get(one.verdict)
    reasons = (
        f"in {absent_from}: {row}: {reason}"
        for process in run.processes
        if process.side == absent_from
        for row, reason in process.absent.items()
        if row.contains(one.row)
    )
    note = next(reasons, one.remedy)
    return (note,) if note else ()


def _differing(run: Run, pair: Pair, one: RowVerdict) -> list[str]:
    base, head = _by_side(run, pair, "details", one.row)
    if run.request.rule.metric == Metric.INSTRUCTIONS:
        return _functions(base, head)
    if one.verdict is Verdict.CHANGED:  # equal calls on other source lines are not new
        calls = {line.partition(", at ")[0] for line in base}
        return [line for line in head if line.partition(", at ")[0] not in calls]
    return [line for line in head if line not in base] if one.verdict is Verdict.REGRESSED else []


def _functions(*sides: Iterable[str]) -> list[str]:
    """List the functions that differ most; a function absent from a profile has fewer than those in it."""
    # A line of a profile. Folder and line number are ignored: they differ between commits.
    function = r"(\d+) (\S+ \()(?:.*/)?([^/:]+)(?::\d+)?\)"
    base, head = counted = Counter[str](), Counter[str]()
    for counts, lines in zip(counted, sides, strict=True):
        for line in lines:
            if found := re.fullmatch(function, line):
                counts[f"{found[2]}{found[3]})"] += int(found[1])  # lambdas of a file share a name
    floor = max(min(counts.values(), default=math.inf) for counts in counted)
    grown = {name: max(head[name], floor) - max(base[name], floor) for name in {**base, **head}}
    most = sorted(grown, key=lambda name: -abs(grown[name]))[:3]
    least = 0.05 * max(map(abs, grown.values()), default=0)  # smaller differences may be noise
    return [f"{name}: {grown[name]:+,.0f} instructions" for name in most if abs(grown[name]) > least]


def _processes_text(run: Run, pair: Pair, found: Comparison) -> str:
    """Describe the processes of two sides, their duration, and the shift of plain tensors."""
    rule = run.request.rule
    is_time = rule.metric == Metric.TIME
    seconds = [one.seconds for side in pair for one in run.samples(side)[: found.pairs]]
    text = f"{len(seconds)} {'processes' if is_time else 'samples'} in {sum(seconds):.0f} s"
    if rule.metric == Metric.COUNTS:
        return f"{text}; exact: any difference is one"
    if not is_time:
        text += f"; threshold {100 * rule.threshold:g} %"
    if found.control is None:
        return text
    text += f"; plain tensors shifted by {percent(found.control):+.{1 if is_time else 2}f} %"
    if found.is_contaminated:
        text += f", past {100 * rule.control:g} %: contaminated; {RUN_AGAIN if is_time else OTHER_BUILD}"
    return text


def _percent(found: Any, name: str, form: str = "+.1f") -> str:
    value = getattr(found, f"{name}_percent")
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def _numbers(least: float, most: float) -> str:
    return f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"


def _interval(found: Any, form: str = "+.1f") -> str:
    low, high = (_percent(found, end, form) for end in ("low", "high"))
    return "-" if low == high == "-" else f"{low} to {high}"


# Columns after the state: title, unit, and a formatter of the figures of a verdict.
COLUMNS: Mapping[Metric, Sequence[tuple[str, str, Callable[[Any], str]]]] = {
    Metric.TIME: (
        ("base", MICROSECONDS.name, lambda found: MICROSECONDS.text(found.base_ns)),
        ("head", MICROSECONDS.name, lambda found: MICROSECONDS.text(found.head_ns)),
        ("change", "%", lambda found: _percent(found, "shift")),
        ("interval", "%", _interval),
        ("plain", "%", lambda found: _percent(found, "plain")),
        ("p", "", lambda found: f"{found.p:.4f}"),
        ("sees", "%", lambda found: _percent(found, "smallest", ".1f")),
    ),
    Metric.COUNTS: (
        ("base", "", lambda found: _numbers(found.base_least, found.base_most)),
        ("head", "", lambda found: _numbers(found.head_least, found.head_most)),
        ("change", "", lambda found: f"{found.head_least - found.base_least:+,g}"),
    ),
    Metric.INSTRUCTIONS: (
        ("base", "", lambda found: f"{found.base_least:,.0f}"),
        ("head", "", lambda found: f"{found.head_least:,.0f}"),
        ("change", "%", lambda found: _percent(found, "shift", "+.2f")),
        ("interval", "%", lambda found: _interval(found, "+.2f")),
        ("plain", "%", lambda found: _percent(found, "plain", "+.2f")),
    ),
}
