"""Columns of times, each in the unit that suits it, and the one table of a run: a line a signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pytest_dtdispatch.core.measurement import NOISY, Measurement, Samples, State
from pytest_dtdispatch.report.costs import COLUMNS as SHARE_COLUMNS
from pytest_dtdispatch.report.costs import MEANINGS as OF_COSTS
from pytest_dtdispatch.report.costs import CostedRow, by_cost, shown
from pytest_dtdispatch.report.document import Column, Document, Group, Line, Table, View
from pytest_dtdispatch.report.marks import mark, proved, title_of
from pytest_dtdispatch.report.scales import MICROSECONDS, MILLISECONDS

LEGEND = "Quietest blocks: of seven blocks of neighbouring samples the lowest median."
SCATTER = "+-%"
MEANINGS = {
    **OF_COSTS,
    "cold": "a miss after every other cache was cleared too",
    "miss": "first call after the sharding caches, of a redistribution those of plans, were cleared",
    "hit": "a later call",
    "local": "that op on plain local shards",
    "overhead": "hit - local, what DTensor adds to the op on plain local shards",
    SCATTER: "how far the median may lie above the figure, with 95%, or the figure above the least sample, "
    f"noisy past {NOISY:.0%}",
    "samples": "misses + hits recorded",
}
BRIEF = {
    "share": "part of what all rows cost",
    "cold": "a miss with all other caches empty too",
    "miss": "first call with empty caches",
    "hit": "a later call",
    "local": "the op on plain local shards",
    "overhead": "hit - local",
    SCATTER: "how far samples scatter",
}
# Columns that go first where the terminal is narrow; cold is not among them, as it was asked for.
SHARE = ("share",)  # rows are in its order
EXPENDABLE = ("rounds", "samples", "total", "miss/hit", "local", "calls", "overhead")
TIMES: dict[str, Callable[[Measurement], float | None]] = {
    "cold": lambda measurement: measurement.figure(State.COLD),
    "miss": lambda measurement: measurement.figure(State.MISS),
    "hit": lambda measurement: measurement.steady_ns,
    "local": lambda measurement: measurement.figure(State.LOCAL),
    "overhead": lambda measurement: measurement.overhead_ns,
}
SCATTERED: dict[str, Callable[[Measurement], Samples | None]] = {
    "miss": lambda measurement: measurement.of(State.MISS),
    "hit": lambda measurement: measurement.steady,
}
SCALES = {title: MILLISECONDS if title in ("cold", "miss") else MICROSECONDS for title in TIMES}


def document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Lay out what was measured."""
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    has_cold = any(measurement.of(State.COLD) for measurement in everything)
    times = {title: of for title, of in TIMES.items() if has_cold or title != "cold"}
    scales = {title: SCALES[title] for title in times}

    def cells(measurement: Measurement) -> list[str]:
        texts = []
        for title, scale in scales.items():
            texts.append(scale.text(times[title](measurement)))
            texts += [scatter_text(of(measurement)) for each, of in SCATTERED.items() if each == title]
        return [*texts, _ratio(measurement), recorded(measurement)]

    columns = []
    for title, scale in scales.items():
        columns += [Column(title, scale.name), *[Column(SCATTER)] * (title in SCATTERED)]
    columns += [Column("miss/hit"), Column("samples")]
    table = lay_out(columns, measured, cells, EXPENDABLE, view)
    return Document((table, *proved(everything)), LEGEND, MEANINGS, BRIEF)


def lay_out(
    columns: Sequence[Column],
    measured: Mapping[str, Sequence[Measurement]],
    cells: Callable[[Measurement], Sequence[str]],
    expendable: tuple[str, ...],
    view: View,
) -> Table:
    """Lay out a line for each measurement, the dearest of a test first; of the cheapest say how many."""
    regions = {
        f"{test} ({contains})": [each for each in of_test if each.contains is contains]
        for test, of_test in measured.items()
        for contains in dict.fromkeys(each.contains for each in of_test)
    }
    costed = {title: by_cost(rows) for title, rows in regions.items()}
    has_shares = any(len(rows) > 1 and rows[0].share is not None for rows in costed.values())
    rounds = [Column("rounds")] * view.verbose
    calls = [Column("calls")] * (view.verbose and not has_shares)

    def all_cells(one: CostedRow) -> tuple[str, ...]:
        more = [str(one.row.rounds)] * len(rounds) + [f"{one.row.calls:,}"] * len(calls)
        return (*(one.cells if has_shares else ()), *cells(one.row), *more)

    groups = []
    for title, rows in costed.items():
        kept, left_out = shown(rows, view)
        lines = tuple(line_of(one.row, all_cells(one), view) for one in kept)
        groups.append(Group(title, lines, left_out))
    heads = (*(SHARE_COLUMNS if has_shares else ()), *columns, *rounds, *calls)
    last = title_of([line for group in groups for line in group.lines])
    return Table(
        heads,
        tuple(groups),
        proof_title=last,
        expendable=expendable,
        kept_longest=SHARE,
    )


def line_of(measurement: Measurement, cells: Sequence[str], view: View) -> Line:
    """Lay out a measurement: below its cells notes, in the last column what is wrong with it."""
    notes = measurement.notes + (measurement.remarks if view.verbose else ())
    text, tone = mark(measurement)
    return Line(measurement.label, tuple(cells), text, notes, tone)


def scatter_text(samples: Samples | None) -> str:
    """Write how far samples scatter, in percent; a dash where that is not known."""
    return "-" if samples is None or samples.scatter is None else f"{100 * samples.scatter:,.0f}"


def _ratio(measurement: Measurement) -> str:
    ratio = measurement.miss_over_hit
    return "-" if ratio is None else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def recorded(measurement: Measurement) -> str:
    """Write how many samples there are: misses + hits."""
    misses, hits = measurement.of(State.MISS), measurement.steady
    return f"{len(misses.values) if misses else 0}+{len(hits.values) if hits else 0}"
