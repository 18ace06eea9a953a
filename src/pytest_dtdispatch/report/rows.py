"""The table of rows: its columns, and its rows sorted by cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from pytest_dtdispatch.core.measurement import (
    LONG_CALL_NS,
    Clock,
    Contains,
    Figures,
    FunctionShare,
    Measurement,
    Samples,
    State,
    excess,
    merge,
)
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.signatures import Signature
from pytest_dtdispatch.core.text import MICROSECONDS, MILLISECONDS, Scale
from pytest_dtdispatch.report.document import (
    Block,
    Column,
    Document,
    Group,
    Line,
    Table,
    Tone,
    View,
    one_line,
)
from pytest_dtdispatch.report.notes import mark, notes_of, proved, title_of

SCATTER = "+-%"
CellText = Callable[[Measurement], str]
SCALES = {
    State.COLD: MILLISECONDS,
    State.MISS: MILLISECONDS,
    State.HIT: MICROSECONDS,
    State.LOCAL: MICROSECONDS,
}
MEANINGS = {
    "miss": "first call with empty caches",
    "hit": "a later call",
    "overhead": "hit - local",
    SCATTER: "gap between the figures of both halves of the passes",
    "median": "of the wall time of all samples",
    "wall": "least wall time",
    "slowest": "the largest rank median, and its rank",
    "spread": "slowest minus fastest rank, in percent of the figure",
    "share": "fraction of the cost of all rows",
    "local": "the op on plain local shards",
    "calls": "calls in the program",
    "total": "cumulative share",
    "cold": "a miss with all other caches empty too",
    "miss+": "maximum minus minimum count",
    "hit+": "maximum minus minimum count",
    "samples": "misses + hits recorded",
}
# Columns that a narrow table omits, in this order; "cold" is never omitted.
EXPENDABLE = (
    *("wall", "median", "rounds", "samples", "total", "miss/hit", "local", "hit+", "miss+", "calls"),
    *("overhead", "spread", "slowest"),
)


def scatter_text(samples: Samples | None) -> str:
    """Format the scatter of samples in percent; a dash if unknown."""
    if samples is None or samples.scatter is None:
        return "-"
    return f"{100 * samples.scatter:.0f}" if samples.scatter < 9.995 else ">999"


def columns(view: View) -> Iterator[tuple[Column, CellText]]:
    """Yield all columns of figures, each with the function that formats the cell of a row."""
    for state in SCALES:
        yield from _columns_of(state, view)
    yield Column("overhead", MICROSECONDS.name), _overhead_text
    if not view.is_many:
        yield Column("miss/hit"), partial(_ratio_text, whole_from=math.inf if view.counted else 10)
    yield Column("samples"), _sample_counts


def _columns_of(state: State, view: View) -> Iterator[tuple[Column, CellText]]:
    """Yield the column of the figure of a state, and columns of its scatter or ranks.

    The column of hits also has unpropagated calls.
    """
    scale = Scale("", 1, 0) if view.counted else SCALES[state]

    def cell(row: Measurement, text: Callable[[Samples], str]) -> str:
        samples = row.steady if state is State.HIT else row.of(state)
        return text(samples) if samples else "-"

    def slowest(samples: Samples) -> str:
        rank, ns = samples.slowest if samples.by_rank else (None, None)
        return "-" if rank is None else f"{scale.text(ns)} r{rank}"

    beside: dict[str, Callable[[Samples], str]] = {}
    if state in (State.MISS, State.HIT):
        span = {f"{state}+": lambda each: f"{each.span:,}"}
        beside = span if view.counted else {SCATTER: scatter_text}
    if view.is_many and state is not State.LOCAL:
        beside |= {"slowest": slowest, "spread": lambda each: f"{each.spread:.0%}" if each.by_rank else "-"}
    if view.verbose and not view.counted and state in (State.MISS, State.HIT):
        beside |= {"median": partial(_median, scale), "wall": partial(_wall, scale)}
    yield Column(str(state), scale.name), partial(cell, text=lambda each: scale.text(each.figure))
    for title, text in beside.items():
        yield Column(title), partial(cell, text=text)


def _median(scale: Scale, samples: Samples) -> str:
    """Format the median of wall time; a dash for counts."""
    return scale.text(samples.median_ns if samples.ns else None)


def _wall(scale: Scale, samples: Samples) -> str:
    """Format the least wall time; a dash if it is the figure."""
    return scale.text(samples.least(Clock.WALL) if samples.clock is Clock.CPU else None)


def _overhead_text(row: Measurement) -> str:
    """Format the cost of dispatch: steady minus local. Without hits, each call costs a miss."""
    paid, local = row.steady or row.of(State.MISS), row.of(State.LOCAL)
    return MICROSECONDS.text(excess(paid, local) if paid and paid.ns and local else None)


def _ratio_text(row: Measurement, whole_from: float) -> str:
    ratio = row.miss_over_hit
    return "-" if ratio is None else f"{ratio:,.{0 if ratio >= whole_from else 1}f}"


def _sample_counts(row: Measurement) -> str:
    return "+".join(str(each.count if each else 0) for each in (row.of(State.MISS), row.steady))


def document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Render rows of ops and named calls, with the columns that have a figure."""
    everything = [row for of_test in measured.values() for row in of_test]
    legend = _legend(everything, view)
    filled = [(head, text) for head, text in columns(view) if any(text(row) != "-" for row in everything)]
    regions = {
        (test, contains): by_cost([each for each in of_test if each.contains is contains])
        for test, of_test in measured.items()
        for contains in dict.fromkeys(each.contains for each in of_test)
    }
    blocks = (_table(filled, regions, view), *proved(everything), *profiles(measured))
    return Document(blocks, legend, MEANINGS, _worst_text(measured, view))


