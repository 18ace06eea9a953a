"""The one table of a run on many ranks: what ranks have in the middle, and which is the slowest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_dtdispatch.records.measurement import Measurement, Samples, State
from pytest_dtdispatch.records.over_ranks import RankSamples
from pytest_dtdispatch.reporting.table import Group, Line, Table
from pytest_dtdispatch.reporting.units import column_unit

EXPENDABLE = ("calls", "rounds", "samples", "local", "overhead", "spread", "slowest")
LEGEND = (
    "Of each rank the median of its samples. miss, hit, cold, local: the median of these over ranks; "
    "slowest: the greatest of them, and its rank; spread: how much slower that rank is than the fastest, "
    "against the median over ranks; overhead: hit - local. samples: misses + hits recorded on all ranks, "
    "each of them proved by the cache counters. More columns and notes with -v."
)


def build_ranks_table(measured: Mapping[str, Sequence[Measurement]], verbose: bool = False) -> Table:
    """Lay out what was measured on many ranks.

    Args:
        measured: merged measurements by test.
        verbose: also show calls and rounds, and why there is no local row.
    """
    everything = [measurement for of_test in measured.values() for measurement in of_test]
    states = [state for state in ("cold", "miss", "hit") if state != "cold" or _has_cold(everything)]
    titles: list[str] = []
    columns: list[_StateColumns] = []
    for state in states:
        column = _StateColumns(state, everything)
        titles += column.titles
        columns.append(column)
    local = column_unit(_middle_ns(of_state(m, "local")) for m in everything)
    overhead = column_unit(_overhead_ns(m) for m in everything)
    titles += [f"local {local.name}", f"overhead {overhead.name}", "samples"]
    titles += ["rounds", "calls"] if verbose else []

    def line(measurement: Measurement) -> Line:
        cells = [cell for column in columns for cell in column.cells(measurement)]
        cells += [
            local.text(_middle_ns(of_state(measurement, "local"))),
            overhead.text(_overhead_ns(measurement)),
        ]
        cells.append(f"{_count(measurement, 'miss')}+{_count(measurement, 'hit')}")
        cells += [str(measurement.rounds), str(measurement.calls)] if verbose else []
        notes = measurement.notes + (measurement.remarks if verbose else ())
        is_proved = measurement.proof in ("proved", "unpropagated")
        return Line(measurement.label, tuple(cells), measurement.proof, notes, is_proved)

    groups = []
    for test, of_test in measured.items():
        for contains in dict.fromkeys(measurement.contains for measurement in of_test):
            lines = tuple(line(measurement) for measurement in of_test if measurement.contains is contains)
            groups.append(Group(f"{test} ({contains})", lines))
    return Table(tuple(titles), tuple(groups), expendable=EXPENDABLE)


def of_state(measurement: Measurement, state: str) -> Samples | None:
    """Samples of a state; a hit is any call in the steady state."""
    if state == "hit":
        return measurement.of(State.HIT) or measurement.of(State.CALL)
    return measurement.of(State(state))


class _StateColumns:
    """The columns of one state: over ranks, the slowest, the spread."""

    def __init__(self, state: str, measurements: Sequence[Measurement]) -> None:
        self._state = state
        self._unit = column_unit(_middle_ns(of_state(m, state)) for m in measurements)
        self.titles = (f"{state} {self._unit.name}", "slowest", "spread")

    def cells(self, measurement: Measurement) -> tuple[str, str, str]:
        samples = of_state(measurement, self._state)
        middle = self._unit.text(_middle_ns(samples))
        if not isinstance(samples, RankSamples):
            return middle, "-", "-"
        rank, ns = samples.slowest
        return middle, f"{self._unit.text(ns)} r{rank}", f"{samples.spread:.0%}"


def _middle_ns(samples: Samples | None) -> float | None:
    if isinstance(samples, RankSamples):
        return samples.middle_ns
    return samples.median_ns if samples else None


def _overhead_ns(measurement: Measurement) -> float | None:
    steady, local = (_middle_ns(of_state(measurement, state)) for state in ("hit", "local"))
    return steady - local if steady is not None and local is not None else None


def _count(measurement: Measurement, state: str) -> int:
    samples = of_state(measurement, state)
    if isinstance(samples, RankSamples):
        return sum(len(ns) for _, ns in samples.by_rank)
    return len(samples.ns) if samples else 0


def _has_cold(measurements: Sequence[Measurement]) -> bool:
    return any(of_state(measurement, "cold") for measurement in measurements)
