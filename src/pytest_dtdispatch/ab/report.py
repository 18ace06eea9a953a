"""What an A/B run found, laid out: a table for each pair of sides, and which side regressed first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from pytest_dtdispatch.ab.rule import (
    CONFIRM,
    COUNTS,
    INSTRUCTIONS,
    OTHER_BUILD,
    RUN_AGAIN,
    SCREEN,
    TIME,
    Stage,
    percent,
    state_of,
)
from pytest_dtdispatch.ab.run import Found, Pair, Run
from pytest_dtdispatch.core.text import MICROSECONDS
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
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
)
from pytest_dtdispatch.report.judgements import verdict_counts

GOOD = (Verdict.PASSED, Verdict.IMPROVED, Verdict.NEW)
STATUS = (  # the first that a row has is that of the run
    ({Verdict.REGRESSED, Verdict.MISSING}, 1),
    ({Verdict.CONTAMINATED}, 4),
    ({Verdict.INCONCLUSIVE}, 3),
)
INCONCLUSIVE = 3
LEGENDS = {
    TIME: "base, head: median over processes, where the value of a process is that of its quietest block. "
    "shift: of Hodges and Lehmann, with its 95 % interval. p: of the rank test, one-sided, "
    "before any adjustment. sees: the smallest slow-down that this comparison could have called regressed.",
    COUNTS: "base, head: the number a step, least to most of all processes. Numbers that are equal are not "
    "listed.",
    INSTRUCTIONS: "base, head: the least count of all processes. base+, head+: how many instructions the "
    "greatest of them has more. shift: from the least of the base to the least of the head.",
}
US = MICROSECONDS.name
COLUMNS = {
    TIME: (("state", ""), ("base", US), ("head", US), ("shift", "%"), ("95", "%"), ("p", ""), ("sees", "%")),
    COUNTS: (("count", ""), ("base", ""), ("head", "")),
    INSTRUCTIONS: (("state", ""), ("base", ""), ("base+", ""), ("head", ""), ("head+", ""), ("shift", "%")),
}
EXPENDABLE = {TIME: ("base", "head", "p", "95"), COUNTS: (), INSTRUCTIONS: ("base+", "head+")}


def exit_status(found: Found) -> int:
    """Return the status of the worst verdict; nothing compared is no success.

    Of several interpreters, what one of them lacks is listed, and fails nothing.
    """
    verdicts = {one.verdict for compared in found.values() for one in compared.verdicts}
    has_compared = any(compared.has_compared for compared in found.values())
    if len(found) > 1:
        verdicts.discard(Verdict.MISSING)
    if not has_compared and Verdict.MISSING not in verdicts:
        return INCONCLUSIVE
    return next((status for worst, status in STATUS if verdicts & worst), 0)


def run_document(run: Run, found: Found) -> Document:
    """Lay out what a run found."""
    blocks: list[Block] = [*_side_lines(run)]
    is_legend_due = True
    for pair, compared in found.items():
        if len(found) > 1:
            blocks.append(one_line(Span(f"{pair[1]} against {pair[0]}:", Tone.STRONG)))
        if table := _table(run, pair, compared.verdicts):
            blocks.append(table)
            if is_legend_due:
                blocks.append(paragraph(LEGENDS[run.request.rule.metric], indent=1))
            is_legend_due = False
        blocks += [one_line(_stage_text(run, pair, name, stage)) for name, stage in compared.stages.items()]
        blocks.append(summary(compared.verdicts, "number" if run.request.rule.metric == COUNTS else "row"))
    if len(found) > 1:
        blocks.append(_first_regressed(run, found))
    return Document(tuple(blocks))


def summary(verdicts: Sequence[RowVerdict], what: str = "row") -> Paragraph:
    """Count the verdicts."""
    if not verdicts:
        return one_line(Span(f"no {what}s: nothing was compared", Tone.NOTICE))
    rows = f"1 {what}" if len(verdicts) == 1 else f"{len(verdicts):,} {what}s"
    return one_line(f"{rows}: ", *verdict_counts(verdicts))


def _side_lines(run: Run) -> Iterator[Paragraph]:
    revisions = dict(zip(run.request.sides, run.request.revisions, strict=False))
    for name, python in zip(run.request.sides, run.request.pythons, strict=True):
        what = f"{revisions[name]} ({python})" if name in revisions else python
        versions = run.sides[name]
        yield one_line(f"{name}: {what}: Python {versions.python}, torch {versions.torch}")


def _first_regressed(run: Run, found: Found) -> Paragraph:
    for (_, head), compared in found.items():
        regressed = sum(one.verdict is Verdict.REGRESSED for one in compared.verdicts)
        if regressed:
            python = run.request.pythons[run.request.sides.index(head)]
            rows = "1 row" if regressed == 1 else f"{regressed} rows"
            text = f"first regressed: {head}: {python}, torch {run.sides[head].torch}: {rows}"
            return one_line(Span(text, Tone.BAD))
    return one_line("first regressed: none")


def _table(run: Run, pair: Pair, verdicts: Sequence[RowVerdict]) -> Table | None:
    """Lay out every row; of counts, and of several interpreters, those that did not just pass."""
    metric = run.request.rule.metric
    lists_all = metric != COUNTS and len(run.sides) == 2
    groups: dict[str, list[Line]] = {}
    for one in verdicts:
        if not lists_all and one.verdict is Verdict.PASSED:
            continue
        # The last part is the state or the count, the one before it the signature or step, the rest the test.
        test, _, label = one.row.removesuffix(f"::{state_of(one.row)}").rpartition("::")
        figures = dict(one.figures)
        cells = CELLS[metric](figures) if figures else ("-",) * (len(COLUMNS[metric]) - 1)
        state = state_of(one.row).replace("_", " ") if metric == COUNTS else state_of(one.row)
        tone = Tone.GOOD if one.verdict in GOOD else Tone.BAD
        line = Line(label, (state, *cells), str(one.verdict), _notes(run, pair, one), tone)
        groups.setdefault(test, []).append(line)
    if not groups:
        return None
    return Table(
        tuple(Column(title, unit) for title, unit in COLUMNS[metric]),
        tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
        label_title="row",
        proof_title="verdict",
        expendable=EXPENDABLE[metric],
    )


def _notes(run: Run, pair: Pair, one: RowVerdict) -> tuple[str, ...]:
    """List what a count that grew consists of in the head alone, or why a row is not there, or what to do."""
    base, head = pair
    if one.verdict is Verdict.CONTAMINATED:  # told once, below the table
        return ()
    if one.verdict is Verdict.REGRESSED and (grown := _grown(run, pair, one.row)):
        return tuple(View().listed(grown))
    absent_from = {Verdict.MISSING: head, Verdict.NEW: base}.get(one.verdict)
    why = [one.remedy] if one.remedy else []
    for process in run.processes:
        if process.side == absent_from:
            why[:0] = [
                f"in {absent_from}: {name}: {reason}"
                for name, reason in process.absent.items()
                if one.row == name or one.row.startswith(f"{name}::")
            ]
    return tuple(why[:1])


def _grown(run: Run, pair: Pair, row: str) -> list[str]:
    lines: dict[str, list[str]] = {side: [] for side in pair}
    for process in run.processes:
        if process.side in lines:
            lines[process.side] += process.details.get(row, ())
    base, head = (lines[side] for side in pair)
    return list(dict.fromkeys(line for line in head if line not in base))


def _stage_text(run: Run, pair: Pair, name: str, stage: Stage) -> str:
    """Say what a stage took, and how far plain tensors shifted in it."""
    rule = run.request.rule
    is_time = rule.metric == TIME
    stages = {name}
    if not is_time and any(one.side == pair[1] for one in run.of(CONFIRM)):
        stages.add(CONFIRM)  # numbers are judged on all processes
    processes = [one for one in run.processes if one.side in pair and one.stage in stages]
    took = f"in {sum(one.seconds for one in processes):.0f} s"
    if rule.metric == COUNTS:
        return f"{len(processes)} samples {took}; exact: any difference is one"
    if is_time:
        text = f"{'screen' if name == SCREEN else 'confirmation'}: {len(processes)} processes {took}"
        cannot = "no plain tensors were measured: a change of the machine cannot be told from one of the code"
    else:
        text = f"{len(processes)} samples {took}; threshold {100 * rule.threshold:g} %"
        cannot = "no plain tensors were counted: another build cannot be told from another code"
    if stage.control is None:
        return f"{text}; {cannot}"
    text += f"; plain tensors shifted by {percent(stage.control):+.{1 if is_time else 2}f} %"
    if stage.is_contaminated:
        text += f", past {100 * rule.control:g} %: contaminated; {RUN_AGAIN if is_time else OTHER_BUILD}"
    return text


def _time_cells(found: Mapping[str, float]) -> tuple[str, ...]:
    low, high = _percent(found["low_percent"]), _percent(found["high_percent"])
    return (
        MICROSECONDS.text(found["base_ns"]),
        MICROSECONDS.text(found["head_ns"]),
        _percent(found["shift_percent"]),
        f"{low} to {high}",
        f"{found['p']:.4f}",
        _percent(found["smallest_percent"], ".1f"),
    )


def _count_cells(found: Mapping[str, float]) -> tuple[str, ...]:
    ends = ((found[f"{side}_least"], found[f"{side}_most"]) for side in ("base", "head"))
    return tuple(f"{least:,g}" if least == most else f"{least:,g} to {most:,g}" for least, most in ends)


def _instruction_cells(found: Mapping[str, float]) -> tuple[str, ...]:
    cells = []
    for side in ("base", "head"):
        least, most = found[f"{side}_least"], found[f"{side}_most"]
        cells += [f"{least:,.0f}", f"{most - least:,.0f}"]
    return (*cells, f"{found['shift_percent']:+.2f}")


CELLS: Mapping[str, Callable[[Mapping[str, float]], tuple[str, ...]]] = {
    TIME: _time_cells,
    COUNTS: _count_cells,
    INSTRUCTIONS: _instruction_cells,
}


def _percent(value: float, form: str = "+.1f") -> str:
    return format(value, form) if math.isfinite(value) else "-"