def _legend(everything: Sequence[Measurement], view: View) -> str:
    """Describe the figures of the table, and the clock of their times."""
    if view.counted:
        return f"{view.counted.capitalize()}: the minimum over the counted calls."
    recorded = [samples for row in everything for samples in row.recorded()]
    stat = next((samples.stat for samples in recorded if samples.by_rank), "")
    if stat:
        return f"Each figure is the lowest of its passes; that of a pass is the {stat} of the rank medians."
    if not any(samples.clock is Clock.CPU for samples in recorded):
        return "Each figure is the least sample."
    long = f"{LONG_CALL_NS / 1e6:g} ms"
    return (
        f"Each figure is the least sample: CPU time of the thread for calls from {long} on, else wall time."
    )


def _worst_text(measured: Mapping[str, Sequence[Measurement]], view: View) -> str:
    """Describe the row with the most expensive calls; return an empty string if no cost is known."""
    costs = {
        (test, row.label): (cost * row.calls, cost, row.of(State.LOCAL) is not None)
        for test, rows in measured.items()
        for row in rows
        if (cost := call_cost(row))
    }
    if not costs:
        return ""
    (test, label), (_, cost, has_local) = max(costs.items(), key=lambda item: item[1])
    each = f"{cost:,.0f} {view.counted}" if view.counted else f"{MICROSECONDS.text(cost)} {MICROSECONDS.name}"
    return f"worst: {label} in {test}, {each}{' of overhead' * has_local} a call"


def _table(
    columns: Sequence[tuple[Column, CellText]],
    regions: Mapping[tuple[str, Contains], Sequence[CostedRow]],
    view: View,
) -> Table:
    """Render rows, the most expensive of a test first, and the number of omitted cheap rows."""
    has_shares = any(len(rows) > 1 and rows[0].share is not None for rows in regions.values())
    before = (Column("calls"), Column("share", "%"), Column("total", "%")) if has_shares else ()
    after = (Column("rounds"), *[Column("calls")] * (not has_shares)) if view.verbose else ()

    def cells(one: CostedRow) -> tuple[str, ...]:
        calls = f"{one.row.calls:,}"
        shares = ("-" if share is None else f"{100 * share:.1f}" for share in (one.share, one.total))
        starts, ends = (calls, *shares)[: len(before)], (str(one.row.figures.rounds), calls)[: len(after)]
        return (*starts, *(text(one.row) for _, text in columns), *ends)

    groups = []
    for (test, contains), rows in regions.items():
        visible, left_out = visible_rows(rows, view)
        lines = []
        for one in visible:
            (text, tone), row = mark(one.row), (RowId(test, one.row.label), contains)
            lines.append(Line(one.row.label, cells(one), text, notes_of(one.row, view), tone, row))
        groups.append(Group(f"{test} ({contains})", tuple(lines), left_out))
    return Table(
        (*before, *(column for column, _ in columns), *after),
        tuple(groups),
        proof_title=title_of([line for group in groups for line in group.lines]),
        expendable=EXPENDABLE,
        omitted_last=("share",),  # rows are in its order
    )


