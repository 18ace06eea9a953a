"""The table of rows: its columns, and its rows sorted by cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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
from pytest_dtdispatch.core.text import COUNT, MICROSECONDS, MILLISECONDS, Scale
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
OPTIONAL = (
    *("wall", "median", "rounds", "samples", "total", "miss/hit", "local", "hit+", "miss+", "calls"),
    *("overhead", "spread", "slowest"),
)


def scatter_text(samples: Samples | None) -> str:
    """Format the scatter of samples in percent; a dash if unknown."""
    if samples is None or samples.scatter is None:
        return "-"
    return f"{100 * samples.scatter:.0f}" if samples.scatter < 9.995 else ">999"


def _figure_cells(row: Measurement, view: View) -> dict[Column, str]:
    """Return the cells of a row's figures. Their columns depend only on the view."""
    cells: dict[Column, str] = {}
    for state in (State.COLD, State.MISS, State.HIT, State.LOCAL):
        scale = MILLISECONDS if state in (State.COLD, State.MISS) else MICROSECONDS
        samples = row.steady if state is State.HIT else row.of(state)  # unpropagated calls are among hits
        cells |= _state_cells(state, samples, COUNT if view.counted else scale, view)
    paid, local = row.steady or row.of(State.MISS), row.of(State.LOCAL)  # without hits, each call misses
    overhead = excess(paid, local) if paid and paid.ns and local else None
    cells[Column("overhead", MICROSECONDS.name)] = MICROSECONDS.text(overhead)
    if not view.is_many:
        ratio = row.miss_over_hit
        decimals = 0 if ratio and ratio >= 10 and not view.counted else 1
        cells[Column("miss/hit")] = "-" if ratio is None else f"{ratio:,.{decimals}f}"
    counts = (samples.count if samples else 0 for samples in (row.of(State.MISS), row.steady))
    cells[Column("samples")] = "+".join(map(str, counts))
    return cells


def _state_cells(state: State, samples: Samples | None, scale: Scale, view: View) -> dict[Column, str]:
    """Return the cells of a state: its figure, and its scatter, its ranks and other statistics."""
    title = str(state)
    cells = {Column(title, scale.name): scale.text(samples.figure if samples else None)}
    if state in (State.MISS, State.HIT):
        if view.counted:
            cells[Column(f"{title}+")] = f"{samples.span:,}" if samples else "-"
        else:
            cells[Column(SCATTER, of=title)] = scatter_text(samples)
    if view.is_many and state is not State.LOCAL:
        slowest = spread = "-"
        if samples and samples.by_rank:
            rank, ns = samples.slowest
            slowest, spread = f"{scale.text(ns)} r{rank}", f"{samples.spread:.0%}"
        cells[Column("slowest", of=title)] = slowest
        cells[Column("spread", of=title)] = spread
    if state in (State.MISS, State.HIT) and view.verbose and not view.counted:
        median_ns = samples.median_ns if samples and samples.ns else None
        wall_ns = samples.least(Clock.WALL) if samples and samples.clock is Clock.CPU else None
        cells[Column("median", of=title)] = scale.text(median_ns)
        cells[Column("wall", of=title)] = scale.text(wall_ns)
    return cells


