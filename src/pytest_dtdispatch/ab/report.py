"""What an A/B run found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_dtdispatch.ab.judge import RUN_AGAIN, Stage, percent
from pytest_dtdispatch.ab.model import CONFIRM, SCREEN, Run, state_of
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import (
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
)
from pytest_dtdispatch.report.judgements import verdict_counts
from pytest_dtdispatch.report.units import MICROSECONDS

GOOD = (Verdict.PASSED, Verdict.IMPROVED, Verdict.NEW)
LEGEND = (
    "base, head: median over processes, where the value of a process is that of its quietest block. "
    "shift: of Hodges and Lehmann, with its 95 % interval. p: of the rank test, one-sided, "
    "before any adjustment. sees: the smallest slow-down that this comparison could have called regressed."
)


def result_document(run: Run, stages: Mapping[str, Stage], verdicts: Sequence[RowVerdict]) -> Document:
    """Lay out what an A/B run found."""
    told = [one_line(_stage_text(run, name, stage)) for name, stage in stages.items()]
    legend = paragraph(LEGEND, indent=1)
    return Document((*side_lines(run), _table(verdicts), legend, *told, summary(verdicts)))


def side_lines(run: Run) -> list[Paragraph]:
    """Say what was compared."""
    sides = []
    for name, side in run.sides.items():
        python, revision = getattr(run.asked, name), getattr(run.asked, f"{name}_rev")
        what = f"{revision} ({python})" if revision else python
        sides.append(one_line(f"{name}: {what}: Python {side.python}, torch {side.torch}"))
    return sides


def summary(verdicts: Sequence[RowVerdict], what: str = "row") -> Paragraph:
    """Count the verdicts."""
    if not verdicts:
        return one_line(Span(f"no {what}s: nothing was compared", Tone.NOTICE))
    rows = f"1 {what}" if len(verdicts) == 1 else f"{len(verdicts):,} {what}s"
    return one_line(f"{rows}: ", *verdict_counts(verdicts))


def _table(verdicts: Sequence[RowVerdict]) -> Table:
    figures = {verdict.row: dict(verdict.figures) for verdict in verdicts}
    groups: dict[str, list[Line]] = {}
    for verdict in verdicts:
        # The last part is the state, the one before it the signature, and all before that the test.
        test, _, label = verdict.row.removesuffix(f"::{state_of(verdict.row)}").rpartition("::")
        cells = (state_of(verdict.row), *_cells(figures[verdict.row]))
        # A contaminated stage is told once, below the table.
        notes = (verdict.remedy,) if verdict.remedy and verdict.verdict is not Verdict.CONTAMINATED else ()
        tone = Tone.GOOD if verdict.verdict in GOOD else Tone.BAD
        groups.setdefault(test, []).append(Line(label, cells, str(verdict.verdict), notes, tone))
    unit = MICROSECONDS.name
    units = {"base": unit, "head": unit, "shift": "%", "95": "%", "p": "", "sees": "%"}
    return Table(
        (Column("state"), *(Column(title, of_it) for title, of_it in units.items())),
        tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
        label_title="row",
        proof_title="verdict",
        expendable=("base", "head", "p", "95"),
    )


def _cells(found: Mapping[str, float]) -> tuple[str, ...]:
    if not found:
        return ("-",) * 6
    low, high = _percent(found["low_percent"]), _percent(found["high_percent"])
    return (
        MICROSECONDS.text(found["base_ns"]),
        MICROSECONDS.text(found["head_ns"]),
        _percent(found["shift_percent"]),
        f"{low} to {high}",
        f"{found['p']:.4f}",
        _percent(found["smallest_percent"], ".1f"),
    )


def _percent(value: float, form: str = "+.1f") -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _stage_text(run: Run, name: str, stage: Stage) -> str:
    processes = run.of(name)
    what = {SCREEN: "screen", CONFIRM: "confirmation"}[name]
    if stage.control is None:
        said = "no plain tensors were measured: a change of the machine cannot be told from one of the code"
    else:
        said = f"plain tensors shifted by {percent(stage.control):+.1f} %"
    if stage.is_contaminated:
        said += f", past {100 * run.asked.control:g} %: contaminated; {RUN_AGAIN}"
    return f"{what}: {len(processes)} processes in {sum(p.seconds for p in processes):.0f} s; {said}"
