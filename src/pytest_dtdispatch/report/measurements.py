"""The one table of a run: a line a signature, grouped by test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtdispatch.core.measurement import Measurement, State
from pytest_dtdispatch.report.units import column_unit

# Columns that go first where the terminal is narrow; cold is not among them, as it was asked for.
EXPENDABLE = ("calls", "rounds", "samples", "local", "miss/hit", "overhead")


@dataclass(frozen=True)
class Line:
    """One signature, or one step, as texts in the order of the table's titles.

    Args:
        label: the signature, or the name of the step.
        cells: one text a column.
        proof: what the counters proved, or the state of the step.
        notes: what is written below the line.
        is_proved: whether every sample was in the state it was taken for; whether the step is steady.
    """

    label: str
    cells: tuple[str, ...]
    proof: str
    notes: tuple[str, ...]
    is_proved: bool


@dataclass(frozen=True)
class Group:
    """The lines of one test.

    Args:
        title: the test, and where its figures start.
        lines: one for each signature.
    """

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """Column titles and groups of lines, every time in a column in one unit.

    Args:
        titles: of the columns of numbers, unit included.
        groups: one for each test.
        label_title: of the first column.
        proof_title: of the last column.
        expendable: columns that may be left out, the first of them first.
    """

    titles: tuple[str, ...]
    groups: tuple[Group, ...]
    label_title: str = "signature"
    proof_title: str = "proof"
    expendable: tuple[str, ...] = EXPENDABLE


@dataclass(frozen=True)
class TimeColumn:
    """A column of times: its title, and how to find its value."""

    title: str
    value_ns: Callable[[Measurement], float | None]


def build_table(measured: Mapping[str, Sequence[Measurement]], verbose: bool = False) -> Table:
    """Lay out what was measured."""
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    columns = [column for column in _time_columns() if _is_used(column, everything)]
    units = [column_unit(column.value_ns(m) for m in everything) for column in columns]
    titles = [f"{column.title} {unit.name}" for column, unit in zip(columns, units, strict=True)]

    def cells(measurement: Measurement) -> list[str]:
        times = [unit.text(column.value_ns(measurement)) for column, unit in zip(columns, units, strict=True)]
        return [*times, _ratio(measurement), _counts(measurement)]

    return lay_out([*titles, "miss/hit", "samples"], measured, cells, EXPENDABLE, verbose)


def lay_out(
    titles: Sequence[str],
    measured: Mapping[str, Sequence[Measurement]],
    cells: Callable[[Measurement], Sequence[str]],
    expendable: tuple[str, ...],
    verbose: bool,
) -> Table:
    """Lay out a line for each measurement, grouped by test and by where its figures start."""

    def line(measurement: Measurement) -> Line:
        more = (str(measurement.rounds), str(measurement.calls)) if verbose else ()
        notes = measurement.notes + (measurement.remarks if verbose else ())
        is_proved = measurement.proof in ("proved", "unpropagated")
        return Line(measurement.label, (*cells(measurement), *more), measurement.proof, notes, is_proved)

    groups = [
        Group(f"{test} ({contains})", tuple(line(each) for each in of_test if each.contains is contains))
        for test, of_test in measured.items()
        for contains in dict.fromkeys(each.contains for each in of_test)
    ]
    extra = ("rounds", "calls") if verbose else ()
    return Table((*titles, *extra), tuple(groups), expendable=expendable)


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
