"""What a matrix found: a table with a column for each version, in as many blocks as a width asks for."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pytest_dtdispatch.ab.judge import RUN_AGAIN, Values, control_shift, percent
from pytest_dtdispatch.ab.model import COUNTS, INSTRUCTIONS, TIME, Pair, ProcessSample, Request, Run, state_of
from pytest_dtdispatch.ab.neighbours import Neighbours, NumberNeighbours
from pytest_dtdispatch.ab.report import summary
from pytest_dtdispatch.ab.versions import headings
from pytest_dtdispatch.core.measurement import State
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
    Wrap,
    one_line,
    paragraph,
)
from pytest_dtdispatch.report.units import MICROSECONDS

LEAST_LABEL, EDGES = 30, 4  # columns of a terminal: for labels, and around them
CONTROL = "plain tensors (control)"
FIGURES = {
    TIME: "microseconds: the median over processes, of which each gives that of its quietest block",
    COUNTS: "the number a step, least to most of all processes; what is equal everywhere is not listed",
    INSTRUCTIONS: "instructions: the least count of all processes",
}
LEGEND = (
    "Behind it the verdict against the version before, with the shift; a figure alone passed. "
    "-: not measured there, for the reason below."
)
WITH_SHIFT = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)
Found = Mapping[Pair, Neighbours] | Mapping[Pair, NumberNeighbours]


@dataclass(frozen=True)
class MatrixRow:
    """One row of the table: its name, and a cell for each side."""

    name: str
    cells: Mapping[str, str]


def matrix_document(run: Run, found: Found, width: int) -> Document:
    """Lay out what a matrix found, for a terminal so wide."""
    names = headings(run.asked, run.sides)
    rows = [*_rows(run, found), *_controls(run)]
    legend = paragraph(f"{FIGURES[run.asked.metric]}. {LEGEND}", indent=1)
    blocks: list[Block] = [*_interpreters(run, names)]
    if rows:
        blocks += [*_tables(rows, names, width), legend]
    blocks += [*_reasons(run, names), *_summaries(run, found, names)]
    return Document(tuple(blocks))


def _interpreters(run: Run, names: Mapping[str, str]) -> Iterator[Paragraph]:
    paths = run.asked.interpreters
    for name, side in run.sides.items():
        processes = sum(process.side == name for process in run.processes)
        build = f" ({side.build[:12]})" if side.build else ""
        text = f"{names[name]}: {paths[name]}: Python {side.python}, torch {side.torch}{build}"
        yield one_line(f"{text}; {processes} samples")


def _rows(run: Run, found: Found) -> Iterator[MatrixRow]:
    """Give every row that any version has; of counts those that are not equal everywhere."""
    verdicts = {pair[1]: {one.row: one for one in each.verdicts} for pair, each in found.items()}
    for row in _names(run):
        of_row = {side: judged[row] for side, judged in verdicts.items() if row in judged}
        if run.asked.metric == COUNTS and all(one.verdict is Verdict.PASSED for one in of_row.values()):
            continue
        yield MatrixRow(row, {side: _cell(run, side, row, of_row.get(side)) for side in run.sides})


def _names(run: Run) -> list[str]:
    """Name every row but plain tensors, in the order in which they were first measured."""
    rows = dict.fromkeys(row for process in run.processes for row in values_of(process, run.asked))
    return [row for row in rows if run.asked.metric == COUNTS or state_of(row) != State.LOCAL]


def values_of(process: ProcessSample, asked: Request) -> Values:
    """Give what a process measured, in the metric that was asked for."""
    return process.quietest_ns if asked.metric == TIME else process.numbers


def _cell(run: Run, side: str, row: str, judged: RowVerdict | None) -> str:
    values = _values(run, side, row)
    if not values:
        return "-"
    text = _FIGURES[run.asked.metric](values)
    if judged is None or judged.verdict is Verdict.PASSED:
        return text
    shift = dict(judged.figures).get("shift_percent", math.inf)
    share = f" {shift:+.1f}%" if judged.verdict in WITH_SHIFT and math.isfinite(shift) else ""
    return f"{text}{share} {judged.verdict}"


def _values(run: Run, side: str, row: str) -> list[float]:
    found = [values_of(process, run.asked) for process in run.processes if process.side == side]
    return [values[row] for values in found if row in values]


def _range_text(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{least:,g}" if least == most else f"{least:,g} to {most:,g}"


_FIGURES: Mapping[str, Callable[[Sequence[float]], str]] = {
    TIME: lambda values: MICROSECONDS.text(statistics.median(values)),
    COUNTS: _range_text,
    INSTRUCTIONS: lambda values: f"{min(values):,.0f}",
}


def _controls(run: Run) -> Iterator[MatrixRow]:
    """Give the shift of plain tensors from each version to the next; counts have none."""
    sides = list(run.sides)
    cells = {sides[0]: "0.0%"}
    for base, head in pairwise(sides):
        both = ([values_of(p, run.asked) for p in run.processes if p.side == side] for side in (base, head))
        shift = control_shift(*both)
        cells[head] = "-" if shift is None else f"{percent(shift):+.1f}%"
    if run.asked.metric != COUNTS and any(text != "-" for text in list(cells.values())[1:]):
        yield MatrixRow(f"::{CONTROL}::{State.LOCAL}", cells)


def _tables(rows: Sequence[MatrixRow], names: Mapping[str, str], width: int) -> Iterator[Table]:
    """Make a table of as many versions as there is room for, and go on in another one below."""
    states = max(len(state_of(row.name)) for row in rows) + 2
    labels = max(LEAST_LABEL, min(width // 3, max(len(_label(row.name)) for row in rows)))
    room = width - labels - states - EDGES
    for sides in _blocks(rows, names, room):
        groups: dict[str, list[Line]] = {}
        for row in rows:
            test = row.name.removesuffix(f"::{state_of(row.name)}").rpartition("::")[0]
            cells = (state_of(row.name).replace("_", " "), *(row.cells[side] for side in sides))
            groups.setdefault(test, []).append(Line(_label(row.name), cells))
        yield Table(
            (Column("state"), *(Column(names[side]) for side in sides)),
            tuple(Group(test, tuple(lines)) for test, lines in groups.items()),
            label_title="row",
            proof_title="",
        )


def _label(row: str) -> str:
    return row.removesuffix(f"::{state_of(row)}").rpartition("::")[2]


def _blocks(rows: Sequence[MatrixRow], names: Mapping[str, str], room: int) -> Iterator[list[str]]:
    """Cut versions into blocks that fit; each has one version at least."""
    block: list[str] = []
    used = 0
    for side, heading in names.items():
        needed = 2 + max(len(heading), *(len(row.cells[side]) for row in rows))
        if block and used + needed > room:
            yield block
            block, used = [], 0
        block.append(side)
        used += needed
    yield block


def _reasons(run: Run, names: Mapping[str, str]) -> Iterator[Paragraph]:
    """Name what a version does not have, and why."""
    for side in run.sides:
        why: dict[str, list[str]] = {}
        for row in _names(run):
            if not _values(run, side, row):
                what, reason = why_absent(run, side, row)
                why.setdefault(f"{what}: {reason}", []).append(row)
        for text, rows in why.items():
            told = f"- in {names[side]}: {text}" + (f" ({len(rows)} rows)" if len(rows) > 1 else "")
            yield paragraph(told, Tone.NOTICE, hanging=1, wrap=Wrap.SPACES)


def why_absent(run: Run, side: str, row: str) -> tuple[str, str]:
    """Say what a version lacks, a test or a row, and for which reason."""
    for process in run.processes:
        if process.side == side:
            for name, reason in process.absent.items():
                if row == name or row.startswith(f"{name}::"):
                    return name, reason
    return row, "its test ran, and measured no such row"


def _summaries(run: Run, found: Found, names: Mapping[str, str]) -> Iterator[Paragraph]:
    """Count the verdicts of each version against the one before it."""
    what = "number" if run.asked.metric == COUNTS else "row"
    for (base, head), each in found.items():
        yield one_line(f"{names[base]} to {names[head]}: ", *summary(each.verdicts, what).spans)
    verdicts = {one.verdict for each in found.values() for one in each.verdicts}
    if Verdict.CONTAMINATED in verdicts:
        shift = f"past {100 * run.asked.control:g} %"
        yield one_line(Span(f"contaminated: plain tensors shifted {shift}: {RUN_AGAIN}", Tone.NOTICE))
    seconds = sum(process.seconds for process in run.processes)
    yield one_line(Span(f"{len(run.processes)} samples in {seconds:.0f} s"))
