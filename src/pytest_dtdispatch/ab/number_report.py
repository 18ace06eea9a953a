"""What an A/B run of counts or of instructions found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_dtdispatch.ab.judge import percent
from pytest_dtdispatch.ab.model import BASE, COUNTS, HEAD, Run, state_of
from pytest_dtdispatch.ab.number_rules import NumberStage
from pytest_dtdispatch.ab.report import GOOD, side_lines, summary
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.report.document import (
    Column,
    Document,
    Group,
    Line,
    Table,
    Tone,
    View,
    one_line,
    paragraph,
)

OF_COUNTS = (
    "base, head: the number a step, least to most of all processes. Numbers that are equal are not listed."
)
OF_INSTRUCTIONS = (
    "base, head: the least count of all processes. base+, head+: how many instructions the greatest of them "
    "has more. shift: from the least of the base to the least of the head."
)


def number_document(run: Run, stage: NumberStage, verdicts: Sequence[RowVerdict]) -> Document:
    """Lay out what was found: counts that differ, and every count of instructions."""
    is_count = run.asked.metric == COUNTS
    shown = [one for one in verdicts if not is_count or one.verdict is not Verdict.PASSED]
    cells = _count_cells if is_count else _instruction_cells
    titles = ("count", "base", "head") if is_count else ("state", "base", "base+", "head", "head+", "shift %")
    groups: dict[str, list[Line]] = {}
    for one in shown:
        # The last part is the state or the count, the one before it the signature or step, the rest the test.
        test, _, label = one.row.removesuffix(f"::{state_of(one.row)}").rpartition("::")
        notes = _grown(run, one) or ((one.remedy,) if one.remedy else ())
        notes = () if one.verdict is Verdict.CONTAMINATED else notes
        line = Line(
            label, cells(one), str(one.verdict), notes, Tone.GOOD if one.verdict in GOOD else Tone.BAD
        )
        groups.setdefault(test, []).append(line)
    table = Table(
        tuple(map(Column, titles)),
        tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
        label_title="row",
        proof_title="verdict",
        expendable=("base+", "head+"),
    )
    legend = paragraph(OF_COUNTS if is_count else OF_INSTRUCTIONS, indent=1)
    told = [one_line(_told(run, stage)), summary(verdicts, "number" if is_count else "row")]
    return Document((*side_lines(run), *((table, legend) if shown else ()), *told))


def _grown(run: Run, one: RowVerdict) -> tuple[str, ...]:
    """List what a count that grew consists of in the head, and not in the base."""
    if one.verdict is not Verdict.REGRESSED:
        return ()
    lines: dict[str, list[str]] = {BASE: [], HEAD: []}
    for process in run.processes:
        lines[process.side] += process.details.get(one.row, ())
    grown = dict.fromkeys(line for line in lines[HEAD] if line not in lines[BASE])
    return tuple(View().listed(list(grown)))


def _count_cells(one: RowVerdict) -> tuple[str, ...]:
    found = dict(one.figures)
    name = state_of(one.row).replace("_", " ")
    return (name, _range(found, "base"), _range(found, "head"))


def _range(found: Mapping[str, float], side: str) -> str:
    if not found:
        return "-"
    least, most = found[f"{side}_least"], found[f"{side}_most"]
    return f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"


def _instruction_cells(one: RowVerdict) -> tuple[str, ...]:
    found = dict(one.figures)
    if not found:
        return (state_of(one.row), *("-",) * 5)
    sides = [
        text
        for side in ("base", "head")
        for text in (
            f"{found[f'{side}_least']:,.0f}",
            f"{found[f'{side}_most'] - found[f'{side}_least']:,.0f}",
        )
    ]
    return (state_of(one.row), *sides, f"{found['shift_percent']:+.2f}")


def _told(run: Run, stage: NumberStage) -> str:
    processes = len(run.processes)
    text = f"{processes} samples in {sum(one.seconds for one in run.processes):.0f} s"
    if run.asked.metric == COUNTS:
        return f"{text}; exact: any difference is one"
    text += f"; threshold {100 * run.asked.threshold:g} %"
    if stage.control is None:
        return f"{text}; no plain tensors were counted: another build cannot be told from another code"
    text += f"; plain tensors shifted by {percent(stage.control):+.2f} %"
    return f"{text}, past {100 * run.asked.control:g} %: contaminated" if stage.is_contaminated else text
