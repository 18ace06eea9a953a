"""Columns of times, each in the unit that suits it, and the one table of a run: a line a signature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import NOISY, Measurement, Samples, State
from pytest_dtdispatch.report.document import Column, Document, Group, Line, Table, View
from pytest_dtdispatch.report.marks import mark, proved, title_of

LEGEND = "Quietest blocks: of seven blocks of neighbouring samples the lowest median."
SCATTER = "+-%"
MEANINGS = {
    "cold": "a miss after every other cache was cleared too",
    "miss": "first call after the sharding caches were cleared",
    "hit": "a later call",
    "local": "that op on plain local shards",
    "overhead": "hit - local, what DTensor adds to the op on plain local shards",
    SCATTER: "how far the median may lie above the figure, with 95%, or the figure above the least sample, "
    f"noisy past {NOISY:.0%}",
    "samples": "misses + hits recorded",
}
# Columns that go first where the terminal is narrow; cold is not among them, as it was asked for.
EXPENDABLE = ("calls", "rounds", "samples", "local", "miss/hit", "overhead")
UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
MAX_DECIMALS = 3
MIN_NS = 1e-3  # no clock ticks that fast: such a time is a rounding error, and chooses no digits
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


@dataclass(frozen=True)
class Scale:
    """A unit of time.

    Args:
        name: ``ns``, ``us``, ``ms`` or ``s``.
        ns: how many nanoseconds it has.
        decimals: digits after the point that a column in it shows.
    """

    name: str
    ns: float
    decimals: int

    def text(self, ns: float | None) -> str:
        """Write a time given in nanoseconds; a dash where there is none."""
        return "-" if ns is None else f"{ns / self.ns:,.{self.decimals}f}"


# One unit and as many digits in every run: two runs are read side by side.
MILLISECONDS, MICROSECONDS = Scale("ms", 1e6, 3), Scale("us", 1e3, 2)
SCALES = {title: MILLISECONDS if title in ("cold", "miss") else MICROSECONDS for title in TIMES}


def column_scale(values_ns: Iterable[float | None]) -> Scale:
    """Choose one unit for a column: its median reads as 1 to 999, its smallest value has three digits."""
    sizes = sorted(size for value in values_ns if (size := abs(value or 0)) >= MIN_NS)
    if not sizes:
        return Scale("us", 1e3, 1)
    typical = sizes[len(sizes) // 2]
    name, ns = next(((name, ns) for name, ns in UNITS if typical >= ns), UNITS[-1])
    leading = math.floor(math.log10(sizes[0] / ns))
    return Scale(name, ns, min(max(2 - leading, 0), MAX_DECIMALS))


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
    return Document((table, *proved(everything)), LEGEND, MEANINGS)


def lay_out(
    columns: Sequence[Column],
    measured: Mapping[str, Sequence[Measurement]],
    cells: Callable[[Measurement], Sequence[str]],
    expendable: tuple[str, ...],
    view: View,
) -> Table:
    """Lay out a line for each measurement, grouped by test and by where its figures start."""

    def line(measurement: Measurement) -> Line:
        more = (str(measurement.rounds), str(measurement.calls)) if view.verbose else ()
        notes = measurement.notes + (measurement.remarks if view.verbose else ())
        text, tone = mark(measurement)
        return Line(measurement.label, (*cells(measurement), *more), text, notes, tone)

    groups = [
        Group(f"{test} ({contains})", tuple(line(each) for each in of_test if each.contains is contains))
        for test, of_test in measured.items()
        for contains in dict.fromkeys(each.contains for each in of_test)
    ]
    extra = (Column("rounds"), Column("calls")) if view.verbose else ()
    last = title_of([line for group in groups for line in group.lines])
    return Table((*columns, *extra), tuple(groups), proof_title=last, expendable=expendable)


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
