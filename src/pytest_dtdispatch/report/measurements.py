"""Columns of times, each in the unit that suits it, and the one table of a run: a line a signature."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.report.document import Column, Document, Group, Line, Table, Tone, View

LEGEND = "Medians."
MEANINGS = {
    "cold": "a miss after every other cache was cleared too",
    "miss": "first call after the sharding caches were cleared",
    "hit": "a later call",
    "local": "that op on plain local shards",
    "overhead": "hit - local, what DTensor adds to the op on plain local shards",
    "samples": "misses + hits recorded, each of them proved by the cache counters",
}
# Columns that go first where the terminal is narrow; cold is not among them, as it was asked for.
EXPENDABLE = ("calls", "rounds", "samples", "local", "miss/hit", "overhead")
UNITS = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
MAX_DECIMALS = 3
MIN_NS = 1e-3  # no clock ticks that fast: such a time is a rounding error, and chooses no digits
TIMES: dict[str, Callable[[Measurement], float | None]] = {
    "cold": lambda measurement: measurement.median_ns(State.COLD),
    "miss": lambda measurement: measurement.median_ns(State.MISS),
    "hit": lambda measurement: measurement.steady_ns,
    "local": lambda measurement: measurement.median_ns(State.LOCAL),
    "overhead": lambda measurement: measurement.overhead_ns,
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
        texts = [scale.text(times[title](measurement)) for title, scale in scales.items()]
        return [*texts, _ratio(measurement), recorded(measurement)]

    columns = [*(Column(title, scale.name) for title, scale in scales.items()), Column("miss/hit")]
    table = lay_out([*columns, Column("samples")], measured, cells, EXPENDABLE, view)
    return Document((table,), LEGEND, MEANINGS)


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
        proof = measurement.proof
        return Line(measurement.label, (*cells(measurement), *more), proof, notes, proof_tone(proof))

    groups = [
        Group(f"{test} ({contains})", tuple(line(each) for each in of_test if each.contains is contains))
        for test, of_test in measured.items()
        for contains in dict.fromkeys(each.contains for each in of_test)
    ]
    extra = (Column("rounds"), Column("calls")) if view.verbose else ()
    return Table((*columns, *extra), tuple(groups), expendable=expendable)


def proof_tone(proof: str) -> Tone:
    """Tell what was proved, or only counted, from what was refused."""
    if proof in ("proved", "unpropagated", "counted"):
        return Tone.GOOD
    return Tone.NOTICE if proof == "not measured" else Tone.BAD


def _ratio(measurement: Measurement) -> str:
    ratio = measurement.miss_over_hit
    return "-" if ratio is None else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def recorded(measurement: Measurement) -> str:
    """Write how many samples there are: misses + hits."""
    misses, hits = measurement.of(State.MISS), measurement.steady
    return f"{len(misses.values) if misses else 0}+{len(hits.values) if hits else 0}"