def document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Render rows, the most expensive of a test first, with the columns that have a figure."""
    everything = [row for of_test in measured.values() for row in of_test]
    figures = {id(row): _figure_cells(row, view) for row in everything}
    filled = {column for cells in figures.values() for column, text in cells.items() if text != "-"}
    regions = {
        (test, contains): by_cost([row for row in rows if row.contains is contains])
        for test, rows in measured.items()
        for contains in dict.fromkeys(row.contains for row in rows)
    }
    has_shares = any(len(rows) > 1 and rows[0].share is not None for rows in regions.values())
    groups = []
    for (test, contains), rows in regions.items():
        visible, more = visible_rows(rows, view)
        lines = []
        for costed in visible:
            row, calls = costed.row, {Column("calls"): f"{costed.row.calls:,}"}
            cells = {column: text for column, text in figures[id(row)].items() if column in filled}
            if has_shares:
                share = "-" if costed.share is None else f"{100 * costed.share:.1f}"
                total = "-" if costed.total is None else f"{100 * costed.total:.1f}"
                cells = {**calls, Column("share", "%"): share, Column("total", "%"): total, **cells}
            if view.verbose:
                cells |= {Column("rounds"): str(row.figures.rounds), **calls}
            status, tone = mark(row)
            row_id = RowId(test, row.label), contains
            lines.append(Line(row.label, cells, status, notes_of(row, view), tone, row_id))
        groups.append(Group(f"{test} ({contains})", lines, more))
    # Rows are in the order of their shares.
    table = Table(groups, status_title=title_of(groups), optional=OPTIONAL, omitted_last=("share",))
    blocks: tuple[Block, ...] = (table, *proved(everything), *profiles(measured))
    return Document(blocks, _legend(everything, view), MEANINGS, _worst_text(measured, view))


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
    cpu_time = f"CPU time of the thread for calls from {LONG_CALL_NS / 1e6:g} ms on"
    return f"Each figure is the least sample: {cpu_time}, else wall time."


def _worst_text(measured: Mapping[str, Sequence[Measurement]], view: View) -> str:
    """Describe the row with the most expensive calls; return an empty string if no cost is known."""
    text, most = "", (0.0, 0.0)
    for test, rows in measured.items():
        for row in rows:
            cost = call_cost(row) or 0.0
            if (cost * row.calls, cost) > most:
                most = cost * row.calls, cost
                unit = view.counted or MICROSECONDS.name
                each = f"{cost:,.0f}" if view.counted else MICROSECONDS.text(cost)
                overhead = " of overhead" if row.of(State.LOCAL) else ""
                text = f"worst: {row.label} in {test}, {each} {unit}{overhead} a call"
    return text


def profiles(measured: Mapping[str, Sequence[Measurement]]) -> Iterator[Table]:
    """Yield a table of instructions by function for each profiled call."""
    every = (
        (test, row, samples) for test in measured for row in measured[test] for samples in row.figures.samples
    )
    for test, row, samples in every:
        if samples.profile is not None:
            total = samples.profile.total
            whole = FunctionShare("Python, with the machine code that it calls", total)
            lines = []
            for one in (whole, *samples.profile.functions):
                name, _, place = one.function.partition(" (")
                part = f"{100 * one.instructions / total:.1f}"
                cells = {Column("instructions"): f"{one.instructions:,}", Column("part", "%"): part}
                lines.append(Line(name, cells, place.removesuffix(")")))
            group = Group(f"profile of a {samples.state}: {test}::{row.label}", lines)
            yield Table((group,), "function", "where")


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
    costs: dict[int, float] = {}
    for number, row in enumerate(rows):
        cost = call_cost(row)
        if cost is not None and row.contains is Contains.DISPATCH:
            costs[number] = cost * row.calls
    whole, total = sum(costs.values()), 0.0
    if not whole:
        return [CostedRow(row) for row in rows]
    costed = []
    for number in sorted(costs, key=costs.__getitem__, reverse=True):
        total += costs[number]
        costed.append(CostedRow(rows[number], costs[number] / whole, min(total / whole, 1.0)))
    return [*costed, *(CostedRow(row) for number, row in enumerate(rows) if number not in costs)]


def visible_rows(rows: Sequence[CostedRow], view: View) -> tuple[Sequence[CostedRow], str]:
    """Return the most expensive rows and all with a mark or a note, and a text about the omitted ones.

    Proved rows are omitted if 10 rows or 95 % of the cost come before them.
    """
    visible: list[CostedRow] = []
    omitted: list[CostedRow] = []
    for before, costed in enumerate(rows):
        row, share, total = costed.row, costed.share, costed.total
        can_go = share is not None and total is not None and mark(row)[1] is not Tone.BAD
        is_cheap = (total or 0.0) - (share or 0.0) >= 0.95 and not (row.figures.notes or row.noisy)
        (omitted if can_go and (before >= 10 or is_cheap) else visible).append(costed)
    # A line about a single row would need as much space.
    if view.verbose or len(rows) <= 5 or len(omitted) < 2:
        return rows, ""
    part = sum(each.share or 0.0 for each in omitted)
    return visible, f"and {len(omitted):,} more rows, together {part:.1%}; -v lists them"


def timed_document(title: str, timed: Mapping[Signature, Sequence[Figures]]) -> Document:
    """Render a region whose calls were timed: one line per signature, from all its calls."""
    figures = {op: replace(merge(calls), remarks=()) for op, calls in timed.items()}
    rows = [Measurement.of_signature(op, len(timed[op]), of_op) for op, of_op in figures.items()]
    if not rows:
        return Document((one_line("nothing was timed: no op on DTensors ran in the region"),))
    return document({title: rows}, View(verbose=True))