def profiles(measured: Mapping[str, Sequence[Measurement]]) -> Iterator[Block]:
    """Yield a table of instructions by function for each profiled call."""
    for test, rows in measured.items():
        for row in rows:
            for samples in row.figures.samples:
                if samples.profile is not None:
                    total = samples.profile.total
                    whole = FunctionShare("Python, with the machine code that it calls", total)
                    lines = []
                    for one in (whole, *samples.profile.functions):
                        name, _, place = one.function.partition(" (")
                        part = f"{100 * one.instructions / total:.1f}"
                        lines.append(Line(name, (f"{one.instructions:,}", part), place.removesuffix(")")))
                    group = Group(f"profile of a {samples.state}: {test}::{row.label}", tuple(lines))
                    columns = (Column("instructions"), Column("part", "%"))
                    yield Table(columns, (group,), "function", "where")


@dataclass(frozen=True)
class CostedRow:
    """A row with its share of the cost of all rows of a region.

    Args:
        row: the row.
        share: its share; None if the cost of its calls is unknown.
        total: cumulative share of this row and all rows before it.
    """

    row: Measurement
    share: float | None = None
    total: float | None = None


def call_cost(row: Measurement) -> float | None:
    """Return the cost of a later call minus that of the op on local shards, in the unit of the row.

    Nothing is subtracted if there is no local row. Without hits, the cost is that of a miss.
    """
    paid, local = row.steady or row.of(State.MISS), row.of(State.LOCAL)
    if paid is None or local is None:
        return paid.figure if paid else None
    return max(excess(paid, local), 0.0)


def by_cost(rows: Sequence[Measurement]) -> list[CostedRow]:
    """Sort rows by calls x cost, the most expensive first; rows without a figure come last.

    Named calls come last in their original order, without a share: one may contain another.
    """
    costs = [
        (cost * row.calls, row)
        for row in rows
        if row.contains is Contains.DISPATCH and (cost := call_cost(row)) is not None
    ]
    costs.sort(key=lambda one: one[0], reverse=True)
    whole = sum(cost for cost, _ in costs)
    if not whole:
        return [CostedRow(row) for row in rows]
    with_cost = {id(row) for _, row in costs}
    totals = accumulate(cost for cost, _ in costs)
    costed = [
        CostedRow(row, cost / whole, min(total / whole, 1.0))
        for (cost, row), total in zip(costs, totals, strict=True)
    ]
    return [*costed, *(CostedRow(row) for row in rows if id(row) not in with_cost)]


def visible_rows(rows: Sequence[CostedRow], view: View) -> tuple[list[CostedRow], str]:
    """Return the most expensive rows and all with a mark or a note, and a text about the omitted ones."""
    is_whole = view.verbose or len(rows) <= 5
    left_out = [] if is_whole else [each for n, each in enumerate(rows) if _can_go(each, n)]
    if len(left_out) < 2:  # a line about it would need as much space
        return list(rows), ""
    part = sum(each.share or 0.0 for each in left_out)
    more = f"and {len(left_out):,} more rows, together {part:.1%}; -v lists them"
    return [each for each in rows if each not in left_out], more


def _can_go(costed: CostedRow, before: int) -> bool:
    """Return whether a row is proved, and 10 rows or 95 % of the cost come before it."""
    if costed.share is None or costed.total is None or mark(costed.row)[1] is Tone.BAD:
        return False
    is_cheap = costed.total - costed.share >= 0.95 and not costed.row.figures.notes
    return before >= 10 or (is_cheap and not costed.row.noisy)


def timed_document(title: str, timed: Mapping[Signature, Sequence[Figures]]) -> Document:
    """Render a region whose calls were timed: one line per signature, from all its calls."""
    figures = {op: replace(merge(calls), remarks=()) for op, calls in timed.items()}
    rows = [
        Measurement(str(op), op.full, op.op, op.mesh_device, Contains.DISPATCH, len(timed[op]), of_op)
        for op, of_op in figures.items()
    ]
    if not rows:
        return Document((one_line("nothing was timed: no op on DTensors ran in the region"),))
    return document({title: rows}, View(verbose=True))
