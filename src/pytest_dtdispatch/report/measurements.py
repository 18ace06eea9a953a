"""The one table of a run: a line a signature, grouped by test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.report.document import Column, Document, Group, Line, Table, Tone, View
from pytest_dtdispatch.report.scales import column_scale

LEGEND = (
    "Medians. miss: first call after the sharding caches were cleared; hit: a later call; local: the same op "
    "on plain local shards; overhead: hit - local. samples: misses + hits recorded, each of them proved by "
    "the cache counters. More columns and notes with -v."
)
# Columns that go first where the terminal is narrow; cold is not among them, as it was asked for.
EXPENDABLE = ("calls", "rounds", "samples", "local", "miss/hit", "overhead")


@dataclass(frozen=True)
class TimeColumn:
    """A column of times: its title, and how to find its value."""

    title: str
    value_ns: Callable[[Measurement], float | None]


def document(measured: Mapping[str, Sequence[Measurement]], view: View) -> Document:
    """Lay out what was measured."""
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    times = [column for column in _time_columns() if _is_used(column, everything)]
    units = [column_scale(column.value_ns(m) for m in everything) for column in times]

    def cells(measurement: Measurement) -> list[str]:
        texts = [unit.text(column.value_ns(measurement)) for column, unit in zip(times, units, strict=True)]
        return [*texts, _ratio(measurement), _counts(measurement)]

    columns = [Column(column.title, unit.name) for column, unit in zip(times, units, strict=True)]
    columns += [Column("miss/hit"), Column("samples")]
    return Document((lay_out(columns, measured, cells, EXPENDABLE, view),), LEGEND)


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


def _time_columns() -> Sequence[TimeColumn]:
    return (
        TimeColumn("cold", lambda m: m.median_ns(State.COLD)),
        TimeColumn("miss", lambda m: m.median_ns(State.MISS)),
        TimeColumn("hit", lambda m: m.steady_ns),
        TimeColumn("local", lambda m: m.median_ns(State.LOCAL)),
        TimeColumn("overhead", lambda m: m.overhead_ns),
    )


def _is_used(column: TimeColumn, measurements: Sequence[Measurement]) -> bool:
    return column.title != "cold" or any(column.value_ns(m) is not None for m in measurements)


def _ratio(measurement: Measurement) -> str:
    ratio = measurement.miss_over_hit
    return "-" if ratio is None else f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def _counts(measurement: Measurement) -> str:
    misses, hits = measurement.of(State.MISS), measurement.of(State.HIT) or measurement.of(State.CALL)
    return f"{len(misses.ns) if misses else 0}+{len(hits.ns) if hits else 0}"
